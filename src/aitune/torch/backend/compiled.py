"""torch.compile of a forward for one graph: compiled while building, so that no call of a user has to wait for it."""

from __future__ import annotations

import contextlib
import linecache
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from aitune.exceptions import BackendBuildError, BackendUnsupportedError
from aitune.torch.backend.base import Engine
from aitune.torch.backend.cuda_graphs import CudaGraphs
from aitune.torch.backend.function_engine import EngineFacts, FunctionEngine
from aitune.torch.export.flat import flat_call, flat_inputs, inputs_to_aim_at
from aitune.torch.export.narrowing import WHOLE, Narrowing, static
from aitune.torch.export.preserved import preserved
from aitune.torch.graph.accessor import compile_call, compile_forward, compile_output, compile_output_accessor
from aitune.torch.graph.dims import BatchDim, DynamicDim
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.job import Job

__all__ = ["WITHOUT_GRAPHS", "Execute", "compiled_forward", "engine_of", "under_autocast", "warmed_up"]

WITHOUT_GRAPHS: Mapping[str | None, str | None] = {
    "reduce-overhead": None,
    "max-autotune": "max-autotune-no-cudagraphs",
}
"""Modes of ``torch.compile`` with torch's own CUDA graphs, and the same ones without: those graphs hand out memory that
the next call writes to, and serve one thread. Ours take their place."""

_PROBES = 2

Execute = Callable[[tuple[Any, ...]], Any]
"""Takes the tensors of a call, and behind them the scalars that vary."""


