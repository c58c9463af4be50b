"""Options: defaults as documented, bad values refused with the choices, no library needed."""

import dataclasses
import pickle

import pytest
import torch

import aitune.torch.backend as backends
from aitune.exceptions import AITuneUserInputError
from aitune.torch.backend import (
    ONNXAutoCastConfig,
    ONNXExecutionProvider,
    ONNXQuantizationConfig,
    ONNXRuntimeBackend,
    ONNXRuntimeBackendConfig,
    OpenVINOBackend,
    OpenVINOBackendConfig,
    ProfileMode,
    TensorRTBackend,
    TensorRTBackendConfig,
    TensorRTProfile,
    TorchAOBackend,
    TorchAOBackendConfig,
    TorchEagerBackend,
    TorchEagerBackendConfig,
    TorchInductorAotBackend,
    TorchInductorAotBackendConfig,
    TorchInductorJitBackend,
    TorchInductorJitBackendConfig,
    TorchQuantizationConfig,
    TorchTensorRTAotBackend,
    TorchTensorRTAotBackendConfig,
    TorchTensorRTConfig,
    TorchTensorRTJitBackend,
    TorchTensorRTJitBackendConfig,
)

BACKENDS = [
    ONNXRuntimeBackend,
    OpenVINOBackend,
    TensorRTBackend,
    TorchAOBackend,
    TorchEagerBackend,
    TorchInductorAotBackend,
    TorchInductorJitBackend,
    TorchTensorRTAotBackend,
    TorchTensorRTJitBackend,
]

DEFAULTS = {
    TorchEagerBackendConfig: {
        "autocast_enabled": False,
        "autocast_dtype": None,
        "channels_last": False,
        "use_cuda_graphs": False,
    },
    TorchInductorJitBackendConfig: {
        "mode": None,
        "fullgraph": False,
        "dynamic": None,
        "options": None,
        "autocast_enabled": False,
        "autocast_dtype": None,
        "freezing": False,
    },
    TorchInductorAotBackendConfig: {"inductor_configs": None, "freezing": None, "use_cuda_graphs": False},
    ONNXRuntimeBackendConfig: {
        "execution_provider": None,
        "use_dynamo": True,
        "opset_version": None,
        "session_options": {},
        "provider_options": {},
    },
    OpenVINOBackendConfig: {"precision": "float32", "performance_hint": "latency", "num_streams": None},
    TorchAOBackendConfig: {
        "quantization": None,
        "quantization_config": None,
        "mode": "max-autotune",
        "fullgraph": False,
        "dynamic": None,
        "filter_fn": None,
    },
    TensorRTBackendConfig: {
        "use_dynamo": True,
        "workspace_size": None,
        "opset_version": None,
        "optimization_level": None,
        "compatibility_level": None,
        "timing_cache": None,
        "profiles": ProfileMode.SINGLE,
        "quantization_config": None,
        "enable_tf32": True,
        "use_cuda_graphs": False,
    },
    TorchTensorRTJitBackendConfig: {
        "compile_config": TorchTensorRTConfig(),
        "fullgraph": False,
        "dynamic": None,
        "autocast_enabled": False,
        "autocast_dtype": None,
        "use_cuda_graphs": False,
    },
    TorchTensorRTAotBackendConfig: {"compile_config": TorchTensorRTConfig(), "use_cuda_graphs": False},
    ONNXAutoCastConfig: {"precision": "fp16", "keep_io_types": True},
}

