"""A shared library compiled ahead of time by Inductor (AOTInductor), called without a layer of Python in between."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from aitune.exceptions import AITuneUserInputError, BackendBuildError, BackendMachineError
from aitune.torch.backend.artifact import Artifact
from aitune.torch.backend.availability import require
from aitune.torch.backend.base import Backend, BackendConfig, Engine
from aitune.torch.backend.circumstance import cxx
from aitune.torch.backend.cuda_graphs import CudaGraphs
from aitune.torch.backend.function_engine import EngineFacts, FunctionEngine
from aitune.torch.backend.linking import RUNTIME, has_runtime_of_its_own, links_runtime_in
from aitune.torch.backend.precision import module_precision
from aitune.torch.backend.processor import Processor
from aitune.torch.backend.resident import read_once
from aitune.torch.backend.state import state_of
from aitune.torch.backend.validation import check_bool, check_options
from aitune.torch.export.flat import OutputRoutes, flat_call, flat_inputs
from aitune.torch.export.program import ExportedGraph, export_program
from aitune.torch.graph.accessor import compile_call, compile_output
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.job import Job

__all__ = ["TorchInductorAotBackend", "TorchInductorAotBackendConfig"]

_PACKAGE = "model.pt2"
_EXPORTED_AS = "module."  # where the module stands in what is exported
_MODEL = "model"  # what torch names the only model of a package
_SCRATCH = "compile"
_ALIGNMENT = 16  # bytes; kernels for cuda are compiled for inputs that begin at a multiple of it


@dataclass(frozen=True)
class TorchInductorAotBackendConfig(BackendConfig):
    """Options of AOTInductor.

    Attributes:
        inductor_configs: Settings of ``torch._inductor.config`` by name.
        freezing: Whether weights become constants that are laid out for the processor; None: on for cpu.
        use_cuda_graphs: Whether calls are replayed as CUDA graphs.
    """

    inductor_configs: dict[str, Any] | None = None
    freezing: bool | None = None
    use_cuda_graphs: bool = False

    def __post_init__(self) -> None:
        check_options(self, "inductor_configs")
        check_bool(self, "freezing", optional=True)
        check_bool(self, "use_cuda_graphs")


class TorchInductorAotBackend(Backend[TorchInductorAotBackendConfig]):
    """Compiles the exported graph to native code once. Engines can be kept; they hold the weights.

    A package is a shared library: loading it runs its code, so that only packages of one's own may be loaded.
    """

    config_class = TorchInductorAotBackendConfig
    devices = ("cpu", "cuda")
    complexity = 1

    def unsuitable(self, job: Job) -> str | None:
        """Return why the job cannot be served, None if it may be tried."""
        if self.config.use_cuda_graphs and job.device.type != "cuda":
            return f"use_cuda_graphs needs cuda, the module is on {job.device.type}"
        return super().unsuitable(job)

    def build(self, job: Job) -> Engine:
        """Build an engine; see :meth:`Backend.build`. ``job.folder`` has to last as long as the engine.

        Raises:
            BackendMachineError: If there is no C++ compiler.
            BackendUnsupportedError: If the module cannot be exported.
            BackendBuildError: If Inductor or the compiler fails.
            AITuneUserInputError: If Inductor has no setting of a given name.
        """
        require(self, job)
        compiler = self._compiler()
        exported = export_program(job, self.name)
        job.folder.mkdir(parents=True, exist_ok=True)
        self._compile(job, exported, compiler)
        artifact = Artifact(
            self.name,
            (_PACKAGE,),
            exported.routes,
            module_precision(job),
            exported.narrowing,
            {"processor": Processor.here().record(), "torch": torch.__version__, "gpu": _architecture(job.device)},
        )
        del exported  # and with it everything that was traced
        package = self._load(job.folder / _PACKAGE, job)
        inputs = flat_inputs(job.narrowed(dict(artifact.narrowing.ranges)))
        copied = _shared_outputs(package.run, inputs)
        artifact = replace(artifact, extra={**artifact.extra, "copied": copied})
        return self._engine(package, job, artifact, job.folder)

    def load(self, job: Job, folder: Path) -> Engine:
        """Make an engine from saved files; see :meth:`Backend.load`. Runs native code from them.

        Raises:
            BackendBuildError: If the files are damaged, or were made for another processor, device or version of torch.
        """
        require(self, job)
        artifact = Artifact.read(folder, self.name)
        self._check_origin(artifact, job.device)
        try:
            package = self._load(folder / artifact.files[0], job)
        except Exception as error:
            raise BackendBuildError(self.name, f"the package cannot be loaded: {_first_line(error)}") from error
        return self._engine(package, job, artifact, folder)

    def _load(self, file: Path, job: Job) -> _Package:
        """Load a package; the call of its library is a tenth of the cost of the public callable's.

        The public function takes 1.3 s more: it imports the whole of Inductor to compare facts that
        :class:`Processor` and the version of torch stand for here.
        """
        load = torch._C._aoti.AOTIModelPackageLoader  # type: ignore[attr-defined, unused-ignore]
        graphs, index = self.config.use_cuda_graphs, -1 if job.device.index is None else job.device.index
        with read_once():  # the library, as large as the weights, beside the weights themselves
            # Single-threaded under graphs: what it records otherwise, to know when a call is done, could not be asked
            # about any more once a capture has recorded it.
            loader = load(str(file), _MODEL, graphs, 1, index)
        # Without graphs, it takes calls of several threads in turn by itself.
        run: Run = _one_at_a_time(loader.boxed_run) if graphs else loader.boxed_run
        return _Package(run, None if self._freezes(job.device) else _weights_of(loader, job.module))

    def _engine(self, package: _Package, job: Job, artifact: Artifact, folder: Path) -> Engine:
        given = _aligned if job.device.type == "cuda" else _plain
        execute = _executor(package.run, job.graph, artifact.routes, tuple(artifact.extra.get("copied", ())), given)
        facts = EngineFacts(precision=artifact.precision, narrowing=artifact.narrowing)
        if not self.config.use_cuda_graphs:
            call = compile_call(job.graph, execute)
            return FunctionEngine(call, facts, artifact, folder, on_refit=package.take)
        graphs = CudaGraphs(execute, job.graph)
        part = job.narrowed(dict(artifact.narrowing.ranges))
        problem = graphs.prepare([flat_call(job, sample) for sample in part.samples])
        facts = replace(facts, notes=() if problem is None else (problem,))
        call = compile_call(job.graph, graphs)
        take = None if package.take is None else _then(package.take, graphs.forget)
        return FunctionEngine(call, facts, artifact, folder, graphs.close, take)

    def _freezes(self, device: torch.device) -> bool:
        return device.type == "cpu" if self.config.freezing is None else self.config.freezing

    def _compile(self, job: Job, exported: ExportedGraph, compiler: str) -> None:
        import torch._inductor
        import torch._inductor.config

        unknown = set(self.config.inductor_configs or {}) - set(torch._inductor.list_options())
        if unknown:
            names = ", ".join(sorted(unknown))
            raise AITuneUserInputError(f"TorchInductorAotBackendConfig: inductor_configs: Inductor has no {names}")
        freezing = self._freezes(job.device)
        # Else the smallest weights, up to eight numbers, are written into the code, and refit would not reach them.
        settings: dict[str, Any] = {"freezing": freezing, "always_keep_tensor_constants": not freezing}
        if job.device.type == "cpu":
            # Written down: left alone, a library compiled for all cores takes whatever torch.set_num_threads says
            # later, and has places for the results of as many threads only as there were cores.
            settings["cpp.threads"] = torch.get_num_threads()
        if links_runtime_in(compiler):
            settings["aot_inductor.custom_op_libs"] = [f":{RUNTIME}"]  # asked first, the runtime's own archive is not
        scratch = job.folder / _SCRATCH
        try:
            # A folder of its own for sources and libraries: else they stay in Inductor's cache, one for each build.
            with torch._inductor.config.patch({"aot_inductor.output_path": str(scratch)}), torch.no_grad():
                torch._inductor.aoti_compile_and_package(
                    exported.program,
                    package_path=str(job.folder / _PACKAGE),
                    inductor_configs={**settings, **(self.config.inductor_configs or {})},
                )
        except (MemoryError, OSError):
            raise
        except Exception as error:
            raise BackendBuildError(self.name, f"AOTInductor fails: {_first_line(error)}") from error
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        if has_runtime_of_its_own(job.folder / _PACKAGE):
            text = (
                f"{compiler} links the C++ runtime into libraries, which then crash; {RUNTIME} has to be found instead"
            )
            raise BackendBuildError(self.name, text)

    def _compiler(self) -> str:
        """Return the compiler that Inductor would call; refuse where it is not there."""
        name = cxx()
        if shutil.which(name) is None:
            hint = "install one (such as the package g++), or name one in the environment variable CXX"
            raise BackendMachineError(self.name, f"needs a C++ compiler, and there is no {name!r}: {hint}")
        return name

    def _check_origin(self, artifact: Artifact, device: torch.device) -> None:
        made_by = artifact.extra.get("torch")
        if made_by != torch.__version__:
            raise BackendBuildError(
                self.name, f"the package was compiled for torch {made_by}, here is {torch.__version__}; build it anew"
            )
        lacking = Processor.here().lacks(artifact.extra.get("processor"))
        if lacking:
            raise BackendBuildError(
                self.name, f"the package was compiled for another processor: {lacking}; build it anew"
            )
        made_for, here = artifact.extra.get("gpu"), _architecture(device)
        if made_for != here:
            text = f"the package was compiled for {made_for or 'cpu'}, the module is on {here or 'cpu'}; build it anew"
            raise BackendBuildError(self.name, text)


Run = Callable[[list[torch.Tensor]], list[torch.Tensor]]
"""Takes the input tensors, which it may drop from the list, and returns the computed ones."""


@dataclass(frozen=True)
class _Package:
    """A package that is loaded.

    Attributes:
        run: The call of its library.
        take: Gives it the weights of a module, None where they are part of its code.
    """

    run: Run
    take: Callable[[Mapping[str, torch.Tensor]], None] | None


def _weights_of(loader: Any, module: torch.nn.Module) -> Callable[[Mapping[str, torch.Tensor]], None] | None:
    """Return what gives a package other weights, None where it has constants that are none of the module's tensors."""
    known = state_of(module)
    names: dict[str, str] = {fqn: fqn.removeprefix(_EXPORTED_AS) for fqn in loader.get_constant_fqns()}
    if not names or any(name not in known for name in names.values()):
        return None

    def take(state: Mapping[str, torch.Tensor]) -> None:
        loader.load_constants({fqn: state[name] for fqn, name in names.items()}, False, True)

    return take


