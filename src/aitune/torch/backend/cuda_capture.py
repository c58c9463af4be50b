"""One call as a CUDA graph: the kernels that a function launched, to be launched again over other values."""

from __future__ import annotations

import contextlib
import gc
import random
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from aitune.torch.check.container_state import ContainerState
from aitune.torch.check.walk import walk

__all__ = ["Capture", "CaptureRefusedError", "capture"]

_alone = threading.Lock()  # clearing workspaces and stopping the garbage collector concern the whole process

_MANY = 3
"""From so many tensors on, copying them in one kernel is quicker than one by one."""


class CaptureRefusedError(RuntimeError):
    """A call that can be captured, but whose replay would not do what the call does."""


@dataclass(frozen=True, eq=False)
class Capture:
    """A captured call, over memory of its own. Not for two threads at once.

    Attributes:
        graph: What was launched.
        inputs: Where the graph reads its inputs.
        outputs: Where it leaves its outputs, one tensor for each different output.
        routes: For each output of the call the kind (``"computed"`` or ``"input"``) and an index.
        written: Inputs, by position, that the call writes to.
        changed: Tensors of the module that the call writes to.
        held: Tensors of the module whose memory the graph reads, so that it stays theirs.
    """

    graph: torch.cuda.CUDAGraph
    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]
    routes: tuple[tuple[str, int], ...]
    written: tuple[int, ...]
    changed: tuple[torch.Tensor, ...]
    held: tuple[torch.Tensor, ...]

    def replay(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Do on the current stream what the call did, over other values of the same shapes.

        Args:
            tensors: The inputs; written to where the call writes to them.

        Returns:
            Outputs in memory that nothing else uses.
        """
        _copy(self.inputs, tensors)
        self.graph.replay()
        fresh = _fresh(self.outputs)
        for index in self.written:
            tensors[index].copy_(self.inputs[index])
        for tensor in self.changed:  # the graph writes without telling, and others ask the version counter
            torch.autograd.graph.increment_version(tensor)
        return [fresh[index] if kind == "computed" else tensors[index] for kind, index in self.routes]


def capture(
    call: Callable[[tuple[torch.Tensor, ...]], Sequence[torch.Tensor]],
    tensors: Sequence[torch.Tensor],
    module: torch.nn.Module | None,
    pool: Any,
) -> Capture:
    """Capture a call, which must have been made before with inputs of these shapes.

    Nothing is computed: the module's tensors, the random numbers and the inputs stay as they are. Other threads and
    streams go on meanwhile.

    Args:
        call: Launches work on the current stream and returns its output tensors.
        tensors: Inputs of the call, all on one CUDA device.
        module: What the call may change, None for nothing.
        pool: Memory pool of the graph, see ``torch.cuda.graph_pool_handle``.

    Raises:
        CaptureRefusedError: If a replay would not do what the call does.
        Exception: What the call raises while it is captured, such as for a wait for the device.
    """
    device = tensors[0].device
    for tensor in tensors:
        if tensor.device != device:
            raise CaptureRefusedError(f"an input is on {tensor.device}: its value would be part of the graph")
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.inference_mode(False), torch.no_grad(), _quiet():
        inputs = tuple(torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in tensors)
        _copy(inputs, tensors)
        stream.wait_stream(torch.cuda.current_stream(device))
        containers = _containers(module)
        tensors_of_module = _tensors(module)
        state = _versions([*inputs, *tensors_of_module])
        try:
            with _alone, torch.cuda.device(device), torch.cuda.stream(stream), _workspaces_of_its_own():
                outputs = _captured(graph, pool, lambda: call(inputs))
            _refuse(outputs, device, containers)
        finally:
            for container in containers:
                container.restore()
        torch.cuda.current_stream(device).wait_stream(stream)
        moved = [tensor for tensor, version in state if tensor._version != version]
    computed, routes = _routes(outputs, inputs)
    return Capture(
        graph=graph,
        inputs=inputs,
        outputs=tuple(computed),
        routes=routes,
        written=tuple(i for i, tensor in enumerate(inputs) if any(tensor is other for other in moved)),
        changed=tuple(tensor for tensor in moved if not any(tensor is other for other in inputs)),
        held=tuple(tensor.detach() for tensor in tensors_of_module),
    )


def _captured(graph: torch.cuda.CUDAGraph, pool: Any, call: Callable[[], Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    try:
        # thread_local: what other threads do with the device is their affair, and must not fail for our sake.
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        outputs = list(call())
    except BaseException:
        _give_up(graph, pool)
        raise
    graph.capture_end()
    return outputs


def _give_up(graph: torch.cuda.CUDAGraph, pool: Any) -> None:
    """End a capture that failed, and put right what torch leaves behind then."""
    try:
        graph.capture_end()
    except Exception:  # noqa: BLE001 - the capture is void, which ending it reports as an error again
        device = torch.cuda.current_device()
        for undo in (torch._C._cuda_endAllocateToPool, torch._C._cuda_releasePool):
            with contextlib.suppress(RuntimeError):  # not even begun
                undo(device, pool)
        # Before torch 2.12 the device's random generator still waits for the end of the capture, and every later
        # random number in the process would be an error. A capture that succeeds sets it free.
        trivial, place = torch.cuda.CUDAGraph(), torch.zeros(1, device="cuda")
        trivial.capture_begin(capture_error_mode="thread_local")
        place.add_(1)
        trivial.capture_end()


@contextlib.contextmanager
def _workspaces_of_its_own() -> Iterator[None]:
    """Have the libraries take scratch memory from the graph's pool, as torch's own CUDA graphs do.

    Memory that they took before would be given back when anyone clears it, and a graph that uses it would then write
    to what belongs to others.
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what capturing runs a second time on the host from showing, and garbage from being collected in between."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002 - what forwards draw from
    collects = gc.isenabled()
    gc.disable()  # a tensor or graph that is freed while capturing can spoil the capture
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if collects:
            gc.enable()
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])