REFUSED = [
    (TorchEagerBackendConfig, {"autocast_enabled": 1}, "True"),
    (TorchEagerBackendConfig, {"autocast_dtype": torch.float32}, "torch.bfloat16"),
    (TorchEagerBackendConfig, {"autocast_dtype": "bfloat16"}, "torch.bfloat16"),
    (TorchEagerBackendConfig, {"channels_last": "yes"}, "False"),
    (TorchEagerBackendConfig, {"use_cuda_graphs": None}, "False"),
    (TorchInductorJitBackendConfig, {"mode": "fastest"}, "max-autotune"),
    (TorchInductorJitBackendConfig, {"fullgraph": None}, "False"),
    (TorchInductorJitBackendConfig, {"dynamic": "auto"}, "None"),
    (TorchInductorJitBackendConfig, {"options": ["x"]}, "dict"),
    (TorchInductorJitBackendConfig, {"mode": "default", "options": {}}, "not both"),
    (TorchInductorJitBackendConfig, {"freezing": None}, "False"),
    (TorchInductorAotBackendConfig, {"inductor_configs": {1: 2}}, "text keys"),
    (TorchInductorAotBackendConfig, {"freezing": 1}, "None"),
    (TorchInductorAotBackendConfig, {"use_cuda_graphs": 1}, "False"),
    (ONNXRuntimeBackendConfig, {"execution_provider": "GPU"}, "ONNXExecutionProvider.CUDA"),
    (ONNXRuntimeBackendConfig, {"use_dynamo": "no"}, "True"),
    (ONNXRuntimeBackendConfig, {"opset_version": 3}, "9 or more"),
    (ONNXRuntimeBackendConfig, {"opset_version": True}, "whole number"),
    (ONNXRuntimeBackendConfig, {"session_options": None}, "dict"),
    (ONNXRuntimeBackendConfig, {"provider_options": 1}, "dict"),
    (OpenVINOBackendConfig, {"precision": "int8"}, "'bfloat16'"),
    (OpenVINOBackendConfig, {"precision": None}, "'float32'"),
    (OpenVINOBackendConfig, {"performance_hint": "speed"}, "'throughput'"),
    (OpenVINOBackendConfig, {"num_streams": 0}, "1 or more"),
    (TorchAOBackendConfig, {"quantization": "int4wo"}, "'nvfp4dq'"),
    (TorchAOBackendConfig, {"quantization": "int8wo", "quantization_config": object()}, "not both"),
    (TorchAOBackendConfig, {"mode": "max"}, "max-autotune"),
    (TorchAOBackendConfig, {"filter_fn": "all"}, "function"),
    (TensorRTBackendConfig, {"use_dynamo": None}, "True"),
    (TensorRTBackendConfig, {"workspace_size": -1}, "1 or more"),
    (TensorRTBackendConfig, {"opset_version": "17"}, "whole number"),
    (TensorRTBackendConfig, {"optimization_level": 6}, "0 to 5"),
    (TensorRTBackendConfig, {"compatibility_level": "all"}, "'ampere_plus'"),
    (TensorRTBackendConfig, {"timing_cache": 1}, "path"),
    (TensorRTBackendConfig, {"profiles": "single"}, "ProfileMode.SINGLE"),
    (TensorRTBackendConfig, {"profiles": []}, "ProfileMode.SINGLE"),
    (TensorRTBackendConfig, {"profiles": [1]}, "TensorRTProfile"),
    (TensorRTBackendConfig, {"quantization_config": "int8"}, "ONNXQuantizationConfig"),
    (TensorRTBackendConfig, {"enable_tf32": 1}, "True"),
    (TensorRTBackendConfig, {"use_cuda_graphs": 1}, "True"),
    (TorchTensorRTJitBackendConfig, {"compile_config": {}}, "TorchTensorRTConfig"),
    (TorchTensorRTJitBackendConfig, {"dynamic": 1}, "None"),
    (TorchTensorRTAotBackendConfig, {"compile_config": None}, "TorchTensorRTConfig"),
    (TorchTensorRTAotBackendConfig, {"use_cuda_graphs": 1}, "True"),
    (TorchTensorRTJitBackendConfig, {"use_cuda_graphs": None}, "False"),
    (TorchTensorRTConfig, {"workspace_size": None}, "0 or more"),
    (TorchTensorRTConfig, {"min_block_size": 0}, "1 or more"),
    (TorchTensorRTConfig, {"optimization_level": 9}, "0 to 5"),
    (TorchTensorRTConfig, {"options": 1}, "dict"),
    (ONNXAutoCastConfig, {"precision": "fp8"}, "'bf16'"),
    (ONNXQuantizationConfig, {"precision": "fp4"}, "'int4'"),
    (ONNXQuantizationConfig, {"precision": "int4", "calibration_method": "entropy"}, "'awq_clip'"),
    (ONNXQuantizationConfig, {"op_types_to_quantize": "MatMul"}, "operator names"),
    (TorchQuantizationConfig, {"quantization_config": "fp8"}, "'FP8_DEFAULT_CFG'"),
    (TorchQuantizationConfig, {"quantization_config": None}, "dict"),
]


