"""ONNX Runtime: the graph as an ONNX file, run by a session of its own."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.utils.dlpack

from aitune.exceptions import AITuneUserInputError, BackendBuildError, BackendMachineError, BackendUnsupportedError
from aitune.torch.backend.artifact import Artifact
from aitune.torch.backend.availability import require
from aitune.torch.backend.base import Backend, BackendConfig, Engine, Requirement
from aitune.torch.backend.function_engine import EngineFacts, FunctionEngine
from aitune.torch.backend.onnxruntime_bound import BoundSession, feeds_of
from aitune.torch.backend.precision import module_precision
from aitune.torch.backend.validation import check_bool, check_int, check_options, refuse
from aitune.torch.export.flat import OutputRoutes, output_name
from aitune.torch.export.onnx import export_onnx
from aitune.torch.graph.accessor import compile_call, compile_output
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.job import Job
from aitune.torch.trial import Precision

__all__ = ["ONNXExecutionProvider", "ONNXRuntimeBackend", "ONNXRuntimeBackendConfig"]

_MODEL = "model.onnx"
# Threads spin within a call and from one to the next, which makes short calls up to a third quicker. Left alone, they
# would go on for 50 ms and slow down whatever runs next on the same cores. Versions that cannot be told for how long
# (https://github.com/microsoft/onnxruntime/pull/27916) have them stop with each call.
_SPINNING = {"session.intra_op.spin_duration_us": "200"}
_NO_SPINNING_BETWEEN = {"session.force_spinning_stop": "1"}
_TOLD_FOR_HOW_LONG = (1, 27)
_RECORDED = "session.record_ep_graph_assignment_info"
_FATAL_ONLY = 4  # log severity: what goes wrong is raised, and nothing is printed beside it


class ONNXExecutionProvider(enum.Enum):
    """What carries out the operators of a session; the values are ONNX Runtime's names."""

    CUDA = "CUDAExecutionProvider"
    TENSORRT = "TensorrtExecutionProvider"
    CPU = "CPUExecutionProvider"
    OPENVINO = "OpenVINOExecutionProvider"
    NV_TENSORRT_RTX = "NvTensorRTRTXExecutionProvider"


_BY_DEVICE = {"cpu": ONNXExecutionProvider.CPU, "cuda": ONNXExecutionProvider.CUDA}
_NEEDS_CUDA = (
    ONNXExecutionProvider.CUDA,
    ONNXExecutionProvider.TENSORRT,
    ONNXExecutionProvider.NV_TENSORRT_RTX,
)


@dataclass(frozen=True)
class ONNXRuntimeBackendConfig(BackendConfig):
    """Options of the ONNX export and of the session.

    Attributes:
        execution_provider: What runs the operators; None: CPU or CUDA, by where the module is. A name does as
            well.
        use_dynamo: Whether the module is exported by ``torch.export``; False traces it with TorchScript,
            which keeps for ever what forward decided by the values of the example inputs.
        opset_version: ONNX opset; None: the exporter's default.
        session_options: Attributes of ``onnxruntime.SessionOptions`` by name (enumerations by the member's
            name), and session configuration entries, which are those with a dot in the key.
        provider_options: Options of the execution provider by name. Device and stream are the module's.
    """

    execution_provider: ONNXExecutionProvider | None = None
    use_dynamo: bool = True
    opset_version: int | None = None
    session_options: Mapping[str, Any] = field(default_factory=dict)
    provider_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "execution_provider", self._provider(self.execution_provider))
        check_bool(self, "use_dynamo")
        check_int(self, "opset_version", 9)
        check_options(self, "session_options", optional=False)
        check_options(self, "provider_options", optional=False)

    def _provider(self, value: object) -> ONNXExecutionProvider | None:
        if value is None or isinstance(value, ONNXExecutionProvider):
            return value
        known = {text: member for member in ONNXExecutionProvider for text in (member.name, member.value)}
        if not isinstance(value, str) or value not in known:
            names = ", ".join(f"ONNXExecutionProvider.{member.name}" for member in ONNXExecutionProvider)
            raise refuse(self, "execution_provider", f"one of {names} or None", value)
        return known[value]


