"""An ONNX Runtime session over torch's own memory, on a device and on the caller's stream."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.utils.dlpack

from aitune.torch.export.flat import OutputRoutes, input_name, output_name
from aitune.torch.graph.accessor import compile_output
from aitune.torch.graph.graph import GraphSpec

__all__ = ["BoundSession", "feeds_of"]

_MOST_FORMS = 64

_ELEMENTS: dict[torch.dtype, Any] = {
    torch.float64: np.float64,
    torch.float32: np.float32,
    torch.float16: np.float16,
    torch.bfloat16: 16,  # onnx.TensorProto.BFLOAT16: numpy has no such type
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.int16: np.int16,
    torch.int8: np.int8,
    torch.uint8: np.uint8,
    torch.bool: np.bool_,
}

_DTYPES: dict[str, torch.dtype] = {
    "tensor(double)": torch.float64,
    "tensor(float)": torch.float32,
    "tensor(float16)": torch.float16,
    "tensor(bfloat16)": torch.bfloat16,
    "tensor(int64)": torch.int64,
    "tensor(int32)": torch.int32,
    "tensor(int16)": torch.int16,
    "tensor(int8)": torch.int8,
    "tensor(uint8)": torch.uint8,
    "tensor(bool)": torch.bool,
}

_Shapes = tuple[torch.Size, ...]


class BoundSession:
    """A session as a function of a graph's tensors: inputs are read, and outputs written, where torch has them.

    The first call of a form (the shapes of its inputs) has the library allocate the outputs, and copies them; from then
    on their shapes are known, and they are torch's own from the start. On a CUDA device the session works on a stream
    that it was given when it was made: it waits for the caller's stream, which waits for it, and nothing waits on the
    host. Calls follow each other; any thread may call.

    Args:
        session: The library's session. Its provider must use ``stream``, if there is one.
        graph: The calls that arrive.
        routes: Where the graph's outputs come from.
        device: Where the tensors are.
        stream: What the session works on; None for a device without streams.
    """

    def __init__(
        self,
        session: Any,
        graph: GraphSpec,
        routes: OutputRoutes,
        device: torch.device,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        import onnxruntime

        self._session = session
        self._routes = routes
        self._device = device
        self._place = (device.type, device.index or 0)
        self._stream = stream
        self._inputs = feeds_of(session, graph)
        kinds = {one.name: _DTYPES[one.type] for one in session.get_outputs()}
        self._outputs = [(name, kinds[name]) for name in map(output_name, range(routes.computed))]
        self._known: dict[_Shapes, list[torch.Size]] = {}
        self._output = compile_output(graph)
        self._options = onnxruntime.RunOptions()
        if stream is not None:
            self._options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        self._lock = threading.Lock()

    def __call__(self, tensors: tuple[torch.Tensor, ...]) -> Any:
        """Make a call.

        Raises:
            RuntimeError: If ONNX Runtime refuses the call.
        """
        given = [tensors[i].detach().contiguous() for _, i in self._inputs]
        form = tuple([tensor.shape for tensor in given])
        with self._lock:
            known = self._known.get(form)
            # Made on the caller's stream: torch gives their memory to nobody else before that stream is past this call.
            made = self._empty(known) if known is not None else None
            with self._on_its_stream():
                binding = self._bound(given, made)
                self._session.run_with_iobinding(binding, self._options)
            if made is None:
                made = self._copied(binding)
                if len(self._known) < _MOST_FORMS:
                    self._known[form] = [tensor.shape for tensor in made]
        return self._output(made if self._routes.direct else self._routes.outputs(made, tensors))

    def close(self) -> None:
        """Let go of the session, once the device is done with it."""
        with self._lock:
            if self._stream is not None:
                self._stream.synchronize()
            self._session = None

    def _empty(self, shapes: Sequence[torch.Size]) -> list[torch.Tensor]:
        return [
            torch.empty(shape, dtype=dtype, device=self._device)
            for shape, (_, dtype) in zip(shapes, self._outputs, strict=True)
        ]

    def _bound(self, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor] | None) -> Any:
        """Return a binding of the inputs, and of the outputs where they are there already."""
        if self._session is None:
            raise RuntimeError("the engine is closed")
        binding = self._session.io_binding()
        for (name, _), tensor in zip(self._inputs, given, strict=True):
            binding.bind_input(name, *self._place, _ELEMENTS[tensor.dtype], tuple(tensor.shape), tensor.data_ptr())
        if made is None:
            for name, _ in self._outputs:
                binding.bind_output(name, *self._place)
        else:
            for (name, dtype), tensor in zip(self._outputs, made, strict=True):
                binding.bind_output(name, *self._place, _ELEMENTS[dtype], tuple(tensor.shape), tensor.data_ptr())
        return binding

    def _copied(self, binding: Any) -> list[torch.Tensor]:
        """Return copies of outputs in the library's memory, which it may use again as soon as they are gone."""
        found = [torch.utils.dlpack.from_dlpack(value) for value in binding.get_outputs()]
        copies = [
            tensor.clone().view(dtype) if dtype is torch.bool and tensor.dtype is torch.uint8 else tensor.clone()
            for tensor, (_, dtype) in zip(found, self._outputs, strict=True)
        ]
        if self._stream is not None:
            # The library's stream may not write there before the copies are made.
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        return copies

    @contextlib.contextmanager
    def _on_its_stream(self) -> Iterator[None]:
        """Have the session's stream begin after the caller's, and the caller's go on after it."""
        if self._stream is None:
            yield
            return
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        yield
        current.wait_stream(self._stream)


def feeds_of(session: Any, graph: GraphSpec) -> list[tuple[str, int]]:
    """Return name and index of each input of the session: exporters leave out those without effect."""
    index = {input_name(i): i for i in range(len(graph.inputs.tensors))}
    return [(item.name, index[item.name]) for item in session.get_inputs()]
