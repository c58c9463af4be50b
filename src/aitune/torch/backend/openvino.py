"""OpenVINO: the exported graph converted directly, run by pooled requests."""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from aitune.exceptions import BackendBuildError, BackendUnsupportedError
from aitune.torch.backend.artifact import Artifact
from aitune.torch.backend.availability import require
from aitune.torch.backend.base import Backend, BackendConfig, Engine, Requirement
from aitune.torch.backend.function_engine import EngineFacts, FunctionEngine
from aitune.torch.backend.precision import lowest, module_precision
from aitune.torch.backend.processor import Processor
from aitune.torch.backend.resident import read_once
from aitune.torch.backend.validation import check_choice, check_int
from aitune.torch.export.flat import OutputRoutes, input_name, output_name
from aitune.torch.export.program import ExportedGraph, export_program
from aitune.torch.graph.accessor import compile_call, compile_output
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.job import Job
from aitune.torch.graph.spec import TensorSpec
from aitune.torch.trial import Precision

__all__ = ["OpenVINOBackend", "OpenVINOBackendConfig"]

_log = logging.getLogger(__name__)

_MODEL = "model.xml"
_WEIGHTS = "model.bin"
_COMPILED = "model.blob"  # the model as it was compiled, without its weights, which are those of the other file
_SIZE = {"CACHE_MODE": "OPTIMIZE_SIZE"}
_TELEMETRY = "openvino_telemetry"
_PRECISIONS: dict[str, Precision] = {"float32": "float32", "float16": "float16", "bfloat16": "bfloat16"}
_LARGE = 1 << 16  # bytes; up to here a copy takes a few microseconds
_HINTS = {"latency": "LATENCY", "throughput": "THROUGHPUT"}


@dataclass(frozen=True)
class OpenVINOBackendConfig(BackendConfig):
    """Options of OpenVINO.

    Attributes:
        precision: What to compute in: ``"float32"``, ``"float16"`` or ``"bfloat16"``. Always asked for
            explicitly: left alone, the library chooses bfloat16 on processors that have it.
        performance_hint: ``"latency"`` or ``"throughput"``.
        num_streams: Calls that may run at once, each on its share of the threads; None leaves it to the hint.
    """

    precision: str = "float32"
    performance_hint: str = "latency"
    num_streams: int | None = None

    def __post_init__(self) -> None:
        check_choice(self, "precision", tuple(_PRECISIONS))
        check_choice(self, "performance_hint", tuple(_HINTS))
        check_int(self, "num_streams", 1)