class ONNXRuntimeBackend(Backend[ONNXRuntimeBackendConfig]):
    """Exports the graph to ONNX and runs it with ONNX Runtime. Engines can be kept."""

    config_class = ONNXRuntimeBackendConfig
    devices = ("cpu", "cuda")
    requires = (
        Requirement("onnxruntime", "onnx"),
        Requirement("onnx", "onnx"),
        Requirement("onnxscript", "onnx"),
    )
    complexity = 3
    kept_as = "portable"

    @property
    def safe_in_process(self) -> bool:
        """Always: a failing export or session is an exception."""
        return True

    def unsuitable(self, job: Job) -> str | None:
        """Return why the job cannot be served, None if it may be tried."""
        provider = self._provider_for(job)
        if provider in _NEEDS_CUDA and job.device.type != "cuda":
            return f"{provider.value} needs cuda, the module is on {job.device.type}"
        if provider not in _NEEDS_CUDA and job.device.type == "cuda":
            return f"{provider.value} works in host memory, the module is on {job.device.type}"
        for spec in (*job.graph.inputs.tensors, *job.graph.outputs.tensors):
            if spec.dtype.is_complex:
                return f"ONNX has no complex numbers: {spec}"
        return super().unsuitable(job)

    def build(self, job: Job) -> Engine:
        """Build an engine; see :meth:`Backend.build`. ``job.folder`` has to last as long as the engine.

        Raises:
            BackendUnsupportedError: If the module cannot be exported, or the provider is not there.
            BackendBuildError: If ONNX Runtime refuses the model.
            BackendNotInstalledError: If a library is missing.
        """
        require(self, job)
        self._look_for_provider(job)
        exported = export_onnx(
            job,
            job.folder / _MODEL,
            use_dynamo=self.config.use_dynamo,
            opset=self.config.opset_version,
            backend=self.name,
        )
        files = tuple(name for name in (_MODEL, f"{_MODEL}.data") if (job.folder / name).exists())
        artifact = Artifact(self.name, files, exported.routes, self._precision(job), exported.narrowing)
        return self._engine(job, job.folder, artifact)

    def load(self, job: Job, folder: Path) -> Engine:
        """Make an engine from saved files; see :meth:`Backend.load`."""
        require(self, job)
        return self._engine(job, folder, Artifact.read(folder, self.name))

    def _provider_for(self, job: Job) -> ONNXExecutionProvider:
        return self.config.execution_provider or _BY_DEVICE.get(job.device.type, ONNXExecutionProvider.CPU)

    def _engine(self, job: Job, folder: Path, artifact: Artifact) -> Engine:
        # Sessions may be run by any number of threads at once.
        facts = EngineFacts(precision=artifact.precision, narrowing=artifact.narrowing)
        path = folder / artifact.files[0]
        if job.device.type == "cpu":
            session = self._session(path, job, {})
            return FunctionEngine(_call_of(session, job.graph, artifact.routes), facts, artifact, folder)
        stream = torch.cuda.Stream(job.device)  # type: ignore[no-untyped-call]
        own = {"user_compute_stream": str(stream.cuda_stream)}
        if stream.device_index:  # asked for the first device, the library prints that it has no plugin for it
            own["device_id"] = str(stream.device_index)
        bound = BoundSession(self._session(path, job, own), job.graph, artifact.routes, job.device, stream)
        return FunctionEngine(compile_call(job.graph, bound), facts, artifact, folder, bound.close)

    def _precision(self, job: Job) -> Precision:
        """Return the precision of an engine: float32 is tf32 on CUDA devices, unless that is switched off."""
        own = module_precision(job)
        tf32 = str(self.config.provider_options.get("use_tf32", 1)).lower() not in ("0", "false")
        return "tf32" if own == "float32" and job.device.type == "cuda" and tf32 else own

    def _look_for_provider(self, job: Job) -> None:
        """Refuse before anything is exported if the installed library has no such provider."""
        import onnxruntime

        provider, there = self._provider_for(job), onnxruntime.get_available_providers()
        if provider.value in there:
            return
        text = f"the installed onnxruntime has no {provider.value}, only {', '.join(there)}"
        advice = "; pip install onnxruntime-gpu in its place" if provider in _NEEDS_CUDA else ""
        raise BackendUnsupportedError(self.name, text + advice)

    def _session(self, path: Path, job: Job, own: Mapping[str, str]) -> Any:
        """Return a session; ``own`` are options of the provider that a user does not set."""
        import onnxruntime

        self._look_for_provider(job)
        provider = self._provider_for(job)
        options = self._session_options(onnxruntime.SessionOptions(), onnxruntime.__version__)
        if provider is not ONNXExecutionProvider.CPU:
            options.add_session_config_entry(_RECORDED, "1")
        try:
            session = onnxruntime.InferenceSession(
                str(path), options, providers=[(provider.value, {**self.config.provider_options, **own})]
            )
        except Exception as error:
            kind = BackendUnsupportedError if "NOT_IMPLEMENTED" in str(error) else BackendBuildError
            raise kind(self.name, f"ONNX Runtime refuses the model: {_first_line(error)}") from error
        session.disable_fallback()
        used = session.get_providers()
        if used[0] != provider.value:
            raise BackendMachineError(self.name, f"{provider.value} was asked for, {used[0]} would be used")
        if provider is not ONNXExecutionProvider.CPU and provider.value not in _working(session, used):
            raise BackendUnsupportedError(self.name, f"{provider.value} takes none of the model's operators")
        return session

    def _session_options(self, options: Any, version: str) -> Any:
        options.intra_op_num_threads = torch.get_num_threads()
        options.inter_op_num_threads = 1
        options.log_severity_level = _FATAL_ONLY
        for name, value in {**_spinning(version), **self.config.session_options}.items():
            _set_option(options, name, value)
        return options


