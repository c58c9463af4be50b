"""Fewer bits by ModelOpt: an ONNX file from an ONNX file, a quantised copy from a module, neither with a GPU."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aitune.exceptions import AITuneUserInputError, BackendUnsupportedError
from aitune.torch.backend.precision import lowest
from aitune.torch.backend.quantization import ONNXAutoCastConfig, ONNXQuantizationConfig, TorchQuantizationConfig
from aitune.torch.backend.tensorrt.modelopt import (
    boundary_of,
    calibration_reader,
    calls_of,
    errors_translated,
    inputs_of,
    patches_undone,
    providers_for,
    save_model,
    write_model,
)
from aitune.torch.backend.twin import twin_of
from aitune.torch.export.flat import OutputRoutes, flat_call
from aitune.torch.graph.job import Job
from aitune.torch.graph.sample import Sample
from aitune.torch.trial import Precision

__all__ = [
    "OPSET_OF_TWINS",
    "Source",
    "cast_file",
    "exchangeable_file",
    "quantized_file",
    "quantized_twin",
    "unquantizable",
]

OPSET_OF_TWINS = 20
"""ONNX opset in which ModelOpt's quantizers are exported: its own choice, and the highest that tracing knows."""

_PRECISIONS: dict[str, Precision] = {"fp16": "float16", "bf16": "bfloat16", "int8": "int8", "fp8": "float8"}
_BITS: dict[Any, Precision] = {8: "int8", (4, 3): "float8"}  # of the whole tensor or channel, in ModelOpt's words


def unquantizable(
    job: Job, config: ONNXAutoCastConfig | ONNXQuantizationConfig | TorchQuantizationConfig
) -> str | None:
    """Return why a job cannot be quantised so, as far as it is known without ModelOpt; None if it may be tried."""
    if isinstance(config, TorchQuantizationConfig):
        return None
    for spec in job.graph.inputs.tensors:
        if spec.dtype is torch.bfloat16:
            return f"ModelOpt calibrates with numpy, which has no bfloat16: {spec}"
    four_bits = isinstance(config, ONNXQuantizationConfig) and config.precision == "int4"
    if four_bits and getattr(config, "high_precision_dtype", None) in ("fp16", "bf16"):
        return "beside int4 ModelOpt computes in the module's own dtype: leave high_precision_dtype None"
    return None


@dataclass(frozen=True)
class Source:
    """An ONNX file to make another one of.

    Attributes:
        path: The file; weights may lie beside it.
        job: Whose graph it holds for. What is made of it takes and gives the dtypes of the module.
        routes: Where the outputs of the graph come from.
    """

    path: Path
    job: Job
    routes: OutputRoutes


def cast_file(source: Source, target: Path, config: ONNXAutoCastConfig, backend: str) -> Precision:
    """Write an ONNX file of which ModelOpt's AutoCast has put parts into 16 bits.

    Whether an operator can take 16 bits is decided by its values for all samples of the job.

    Args:
        source: The file to read.
        target: The file to write, in a folder that is there.
        config: How.
        backend: Who to name in errors.

    Returns:
        What is computed in from then on.

    Raises:
        BackendError: If ModelOpt cannot do it, or is not installed.
    """
    with errors_translated(backend), patches_undone():
        from modelopt.onnx.autocast import convert_to_mixed_precision

        samples = target.with_name("samples")
        samples.mkdir()
        for i, call in enumerate(calls_of(source.job, inputs_of(source.path))):
            np.savez(samples / f"{i:06}.npz", **call)  # type: ignore[arg-type]
        made = convert_to_mixed_precision(
            str(source.path),
            low_precision_type=config.precision,
            keep_io_types=config.keep_io_types,
            calibration_data=str(samples),
            providers=providers_for(source.job.device),
        )
        write_model(made, target, boundary_of(source.job, source.routes))
    return _PRECISIONS[config.precision]


