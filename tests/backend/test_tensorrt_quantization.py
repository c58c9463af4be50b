"""Fewer bits for TensorRT as far as it goes without a GPU: the ONNX files, run by ONNX Runtime on the processor."""

import copy
import sys

import pytest
import torch
from torch import nn

from aitune.exceptions import AITuneUserInputError, BackendBuildError, BackendUnsupportedError
from aitune.torch.backend import (
    ONNXAutoCastConfig,
    ONNXQuantizationConfig,
    TensorRTBackend,
    TensorRTBackendConfig,
    TorchQuantizationConfig,
)
from aitune.torch.backend.tensorrt.modelopt import patches_undone
from aitune.torch.backend.tensorrt.quantize import Source, quantized_file, quantized_twin
from aitune.torch.export.flat import OutputRoutes, flat_call
from aitune.torch.worker.quiet import process_state_kept

pytest.importorskip("modelopt")
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


class Net(nn.Module):
    """A convolution and two layers, large enough for ModelOpt to take them."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 32, 3, padding=1)
        self.first = nn.Linear(32, 64)
        self.second = nn.Linear(64, 32)

    def forward(self, x, shift):
        pooled = torch.relu(self.conv(x)).mean((2, 3)) + shift
        return {"hidden": pooled, "y": self.second(torch.relu(self.first(pooled)))}


@pytest.fixture(scope="module")
def job(job_of):
    """Batches of 1 to 4; the samples are of two sizes."""
    torch.manual_seed(7)

    def call(batch):
        return batch, (torch.randn(batch, 3, 16, 16), torch.randn(32)), {}

    return job_of(Net().eval(), call(1), call(4))


@pytest.fixture
def export(tmp_path):
    """Export as a build does, what libraries say going into a log: ``export(job, config, **options)``."""

    def run(job, config, **options):
        backend = TensorRTBackend(TensorRTBackendConfig(quantization_config=config, **options))
        with process_state_kept(tmp_path / "build.log"), torch.no_grad():
            return backend._export(job, tmp_path)

    return run


def operators(path):
    return [node.op_type for node in onnx.load(str(path)).graph.node]


def types(path):
    """The names of the element types that a file holds weights in."""
    return {onnx.TensorProto.DataType.Name(one.data_type) for one in onnx.load(str(path)).graph.initializer}


def worst_error(job, exported):
    """The largest relative error of a file over the samples; outputs are of the module's dtypes."""
    path, file, _ = exported
    options = onnxruntime.SessionOptions()
    # It would fuse 8-bit floats into kernels that it does not have.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    worst = 0.0
    for sample in job.samples:
        tensors = flat_call(job, sample)
        found = session.run(None, {name: tensors[int(name.removeprefix("input"))].numpy() for name in names})
        with torch.no_grad():
            wanted = job.graph.output_tensors(job.module(*sample.args, **sample.kwargs))
        for one, other in zip(file.routes.outputs([torch.from_numpy(a) for a in found], tensors), wanted, strict=True):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            worst = max(worst, float((one - other).norm() / other.norm()))
    return worst


@pytest.mark.parametrize("use_dynamo", [True, False], ids=["exported", "traced"])
@pytest.mark.parametrize("keep_io_types", [True, False], ids=["kept", "cast at the boundary"])
def test_a_file_is_cast_to_16_bits_and_its_inputs_and_outputs_are_not(job, export, keep_io_types, use_dynamo):
    exported = export(job, ONNXAutoCastConfig("fp16", keep_io_types), use_dynamo=use_dynamo)
    assert exported[2] == "float16"
    assert "FLOAT16" in types(exported[0])
    assert 1e-6 < worst_error(job, exported) < 2e-3


def test_a_file_is_cast_to_bfloat16(job, export):
    path, _, precision = export(job, ONNXAutoCastConfig("bf16", keep_io_types=False), use_dynamo=False)
    assert precision == "bfloat16"
    assert "BFLOAT16" in types(path)  # ONNX Runtime has no kernels for it on a processor
    graph = onnx.load(str(path)).graph
    assert {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)} == {onnx.TensorProto.FLOAT}


@pytest.mark.parametrize(("method", "high"), [(None, 0.25), ("max", 0.05)])  # entropy cuts off what is rare
@pytest.mark.parametrize("rest", ["fp32", None])
def test_a_file_is_quantised_to_8_bits(job, export, method, high, rest):
    config = ONNXQuantizationConfig("int8", calibration_method=method, high_precision_dtype=rest)
    exported = export(job, config)
    assert exported[2] == "int8"
    assert operators(exported[0]).count("QuantizeLinear") >= 6  # inputs and weights of all three
    assert "INT8" in types(exported[0])
    assert 1e-4 < worst_error(job, exported) < high


def test_types_of_operators_are_chosen(job, export):
    few = export(job, ONNXQuantizationConfig("int8", op_types_to_quantize=["Conv"]))
    assert operators(few[0]).count("QuantizeLinear") == 2  # the input and the weights of the convolution
    less = export(job, ONNXQuantizationConfig("int8", op_types_to_exclude=["Gemm", "Add"]))
    assert operators(less[0]).count("QuantizeLinear") == 2  # the input and the weights of the convolution


def test_a_file_is_quantised_to_8_bit_floats(job, export):
    exported = export(job, ONNXQuantizationConfig("fp8", high_precision_dtype="fp32"))
    assert exported[2] == "float8"
    assert "FLOAT8E4M3FN" in types(exported[0])
    assert 1e-3 < worst_error(job, exported) < 0.1


@pytest.mark.parametrize("method", ["rtn_dq", "awq_clip", "awq_lite"])
def test_weights_are_quantised_to_4_bits(job, export, method):
    exported = export(job, ONNXQuantizationConfig("int4", calibration_method=method))
    assert exported[2] == "int4"
    assert "INT4" in types(exported[0])
    assert 1e-3 < worst_error(job, exported) < 0.2