def compiled_forward(job: Job, forward: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return a function of the graph's tensors that compiles when it is called.

    It has a code object of its own: torch.compile counts recompilations by code object, and past a limit runs
    eagerly without a word.

    Args:
        job: The graph.
        forward: What to compile.
        options: Those of ``torch.compile``.
    """
    compiled: Callable[..., Any] = torch.compile(_with_source(compile_forward(job.graph, forward)), **options)
    return compiled


def warmed_up(
    job: Job, compiled: Callable[..., Any], module: torch.nn.Module, *, dynamic: bool | None, backend: str
) -> tuple[Execute, Narrowing]:
    """Compile for the sizes that matter, and find out for which part of the graph that is enough.

    Args:
        job: The graph.
        compiled: As :func:`compiled_forward` returns it, maybe in a wrapper.
        module: What runs in it; as before afterwards.
        dynamic: As in ``torch.compile``; None makes the graph's dimensions dynamic from the start.
        backend: Who to name in errors.

    Returns:
        A function of a call's tensors, and the part of the graph that it serves without compiling again: one size,
        where forward turns sizes into constants, since each further size would take seconds in the middle of a call.

    Raises:
        BackendUnsupportedError: If nothing was compiled.
        BackendBuildError: If torch.compile fails.
    """
    warm_up = _WarmUp(job, compiled)
    before = _compiled_graphs()
    try:
        with preserved(module), torch.no_grad():
            narrowing = warm_up.run(dynamic)
    except Exception as error:
        raise BackendBuildError(backend, f"torch.compile fails: {_first_line(error)}") from error
    if _compiled_graphs() == before and not _has_compiled_frames(module):
        raise BackendUnsupportedError(backend, "torch.compile found nothing in the module to compile")
    return _in_one_mode(compiled, len(job.graph.inputs.tensors), as_they_are=warm_up.writes), narrowing


def engine_of(job: Job, execute: Execute, facts: EngineFacts, module: torch.nn.Module, *, cuda_graphs: bool) -> Engine:
    """Make an engine of a function of a call's tensors.

    Args:
        job: The graph.
        execute: The function.
        facts: What is known of it.
        module: What runs in it; as before afterwards.
        cuda_graphs: Whether calls are replayed as CUDA graphs; where they cannot be, the engine's notes say why.
    """
    if not cuda_graphs:
        return FunctionEngine(compile_call(job.graph, execute), facts)
    graphs = CudaGraphs(execute, job.graph, module)
    samples = job.narrowed(dict(facts.narrowing.ranges)).samples
    with preserved(module), torch.no_grad():
        problem = graphs.prepare([flat_call(job, sample) for sample in samples])
    if problem is not None:
        graphs.close()
        return FunctionEngine(compile_call(job.graph, execute), replace(facts, notes=(*facts.notes, problem)))
    return FunctionEngine(compile_call(job.graph, graphs), facts, on_close=graphs.close)


def _with_source(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a generated function a source file as long as it lives.

    Before torch 2.13 one without any is put into a wrapper whose code object all of them share, and with it the limit
    of recompilations.
    """
    name = function.__code__.co_filename
    linecache.cache[name] = (0, None, [], name)
    weakref.finalize(function, linecache.cache.pop, name, None)
    return function


def under_autocast(
    compiled: Callable[..., Any], graph: GraphSpec, device: str, dtype: torch.dtype | None
) -> Callable[..., Any]:
    """Return a function that runs another under autocast, and gives back the dtypes that the graph has.

    Args:
        compiled: Takes tensors one by one.
        graph: The graph.
        device: Type of the device.
        dtype: Of autocast; None: torch's choice for the device.
    """
    output, output_tensors = compile_output(graph), compile_output_accessor(graph)
    dtypes = [spec.dtype for spec in graph.outputs.tensors]

    def call(*tensors: torch.Tensor) -> Any:
        with torch.autocast(device, dtype=dtype):
            result = compiled(*tensors)
        found = output_tensors(result)
        return output([tensor.to(kind) for tensor, kind in zip(found, dtypes, strict=True)])

    return call


class _WarmUp:
    """Calls that have what is needed compiled.

    Attributes:
        writes: Whether a call changed its inputs.
    """

    def __init__(self, job: Job, compiled: Callable[..., Any]) -> None:
        self.writes = False
        self._job = job
        self._graph = job.graph
        self._compiled = compiled

    def run(self, dynamic: bool | None) -> Narrowing:
        """Make the calls: one in between, the ends, and one more to see whether that was enough."""
        if dynamic is False:
            return self._one_size("dynamic=False compiles for one size") if self._graph.dims else self._plain()
        inputs = flat_inputs(self._job)
        if dynamic is None:
            self._mark(inputs)
        self._call(inputs)
        if not self._graph.dims:
            return WHOLE
        smallest = {name: dim.min for name, dim in self._graph.dims.items()}
        # A size of 1 is always compiled by itself.
        ones = [{name: 1} for name, size in smallest.items() if size == 1]
        largest = {name: dim.max for name, dim in self._graph.dims.items()}
        for sizes in (*ones, smallest, largest):
            self._call(self._at(sizes))
        if self._compiles_again(inputs):
            return self._one_size("forward makes constants of sizes, and every other size would be compiled in a call")
        return WHOLE

    def _plain(self) -> Narrowing:
        self._call(flat_inputs(self._job))
        return WHOLE

    def _one_size(self, why: str) -> Narrowing:
        inputs = inputs_to_aim_at(self._job)
        self._call(inputs)
        return Narrowing.of(self._graph, static(self._graph.sizes(inputs) or {}), why)

    def _call(self, tensors: tuple[torch.Tensor, ...]) -> None:
        """Call with the scalars that vary, and again with others, so that a symbol is made of each while building."""
        varying = self._graph.inputs.varying
        versions = [tensor._version for tensor in tensors]
        self._compiled(*tensors, *(leaf.value for leaf in varying))
        if varying:  # neither 0 nor 1, for which torch.compile makes code of its own
            others = (leaf.kind(leaf.value + 1.5 + index) for index, leaf in enumerate(varying))
            self._compiled(*tensors, *others)
        self.writes = self.writes or versions != [tensor._version for tensor in tensors]

    def _compiles_again(self, first: tuple[torch.Tensor, ...]) -> bool:
        """Whether sizes that were not among the calls so far keep asking for more code.

        One that does so by itself tells nothing: at first, sizes that happen to be equal are taken for one.
        """
        known, again = self._graph.sizes(first) or {}, 0
        for choice in range(_PROBES):
            sizes = self._inner_sizes(known, choice)
            if not sizes:
                return False
            before = _compiled_graphs()
            # Sizes may depend on each other in ways that nobody knows: such a call may be none that forward takes.
            with contextlib.suppress(Exception):
                self._call(self._at(sizes))
            again = again + 1 if _compiled_graphs() != before else 0
        return again == _PROBES

    def _inner_sizes(self, known: Mapping[str, int], choice: int) -> dict[str, int]:
        """Return a size between the ends for each dimension that has one left, batch dimensions following the first."""
        batch = self._graph.batch_dim
        sizes = {}
        for name, dim in self._graph.dims.items():
            if isinstance(dim, BatchDim) and dim != batch:
                continue
            middle = dim.min + (dim.max - dim.min) // 2
            inner = [one for one in dict.fromkeys((middle, dim.min + 1, dim.max - 1)) if dim.min < one < dim.max]
            inner = [one for one in inner if one != known.get(name)]
            if choice < len(inner):
                sizes[name] = inner[choice]
        return sizes

    def _at(self, sizes: Mapping[str, int]) -> tuple[torch.Tensor, ...]:
        sample = self._graph.resized(self._job.samples[0], sizes)
        return self._graph.input_tensors(sample.args, sample.kwargs)

    def _mark(self, tensors: tuple[torch.Tensor, ...]) -> None:
        for tensor, spec in zip(tensors, self._graph.inputs.tensors, strict=True):
            for axis, size in enumerate(spec.shape):
                if isinstance(size, DynamicDim):
                    torch._dynamo.maybe_mark_dynamic(tensor, axis)


def _in_one_mode(compiled: Callable[..., Any], tensor_count: int, *, as_they_are: bool) -> Execute:
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
            plain = [_dense(tensor) for tensor in plain]
        if torch.is_inference_mode_enabled() and not as_they_are:
            with torch.inference_mode(False), torch.no_grad():
                return compiled(*[tensor.clone() if tensor.is_inference() else tensor for tensor in plain], *scalars)
        if torch.is_grad_enabled():
            with torch.no_grad():
                return compiled(*plain, *scalars)
        return compiled(*plain, *scalars)

    return execute


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the strides of a new one; those of axes of one entry can be anything otherwise."""
    tensor = tensor.contiguous()
    dense, step = [], 1
    for size in reversed(tensor.shape):
        dense.append(step)
        step *= size
    dense.reverse()
    # Not by view(), which leaves the stride of a single entry as it is.
    return tensor if list(tensor.stride()) == dense or not tensor.numel() else tensor.as_strided(tensor.shape, dense)


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
