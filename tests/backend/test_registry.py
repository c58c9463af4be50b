"""Which backends there are, plugins among them, and why one cannot be used here."""

import importlib.metadata
import logging
import pickle
import subprocess
import sys

import pytest
import torch

from aitune.exceptions import AITuneUserInputError, BackendNotInstalledError, BackendUnsupportedError
from aitune.torch.backend import (
    Backend,
    ONNXRuntimeBackend,
    ONNXRuntimeBackendConfig,
    OpenVINOBackend,
    TensorRTBackend,
    TorchAOBackend,
    TorchAOBackendConfig,
    TorchEagerBackend,
    TorchEagerBackendConfig,
    TorchInductorAotBackend,
    TorchInductorAotBackendConfig,
    TorchTensorRTAotBackend,
    TorchTensorRTJitBackend,
)
from aitune.torch.backend.registry import (
    available_backends,
    backend_by_name,
    default_backends,
    missing_requirement,
    stands_in,
    superfluous,
)
from aitune.torch.trial import Trial, Verdict


class OtherBackend(Backend):
    def build(self, job):
        raise NotImplementedError


@pytest.fixture
def plugins(monkeypatch):
    """Pretend that plugins are installed: ``plugins(name=target)``."""

    def install(**targets):
        points = [importlib.metadata.EntryPoint(n, target, "aitune.backends") for n, target in targets.items()]
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: points)

    return install


def test_names_find_classes():
    assert backend_by_name("ONNXRuntimeBackend") is ONNXRuntimeBackend
    assert list(available_backends()) == sorted(available_backends())
    assert all(name == backend.__name__ for name, backend in available_backends().items())


def test_an_unknown_name_lists_what_there_is():
    with pytest.raises(AITuneUserInputError, match=r"no backend 'TVMBackend'.*ONNXRuntimeBackend, OpenVINOBackend"):
        backend_by_name("TVMBackend")


def test_a_plugin_is_found_by_its_entry_point(plugins, monkeypatch):
    monkeypatch.setitem(sys.modules, "a_plugin", sys.modules[__name__])
    plugins(OtherBackend="a_plugin:OtherBackend")

    assert backend_by_name("OtherBackend") is OtherBackend
    assert available_backends()["OtherBackend"] is OtherBackend


def test_a_broken_plugin_is_a_line_in_the_log(plugins, caplog):
    plugins(Gone="no_such_module:X", NoBackend="json:dumps", TensorRTBackend="aitune.torch.backend:OpenVINOBackend")

    with caplog.at_level(logging.WARNING):
        found = available_backends()

    assert found["TensorRTBackend"] is TensorRTBackend
    assert not {"Gone", "NoBackend"} & set(found)
    assert len(caplog.records) == 3
    assert "no_such_module" in caplog.text


def test_a_missing_library_is_known_without_importing_anything(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    missing = missing_requirement(ONNXRuntimeBackend())

    assert isinstance(missing, BackendNotInstalledError)
    assert missing.reason == "onnxruntime is not installed: pip install 'aitune[onnx]'"
    assert pickle.loads(pickle.dumps(missing)).extra == "onnx"
    assert missing_requirement(TorchEagerBackend()) is None


def test_either_library_of_tensorrt_will_do(monkeypatch):
    for name in ("tensorrt", "tensorrt_rtx"):
        monkeypatch.setitem(sys.modules, name, None)
    assert missing_requirement(TensorRTBackend()).library == "tensorrt"

    monkeypatch.setitem(sys.modules, "tensorrt_rtx", sys)
    assert missing_requirement(TensorRTBackend()) is None


def test_a_build_without_the_library_says_what_to_install(monkeypatch, linear_job):
    monkeypatch.setitem(sys.modules, "openvino", None)

    with pytest.raises(BackendNotInstalledError, match=r"pip install 'aitune\[openvino\]'"):
        OpenVINOBackend().build(linear_job)


@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        (TensorRTBackend(), "needs cuda, the module is on cpu"),
        (TorchTensorRTJitBackend(), "needs cuda, the module is on cpu"),
        (TorchTensorRTAotBackend(), "needs cuda, the module is on cpu"),
        (TorchAOBackend(), "no quantization chosen"),
        (TorchAOBackend(TorchAOBackendConfig(quantization="fp8wo")), "fp8wo needs cuda"),
        (TorchEagerBackend(TorchEagerBackendConfig(use_cuda_graphs=True)), "use_cuda_graphs needs cuda"),
        (TorchInductorAotBackend(TorchInductorAotBackendConfig(use_cuda_graphs=True)), "use_cuda_graphs needs cuda"),
        (ONNXRuntimeBackend(ONNXRuntimeBackendConfig("CUDA")), "CUDAExecutionProvider needs cuda"),
    ],
    ids=str,
)
def test_what_does_not_suit_the_device_is_known_before_building(backend, reason, linear_job):
    assert reason in backend.unsuitable(linear_job)
    with pytest.raises(BackendUnsupportedError, match=reason):
        backend.build(linear_job)


