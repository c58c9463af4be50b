"""Work is kept: scenarios 13, 35 and 39, and what a second tune of the same finds."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch

import aitune.torch as ait
from aitune.exceptions import BackendBuildError
from aitune.torch.backend import ONNXRuntimeBackend, OpenVINOBackend
from aitune.torch.trial import Verdict

pytest.importorskip("onnxruntime")


@pytest.fixture(autouse=True)
def reuse(monkeypatch, isolation):
    monkeypatch.setattr(ait.config, "reuse_store", True)


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))

    def forward(self, x):
        return self.layers(x)


def model(seed=0):
    torch.manual_seed(seed)
    return Mlp().eval()


def always(*backends):
    strategy = ait.FirstWinsStrategy(backends=list(backends) or [ONNXRuntimeBackend()])
    return strategy.enable_performance_validation(False).enable_find_max_batch_size(False)


def tune(module, strategy=None, **options):
    wrapped = ait.Module(module, "model", strategy or always())
    samples = [torch.randn(16, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    return wrapped, ait.tune(wrapped, samples, **options)


def graph_of(result):
    (module,) = result.modules.values()
    (graph,) = module.graphs
    return graph


def test_a_second_tune_takes_what_the_first_chose():
    _, first = tune(model())
    wrapped, second = tune(model())
    assert not graph_of(first).recalled
    assert graph_of(second).recalled
    assert graph_of(second).chosen == graph_of(first).chosen == "ONNXRuntimeBackend()"
    assert second.end_to_end is None, "the whole was timed then"
    x = torch.randn(2, 16)
    torch.testing.assert_close(wrapped(x), model()(x), rtol=1e-4, atol=1e-5)
    assert ait.handle(wrapped).stats.engine_calls == {"ONNXRuntimeBackend()": 1}
    assert "earlier tune" in str(second)


@pytest.mark.parametrize("other", ["weights", "strategy", "cleared"])
def test_what_is_not_the_same_is_tuned_anew(other):
    tune(model())
    strategy = ait.MaxThroughputStrategy(backends=[ONNXRuntimeBackend()]).enable_performance_validation(False)
    changed = {"weights": (model(1), always()), "strategy": (model(), strategy), "cleared": (model(), always())}
    module, strategy = changed[other]
    _, result = tune(module, strategy, clear_cache=other == "cleared")
    assert not graph_of(result).recalled


def test_another_list_of_candidates_reuses_the_engine_and_measures_it_again():
    pytest.importorskip("openvino")
    tune(model())
    _, result = tune(model(), always(ONNXRuntimeBackend(), OpenVINOBackend()))
    (trial,) = graph_of(result).trials
    assert not graph_of(result).recalled
    assert trial.accepted
    assert any("earlier tune" in note for note in trial.evidence)


def test_an_engine_that_was_damaged_is_built_again(cache_dir):
    tune(model())
    (file,) = (cache_dir / "store").rglob("*.onnx")
    file.write_bytes(file.read_bytes()[:-100])
    wrapped, result = tune(model())
    assert graph_of(result).chosen == "ONNXRuntimeBackend()"
    assert not graph_of(result).recalled
    x = torch.randn(2, 16)
    torch.testing.assert_close(wrapped(x), model()(x), rtol=1e-4, atol=1e-5)


def test_the_original_stays_chosen_without_another_try(monkeypatch):
    strategy = ait.FirstWinsStrategy(backends=[ONNXRuntimeBackend()], min_speedup_ratio=1e6)
    _, first = tune(model(), strategy.enable_find_max_batch_size(False))
    assert graph_of(first).chosen == "original"
    _, second = tune(model(), strategy)
    assert graph_of(second).recalled
    assert graph_of(second).chosen == "original"
    assert graph_of(second).trials[0].verdict is Verdict.slower


class Hindered(ONNXRuntimeBackend):
    """Finds no room on a disk while a variable of the environment says so."""

    def build(self, job):
        if os.environ.get("HINDERED") == "full disk":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if os.environ.get("HINDERED") == "a compiler's message":
            raise BackendBuildError(self.name, "cc1plus: error writing to /tmp/x.s: No space left on device")
        return super().build(job)


@pytest.mark.parametrize(
    ("how", "isolation"),
    [
        ("full disk", "process"),
        pytest.param("full disk", "none", marks=pytest.mark.slow),
        ("a compiler's message", "none"),
        pytest.param("a compiler's message", "process", marks=pytest.mark.slow),
    ],
)
def test_a_candidate_that_the_machine_hindered_is_tried_again(how, isolation, monkeypatch):
    monkeypatch.setattr(ait.config, "isolation", isolation)
    strategy = ait.MaxThroughputStrategy(backends=[Hindered(), ONNXRuntimeBackend()])
    strategy.enable_performance_validation(False).enable_find_max_batch_size(False)
    monkeypatch.setenv("HINDERED", how)
    _, first = tune(model(), strategy)
    assert [trial.verdict for trial in graph_of(first).trials] == [Verdict.build_failed, Verdict.accepted]
    monkeypatch.delenv("HINDERED")
    _, second = tune(model(), strategy)
    assert not graph_of(second).recalled, "a choice without it would have been taken for good"
    again, other = graph_of(second).trials
    assert again.verdict is Verdict.accepted
    assert any("earlier tune" in note for note in other.evidence), "what was finished is not done again"
    _, third = tune(model(), strategy)
    assert graph_of(third).recalled


SCRIPT = textwrap.dedent(
    """
    import json, os, sys, time, torch
    import aitune.torch as ait
    from aitune.torch.backend import Backend, ONNXRuntimeBackend, OpenVINOBackend

    class Mlp(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))

        def forward(self, x):
            return self.layers(x)

    class Endless(ONNXRuntimeBackend):
        def build(self, job):
            print("endless", file=sys.stderr)
            open(os.environ["ENDLESS"], "w").close()
            while os.environ.get("HANG"):
                time.sleep(0.1)
            return super().build(job)

    def main(backends):
        torch.manual_seed(0)
        model = Mlp().eval()
        strategy = ait.MaxThroughputStrategy(backends=backends).enable_performance_validation(False)
        wrapped = ait.Module(model, "model", strategy.enable_find_max_batch_size(False))
        samples = [torch.randn(16, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
        result = ait.tune(wrapped, samples)
        x = torch.randn(2, 16)
        (graph,) = result.modules["model"].graphs
        print(json.dumps({
            "chosen": graph.chosen, "recalled": graph.recalled,
            "trials": [[trial.backend, str(trial.verdict), list(trial.evidence)] for trial in graph.trials],
            "right": bool(torch.allclose(wrapped(x), model.layers(x), rtol=1e-4, atol=1e-5)),
        }))
    """
)


def script(tmp_path, cache_dir, last, **more):
    file = tmp_path / "script.py"
    file.write_text(SCRIPT + last)
    environment = {**os.environ, "AITUNE_CACHE_DIR": str(cache_dir), "ENDLESS": str(tmp_path / "endless"), **more}
    return subprocess.Popen(
        [sys.executable, str(file)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def answer(process):
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


def test_scenario_13_a_tune_that_was_killed_goes_on_from_its_finished_trials(tmp_path, cache_dir):
    last = "main([ONNXRuntimeBackend(), Endless()])"
    killed = script(tmp_path, cache_dir, last, HANG="1")
    end = time.monotonic() + 200
    while not (tmp_path / "endless").exists():
        assert time.monotonic() < end
        assert killed.poll() is None, killed.communicate()
        time.sleep(0.1)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    found = answer(script(tmp_path, cache_dir, last))
    assert found["right"]
    assert not found["recalled"]
    (first, second) = found["trials"]
    assert first[1] == "accepted"
    assert any("earlier tune" in note for note in first[2]), "the finished one was not built again"
    assert second[1] == "accepted"


def test_scenarios_35_and_39_two_processes_at_once_and_a_third_that_starts_from_their_work(tmp_path, cache_dir):
    both = [script(tmp_path, cache_dir, "main([ONNXRuntimeBackend()])") for _ in range(2)]
    for found in [answer(process) for process in both]:
        assert found["right"]
        assert found["chosen"] == "ONNXRuntimeBackend()"
    third = answer(script(tmp_path, cache_dir, "main([ONNXRuntimeBackend()])"))
    assert third["recalled"]
    assert third["right"]
