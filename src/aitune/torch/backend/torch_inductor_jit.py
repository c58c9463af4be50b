"""torch.compile with Inductor, in a function of its own for each engine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from aitune.exceptions import AITuneUserInputError, BackendBuildError, BackendUnsupportedError
from aitune.torch.backend.availability import require
from aitune.torch.backend.base import Backend, BackendConfig, Engine
from aitune.torch.backend.function_engine import EngineFacts, FunctionEngine
from aitune.torch.backend.precision import lowest, module_precision, precision_of
from aitune.torch.backend.validation import check_autocast, check_bool, check_choice, check_options
from aitune.torch.export.flat import flat_inputs
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
_CUDA_GRAPH_MODES = ("reduce-overhead", "max-autotune")  # outputs live in memory that the next call writes to


@dataclass(frozen=True)
class TorchInductorJitBackendConfig(BackendConfig):
    """Options of ``torch.compile``.

    Attributes:
        mode: As in ``torch.compile``.
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
            BackendUnsupportedError: If nothing of the module was compiled, or results would be overwritten.
            BackendBuildError: If torch.compile fails.
        """
        require(self, job)
        if job.device.type == "cuda" and self.config.mode in _CUDA_GRAPH_MODES:
            raise BackendUnsupportedError(self.name, f"mode {self.config.mode!r} comes with the GPU backends")
        compiled = _compiled(job, self.config)
        before, writes = _compiled_graphs(), False
        try:
            with preserved(job.module), self._freezing(), torch.no_grad():
                for tensors, scalars in _with_scalars(_warm_up_inputs(job, self.config.dynamic), job):
                    versions = [tensor._version for tensor in tensors]
                    compiled(*tensors, *scalars)
                    writes = writes or versions != [tensor._version for tensor in tensors]
        except Exception as error:
            raise BackendBuildError(self.name, f"torch.compile fails: {_first_line(error)}") from error
        if _compiled_graphs() == before and not _has_compiled_frames(job.module):
            raise BackendUnsupportedError(self.name, "torch.compile found nothing in the module to compile")
        execute = _in_one_mode(compiled, len(job.graph.inputs.tensors), as_they_are=writes)
        return FunctionEngine(compile_call(job.graph, execute), _facts(job, self.config))

    def takes_varying(self, kinds: Collection[type]) -> bool:
        """Whether what changes are numbers, which torch.compile makes symbols of once two values were seen."""
        return not self.config.freezing and self.config.dynamic is not False and set(kinds) <= {int, float}

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
    compiled = torch.compile(
        compile_forward(job.graph, job.forward),
        fullgraph=config.fullgraph,
        dynamic=config.dynamic,
        mode=config.mode,
        options=config.options,
    )
    if config.autocast_enabled:
        compiled = _under_autocast(compiled, job.graph, job.device.type, config.autocast_dtype)
    return compiled


def _facts(job: Job, config: TorchInductorJitBackendConfig) -> EngineFacts:
    precision = module_precision(job)
    if config.autocast_enabled:
        dtype = config.autocast_dtype or torch.get_autocast_dtype(job.device.type)
        precision = lowest((precision, precision_of(dtype)))
    return EngineFacts(precision=precision, keeps_module=True, live_weights=not config.freezing)


def _in_one_mode(
    compiled: Callable[..., Any], tensor_count: int, *, as_they_are: bool
) -> Callable[[tuple[Any, ...]], Any]:
    """Return a function of a call's tensors, and of scalars behind them, that runs in the one way that was compiled.

    Gradients, inference mode and strides each ask for code of their own, which would be compiled in the middle of
    a call and takes seconds.

    Args:
        compiled: Takes the tensors one by one, then the scalars.
        tensor_count: How many tensors there are.
        as_they_are: Whether inputs must not be copied, since forward writes to them.
    """

    def execute(operands: tuple[Any, ...]) -> Any:
        scalars = operands[tensor_count:]
        plain = [tensor.detach() if tensor.requires_grad else tensor for tensor in operands[:tensor_count]]
        if not as_they_are:
            plain = [tensor.contiguous() for tensor in plain]
        if torch.is_inference_mode_enabled() and not as_they_are:
            with torch.inference_mode(False), torch.no_grad():
                return compiled(*[tensor.clone() if tensor.is_inference() else tensor for tensor in plain], *scalars)
        if torch.is_grad_enabled():
            with torch.no_grad():
                return compiled(*plain, *scalars)
        return compiled(*plain, *scalars)

    return execute


def _under_autocast(
    compiled: Callable[..., Any], graph: GraphSpec, device: str, dtype: torch.dtype | None
) -> Callable[..., Any]:
    output, output_tensors = compile_output(graph), compile_output_accessor(graph)
    dtypes = [spec.dtype for spec in graph.outputs.tensors]

    def call(*operands: Any) -> Any:
        with torch.autocast(device, dtype=dtype):
            result = compiled(*operands)
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


def _with_scalars(
    inputs: Iterator[tuple[torch.Tensor, ...]], job: Job
) -> Iterator[tuple[tuple[torch.Tensor, ...], tuple[Any, ...]]]:
    """Yield inputs with what varies beside the tensors: two values, so that a symbol is made of it while building."""
    varying = job.graph.inputs.varying
    for tensors in inputs:
        yield tensors, tuple(leaf.value for leaf in varying)
        if varying:  # neither 0 nor 1, for which torch.compile makes code of its own
            yield tensors, tuple(leaf.kind(leaf.value + 1.5 + index) for index, leaf in enumerate(varying))


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
