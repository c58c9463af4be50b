"""The border with ModelOpt: its errors, what it patches, samples as it wants them, files with unchanged ends."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aitune.exceptions import (
    FOREIGN,
    AITuneError,
    BackendBuildError,
    BackendNotInstalledError,
    BackendUnsupportedError,
    chain_of,
    said,
)
from aitune.torch.export.flat import OutputRoutes, flat_call, input_name, inputs_to_aim_at, output_name
from aitune.torch.graph.job import Job

__all__ = [
    "boundary_of",
    "calibration_reader",
    "calls_of",
    "errors_translated",
    "inputs_of",
    "patches_undone",
    "providers_for",
    "reason_of",
    "save_model",
    "write_model",
]


@contextlib.contextmanager
def errors_translated(backend: str) -> Iterator[None]:
    """Turn what ModelOpt raises into errors of the backend."""
    try:
        yield
    except (AITuneError, MemoryError, OSError):
        raise
    except ImportError as error:
        missing = [one.name for one in chain_of(error) if isinstance(one, ModuleNotFoundError) and one.name]
        if missing:
            raise BackendNotInstalledError(backend, missing[-1], "modelopt") from error
        raise BackendUnsupportedError(backend, f"ModelOpt cannot be loaded here: {reason_of(error)}") from error
    except NotImplementedError as error:
        raise BackendUnsupportedError(backend, f"ModelOpt cannot quantise this: {reason_of(error)}") from error
    except FOREIGN as error:  # a library, and the user's forward within it, may raise anything
        raise BackendBuildError(backend, f"ModelOpt fails: {reason_of(error)}") from error


@contextlib.contextmanager
def patches_undone() -> Iterator[None]:
    """Put back what ModelOpt replaces in other libraries at each call, and never puts back itself.

    Among it are tables from which it removes the operators that one call is not to quantise, for all later ones.
    """
    import onnx_graphsurgeon
    import onnxruntime
    from onnx_graphsurgeon.exporters.onnx_exporter import OnnxExporter
    from onnxruntime.quantization import base_quantizer, calibrate, qdq_quantizer, registry

    classes = [one for one in vars(calibrate).values() if isinstance(one, type)]
    owners: list[Any] = [onnxruntime, onnx_graphsurgeon, OnnxExporter, calibrate, *classes]
    owners += [base_quantizer.BaseQuantizer, qdq_quantizer.QDQQuantizer]
    before = [(owner, dict(vars(owner))) for owner in owners]
    tables = [(table, dict(table)) for table in (registry.QDQRegistry, registry.QLinearOpsRegistry)]
    # It sets a level that nobody can be asked for, and that could not be put back.
    onnxruntime.set_default_logger_severity = lambda _: None
    try:
        yield
    finally:
        for table, content in tables:
            table.clear()
            table.update(content)
        for owner, names in before:
            _restore(owner, names)


def _restore(owner: Any, before: dict[str, Any]) -> None:
    """Put back the functions of a module or class."""
    for name, value in list(vars(owner).items()):
        if name not in before and isinstance(value, (types.FunctionType, staticmethod, classmethod)):
            delattr(owner, name)
    for name, value in before.items():
        if (callable(value) or isinstance(value, classmethod)) and vars(owner).get(name) is not value:
            setattr(owner, name, value)


def reason_of(error: BaseException) -> str:
    """Return the type of an exception with the first line of its message."""
    lines = [line.strip() for line in said(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def inputs_of(model: Path) -> tuple[str, ...]:
    """Return the names of a file's inputs; it may lack some of the graph's, which it does not need."""
    import onnx

    return tuple(value.name for value in onnx.load(str(model), load_external_data=False).graph.input)


def calls_of(job: Job, names: Collection[str]) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    """Go through the samples as calls of an ONNX file with these inputs."""
    for sample in job.samples:
        yield _call(flat_call(job, sample), names)


def _call(tensors: tuple[torch.Tensor, ...], names: Collection[str]) -> dict[str, np.ndarray[Any, Any]]:
    return {name: tensor.cpu().numpy() for i, tensor in enumerate(tensors) if (name := input_name(i)) in names}


def calibration_reader(job: Job, names: Collection[str]) -> Any:
    """Return the samples as onnxruntime's quantization reads them; they are copied one at a time."""
    from onnxruntime.quantization.calibrate import CalibrationDataReader

    class Samples(CalibrationDataReader):  # type: ignore[misc]
        """Hands over one sample after the other, and begins again when told to."""

        def __init__(self) -> None:
            self.rewind()

        def rewind(self) -> None:
            self._left = calls_of(job, names)

        def get_next(self) -> dict[str, np.ndarray[Any, Any]] | None:
            return next(self._left, None)

        def get_first(self) -> dict[str, np.ndarray[Any, Any]]:
            # By the sizes of this call ModelOpt decides which products are too small to gain anything.
            return _call(inputs_to_aim_at(job), names)

    return Samples()


def providers_for(device: torch.device) -> list[str]:
    """Return where onnxruntime is to run a model, in ModelOpt's words."""
    import onnxruntime

    if device.type == "cuda" and "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        return [f"cuda:{device.index or 0}", "cpu"]
    return ["cpu"]


def boundary_of(job: Job, routes: OutputRoutes) -> dict[str, int]:
    """Return ONNX's element types of what a file takes and gives for a job, by name: those of the module's tensors."""
    import onnx

    kinds = onnx.TensorProto
    types = {
        torch.float32: kinds.FLOAT,
        torch.float16: kinds.FLOAT16,
        torch.bfloat16: kinds.BFLOAT16,
        torch.int32: kinds.INT32,
        torch.int64: kinds.INT64,
        torch.bool: kinds.BOOL,
    }
    dtypes = {input_name(i): types[spec.dtype] for i, spec in enumerate(job.graph.inputs.tensors)}
    for spec, (kind, index) in zip(job.graph.outputs.tensors, routes.sources, strict=True):
        if kind == "computed":
            dtypes[output_name(index)] = types[spec.dtype]
    return dtypes


def write_model(model: Any, path: Path, dtypes: dict[str, int]) -> None:
    """Write a model, with casts where its inputs and outputs are not of the dtypes that they are to have.

    Outputs have to be what the module would return, and the engine is given the memory of its inputs as it is.
    """
    import onnx

    graph = model.graph
    for value in (*graph.input, *graph.output):
        kind, found, wanted = value.type.tensor_type, value.type.tensor_type.elem_type, dtypes[value.name]
        if found == wanted:
            continue
        inner, is_input = f"{value.name}_within", value in graph.input
        _rename(graph, value.name, inner)
        source, made, at = (value.name, inner, 0) if is_input else (inner, value.name, len(graph.node))
        cast = onnx.helper.make_node("Cast", [source], [made], f"{inner}_cast", to=found if is_input else wanted)
        graph.node.insert(at, cast)
        kind.elem_type = wanted
    save_model(model, path)


def _rename(graph: Any, old: str, new: str) -> None:
    """Rename a tensor in the nodes of a graph, and in those of the graphs within them."""
    for node in graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                if name == old:
                    names[i] = new
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename(attribute.g, old, new)


def save_model(model: Any, path: Path) -> None:
    """Write a model of any size, its weights into a file of the same name with ``.data`` appended."""
    import onnx

    onnx.save_model(model, str(path), save_as_external_data=True, location=f"{path.name}.data")
