"""A module's forward behind ``torch.compile``, compiled at the sizes that matter before the first call."""

from __future__ import annotations

import contextlib
import linecache
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from aitune.exceptions import BackendBuildError, BackendUnsupportedError
from aitune.torch.backend.base import Engine
from aitune.torch.backend.cuda_graphs import CudaGraphs
from aitune.torch.backend.function_engine import EngineFacts, FunctionEngine
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

__all__ = ["Compilation", "Execute", "compile_ahead", "engine_of"]

Execute = Callable[[tuple[torch.Tensor, ...]], Any]


@dataclass(frozen=True)
class Compilation:
    """How ``torch.compile`` is called.

    Attributes:
        backend: Name of torch's compiler backend.
        fullgraph: Whether a graph break is an error.
        dynamic: As in ``torch.compile``; None makes the graph's dimensions dynamic from the start.
        mode: As in ``torch.compile``.
        options: As in ``torch.compile``.
        autocast: Dtype to run forward in under autocast, None for no autocast.
    """

    backend: str = "inductor"
    fullgraph: bool = False
    dynamic: bool | None = None
    mode: str | None = None
    options: Mapping[str, Any] | None = None
    autocast: torch.dtype | None = None


def compile_ahead(
    job: Job,
    how: Compilation,
    name: str,
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
) -> Execute:
    """Compile the forward of a job's module, at every size that asks for code of its own.

    Args:
        job: The job.
        how: How to compile.
        name: Who to name in errors.
        around: Makes the context in which the first calls are made.

    Returns:
        A function of the tensors of a call. Any strides, gradient mode and inference mode use what was compiled here.

    Raises:
        BackendUnsupportedError: If nothing of the module was compiled.
        BackendBuildError: If torch.compile fails.
    """
    compiled = _compiled(job, how)
    before, writes = _compiled_graphs(), False
    try:
        with preserved(job.module), around(), torch.no_grad():
            for tensors in _warm_up_inputs(job, how.dynamic):
                versions = [tensor._version for tensor in tensors]
                compiled(*tensors)
                writes = writes or versions != [tensor._version for tensor in tensors]
    except Exception as error:
        raise BackendBuildError(name, f"torch.compile fails: {_first_line(error)}") from error
    if _compiled_graphs() == before and not _has_compiled_frames(job.module):
        raise BackendUnsupportedError(name, "torch.compile found nothing in the module to compile")
    return _in_one_mode(compiled, as_they_are=writes)


def engine_of(job: Job, execute: Execute, facts: EngineFacts, *, cuda_graphs: bool) -> Engine:
    """Make an engine of a function of a call's tensors.

    Args:
        job: The job, its module the one that the function runs.
        execute: The function.
        facts: What is known of it.
        cuda_graphs: Whether calls are replayed as CUDA graphs; where they cannot be, the engine's notes say why.
    """
    if not cuda_graphs:
        return FunctionEngine(compile_call(job.graph, execute), facts)
    graphs = CudaGraphs(execute, job.graph, job.module)
    with preserved(job.module), torch.no_grad():
        problem = graphs.prepare([flat_call(job, sample) for sample in job.samples])
    if problem is not None:
        graphs.close()
        return FunctionEngine(compile_call(job.graph, execute), replace(facts, notes=(*facts.notes, problem)))
    return FunctionEngine(compile_call(job.graph, graphs), facts, on_close=graphs.close)


def _compiled(job: Job, how: Compilation) -> Callable[..., Any]:
    """Return a function of the graph's tensors that compiles when it is called.

    It has a code object of its own: torch.compile counts recompilations by code object, and past a limit runs
    eagerly without a word.
    """
    compiled = torch.compile(
        _with_source(compile_forward(job.graph, job.forward)),
        backend=how.backend,
        fullgraph=how.fullgraph,
        dynamic=how.dynamic,
        mode=how.mode,
        options=None if how.options is None else dict(how.options),
    )
    if how.autocast is not None:
        compiled = _under_autocast(compiled, job.graph, job.device.type, how.autocast)
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


def _in_one_mode(compiled: Callable[..., Any], *, as_they_are: bool) -> Execute:
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
            plain = [_dense(tensor) for tensor in plain]
        if torch.is_inference_mode_enabled() and not as_they_are:
            with torch.inference_mode(False), torch.no_grad():
                return compiled(*[tensor.clone() if tensor.is_inference() else tensor for tensor in plain])
        if torch.is_grad_enabled():
            with torch.no_grad():
                return compiled(*plain)
        return compiled(*plain)

    return execute


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the strides of a new one; those of axes of one entry can be anything otherwise."""
    tensor = tensor.contiguous()
    expected = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if stride != expected:
            return tensor.view(-1).view(tensor.shape)
        expected *= size
    return tensor


def _under_autocast(
    compiled: Callable[..., Any], graph: GraphSpec, device: str, dtype: torch.dtype
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
