"""torch.compile with Inductor, in a function of its own for each engine."""

from __future__ import annotations

import contextlib
import linecache
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from aitune.exceptions import AITuneUserInputError, BackendBuildError, BackendUnsupportedError
from aitune.torch.backend.availability import require
from aitune.torch.backend.base import Backend, BackendConfig, Engine
from aitune.torch.backend.cuda_graphs import CudaGraphs
from aitune.torch.backend.function_engine import EngineFacts, FunctionEngine
from aitune.torch.backend.precision import lowest, module_precision, precision_of
from aitune.torch.backend.validation import check_autocast, check_bool, check_choice, check_options
from aitune.torch.export.flat import flat_call, flat_inputs
from aitune.torch.export.preserved import preserved
from aitune.torch.graph.accessor import (
    compile_call,
    compile_forward,
    compile_output,
    compile_output_accessor,
)
from aitune.torch.graph.dims import DynamicDim
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.job import Job

__all__ = ["TorchInductorJitBackend", "TorchInductorJitBackendConfig"]

_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
# torch's own CUDA graphs hand out memory that the next call writes to, in one thread only. Ours take their place.
_WITHOUT_GRAPHS: dict[str | None, str | None] = {"reduce-overhead": None, "max-autotune": "max-autotune-no-cudagraphs"}
_GRAPHS_OPTION = "triton.cudagraphs"


@dataclass(frozen=True)
class TorchInductorJitBackendConfig(BackendConfig):
    """Options of ``torch.compile``.

    Attributes:
        mode: As in ``torch.compile``; where it asks for CUDA graphs, outputs may be kept all the same.
        fullgraph: Whether a graph break is an error.
        dynamic: As in ``torch.compile``; None makes the graph's dimensions dynamic from the start.
        options: Inductor's options by name; not together with ``mode``.
        autocast_enabled: Whether forward runs under autocast.
        autocast_dtype: Its dtype; None: torch's choice for the device.
        freezing: Whether weights become constants that are laid out for the processor.
    """

    mode: str | None = None
    fullgraph: bool = False
    dynamic: bool | None = None
    options: dict[str, Any] | None = None
    autocast_enabled: bool = False
    autocast_dtype: torch.dtype | None = None
    freezing: bool = False

    def __post_init__(self) -> None:
        check_choice(self, "mode", (*_MODES, None))
        check_bool(self, "fullgraph", "freezing")
        check_bool(self, "dynamic", optional=True)
        check_options(self, "options")
        check_autocast(self)
        if self.mode is not None and self.options is not None:
            raise AITuneUserInputError(f"{type(self).__name__}: give mode or options, not both")


class TorchInductorJitBackend(Backend[TorchInductorJitBackendConfig]):
    """Compiles the module's forward with ``torch.compile``, at the sizes that matter, while building."""

    config_class = TorchInductorJitBackendConfig
    devices = ("cpu", "cuda", "xpu", "mps")
    complexity = 3

    @property
    def safe_in_process(self) -> bool:
        """Unless frozen: a frozen engine never leaves the process that made it."""
        return not self.config.freezing

    def build(self, job: Job) -> Engine:
        """Build an engine; see :meth:`Backend.build`.

        Raises:
            BackendUnsupportedError: If nothing of the module was compiled.
            BackendBuildError: If torch.compile fails.
        """
        require(self, job)
        compiled = _compiled(job, self.config)
        before, writes = _compiled_graphs(), False
        try:
            with preserved(job.module), self._freezing(), torch.no_grad():
                for tensors in _warm_up_inputs(job, self.config.dynamic):
                    versions = [tensor._version for tensor in tensors]
                    compiled(*tensors)
                    writes = writes or versions != [tensor._version for tensor in tensors]
        except Exception as error:
            raise BackendBuildError(self.name, f"torch.compile fails: {_first_line(error)}") from error
        if _compiled_graphs() == before and not _has_compiled_frames(job.module):
            raise BackendUnsupportedError(self.name, "torch.compile found nothing in the module to compile")
        execute = _in_one_mode(compiled, as_they_are=writes)
        if job.device.type == "cuda" and _wants_graphs(self.config):
            return self._as_graphs(job, execute)
        return FunctionEngine(compile_call(job.graph, execute), _facts(job, self.config))

    def _as_graphs(self, job: Job, execute: Callable[[tuple[torch.Tensor, ...]], Any]) -> Engine:
        graphs = CudaGraphs(execute, job.graph, job.module)
        with preserved(job.module), torch.no_grad():
            problem = graphs.prepare([flat_call(job, sample) for sample in job.samples])
        facts = _facts(job, self.config)
        if problem is not None:
            graphs.close()
            return FunctionEngine(compile_call(job.graph, execute), replace(facts, notes=(problem,)))
        return FunctionEngine(compile_call(job.graph, graphs), facts, on_close=graphs.close)

    def _freezing(self) -> contextlib.AbstractContextManager[Any]:
        if not self.config.freezing:
            return contextlib.nullcontext()
        import torch._inductor.config

        # As an option of torch.compile it freezes nothing in torch 2.13; around the first call it does.
        patch: contextlib.AbstractContextManager[Any] = torch._inductor.config.patch(freezing=True)
        return patch


