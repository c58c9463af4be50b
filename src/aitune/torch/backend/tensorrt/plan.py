"""From an ONNX file to a TensorRT plan: the engine as bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aitune.exceptions import BackendBuildError, BackendUnsupportedError
from aitune.torch.backend.tensorrt.library import errors_of, is_rtx, logger_of
from aitune.torch.backend.tensorrt.profile import InputRanges

__all__ = ["PlanOptions", "build_plan", "write_atomically"]


@dataclass(frozen=True)
class PlanOptions:
    """What a plan is built for and with; see ``TensorRTBackendConfig`` for each.

    Attributes:
        profiles: Ranges by input name, one mapping for each profile.
        workspace_size: Bytes.
        optimization_level: 0 to 5.
        compatibility_level: Name of a hardware compatibility level.
        timing_cache: File of measured kernel times.
        enable_tf32: Whether float32 products may drop bits.
    """

    profiles: Sequence[InputRanges]
    workspace_size: int | None = None
    optimization_level: int | None = None
    compatibility_level: str | None = None
    timing_cache: Path | None = None
    enable_tf32: bool = True


def build_plan(trt: Any, model: Path, options: PlanOptions, backend: str) -> Any:
    """Build a plan.

    Args:
        trt: The library.
        model: ONNX file, its weights beside it.
        options: How.
        backend: Who to name in errors.

    Returns:
        A buffer.

    Raises:
        BackendUnsupportedError: If TensorRT cannot express the model.
        BackendBuildError: If the build fails.
    """
    logger = logger_of(trt)
    logger.errors.clear()
    builder = trt.Builder(logger)
    network = builder.create_network(_flags(trt))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(model)):
        reasons = "; ".join(str(parser.get_error(i).desc()) for i in range(parser.num_errors))
        raise BackendUnsupportedError(backend, f"TensorRT cannot read the model: {' '.join(reasons.split())[:400]}")
    _refuse_shape_tensors(network, backend)
    config = _builder_config(trt, builder, options)
    for ranges in options.profiles:
        _add_profile(builder, config, network, ranges)
    cache = _timing_cache(trt, config, options.timing_cache)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise BackendBuildError(backend, f"TensorRT builds no engine: {errors_of(trt)}")
    if cache is not None and options.timing_cache is not None:
        write_atomically(options.timing_cache, bytes(cache.serialize()))
    return plan


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file in one step; one that cannot be written is left as it is: caches are no necessity."""
    part = path.with_name(f"{path.name}.part")
    with contextlib.suppress(OSError):
        part.write_bytes(content)
        part.replace(path)


def _flags(trt: Any) -> int:
    """Types are those of the model; from version 11 on there is no other way, and no flag."""
    flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    return 0 if flag is None else 1 << int(flag)


def _refuse_shape_tensors(network: Any, backend: str) -> None:
    for i in range(network.num_inputs):
        tensor = network.get_input(i)
        if tensor.is_shape_tensor:
            raise BackendUnsupportedError(backend, f"the values of {tensor.name} decide sizes in the model")


def _builder_config(trt: Any, builder: Any, options: PlanOptions) -> Any:
    config = builder.create_builder_config()
    if options.workspace_size is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace_size)
    if options.optimization_level is not None:
        config.builder_optimization_level = options.optimization_level
    if options.compatibility_level is not None:
        level = getattr(trt.HardwareCompatibilityLevel, options.compatibility_level.upper())
        config.hardware_compatibility_level = level
    if options.enable_tf32:
        config.set_flag(trt.BuilderFlag.TF32)
    else:
        config.clear_flag(trt.BuilderFlag.TF32)
    return config


def _add_profile(builder: Any, config: Any, network: Any, ranges: InputRanges) -> None:
    profile = builder.create_optimization_profile()
    for i in range(network.num_inputs):
        tensor = network.get_input(i)
        if -1 in tuple(tensor.shape):
            found = ranges[tensor.name]
            profile.set_shape(tensor.name, found.min, found.opt, found.max)
    config.add_optimization_profile(profile)


def _timing_cache(trt: Any, config: Any, path: Path | None) -> Any:
    """Have measured kernel times read and kept; None where the library measures none while it builds."""
    if path is None or is_rtx(trt):
        return None
    cache = config.create_timing_cache(path.read_bytes() if path.exists() else b"")
    config.set_timing_cache(cache, ignore_mismatch=False)
    return cache