def test_who_tries_all_on_a_cpu_gets_the_quickest_to_build_first_and_torch_compile_frozen():
    cpu = default_backends("MaxThroughputStrategy", torch.device("cpu"))

    assert [backend.describe() for backend in cpu[:5]] == [
        "TorchEagerBackend(channels_last=True)",
        "ONNXRuntimeBackend()",
        "OpenVINOBackend()",
        "TorchInductorAotBackend()",
        "TorchInductorJitBackend(freezing=True)",
    ]
    assert cpu == default_backends("MinLatencyStrategy", torch.device("cpu"))


def test_who_takes_the_first_on_a_cpu_gets_the_documented_order():
    first = default_backends("FirstWinsStrategy", torch.device("cpu"))

    assert [backend.describe() for backend in first[:4]] == [
        "ONNXRuntimeBackend()",
        "OpenVINOBackend()",
        "TorchInductorAotBackend()",
        "TorchInductorJitBackend()",
    ]


def test_default_candidates_of_other_devices_follow_with_their_reason():
    cpu = default_backends("MaxThroughputStrategy", torch.device("cpu"))
    cuda = default_backends("MaxThroughputStrategy", torch.device("cuda"))

    assert [b.name for b in cpu[5:]] == ["TensorRTBackend", "TorchTensorRTAotBackend", "TorchTensorRTJitBackend"]
    first_on_cuda = default_backends("FirstWinsStrategy", torch.device("cuda"))
    graphs = TorchEagerBackend(TorchEagerBackendConfig(use_cuda_graphs=True))
    assert cuda[0] == graphs
    assert [b.name for b in first_on_cuda[:4]] == [
        "TensorRTBackend",
        "TensorRTBackend",
        "TorchInductorJitBackend",
        "TorchEagerBackend",
    ]
    assert [b.config.use_dynamo for b in first_on_cuda[:2]] == [True, False]
    assert graphs in first_on_cuda
    assert "OpenVINOBackend" in {b.name for b in cuda}


@pytest.mark.parametrize("strategy", ["MaxThroughputStrategy", "FirstWinsStrategy"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_fewer_bits_are_tried_last_and_only_where_they_are_allowed(strategy, device):
    exact = default_backends(strategy, torch.device(device))
    coarse = default_backends(strategy, torch.device(device), lower_precision=True)

    assert not any(isinstance(b, TorchAOBackend) for b in exact)
    assert coarse == (*exact, TorchAOBackend(TorchAOBackendConfig("int8dq")))


def test_importing_the_backends_imports_no_library():
    code = (
        "import sys, torch; before = set(sys.modules); import aitune.torch.backend, aitune.torch.backend.registry;"
        "names = {m.partition('.')[0] for m in set(sys.modules) - before};"
        "heavy = names & {'onnx', 'onnxruntime', 'onnxscript', 'openvino', 'torchao', 'transformers', 'tensorrt'};"
        "heavy |= {m for m in ('torch._dynamo', 'torch._inductor', 'torch.onnx') if m in set(sys.modules) - before};"
        "print(sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_torch_compile_is_tried_where_the_same_code_could_not_be_exported_or_is_not_far_behind():
    cpu = default_backends("MaxThroughputStrategy", torch.device("cpu"))
    (frozen,) = [backend for backend in cpu if stands_in(backend)]
    failed = Trial(backend="TorchInductorAotBackend()", verdict=Verdict.unsupported)
    measured = Trial(backend="TorchInductorAotBackend()", verdict=Verdict.slower, speedup=0.9)

    best = Trial(backend="OpenVINOBackend()", verdict=Verdict.accepted, speedup=1.2)
    refused = Trial(backend="ONNXRuntimeBackend()", verdict=Verdict.wrong, speedup=9.0)

    assert superfluous(frozen, [failed]) is None
    assert superfluous(frozen, [measured, refused]) is None
    assert "is far behind the best so far (0.90 to 1.20)" in (superfluous(frozen, [measured, best]) or "")
    assert superfluous(cpu[1], [measured, best]) is None