def test_4_bits_are_calibrated_on_samples_of_one_size(job_of, export):
    class Rows(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(32, 64)

        def forward(self, x):
            return self.layer(x)

    def call(batch, length):
        return batch, (torch.randn(batch, length, 32),), {}

    torch.manual_seed(1)
    job = job_of(Rows().eval(), call(2, 3), call(4, 5), call(3, 5))
    exported = export(job, ONNXQuantizationConfig("int4"))
    assert 1e-3 < worst_error(job, exported) < 0.2


def test_4_bits_leave_alone_what_they_are_told_to(job, export):
    with pytest.raises(BackendUnsupportedError, match="nothing that ModelOpt would make int4"):
        export(job, ONNXQuantizationConfig("int4", calibration_method="rtn_dq", op_types_to_quantize=["Conv"]))


@pytest.mark.parametrize(
    ("name", "precision", "low", "high"),
    [
        ("INT8_DEFAULT_CFG", "int8", 1e-3, 3e-2),
        ("INT8_SMOOTHQUANT_CFG", "int8", 1e-3, 3e-2),
        ("FP8_DEFAULT_CFG", "float8", 1e-3, 0.1),
    ],
)
def test_a_copy_of_the_module_is_quantised(job, export, name, precision, low, high):
    before = copy.deepcopy(job.module.state_dict())
    exported = export(job, TorchQuantizationConfig(name))
    assert exported[2] == precision
    assert "QuantizeLinear" in operators(exported[0])
    assert not [one for one in operators(exported[0]) if one.startswith("TRT_")]
    assert low < worst_error(job, exported) < high
    assert {type(part) for part in job.module.modules()} == {Net, nn.Conv2d, nn.Linear}
    after = job.module.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[key], before[key]) for key in before)


@pytest.mark.parametrize("config", [ONNXQuantizationConfig(), TorchQuantizationConfig("INT8_DEFAULT_CFG")], ids=str)
def test_a_module_in_half_precision_gives_half_precision(job_of, export, config):
    torch.manual_seed(7)
    module = Net().eval().half()
    calls = [(n, (torch.randn(n, 3, 16, 16).half(), torch.randn(32).half()), {}) for n in (1, 4)]
    job = job_of(module, *calls)
    exported = export(job, config)
    assert exported[2] == "int8"
    assert worst_error(job, exported) < 0.25


def test_a_config_of_modelopt_may_be_written_out(job, export):
    import modelopt.torch.quantization as mtq

    settings = copy.deepcopy(mtq.INT8_DEFAULT_CFG)
    assert export(job, TorchQuantizationConfig(settings))[2] == "int8"
    assert settings == mtq.INT8_DEFAULT_CFG


def test_a_name_that_modelopt_does_not_know_is_the_users_error(job):
    with pytest.raises(AITuneUserInputError, match=r"has no INT9_DEFAULT_CFG; it has .*INT8_DEFAULT_CFG"):
        quantized_twin(job, TorchQuantizationConfig("INT9_DEFAULT_CFG"), "TensorRTBackend")


def test_what_modelopt_refuses_is_a_failed_build_that_says_why(job, export):
    with pytest.raises(BackendBuildError, match="ModelOpt fails: RuntimeError: Unsupported op types in fp8 mode"):
        export(job, ONNXQuantizationConfig("fp8", op_types_to_quantize=["Relu"]))
    with pytest.raises(BackendBuildError, match="ModelOpt fails"):
        export(job, TorchQuantizationConfig({"quant_cfg": 3}))


def test_formats_without_a_form_in_onnx_are_refused(job, export):
    with pytest.raises(BackendUnsupportedError, match="4 bits in blocks has no form in ONNX"):
        export(job, TorchQuantizationConfig("INT4_BLOCKWISE_WEIGHT_ONLY_CFG"))


def test_a_module_with_nothing_to_quantise_is_refused(job_of, export):
    job = job_of(nn.Tanh(), (2, (torch.randn(2, 4),), {}), (4, (torch.randn(4, 4),), {}))
    with pytest.raises(BackendUnsupportedError, match="nothing that ModelOpt would make int8"):
        export(job, ONNXQuantizationConfig("int8"))


def test_a_missing_part_of_modelopt_is_named_with_the_extra(job, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx_graphsurgeon", None)
    source = Source(tmp_path / "x.onnx", job, OutputRoutes(()))
    with pytest.raises(ImportError, match=r"not installed: pip install 'aitune\[modelopt\]'"):
        quantized_file(source, tmp_path / "y.onnx", ONNXQuantizationConfig(), "TensorRTBackend")


def test_other_libraries_are_afterwards_as_they_were(job, export, capfd):
    import onnx_graphsurgeon
    from onnxruntime.quantization import calibrate, registry

    watched = [onnxruntime, onnx_graphsurgeon, calibrate, calibrate.MinMaxCalibrater, calibrate.HistogramCollector]
    with process_state_kept(None), patches_undone():
        import modelopt.onnx.quantization  # noqa: F401 - what is imported once is there for good
    before = [dict(vars(one)) for one in watched]
    tables = [dict(registry.QDQRegistry), dict(registry.QLinearOpsRegistry)]
    capfd.readouterr()
    export(job, ONNXQuantizationConfig("int8", op_types_to_quantize=["Conv"]))
    export(job, ONNXQuantizationConfig("int4", calibration_method="rtn_dq"))
    export(job, ONNXAutoCastConfig())
    assert [dict(vars(one)) for one in watched] == before
    assert [dict(registry.QDQRegistry), dict(registry.QLinearOpsRegistry)] == tables
    assert capfd.readouterr() == ("", "")
