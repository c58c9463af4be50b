"""Running a TensorRT engine: torch's memory in and out, on the caller's stream."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from aitune.exceptions import BackendBuildError
from aitune.torch.backend.tensorrt.library import errors_of, is_rtx, logger_of
from aitune.torch.export.flat import OutputRoutes, input_name, output_name
from aitune.torch.graph.accessor import compile_output
from aitune.torch.graph.graph import GraphSpec

__all__ = ["Plan", "TensorRTRunner"]

_MOST_FORMS = 8


@dataclass(frozen=True)
class Plan:
    """A built engine and how the graph's tensors map to its own.

    Attributes:
        content: The plan's bytes.
        compiled: What an earlier process compiled for it, empty for nothing.
        graph: The graph.
        routes: Where the graph's outputs come from.
        device: Where it runs.
        backend: Who to name in errors.
    """

    content: Any
    compiled: bytes
    graph: GraphSpec
    routes: OutputRoutes
    device: torch.device
    backend: str


@dataclass(frozen=True, eq=False)
class _Form:
    """A context, told the sizes of its calls once.

    Attributes:
        context: TensorRT's execution context.
        sizes: Of the outputs.
    """

    context: Any
    sizes: tuple[tuple[int, ...], ...]


class TensorRTRunner:
    """A TensorRT engine as a function of a graph's tensors.

    Every call gets output tensors of its own. Work goes to the caller's stream, or beside it where that is the default
    stream, on which TensorRT would wait for the device at each call; nothing waits on the host. The engine has one
    scratch memory, so calls follow each other on the device; any thread may call.

    The first eight sizes get a context each, with kernels for just these sizes: a context, or a cache of compiled
    kernels, that had seen another size gave wrong values (TensorRT for RTX 1.4). All other sizes share a context with
    kernels for any size.

    Args:
        trt: The library.
        plan: What to run.

    Raises:
        BackendBuildError: If the plan cannot be used here.
    """

    def __init__(self, trt: Any, plan: Plan) -> None:
        self._trt, self._plan = trt, replace(plan, content=b"")  # a copy of the weights that nobody needs any more
        logger = logger_of(trt)
        logger.errors.clear()
        with torch.cuda.device(plan.device):
            self._runtime = trt.Runtime(logger)
            self._engine = self._runtime.deserialize_cuda_engine(plan.content)
            if self._engine is None:
                raise BackendBuildError(plan.backend, f"TensorRT cannot load the engine: {errors_of(trt)}")
        engine = self._engine
        names = {engine.get_tensor_name(i) for i in range(engine.num_io_tensors)}
        self._inputs = [(input_name(i), i) for i in range(len(plan.graph.inputs.tensors)) if input_name(i) in names]
        self._outputs = [output_name(i) for i in range(plan.routes.computed)]
        self._dtypes = [_torch_dtype(trt, engine.get_tensor_dtype(name)) for name in self._outputs]
        self._profiles = self._read_profiles()
        self._output = compile_output(plan.graph)
        self._stream = torch.cuda.Stream(plan.device)  # type: ignore[no-untyped-call]
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._lock = threading.Lock()
        self._scratch = torch.empty(engine.device_memory_size_v2, dtype=torch.uint8, device=plan.device)
        self._compiled = plan.compiled
        self._forms: dict[tuple[Any, ...], _Form] = {}
        self._any_size: Any = None
        self._direct = plan.routes.direct

    def __call__(self, tensors: tuple[torch.Tensor, ...]) -> Any:
        """Make a call.

        Raises:
            RuntimeError: If TensorRT refuses the call.
        """
        given = [tensors[i].detach().contiguous() for _, i in self._inputs]
        device = self._plan.device
        current = torch.cuda.current_stream(device)
        capturing = torch.cuda.is_current_stream_capturing()
        with self._lock, torch.cuda.device(device):
            shapes = tuple([tensor.shape for tensor in given])
            form = self._forms.get(shapes) or self._new_form(shapes, current)
            if capturing and form.context is self._any_size:
                raise RuntimeError("a context that goes on to calls of other sizes cannot be part of a CUDA graph")
            made = [
                torch.empty(size, dtype=dtype, device=device)
                for size, dtype in zip(form.sizes, self._dtypes, strict=True)
            ]
            set_address = form.context.set_tensor_address
            for (name, _), tensor in zip(self._inputs, given, strict=True):
                set_address(name, tensor.data_ptr())
            for name, tensor in zip(self._outputs, made, strict=True):
                set_address(name, tensor.data_ptr())
            stream = self._stream if current == torch.cuda.default_stream(device) else current
            if not capturing:
                stream.wait_event(self._done)  # the scratch memory may be in use on another stream
            if stream is not current:
                stream.wait_stream(current)
            if not form.context.execute_async_v3(stream.cuda_stream):
                raise RuntimeError(f"TensorRT refuses the call: {errors_of(self._trt)}")
            if stream is not current:
                current.wait_stream(stream)
            if not capturing:
                self._done.record(stream)
        return self._output(made if self._direct else self._plan.routes.outputs(made, tensors))

    @property
    def compiled(self) -> bytes:
        """What was compiled before the first call, for a later process; empty where nothing is."""
        return self._compiled

    def close(self) -> None:
        """Free the engine, once the device is done with it."""
        with self._lock:
            self._done.synchronize()
            self._forms.clear()
            self._any_size = self._engine = self._runtime = self._scratch = None  # type: ignore[assignment]

    def _new_form(self, shapes: tuple[Any, ...], stream: torch.cuda.Stream) -> _Form:
        """Return a context for the sizes of a call: one of their own, or the one for any size."""
        own = len(self._forms) < _MOST_FORMS
        if own:
            context, profile = self._make_context(), self._profile_for(shapes)
        else:
            context, profile = self._any_size, len(self._profiles) - 1  # the last one takes every size
            if context is None:
                context = self._any_size = self._make_context(any_size=True)
        if context.active_optimization_profile != profile:
            context.set_optimization_profile_async(profile, stream.cuda_stream)
            stream.synchronize()
        for (name, _), shape in zip(self._inputs, shapes, strict=True):
            if not context.set_input_shape(name, tuple(shape)):
                raise RuntimeError(f"TensorRT refuses the size {tuple(shape)} of {name}: {errors_of(self._trt)}")
        sizes = tuple(tuple(context.get_tensor_shape(name)) for name in self._outputs)
        if any(-1 in size for size in sizes):
            raise RuntimeError("sizes of an output follow from values")
        form = _Form(context, sizes)
        if own:
            self._forms[shapes] = form
        return form

    def _make_context(self, *, any_size: bool = False) -> Any:
        memory = self._trt.ExecutionContextAllocationStrategy.USER_MANAGED
        if is_rtx(self._trt):
            config = self._engine.create_runtime_config()
            kinds = self._trt.DynamicShapesKernelSpecializationStrategy
            # Not LAZY, which compiles beside other calls: a graph that is captured meanwhile keeps the slow kernels.
            config.dynamic_shapes_kernel_specialization_strategy = kinds.NONE if any_size else kinds.EAGER
            config.set_execution_context_allocation_strategy(memory)
            cache = config.create_runtime_cache()
            if self._compiled:
                cache.deserialize(self._compiled)
            config.set_runtime_cache(cache)
            context = self._engine.create_execution_context(config)
            if context is not None and not self._compiled:
                self._compiled = bytes(cache.serialize())
        else:
            context = self._engine.create_execution_context(memory)
        if context is None:
            raise BackendBuildError(self._plan.backend, f"TensorRT cannot run the engine: {errors_of(self._trt)}")
        if self._scratch.numel():
            context.set_device_memory(self._scratch.data_ptr(), self._scratch.numel())
        return context

    def _read_profiles(self) -> list[list[tuple[tuple[int, ...], tuple[int, ...]]]]:
        engine, ranges = self._engine, []
        for index in range(engine.num_optimization_profiles):
            shapes = [engine.get_tensor_profile_shape(name, index) for name, _ in self._inputs]
            ranges.append([(tuple(low), tuple(high)) for low, _, high in shapes])
        return ranges

    def _profile_for(self, shapes: tuple[Any, ...]) -> int:
        found = next((i for i, ranges in enumerate(self._profiles) if _fits(shapes, ranges)), None)
        if found is None:
            raise RuntimeError(f"no profile of the engine takes the sizes {[tuple(shape) for shape in shapes]}")
        return found


def _fits(shapes: Sequence[Any], ranges: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> bool:
    return all(
        low <= size <= high
        for shape, (lows, highs) in zip(shapes, ranges, strict=True)
        for low, size, high in zip(lows, shape, highs, strict=True)
    )


def _torch_dtype(trt: Any, dtype: Any) -> torch.dtype:
    kinds = {
        trt.DataType.FLOAT: torch.float32,
        trt.DataType.HALF: torch.float16,
        trt.DataType.BF16: torch.bfloat16,
        trt.DataType.INT32: torch.int32,
        trt.DataType.INT64: torch.int64,
        trt.DataType.INT8: torch.int8,
        trt.DataType.UINT8: torch.uint8,
        trt.DataType.BOOL: torch.bool,
    }
    return kinds[dtype]