@pytest.mark.parametrize("config_class", DEFAULTS, ids=lambda c: c.__name__)
def test_defaults_are_the_documented_ones(config_class):
    config = config_class()

    assert {field.name: getattr(config, field.name) for field in dataclasses.fields(config)} == DEFAULTS[config_class]


@pytest.mark.parametrize(("config_class", "options", "hint"), REFUSED, ids=lambda v: getattr(v, "__name__", str(v)))
def test_a_bad_value_is_refused_and_the_choices_are_named(config_class, options, hint):
    with pytest.raises(AITuneUserInputError) as caught:
        config_class(**options)

    assert isinstance(caught.value, ValueError)
    assert hint in str(caught.value)
    assert config_class.__name__ in str(caught.value)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.__name__)
def test_a_backend_needs_no_library_and_no_argument(backend):
    first, second = backend(), backend(backend.config_class())

    assert first == second
    assert hash(first) == hash(second)
    assert first.describe() == f"{backend.__name__}()"
    assert pickle.loads(pickle.dumps(first)) == first
    assert backend.__name__ + "Config" == backend.config_class.__name__


def test_a_backend_refuses_the_config_of_another():
    with pytest.raises(AITuneUserInputError, match="TensorRTBackend takes a TensorRTBackendConfig"):
        TensorRTBackend(OpenVINOBackendConfig())


def test_options_that_are_not_defaults_are_described():
    config = ONNXRuntimeBackendConfig(use_dynamo=False, execution_provider="CPU")

    assert config.execution_provider is ONNXExecutionProvider.CPU
    assert ONNXRuntimeBackend(config).describe().startswith("ONNXRuntimeBackend(execution_provider=")
    assert "use_dynamo=False" in ONNXRuntimeBackend(config).describe()
    assert ONNXRuntimeBackend(config) != ONNXRuntimeBackend()


def test_a_config_cannot_be_changed_from_outside():
    given = {"intra_op_num_threads": 1}
    config = ONNXRuntimeBackendConfig(session_options=given)
    given["intra_op_num_threads"] = 2

    assert config.session_options == {"intra_op_num_threads": 1}
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.use_dynamo = False


def test_a_provider_is_known_by_either_name():
    for value in ("CUDA", "CUDAExecutionProvider", ONNXExecutionProvider.CUDA):
        assert ONNXRuntimeBackendConfig(execution_provider=value).execution_provider is ONNXExecutionProvider.CUDA


def test_the_guides_configurations_can_be_written():
    TensorRTBackend(config=TensorRTBackendConfig(use_dynamo=True))
    TorchInductorJitBackend(config=TorchInductorJitBackendConfig(mode="max-autotune"))
    TorchAOBackend(config=TorchAOBackendConfig(quantization="fp8wo"))
    profile = TensorRTProfile().add_input_shape("x", (1, 3), (4, 3), (8, 3))
    config = TensorRTBackendConfig(
        profiles=[profile], quantization_config=TorchQuantizationConfig("INT8_DEFAULT_CFG"), timing_cache="cache"
    )
    profile.add_input_shape(("options", "mask"), (1,), (1,), (1,))

    assert len(config.profiles[0].shapes) == 1
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize(
    "shapes",
    [
        ("x", (1, 3), (4,), (8, 3)),
        ("x", (4,), (2,), (8,)),
        ("x", (1.5,), (2,), (8,)),
        ((), (1,), (2,), (8,)),
        ((0, "x"), (1,), (2,), (8,)),
    ],
)
def test_a_profile_refuses_shapes_that_make_no_range(shapes):
    with pytest.raises(AITuneUserInputError, match="TensorRTProfile"):
        TensorRTProfile().add_input_shape(*shapes)


def test_every_public_name_is_exported_in_order():
    assert backends.__all__ == sorted(backends.__all__)
    assert all(hasattr(backends, name) for name in backends.__all__)
    assert {b.__name__ for b in BACKENDS} <= set(backends.__all__)