def _compiled(job: Job, config: TorchInductorJitBackendConfig) -> Callable[..., Any]:
    """Return a function of the graph's tensors that compiles when it is called.

    It has a code object of its own: torch.compile counts recompilations by code object, and past a limit runs
    eagerly without a word.
    """
    mode, options = config.mode, config.options
    if job.device.type == "cuda" and _wants_graphs(config):
        mode = _WITHOUT_GRAPHS.get(mode, mode)
        options = None if options is None else {**options, _GRAPHS_OPTION: False}
    compiled = torch.compile(
        _with_source(compile_forward(job.graph, job.forward)),
        fullgraph=config.fullgraph,
        dynamic=config.dynamic,
        mode=mode,
        options=options,
    )
    if config.autocast_enabled:
        compiled = _under_autocast(compiled, job.graph, job.device.type, config.autocast_dtype)
    return compiled


def _with_source(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a generated function a source file as long as it lives.

    Before torch 2.13 one without any is put into a wrapper whose code object all of them share, and with it the limit
    of recompilations.
    """
    name = function.__code__.co_filename
    linecache.cache[name] = (0, None, [], name)
    weakref.finalize(function, linecache.cache.pop, name, None)
    return function


def _wants_graphs(config: TorchInductorJitBackendConfig) -> bool:
    return config.mode in _WITHOUT_GRAPHS or bool((config.options or {}).get(_GRAPHS_OPTION))


def _facts(job: Job, config: TorchInductorJitBackendConfig) -> EngineFacts:
    precision = module_precision(job)
    if config.autocast_enabled:
        dtype = config.autocast_dtype or torch.get_autocast_dtype(job.device.type)
        precision = lowest((precision, precision_of(dtype)))
    return EngineFacts(precision=precision, keeps_module=True, live_weights=not config.freezing)


def _in_one_mode(compiled: Callable[..., Any], *, as_they_are: bool) -> Callable[[tuple[torch.Tensor, ...]], Any]:
    """Return a function of a call's tensors that runs in the one way that was compiled while building.

    Gradients, inference mode and strides each ask for code of their own, which would be compiled in the middle of
    a call and takes seconds.

    Args:
        compiled: Takes the tensors one by one.
        as_they_are: Whether inputs must not be copied, since forward writes to them.
    """

    def execute(tensors: tuple[torch.Tensor, ...]) -> Any:
        plain = [tensor.detach() if tensor.requires_grad else tensor for tensor in tensors]
        if not as_they_are:
            plain = [tensor.contiguous() for tensor in plain]
        if torch.is_inference_mode_enabled() and not as_they_are:
            with torch.inference_mode(False), torch.no_grad():
                return compiled(*[tensor.clone() if tensor.is_inference() else tensor for tensor in plain])
        if torch.is_grad_enabled():
            with torch.no_grad():
                return compiled(*plain)
        return compiled(*plain)

    return execute


def _under_autocast(
    compiled: Callable[..., Any], graph: GraphSpec, device: str, dtype: torch.dtype | None
) -> Callable[..., Any]:
    output, output_tensors = compile_output(graph), compile_output_accessor(graph)
    dtypes = [spec.dtype for spec in graph.outputs.tensors]

    def call(*tensors: torch.Tensor) -> Any:
        with torch.autocast(device, dtype=dtype):
            result = compiled(*tensors)
        found = output_tensors(result)
        return output([tensor.to(kind) for tensor, kind in zip(found, dtypes, strict=True)])

    return call


def _warm_up_inputs(job: Job, dynamic: bool | None) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield inputs, so that what is compiled serves every size of the graph: one in between, then the ends.

    A size of 1 is always compiled by itself.
    """
    graph = job.graph
    inputs = flat_inputs(job)
    if dynamic is None:
        for tensor, spec in zip(inputs, graph.inputs.tensors, strict=True):
            for axis, size in enumerate(spec.shape):
                if isinstance(size, DynamicDim):
                    torch._dynamo.maybe_mark_dynamic(tensor, axis)
    yield inputs
    smallest = {name: dim.min for name, dim in graph.dims.items()}
    ones = [{name: 1} for name, size in smallest.items() if size == 1]
    largest = {name: dim.max for name, dim in graph.dims.items()}
    for sizes in [*ones, smallest, largest] if graph.dims else []:
        sample = graph.resized(job.samples[0], sizes)
        yield graph.input_tensors(sample.args, sample.kwargs)


def _compiled_graphs() -> int:
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def _has_compiled_frames(module: torch.nn.Module) -> bool:
    """Whether a forward in the module was compiled before, by an engine of the same configuration."""
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list

    functions = [getattr(child.forward, "__func__", child.forward) for child in module.modules()]
    codes = [function.__code__ for function in functions if hasattr(function, "__code__")]
    return any(_debug_get_cache_entry_list(code) for code in codes)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