def _then(
    take: Callable[[Mapping[str, torch.Tensor]], None], after: Callable[[], None]
) -> Callable[[Mapping[str, torch.Tensor]], None]:
    def both(state: Mapping[str, torch.Tensor]) -> None:
        take(state)
        after()

    return both


def _architecture(device: torch.device) -> str | None:
    """Return the compute capability that kernels are compiled for, None where the processor runs all."""
    if device.type != "cuda":
        return None
    major, minor = torch.cuda.get_device_capability(device)
    return f"cuda {major}.{minor}"


def _one_at_a_time(run: Run) -> Run:
    lock = threading.Lock()

    def locked(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        with lock:
            return run(tensors)

    return locked


def _executor(
    run: Run,
    graph: GraphSpec,
    routes: OutputRoutes,
    copied: tuple[int, ...],
    given: Callable[[torch.Tensor], torch.Tensor],
) -> Callable[[tuple[torch.Tensor, ...]], Any]:
    output = compile_output(graph)

    def execute(tensors: tuple[torch.Tensor, ...]) -> Any:
        return output(run([given(tensor) for tensor in tensors]))

    def execute_routed(tensors: tuple[torch.Tensor, ...]) -> Any:
        results = run([given(tensor) for tensor in tensors])
        for index in copied:
            results[index] = results[index].clone()
        return output(routes.outputs(results, tensors))

    return execute if routes.direct and not copied else execute_routed


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as the library was compiled for: contiguous, and nothing left to compute."""
    return tensor.resolve_neg().contiguous()


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.resolve_neg().contiguous()
    return tensor if tensor.data_ptr() % _ALIGNMENT == 0 else tensor.clone()


def _shared_outputs(run: Run, inputs: Sequence[torch.Tensor]) -> list[int]:
    """Return which outputs share memory with an input or with the same output of another call.

    Those are constants of the library, which a caller could overwrite, and views of inputs.
    """
    first, second = run(list(inputs)), run(list(inputs))
    taken = {_memory(tensor) for tensor in inputs}
    return [
        index
        for index, (one, other) in enumerate(zip(first, second, strict=True))
        if one.numel() and (_memory(one) == _memory(other) or _memory(one) in taken)
    ]


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
