"""CUDA graphs under an engine: calls are replayed as one launch, without a number changed."""

from __future__ import annotations

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from aitune.torch.backend.cuda_capture import Capture, capture
from aitune.torch.backend.state_addresses import StateAddresses
from aitune.torch.graph.accessor import compile_output, compile_output_accessor
from aitune.torch.graph.graph import GraphSpec

__all__ = ["CudaGraphs"]

_log = logging.getLogger(__name__)

_MOST_FORMS = 8
_PATIENCE = 16
_MOST_COUNTED = 1024
_ATTEMPTS = 2
_MOST_MOVES = 8


class CudaGraphs:
    """A function of a graph's tensors, its calls captured once for each form (the shapes) and replayed from then on.

    The first call of a form is the function's own, and warms it up. Inputs are copied in, outputs are copied out, so a
    caller may keep them. Work goes to the caller's current stream; calls of several threads and streams follow each
    other on the device. What a call writes to its inputs or to the module's tensors is written by a replay too, and
    random numbers of the device's own generator go on as they would. Where a call cannot be captured (it waits for
    the device, sets attributes, works on the host), where the module's tensors lie elsewhere than they did, and while
    the caller captures a graph of their own, the function itself answers.

    Up to eight forms are kept; then a new one has to be seen often before it takes the place of the one that was not
    used for longest.

    Args:
        function: Takes the tensors of a call, returns what the module's forward returns.
        graph: The calls that arrive.
        module: Whose tensors the function reads and writes, None where it has its own.
        alone: Whether calls of the function work in the same memory as each other and as the graphs, so that they too
            have to follow each other on the device.
    """

    def __init__(
        self,
        function: Callable[[tuple[torch.Tensor, ...]], Any],
        graph: GraphSpec,
        module: torch.nn.Module | None = None,
        *,
        alone: bool = False,
    ) -> None:
        self._alone = alone
        self._function = function
        self._module = module
        self._output, self._output_tensors = compile_output(graph), compile_output_accessor(graph)
        self._captures: OrderedDict[Hashable, Capture] = OrderedDict()
        self._seen: Counter[Hashable] = Counter()
        self._failed: Counter[Hashable] = Counter()
        self._state = StateAddresses(module)
        self._moves = 0
        self._lock = threading.Lock()
        self._pool: Any = None
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._closed = False
        self.problem: str | None = None

    @property
    def forms(self) -> int:
        """How many forms are captured now."""
        return len(self._captures)

    def __call__(self, tensors: tuple[torch.Tensor, ...]) -> Any:
        """Make a call."""
        if torch.cuda.is_current_stream_capturing() or not tensors:
            return self._plain(tensors)
        form = tuple([tensor.shape for tensor in tensors])
        with self._lock:
            if self._state.kept:
                found = self._captures.get(form)
                if found is not None and not (found.written and _overlap(tensors)):
                    self._captures.move_to_end(form)
                    return self._replay(found, tensors)
            else:
                self._moved()
        answer = self._plain(tensors)
        with self._lock:
            if self._worth_capturing(form):
                self._capture(form, tensors)
        return answer

    def prepare(self, calls: Sequence[tuple[torch.Tensor, ...]]) -> str | None:
        """Capture the forms of some calls, which must leave no trace but in what the function itself changes.

        Returns:
            Why the first one cannot be captured, None if it can.
        """
        for tensors in calls:
            for _ in range(_ATTEMPTS):
                self(tensors)
        return self.problem if not self._captures else None

    def forget(self) -> None:
        """Drop what was captured, once the device is done with it; calls are captured anew."""
        with self._lock:
            if not self._closed:
                self._drop_all()

    def close(self) -> None:
        """Free the graphs and their memory, once the device is done with them; calls run the function afterwards."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._drop_all()
                self._state = StateAddresses(None)
                if not torch.cuda.is_current_stream_capturing():
                    torch.cuda.empty_cache()  # what the pool held goes back to the device only then

    def _plain(self, tensors: tuple[torch.Tensor, ...]) -> Any:
        with torch.no_grad():  # as in a replay
            if not self._alone or torch.cuda.is_current_stream_capturing() or not tensors:
                return self._function(tensors)
            with self._lock:
                stream = torch.cuda.current_stream(tensors[0].device)
                stream.wait_event(self._done)
                answer = self._function(tensors)
                self._done.record(stream)
                return answer

    def _replay(self, found: Capture, tensors: tuple[torch.Tensor, ...]) -> Any:
        stream = torch.cuda.current_stream(found.inputs[0].device)
        stream.wait_event(self._done)  # of a call on another stream, whose outputs may not be copied yet
        outputs = found.replay(tensors)
        self._done.record(stream)
        return self._output(outputs)

    def _worth_capturing(self, form: Hashable) -> bool:
        if self._closed or form in self._captures or self._failed[form] >= _ATTEMPTS or self._moves > _MOST_MOVES:
            return False
        if len(self._seen) >= _MOST_COUNTED:
            self._seen.clear()
        self._seen[form] += 1
        return len(self._captures) < _MOST_FORMS or self._seen[form] >= _PATIENCE

    def _capture(self, form: Hashable, tensors: tuple[torch.Tensor, ...]) -> None:
        if len(self._captures) >= _MOST_FORMS:
            self._done.synchronize()
            self._captures.popitem(last=False)[1].graph.reset()
            self._seen[form] = 0
        if not self._captures:
            self._pool = torch.cuda.graph_pool_handle()  # a pool that every graph has left cannot be entered again
        try:
            self._captures[form] = capture(
                lambda inputs: self._output_tensors(self._function(inputs)), tensors, self._module, self._pool
            )
        except Exception as error:  # noqa: BLE001 - runs the user's forward where much is forbidden
            self._failed[form] += 1
            self.problem = f"it cannot be captured as a CUDA graph: {_first_line(error)}"
            _log.info("%s; calls of this form run without one", self.problem)

    def _moved(self) -> None:
        """The module's tensors lie elsewhere: begin anew over the new ones, but not without end."""
        self._moves += 1
        self._drop_all()
        self._state = StateAddresses(self._module if self._moves <= _MOST_MOVES else None)

    def _drop_all(self) -> None:
        self._done.synchronize()
        for one in self._captures.values():
            one.graph.reset()
        self._captures.clear()
        self._seen.clear()


def _overlap(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether two inputs may share memory, so that what is written to one shows in the other."""
    return len({tensor.untyped_storage().data_ptr() for tensor in tensors}) < len(tensors)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