class OpenVINOBackend(Backend[OpenVINOBackendConfig]):
    """Converts the exported graph to OpenVINO's form and runs it on the processor. Engines can be kept."""

    config_class = OpenVINOBackendConfig
    devices = ("cpu",)
    requires = (Requirement("openvino", "openvino"),)
    complexity = 4
    kept_as = "portable"

    @property
    def safe_in_process(self) -> bool:
        """Always: a failing conversion is an exception."""
        return True

    def unsuitable(self, job: Job) -> str | None:
        """Return why the job cannot be served, None if it may be tried."""
        for spec in (*job.graph.inputs.tensors, *job.graph.outputs.tensors):
            if spec.dtype.is_complex or spec.dtype is torch.float64:
                return f"OpenVINO does not compute in {str(spec.dtype).removeprefix('torch.')}: {spec}"
        return super().unsuitable(job)

    def build(self, job: Job) -> Engine:
        """Build an engine; see :meth:`Backend.build`. ``job.folder`` has to last as long as the engine.

        Raises:
            BackendUnsupportedError: If the module cannot be exported, has operators that OpenVINO lacks, or
                the processor does not compute in the precision.
            BackendBuildError: If OpenVINO refuses the model.
            BackendNotInstalledError: If it is not installed.
        """
        require(self, job)
        openvino = _import_openvino()
        exported = export_program(job, self.name)
        job.folder.mkdir(parents=True, exist_ok=True)
        self._convert(openvino, exported, job.folder / _MODEL)
        precision = lowest((module_precision(job), _PRECISIONS[self.config.precision]))
        artifact = Artifact(self.name, (_MODEL, _WEIGHTS), exported.routes, precision, exported.narrowing)
        compiled = self._compiled(openvino, job.folder / _MODEL)
        if _exported(compiled, job.folder / _COMPILED):
            files, origin = (*artifact.files, _COMPILED), self._origin(openvino, job.folder)
            artifact = replace(artifact, files=files, extra={"compiled": origin})
        return self._engine(openvino, compiled, job, job.folder, artifact)

    def load(self, job: Job, folder: Path) -> Engine:
        """Make an engine from saved files; see :meth:`Backend.load`.

        Where they were made by this version of the library, on such a processor, the model need not be compiled again.
        """
        require(self, job)
        openvino = _import_openvino()
        artifact = Artifact.read(folder, self.name)
        ready = artifact.extra.get("compiled") == self._origin(openvino, folder)
        compiled = self._compiled(openvino, folder / _MODEL, folder / _COMPILED if ready else None)
        return self._engine(openvino, compiled, job, folder, artifact)

    def _convert(self, openvino: Any, exported: ExportedGraph, path: Path) -> None:
        """Write the graph in OpenVINO's form.

        Through a file, since a model in memory goes on using the memory of the module's parameters.
        """
        try:
            model = openvino.convert_model(exported.program)
        except Exception as error:
            raise BackendUnsupportedError(self.name, f"cannot be converted: {_first_line(error)}") from error
        for port in model.inputs:
            name = _name_among(port, exported.input_names)
            port.get_tensor().add_names({input_name(exported.input_names.index(name))})
        for i, port in enumerate(model.outputs):
            port.get_tensor().add_names({output_name(i)})
        openvino.save_model(model, str(path), compress_to_fp16=False)

    def _compiled(self, openvino: Any, model: Path, ready: Path | None = None) -> Any:
        """Compile a model, or take it as it was compiled before."""
        wanted = _type_of(openvino, self.config.precision)
        options: dict[str, Any] = {
            **_SIZE,
            "INFERENCE_PRECISION_HINT": wanted,
            "PERFORMANCE_HINT": _HINTS[self.config.performance_hint],
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "ENABLE_CPU_PINNING": False,  # engines that are pinned all share the first cores
        }
        if self.config.num_streams is not None:
            options["NUM_STREAMS"] = self.config.num_streams
        core = openvino.Core()
        with read_once(model.parent):  # the weights' file, beside the form in which they are multiplied
            compiled = (
                None
                if ready is None
                else _imported(core, ready, {**options, "WEIGHTS_PATH": str(model.parent / _WEIGHTS)})
            )
            try:
                compiled = compiled or core.compile_model(str(model), "CPU", options)
            except Exception as error:
                raise BackendBuildError(self.name, f"OpenVINO refuses the model: {_first_line(error)}") from error
        used = compiled.get_property("INFERENCE_PRECISION_HINT")
        if used != wanted:
            raise BackendUnsupportedError(
                self.name,
                f"this processor computes in {used.get_type_name()}, not in {self.config.precision}",
            )
        return compiled

    def _origin(self, openvino: Any, folder: Path) -> dict[str, Any]:
        """Return what a compiled model depends on: it is right for nothing else."""
        return {
            "version": openvino.get_version(),
            "processor": Processor.here().record(),
            "config": self.config.describe(),
            "model": _digest(folder / _MODEL),
        }

    def _engine(self, openvino: Any, compiled: Any, job: Job, folder: Path, artifact: Artifact) -> Engine:
        call = compile_call(job.graph, _executor(openvino, compiled, job.graph, artifact.routes))
        facts = EngineFacts(precision=artifact.precision, narrowing=artifact.narrowing)
        return FunctionEngine(call, facts, artifact, folder)


def _digest(path: Path) -> str:
    """Return the digest of a file, nothing where it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _exported(compiled: Any, path: Path) -> bool:
    """Write a compiled model to a file; whether the library can."""
    try:
        path.write_bytes(compiled.export_model().getbuffer())
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - without the file, it is compiled again where it is loaded
        _log.debug("a compiled model is not kept: %s", _first_line(error))
        return False
    return True


def _imported(core: Any, path: Path, options: dict[str, Any]) -> Any:
    """Return a model that was compiled before, None if the library does not take it any more."""
    try:
        return core.import_model(path.read_bytes(), "CPU", options)
    except Exception as error:  # noqa: BLE001 - then it is compiled
        _log.debug("a compiled model is not taken: %s", _first_line(error))
        return None


def _type_of(openvino: Any, precision: str) -> Any:
    types = {"float32": openvino.Type.f32, "float16": openvino.Type.f16, "bfloat16": openvino.Type.bf16}
    return types[precision]


def _executor(
    openvino: Any, compiled: Any, graph: GraphSpec, routes: OutputRoutes
) -> Callable[[tuple[torch.Tensor, ...]], Any]:
    """Return a function that runs the model on a graph's tensors; each call takes a request from a pool."""
    index = {input_name(i): i for i in range(len(graph.inputs.tensors))}
    feeds = [index[_name_among(item, index)] for item in compiled.inputs]
    infer = _infer_function(openvino)
    take = [_taker(spec.dtype) for spec in _computed_specs(graph, routes)]
    output = compile_output(graph)
    pool: list[_Request] = []

    def execute(tensors: tuple[torch.Tensor, ...]) -> Any:
        try:
            request = pool.pop()
        except IndexError:
            request = _Request(openvino, compiled, len(feeds))
        for port, i in enumerate(feeds):
            request.feed(port, tensors[i])
        arrays = infer(request.native).values()
        request.bound.clear()
        results = [from_array(array) for from_array, array in zip(take, arrays, strict=True)]
        pool.append(request)
        return output(routes.outputs(results, tensors))

    return execute