def quantized_file(source: Source, target: Path, config: ONNXQuantizationConfig, backend: str) -> Precision:
    """Write an ONNX file that ModelOpt has quantised, calibrated on the samples of the job.

    All of them, but for int4, whose methods put activations of all calls into one array: on those that are alike.

    Args:
        source: The file to read.
        target: The file to write, in a folder that is there.
        config: How.
        backend: Who to name in errors.

    Returns:
        The coarsest precision that is computed in from then on.

    Raises:
        BackendUnsupportedError: If nothing in the file is quantised.
        BackendError: If ModelOpt cannot do it, or is not installed.
    """
    with errors_translated(backend), patches_undone():
        import onnx
        from modelopt.onnx.quantization import quantize

        model, job, excluded = source.path, source.job, list[str]()
        if config.precision == "int4":
            model, excluded = _with_plain_products(model, config)
            job = replace(job, samples=_alike(job))
        optional = {
            "high_precision_dtype": config.high_precision_dtype,
            "calibration_method": config.calibration_method,
        }
        made = target.with_name("quantized.onnx")
        quantize(
            str(model),
            quantize_mode=config.precision,
            calibration_data_reader=calibration_reader(job, inputs_of(model)),
            calibration_eps=providers_for(job.device),
            op_types_to_quantize=_listed(config.op_types_to_quantize),
            op_types_to_exclude=_listed(config.op_types_to_exclude),
            nodes_to_exclude=excluded,
            output_path=str(made),
            **{name: value for name, value in optional.items() if value is not None},
        )
        result = onnx.load(str(made)) if made.exists() else None
        if result is None or not any(node.op_type == "DequantizeLinear" for node in result.graph.node):
            raise BackendUnsupportedError(backend, f"there is nothing that ModelOpt would make {config.precision}")
        write_model(result, target, boundary_of(job, source.routes))
    return "int4" if config.precision == "int4" else _PRECISIONS[config.precision]


def quantized_twin(job: Job, config: TorchQuantizationConfig, backend: str) -> tuple[Job, Precision]:
    """Return the job with a copy of its module that ModelOpt has quantised, calibrated on all samples.

    The module itself and the samples are left as they are. The copy takes the memory of the module once more. It is
    exported by tracing, the one way in which its quantizers have a form in ONNX, and then goes through
    :func:`exchangeable_file`. As wherever ModelOpt's part for torch is imported, ``SyncBatchNorm`` has a wrapper around
    ``convert_sync_batchnorm`` from then on, and ``torch.load`` knows ModelOpt's own classes.

    Args:
        job: The job.
        config: How.
        backend: Who to name in errors.

    Returns:
        The job of the copy, and the coarsest precision that it computes in.

    Raises:
        AITuneUserInputError: If ModelOpt has no config of this name, or a dict is none.
        BackendUnsupportedError: If the module cannot be copied, nothing in it is quantised, or to a format that has no
            form in ONNX here.
        BackendError: If ModelOpt cannot do it, or is not installed.
    """
    with errors_translated(backend):
        import modelopt.torch.quantization as mtq

        settings = _settings(mtq, config)
        twin = twin_of(job.module, backend)
        modes = [(part, part.training) for part in twin.modules()]

        def calls(module: torch.nn.Module) -> None:
            for sample in job.samples:
                args, kwargs = job.graph.call(flat_call(job, sample))
                module.forward(*args, **kwargs)

        with torch.no_grad():
            twin = mtq.quantize(twin, settings, calls)
        for part, training in modes:  # calibrated in evaluation mode, and all of it in one mode afterwards
            part.training = training
        found = [_format(part, backend) for part in twin.modules() if isinstance(part, mtq.nn.TensorQuantizer)]
        kinds = [kind for kind in found if kind is not None]
        if not kinds:
            raise BackendUnsupportedError(backend, "there is nothing in the module that ModelOpt would quantise so")
        # Traced, an 8-bit float weight has no shape, which a convolution needs; exchangeable_file() makes it up for it.
        for part in twin.modules():
            weight: Any = getattr(part, "weight_quantizer", None)
            if isinstance(part, torch.nn.modules.conv._ConvNd) and getattr(weight, "num_bits", None) == (4, 3):
                weight.disable()
    return replace(job, module=twin), lowest(kinds)


def exchangeable_file(source: Source, target: Path, precision: Precision, backend: str) -> None:
    """Write the file of a quantised copy with ONNX's own operators in the place of ModelOpt's.

    Args:
        source: What :func:`quantized_twin` was exported to.
        target: The file to write, in a folder that is there.
        precision: What the copy computes in.
        backend: Who to name in errors.

    Raises:
        BackendError: If ModelOpt cannot do it.
    """
    with errors_translated(backend), patches_undone():
        import onnx
        from modelopt.onnx.export import FP8QuantExporter, INT8QuantExporter
        from modelopt.onnx.quantization.qdq_utils import replace_zero_scale_with_smallest_nonzero

        exporter = FP8QuantExporter if precision == "float8" else INT8QuantExporter
        made = replace_zero_scale_with_smallest_nonzero(exporter.process_model(onnx.load(str(source.path))))
        _as_standard(made.graph)
        write_model(made, target, boundary_of(source.job, source.routes))


