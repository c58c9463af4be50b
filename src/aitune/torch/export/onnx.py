"""A graph as an ONNX file."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.backends.mha

from aitune.exceptions import BackendUnsupportedError
from aitune.torch.export.flat import FlatForward, OutputRoutes, flat_inputs, input_name, output_name
from aitune.torch.export.narrowing import WHOLE, Narrowing
from aitune.torch.export.preserved import preserved
from aitune.torch.export.program import export_program
from aitune.torch.export.twin import on_a_twin
from aitune.torch.graph.dims import DynamicDim
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.job import Job

__all__ = ["OnnxFile", "export_onnx"]


@dataclass(frozen=True)
class OnnxFile:
    """A graph that was written as an ONNX file.

    Attributes:
        routes: Where the graph's outputs come from.
        narrowing: The part of the graph that the file holds for.
    """

    routes: OutputRoutes
    narrowing: Narrowing = WHOLE


def export_onnx(job: Job, path: Path, *, use_dynamo: bool, opset: int | None, backend: str) -> OnnxFile:
    """Write a job's graph, dynamic axes included, as an ONNX file with its weights beside it.

    Inputs are named ``input<i>`` after the tensors of the graph's inputs; those that the result does not
    depend on may be missing from the file. Outputs are named ``output<i>``, each computed tensor once. The
    module and the samples are as before afterwards; global state that exporters touch (warnings, logging,
    random numbers of a traced forward) is the caller's to keep.

    Args:
        job: What to export.
        path: The file to write; weights go into a file of the same name with ``.data`` appended.
        use_dynamo: Whether to export by ``torch.export``; False traces with TorchScript, which takes branches
            on sizes and values for constants without telling.
        opset: ONNX opset version; None: the exporter's default.
        backend: Who to name in errors.

    Returns:
        Where the graph's outputs come from, and which part of the graph the file holds for.

    Raises:
        BackendUnsupportedError: If the module cannot be exported, or has no form in ONNX.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if use_dynamo:
        return _by_program(job, path, opset, backend)
    return _by_trace(job, path, opset, backend)


def _by_program(job: Job, path: Path, opset: int | None, backend: str) -> OnnxFile:
    exported = export_program(job, backend)
    try:
        torch.onnx.export(
            exported.program,
            (),
            path,
            input_names=_input_names(job.graph),
            output_names=[output_name(i) for i in range(exported.routes.computed)],
            opset_version=opset,
            dynamo=True,
            external_data=True,
            verbose=False,
        )
    except Exception as error:
        raise _refused(error, backend) from error
    return OnnxFile(exported.routes, exported.narrowing)


def _by_trace(job: Job, path: Path, opset: int | None, backend: str) -> OnnxFile:
    job = on_a_twin(job)
    flat = FlatForward(job)
    inputs = flat_inputs(job)
    versions = [tensor._version for tensor in inputs]
    names = _input_names(job.graph)
    with tempfile.TemporaryDirectory(prefix="traced-", dir=path.parent) as folder:
        part = Path(folder)  # over 2 GB the model becomes a file for each weight
        with torch.no_grad(), _without_fused_attention(), preserved(job.module, backend):
            flat(*inputs)  # to learn the outputs, and that the forward runs at this size
            outputs = [output_name(i) for i in range(flat.routes.computed)]
            try:
                torch.onnx.export(
                    flat,
                    inputs,
                    str(part / path.name),
                    input_names=names,
                    output_names=outputs,
                    dynamic_axes={
                        name: axes for name, axes in zip(names, _dynamic_axes(job.graph), strict=True) if axes
                    },
                    opset_version=opset,
                    dynamo=False,
                    verbose=False,
                    do_constant_folding=not job.module.training,
                    training=torch.onnx.TrainingMode.PRESERVE,
                )
            except Exception as error:
                raise _refused(error, backend) from error
        if versions != [tensor._version for tensor in inputs]:
            raise BackendUnsupportedError(backend, "forward changes its inputs in place")
        if not flat.routes.computed:
            raise BackendUnsupportedError(backend, "forward computes nothing: it returns its inputs")
        _gather(part, path)
    return OnnxFile(flat.routes)


def _gather(part: Path, path: Path) -> None:
    """Bring a model out of a folder; weights that lie beside it become one file with ``.data`` appended."""
    if [file.name for file in part.iterdir()] == [path.name]:
        (part / path.name).replace(path)
    else:
        import onnx

        # The weights are read into memory: the whole model once more, while the module is there.
        model = onnx.load(str(part / path.name))
        onnx.save_model(model, str(path), save_as_external_data=True, location=f"{path.name}.data")


@contextlib.contextmanager
def _without_fused_attention() -> Iterator[None]:
    """Have PyTorch's transformer layers run operator by operator: their fused forms have no counterpart in ONNX."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def _input_names(graph: GraphSpec) -> list[str]:
    return [input_name(i) for i in range(len(graph.inputs.tensors))]


def _dynamic_axes(graph: GraphSpec) -> list[dict[int, str]]:
    return [
        {axis: size.name for axis, size in enumerate(spec.shape) if isinstance(size, DynamicDim)}
        for spec in graph.inputs.tensors
    ]


def _refused(error: Exception, backend: str) -> Exception:
    if isinstance(error, (MemoryError, OSError)):
        return error
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    detail = next((line for line in lines if "rror" in line or "nsupported" in line), lines[0] if lines else "")
    return BackendUnsupportedError(backend, f"the module has no form in ONNX: {type(error).__name__}: {detail[:300]}")
