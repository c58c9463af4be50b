"""Running a TensorRT engine: torch's memory in and out, on the caller's stream."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aitune.exceptions import BackendBuildError, BackendUnsupportedError
from aitune.torch.backend.tensorrt.library import errors_of, is_rtx, logger_of
from aitune.torch.export.flat import OutputRoutes, input_name, output_name
from aitune.torch.graph.accessor import compile_output
from aitune.torch.graph.graph import GraphSpec

__all__ = ["Plan", "TensorRTRunner"]

_MOST_REMEMBERED = 256


@dataclass(frozen=True)
class Plan:
    """A built engine and how the graph's tensors map to its own.

    Attributes:
        content: The plan's bytes.
        cache: What an earlier process compiled for it, empty for nothing.
        graph: The graph.
        routes: Where the graph's outputs come from.
        device: Where it runs.
        backend: Who to name in errors.
    """

    content: Any
    cache: bytes
    graph: GraphSpec
    routes: OutputRoutes
    device: torch.device
    backend: str


class TensorRTRunner:
    """A TensorRT engine as a function of a graph's tensors.

    Every call gets output tensors of its own. Work goes to the caller's stream, or beside it where that is the default
    stream, on which TensorRT would wait for the device at each call; nothing waits on the host. The engine has one
    scratch memory, so calls follow each other on the device; any thread may call.

    Args:
        trt: The library.
        plan: What to run.

    Raises:
        BackendBuildError: If the plan cannot be used here.
        BackendUnsupportedError: If sizes of outputs follow from values.
    """

    def __init__(self, trt: Any, plan: Plan) -> None:
        self._trt, self._plan = trt, plan
        logger = logger_of(trt)
        logger.errors.clear()
        with torch.cuda.device(plan.device):
            self._runtime = trt.Runtime(logger)
            self._engine = self._runtime.deserialize_cuda_engine(plan.content)
            if self._engine is None:
                raise BackendBuildError(plan.backend, f"TensorRT cannot load the engine: {errors_of(trt)}")
            self._cache: Any = None
            self._context = self._make_context()
        names = {self._engine.get_tensor_name(i) for i in range(self._engine.num_io_tensors)}
        self._inputs = [(input_name(i), i) for i in range(len(plan.graph.inputs.tensors)) if input_name(i) in names]
        self._outputs = [output_name(i) for i in range(plan.routes.computed)]
        self._dtypes = [_torch_dtype(trt, self._engine.get_tensor_dtype(name)) for name in self._outputs]
        self._profiles = self._read_profiles()
        self._output = compile_output(plan.graph)
        self._stream = torch.cuda.Stream(plan.device)  # type: ignore[no-untyped-call]
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._lock = threading.Lock()
        self._shapes: tuple[Any, ...] | None = None
        self._profile = 0
        self._sizes: dict[tuple[Any, ...], list[tuple[int, ...]]] = {}
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
            sizes = self._set_shapes(tuple([tensor.shape for tensor in given]), current)
            made = [
                torch.empty(size, dtype=dtype, device=device) for size, dtype in zip(sizes, self._dtypes, strict=True)
            ]
            set_address = self._context.set_tensor_address
            for (name, _), tensor in zip(self._inputs, given, strict=True):
                set_address(name, tensor.data_ptr())
            for name, tensor in zip(self._outputs, made, strict=True):
                set_address(name, tensor.data_ptr())
            stream = self._stream if current == torch.cuda.default_stream(device) else current
            if not capturing:
                stream.wait_event(self._done)  # the scratch memory may be in use on another stream
            if stream is not current:
                stream.wait_stream(current)
            if not self._context.execute_async_v3(stream.cuda_stream):
                raise RuntimeError(f"TensorRT refuses the call: {errors_of(self._trt)}")
            if stream is not current:
                current.wait_stream(stream)
            if not capturing:
                self._done.record(stream)
        return self._output(made if self._direct else self._plan.routes.outputs(made, tensors))

    def compiled(self) -> bytes:
        """Return what was compiled for the calls so far, for a later process; empty where nothing is."""
        return b"" if self._cache is None else bytes(self._cache.serialize())

    def close(self) -> None:
        """Free the engine, once the device is done with it."""
        with self._lock:
            self._done.synchronize()
            self._context = self._cache = self._engine = self._runtime = None

    def _make_context(self) -> Any:
        if not is_rtx(self._trt):
            context = self._engine.create_execution_context()
        else:
            config = self._engine.create_runtime_config()
            # Not while other calls run: a graph that is captured meanwhile would keep the slow kernels for ever.
            strategies = self._trt.DynamicShapesKernelSpecializationStrategy
            config.dynamic_shapes_kernel_specialization_strategy = strategies.EAGER
            self._cache = config.create_runtime_cache()
            if self._plan.cache:
                self._cache.deserialize(self._plan.cache)
            config.set_runtime_cache(self._cache)
            context = self._engine.create_execution_context(config)
        if context is None:
            raise BackendBuildError(self._plan.backend, f"TensorRT cannot run the engine: {errors_of(self._trt)}")
        return context

    def _read_profiles(self) -> list[list[tuple[tuple[int, ...], tuple[int, ...]]]]:
        engine, ranges = self._engine, []
        for index in range(engine.num_optimization_profiles):
            shapes = [engine.get_tensor_profile_shape(name, index) for name, _ in self._inputs]
            ranges.append([(tuple(low), tuple(high)) for low, _, high in shapes])
        return ranges

    def _set_shapes(self, shapes: tuple[Any, ...], stream: torch.cuda.Stream) -> list[tuple[int, ...]]:
        """Tell the context the sizes of a call, and return those of the outputs."""
        if shapes == self._shapes:
            return self._sizes[shapes]
        profile = next((i for i, ranges in enumerate(self._profiles) if _fits(shapes, ranges)), None)
        if profile is None:
            raise RuntimeError(f"no profile of the engine takes the sizes {[tuple(shape) for shape in shapes]}")
        self._shapes = None
        if profile != self._profile:
            self._context.set_optimization_profile_async(profile, stream.cuda_stream)
            self._profile = profile
        for (name, _), shape in zip(self._inputs, shapes, strict=True):
            if not self._context.set_input_shape(name, tuple(shape)):
                raise RuntimeError(f"TensorRT refuses the size {tuple(shape)} of {name}: {errors_of(self._trt)}")
        if shapes not in self._sizes:
            if len(self._sizes) >= _MOST_REMEMBERED:
                self._sizes.clear()
            self._sizes[shapes] = [tuple(self._context.get_tensor_shape(name)) for name in self._outputs]
        sizes = self._sizes[shapes]
        if any(-1 in size for size in sizes):
            raise BackendUnsupportedError(self._plan.backend, "sizes of an output follow from values")
        self._shapes = shapes
        return sizes


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