def _listed(names: tuple[str, ...] | None) -> list[str] | None:
    return None if names is None else list(names)  # a list of its own: ModelOpt adds to it


def _alike(job: Job) -> tuple[Sample, ...]:
    """Return the samples whose tensors differ in their first axes alone; of several such groups the largest."""
    groups: dict[tuple[torch.Size, ...], list[Sample]] = {}
    extents: dict[tuple[torch.Size, ...], int] = {}
    for sample in job.samples:
        tensors = job.graph.input_tensors(sample.args, sample.kwargs)
        key = tuple(tensor.shape[1:] for tensor in tensors)
        groups.setdefault(key, []).append(sample)
        extents[key] = extents.get(key, 0) + sum(tensor.numel() for tensor in tensors)
    return tuple(groups[max(extents, key=extents.__getitem__)])


def _with_plain_products(model: Path, config: ONNXQuantizationConfig) -> tuple[Path, list[str]]:
    """Return a file that ModelOpt's int4 gets right, and patterns of the names of nodes that it is to leave alone.

    It takes weights for ``(in, out)`` also where a Gemm has them transposed, and writes scales for the wrong axis then
    (0.47). Of types of operators it does not take notice.
    """
    import onnx

    content = onnx.load(str(model))
    graph = content.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    excluded = []
    for node in graph.node:
        wanted = config.op_types_to_quantize is None or node.op_type in config.op_types_to_quantize
        if node.name and (not wanted or node.op_type in (config.op_types_to_exclude or ())):
            excluded.append(f"^{re.escape(node.name)}$")
        turned = [one for one in node.attribute if one.name == "transB" and one.i]
        if node.op_type == "Gemm" and turned and node.input[1] in weights:
            values = onnx.numpy_helper.to_array(weights[node.input[1]])
            name = f"{node.name or node.output[0]}_weight_in_out"
            graph.initializer.append(onnx.numpy_helper.from_array(np.ascontiguousarray(values.T), name))
            node.input[1] = name
            turned[0].i = 0
    used = {name for node in graph.node for name in node.input}
    for name, tensor in weights.items():
        if name not in used:
            graph.initializer.remove(tensor)
    path = model.with_name("products.onnx")
    save_model(content, path)
    return path, excluded


def _as_standard(graph: Any) -> None:
    """Finish what ModelOpt renames: operators of TensorRT's own domain, with uint8 in the place of 8-bit floats."""
    quantized = set()
    for node in graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            node.domain = ""
        if node.op_type == "QuantizeLinear":
            quantized.update(node.output)
    for value in [value for value in graph.value_info if value.name in quantized]:
        graph.value_info.remove(value)


def _settings(mtq: Any, config: TorchQuantizationConfig) -> dict[str, Any]:
    """Return a config of ModelOpt, a copy of one's own."""
    wanted = config.quantization_config
    if isinstance(wanted, str):
        known = sorted(name for name in vars(mtq) if name.endswith("_CFG") and isinstance(getattr(mtq, name), dict))
        if wanted not in known:
            raise AITuneUserInputError(
                f"TorchQuantizationConfig: modelopt.torch.quantization has no {wanted}; it has {', '.join(known)}"
            )
        return copy.deepcopy(dict(getattr(mtq, wanted)))
    return copy.deepcopy(wanted)


def _format(quantizer: Any, backend: str) -> Precision | None:
    """Return what a quantizer of ModelOpt rounds to, None for one that is switched off."""
    if not quantizer.is_enabled:
        return None
    bits = quantizer.num_bits
    if bits not in _BITS or quantizer.block_sizes:
        which = f"{bits} bits" + (" in blocks" if quantizer.block_sizes else "")
        raise BackendUnsupportedError(
            backend, f"ModelOpt's format of {which} has no form in ONNX here; INT8 and FP8 of whole tensors have"
        )
    return _BITS[bits]