class _Request:
    """An infer request with buffers for its inputs.

    Small inputs are copied into a buffer that stays bound: binding other memory costs the next run more than
    the copy does. Large ones are bound as they are for one call.

    Attributes:
        native: The library's request.
        bound: Arrays whose memory the request uses in this call; it does not keep them alive by itself.
    """

    def __init__(self, openvino: Any, compiled: Any, inputs: int) -> None:
        self.native = compiled.create_infer_request()
        self.bound: list[Any] = []
        self._openvino = openvino
        self._buffers: list[torch.Tensor | None] = [None] * inputs

    def feed(self, port: int, tensor: torch.Tensor) -> None:
        """Make ``tensor`` the input of a port."""
        if tensor.requires_grad:
            tensor = tensor.detach()
        buffer = self._buffers[port]
        if buffer is not None and buffer.shape == tensor.shape:
            buffer.copy_(tensor)
        elif tensor.nbytes > _LARGE:
            self._buffers[port] = None  # so that the next call binds again
            self.bound.append(self._bind(port, tensor.contiguous()))
        else:
            with torch.inference_mode(False):  # a buffer made in inference mode could not be written to outside it
                self._buffers[port] = buffer = torch.empty(tensor.shape, dtype=tensor.dtype)
            buffer.copy_(tensor)
            self._bind(port, buffer)

    def _bind(self, port: int, tensor: torch.Tensor) -> Any:
        """Bind a tensor's memory (that of a copy, if its values are negated lazily), and return its array."""
        if tensor.dtype is torch.bfloat16:  # numpy has none: the same bits as integers
            array = tensor.view(torch.int16).numpy(force=True)
            value = self._openvino.Tensor(array, list(tensor.shape), self._openvino.Type.bf16)
        else:
            array = tensor.numpy(force=True)
            value = self._openvino.Tensor(array, True)
        self.native.set_input_tensor(port, value)
        return array


def _name_among(port: Any, names: Iterable[str]) -> str:
    """Return which of the names is that of an input; it has others where operators on it were found to do nothing."""
    return next(name for name in names if name in port.get_names())


def _computed_specs(graph: GraphSpec, routes: OutputRoutes) -> list[TensorSpec]:
    pairs = zip(routes.sources, graph.outputs.tensors, strict=True)
    specs = {index: spec for (kind, index), spec in pairs if kind == "computed"}
    return [specs[i] for i in range(routes.computed)]


def _taker(dtype: torch.dtype) -> Callable[[Any], torch.Tensor]:
    if dtype is torch.bfloat16:
        return lambda array: torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    return torch.from_numpy


def _infer_function(openvino: Any) -> Callable[[Any], Any]:
    """Return the quickest call that runs a request on its inputs and returns copies of its outputs.

    The method of the native class, without the library's Python layer, which costs 15 to 80 µs a call.
    """
    native = next((c for c in openvino.InferRequest.__mro__ if c.__module__.endswith("_pyopenvino")), None)
    if native is None:
        return lambda request: request.infer({}, share_inputs=True, share_outputs=False)
    infer = native.infer
    return lambda request: infer(request, {}, False, False)


def _import_openvino() -> Any:
    """Import OpenVINO without its telemetry.

    Importing it sends usage events from a forked child of the process, which would come as a surprise to
    users of a tuner (and a fork of a threaded process is a hazard). The library has a stand-in for a missing
    telemetry package; who imports OpenVINO themselves decides for themselves.
    """
    if "openvino" not in sys.modules and _TELEMETRY not in sys.modules:
        sys.modules[_TELEMETRY] = None  # type: ignore[assignment]
        try:
            import openvino
        finally:
            del sys.modules[_TELEMETRY]
    import openvino

    return openvino


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