def _spinning(version: str) -> Mapping[str, str]:
    """Return how long threads wait for work, for a version of the library."""
    known = tuple(int(part) for part in re.findall(r"\d+", version)[:2]) >= _TOLD_FOR_HOW_LONG
    return _SPINNING if known else _NO_SPINNING_BETWEEN


def _working(session: Any, used: Sequence[str]) -> Collection[str]:
    """Return the providers that operators were given to, as recorded; those in use, with a library that does not."""
    assigned = getattr(session, "get_provider_graph_assignment_info", None)
    return used if assigned is None else {part.ep_name for part in assigned()} or used


def _set_option(options: Any, name: str, value: Any) -> None:
    """Set an attribute of session options, or a configuration entry if there is a dot in the name."""
    try:
        if "." in name:
            options.add_session_config_entry(name, str(value))
            return
        current = getattr(options, name)  # AttributeError if there is none
        if name.startswith("_") or callable(current):
            raise AttributeError(f"SessionOptions has no option {name!r}")
        members = getattr(type(current), "__members__", {})
        setattr(options, name, members.get(value, value))
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        option = f"ONNXRuntimeBackendConfig: session_options[{name!r}] = {value!r}"
        raise AITuneUserInputError(f"{option} is refused: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]


def _call_of(session: Any, graph: GraphSpec, routes: OutputRoutes) -> Callable[..., Any]:
    """Return the session behind the module's own call form."""
    dtypes = {spec.dtype for spec in (*graph.inputs.tensors, *graph.outputs.tensors)}
    executor = _by_dlpack if torch.bfloat16 in dtypes else _by_numpy
    return compile_call(graph, executor(session, graph, routes))


def _by_numpy(session: Any, graph: GraphSpec, routes: OutputRoutes) -> Callable[[tuple[torch.Tensor, ...]], Any]:
    """Pass memory as numpy arrays: inputs and outputs are not copied, and outputs are new at each call.

    About a third quicker than binding inputs and outputs each time, since sizes vary. The library makes
    inputs contiguous where they are not.
    """
    feeds = feeds_of(session, graph)
    names = [output_name(i) for i in range(routes.computed)]
    native = getattr(session, "_sess", session)  # skips a check of the names that were read from the session
    run, from_numpy, output = native.run, torch.from_numpy, compile_output(graph)

    def execute(tensors: tuple[torch.Tensor, ...]) -> Any:
        results = run(names, {name: tensors[i].numpy(force=True) for name, i in feeds}, None)
        return output([from_numpy(result) for result in results])

    def execute_routed(tensors: tuple[torch.Tensor, ...]) -> Any:
        results = run(names, {name: tensors[i].numpy(force=True) for name, i in feeds}, None)
        return output(routes.outputs([from_numpy(result) for result in results], tensors))

    return execute if routes.direct else execute_routed


def _by_dlpack(session: Any, graph: GraphSpec, routes: OutputRoutes) -> Callable[[tuple[torch.Tensor, ...]], Any]:
    """Pass memory by DLPack, which has the dtypes that numpy lacks."""
    import onnxruntime

    feeds = feeds_of(session, graph)
    names = [output_name(i) for i in range(routes.computed)]
    output, wrap = compile_output(graph), onnxruntime.OrtValue.from_dlpack

    def execute(tensors: tuple[torch.Tensor, ...]) -> Any:
        values = {name: wrap(tensors[i].detach().contiguous()) for name, i in feeds}
        results = session.run_with_ort_values(names, values)
        return output(routes.outputs([torch.utils.dlpack.from_dlpack(result) for result in results], tensors))

    return execute
