"""TensorRT as far as it goes without a GPU: what it is asked for, and what it refuses."""

import dataclasses
import sys
import types

import pytest
import torch

from aitune.exceptions import AITuneUserInputError
from aitune.torch.backend import (
    ONNXAutoCastConfig,
    ONNXQuantizationConfig,
    ProfileMode,
    TensorRTBackend,
    TensorRTBackendConfig,
    TensorRTProfile,
    TorchQuantizationConfig,
    TorchTensorRTConfig,
)
from aitune.torch.backend.availability import missing_requirement
from aitune.torch.backend.tensorrt.library import is_rtx
from aitune.torch.backend.tensorrt.profile import ShapeRange, input_ranges
from aitune.torch.graph.dims import BatchDim


class Net(torch.nn.Module):
    def forward(self, x, mask):
        return x * mask


@pytest.fixture
def job(job_of):
    def call(batch):
        return batch, (torch.zeros(batch, 3), torch.zeros(3)), {}

    return job_of(Net().eval(), call(1), call(4))


def test_one_profile_takes_the_whole_range_and_is_best_at_its_end(job):
    (whole,) = input_ranges(job, ProfileMode.SINGLE)
    assert whole == {
        "input0": ShapeRange((1, 3), (4, 3), (4, 3)),
        "input1": ShapeRange((3,), (3,), (3,)),
    }


def test_a_declared_best_size_is_the_one_to_optimise_for(job):
    spec = job.graph.inputs.tensors[0]
    declared = dataclasses.replace(spec, shape=(BatchDim("batch0", 1, 8, 2), 3))
    inputs = dataclasses.replace(job.graph.inputs, leaves=(declared, *job.graph.inputs.leaves[1:]))
    (whole,) = input_ranges(
        dataclasses.replace(job, graph=dataclasses.replace(job.graph, inputs=inputs)), ProfileMode.SINGLE
    )
    assert whole["input0"] == ShapeRange((1, 3), (2, 3), (8, 3))


def test_profiles_of_samples_are_followed_by_one_for_every_other_size(job):
    first, second, whole = input_ranges(job, ProfileMode.SAMPLES_USED)
    assert first["input0"] == ShapeRange((1, 3), (1, 3), (1, 3))
    assert second["input0"] == ShapeRange((4, 3), (4, 3), (4, 3))
    assert [whole] == input_ranges(job, ProfileMode.SINGLE)


def test_an_own_profile_changes_the_inputs_that_it_names(job):
    own = TensorRTProfile().add_input_shape("x", (2, 3), (3, 3), (4, 3))
    mine, whole = input_ranges(job, [own])
    assert mine["input0"] == ShapeRange((2, 3), (3, 3), (4, 3))
    assert mine["input1"] == whole["input1"]


def test_an_own_profile_that_does_not_fit_the_graph_is_an_error_that_says_why(job):
    with pytest.raises(AITuneUserInputError, match=r"no input \('y',\); it has \('x',\), \('mask',\)"):
        input_ranges(job, [TensorRTProfile().add_input_shape("y", (1,), (1,), (1,))])
    with pytest.raises(AITuneUserInputError, match=r"\('x',\) has 2 axes, the profile gives 1"):
        input_ranges(job, [TensorRTProfile().add_input_shape("x", (1,), (1,), (1,))])


def test_types_that_tensorrt_does_not_have_are_refused_before_anything_is_built(job_of):
    job = job_of(Net().eval(), (1, (torch.zeros(1, 3, dtype=torch.float64), torch.zeros(3)), {}))
    assert "TensorRT does not take torch.float64" in TensorRTBackend().unsuitable(job)


def test_modelopt_is_required_where_it_is_to_quantise_and_there_alone(monkeypatch):
    for library in ("tensorrt", "onnx", "onnxscript"):
        monkeypatch.setitem(sys.modules, library, types.ModuleType(library))
    monkeypatch.setitem(sys.modules, "modelopt", None)
    assert missing_requirement(TensorRTBackend()) is None
    for config in (ONNXAutoCastConfig(), ONNXQuantizationConfig(), TorchQuantizationConfig()):
        missing = missing_requirement(TensorRTBackend(TensorRTBackendConfig(quantization_config=config)))
        assert missing.reason == "modelopt is not installed: pip install 'aitune[modelopt]'"


def test_what_modelopt_cannot_quantise_is_known_before_anything_is_built(job, job_of):
    def why(job, config):
        return TensorRTBackend(TensorRTBackendConfig(quantization_config=config)).unsuitable(job)

    narrow = job_of(Net().eval(), (1, (torch.zeros(1, 3, dtype=torch.bfloat16), torch.zeros(3)), {}))
    assert "has no bfloat16" in why(narrow, ONNXAutoCastConfig())
    assert "needs cuda" in why(narrow, TorchQuantizationConfig())
    assert "leave high_precision_dtype None" in why(job, ONNXQuantizationConfig("int4", high_precision_dtype="fp16"))
    assert "needs cuda" in why(job, ONNXQuantizationConfig("int4"))


def test_the_library_for_rtx_is_told_by_its_name_also_under_another():
    assert is_rtx(types.ModuleType("tensorrt_rtx"))
    assert not is_rtx(types.ModuleType("tensorrt"))
    stand_in = types.ModuleType("tensorrt")
    stand_in._package_name = "tensorrt_rtx"
    assert is_rtx(stand_in)


def test_settings_of_torch_tensorrt_go_by_its_own_names():
    config = TorchTensorRTConfig(min_block_size=1, options={"dryrun": True})
    assert config.settings["min_block_size"] == 1
    assert config.settings["dryrun"] is True
    assert "optimization_level" not in config.settings  # left to the library
