"""The page of the GPU benchmark says what its rows say; the rows themselves are made where there is a device."""

import json

import pytest

from benchmarks.gpu.report import behind, write
from benchmarks.gpu.suites import ALONE, SUITES

HERE = {"date": "2026-12-01T00:00:00+00:00", "device": "NVIDIA H200", "versions": {"torch": "2.11.0"}}


def figures(speedup, low, high, ms=1.0):
    return {"speedup": speedup, "low": low, "high": high, "ms": ms, "other_ms": ms * speedup}


@pytest.mark.parametrize(
    ("ratio", "wanted"),
    [
        (figures(1.2, 1.1, 1.3), "no"),
        (figures(0.98, 0.9, 1.1), "no"),
        (figures(0.97, 0.95, 0.99), "no"),  # not to be told from 2 %, and narrow
        (figures(0.97, 0.90, 1.05), "open"),
        (figures(0.95, 0.94, 0.96), "yes"),
    ],
)
def test_a_choice_is_behind_only_where_that_is_sure(ratio, wanted):
    assert behind(ratio) == wanted


def trial(verdict="accepted", reason=""):
    seen = {"speedup": 2.0, "low": 1.9, "high": 2.1, "latency_ms": 0.5, "error": 1e-4, "build_seconds": 3.0}
    return {"backend": "TorchEagerBackend(use_cuda_graphs=True)", "verdict": verdict, "reason": reason, **seen}


def test_the_page_has_every_kind_of_row(tmp_path):
    sizes = {"peak_mb": 10, "weights_mb": 5, "seconds": 7.0}
    lines = {"torch.cuda.CUDAGraph": {"error": 0.0, **figures(2.0, 1.9, 2.1)}, "TensorRT": {"failure": "no | kernels"}}
    rows = [
        {"model": "resnet", "subject": "eager-graphs", "trials": [trial()], "chosen": "x", **sizes, **HERE},
        {"model": "resnet", "subject": "tensorrt", "trials": [trial("wrong", "an error | of 0.4")], **sizes, **HERE},
        {"model": "resnet", "subject": "inductor-aot", "trials": [], "failure": "it ended with -11", **HERE},
        {
            "model": "resnet",
            "subject": "MaxThroughputStrategy",
            "trials": [trial()],
            "chosen": "x",
            **sizes,
            "lines": lines,
            "ahead": {"torch.cuda.CUDAGraph": figures(1.1, 1.05, 1.2)},
            **figures(2.2, 2.1, 2.3),
            **HERE,
        },
        {
            "model": "resnet",
            "subject": "second-start:tensorrt",
            "recalled": True,
            "tune_seconds": 1.0,
            "more_seconds": {"median": 1.2, "low": 1.0, "high": 1.5},
            "goal": 2.0,
            "eager_seconds": [5.0, 6.0, 7.0],
            "tuned_seconds": [6.0, 7.0, 9.0],
            **HERE,
        },
        {"model": "tests", "subject": "test_tune.py", "outcome": "6 passed, 1 skipped", "rc": 0},
    ]
    file = tmp_path / "gpu.json"
    file.write_text(json.dumps(rows))
    page = write(file).read_text()
    for text in (
        "| resnet | eager-graphs | 2.00 |",
        "| resnet | tensorrt | wrong | an error / of 0.4 |",
        "| resnet | inductor-aot | failed | it ended with -11 |",
        "| torch.cuda.CUDAGraph | 2.00 [1.90, 2.10] | 1.10 [1.05, 1.20] | no | 7 |",
        "of the best lines by hand 2.00 on the 1 models of the reference set, of the choices 2.20, 1.10 of it",
        "- resnet, TensorRT: no / kernels",
        "| resnet | tensorrt | 6.00 | 7.00 | 1.20 (1.00 to 1.50) | 1.00 | yes |",
        "| test_tune.py | 6 passed, 1 skipped |",
    ):
        assert text in page


def test_every_part_of_the_gpu_tests_is_among_those_that_are_run():
    assert {name.partition("::")[0] for name in SUITES} >= {"test_contracts.py", "test_tensorrt.py", "test_memory.py"}
    assert {name.partition("::")[0] for name in ALONE} == {"test_containment.py", "test_memory.py"}