def _containers(module: torch.nn.Module | None) -> list[ContainerState]:
    if module is None:
        return []
    nodes = (node for node in walk(module) if not isinstance(node.value, (torch.Tensor, torch.Generator)))
    return [ContainerState.of(node) for node in nodes]


def _tensors(module: torch.nn.Module | None) -> list[torch.Tensor]:
    return [] if module is None else [node.value for node in walk(module) if isinstance(node.value, torch.Tensor)]


def _versions(tensors: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, int]]:
    return [(tensor, tensor._version) for tensor in tensors if not tensor.is_inference()]


def _refuse(outputs: Sequence[Any], device: torch.device, containers: Sequence[ContainerState]) -> None:
    """Raise if the host did something in the call that a replay leaves out."""
    for output in outputs:
        if output.device != device:
            raise CaptureRefusedError(f"an output is on {output.device}, which a graph cannot fill")
        if output.layout is not torch.strided:
            raise CaptureRefusedError(f"an output is {output.layout}")
    changes = [path for container in containers for path, _, _ in container.differences()]
    if changes:
        raise CaptureRefusedError(f"forward sets {', '.join(changes[:3])} at each call")


def _routes(
    outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> tuple[list[torch.Tensor], tuple[tuple[str, int], ...]]:
    """Return each different computed output once, and where each output of the call is found."""
    places: dict[int, tuple[str, int]] = {id(tensor): ("input", i) for i, tensor in enumerate(inputs)}
    computed: list[torch.Tensor] = []
    for output in outputs:
        if id(output) not in places:
            places[id(output)] = ("computed", len(computed))
            computed.append(output)
    return computed, tuple(places[id(output)] for output in outputs)


def _copy(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    if len(targets) < _MANY:
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)
    else:
        torch._foreach_copy_(list(targets), list(sources))


def _fresh(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    if len(tensors) < _MANY:
        return [tensor.clone() for tensor in tensors]
    fresh = [torch.empty_like(tensor) for tensor in tensors]
    torch._foreach_copy_(fresh, list(tensors))
    return fresh
