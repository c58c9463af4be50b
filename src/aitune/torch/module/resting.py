"""Where the original rests once engines answer its calls, so that weights are not paid for twice.

``config.device_after_tuning`` asks for it. On the CPU the original stays at hand: for a call that no engine was made
for its weights are brought back, and put away again. On ``meta`` they are given up, and with them the answer to such
calls.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch

from aitune.exceptions import AITuneError

__all__ = ["Place", "Resting"]

Place = Literal["cpu", "meta"]


class Resting:
    """The weights of a module while they are elsewhere. Parameters and buffers are new objects; ties among them stay.

    Modules that share weights with this one keep theirs.

    Args:
        name: The module's name, for messages.
        module: The module; its weights are moved at once.
        place: Where to.
        original: What a call of the module runs without aitune.

    Attributes:
        place: Where they are.
        busy: Above 0 while they are back for a call.
    """

    def __init__(self, name: str, module: torch.nn.Module, place: Place, original: Callable[..., Any]) -> None:
        self._name = name
        self._original = original
        self._lock = threading.RLock()
        self.place = place
        self.busy = 0
        self._homes = tuple((owner, key, tensor.device) for owner, key, tensor in _entries(module))
        moved: dict[int, torch.Tensor] = {}
        for owner, key, tensor in list(_entries(module)):
            if id(tensor) not in moved:
                moved[id(tensor)] = _moved(tensor, place)
            owner[key] = moved[id(tensor)]

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Answer a call that no engine was made for.

        Raises:
            AITuneError: If the weights were given up.
        """
        if self.place == "meta":
            raise AITuneError(
                f"{self._name}: no engine was made for this call (stats.fallbacks and the log say why), and"
                " config.device_after_tuning='meta' gave up the original; build the model again and tune it for such"
                " calls, or with device_after_tuning='cpu'"
            )
        with self.awake():
            return self._original(*args, **kwargs)

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """Have the weights where they were, for the block; one block at a time.

        Raises:
            AITuneError: If the weights were given up.
        """
        self._need_weights()
        with self._lock:
            self.busy += 1
            away = [(owner[key], owner[key].data) for owner, key, _ in self._homes]
            for (tensor, data), (_, _, home) in zip(away, self._homes, strict=True):
                tensor.data = data.to(home)
            at_home = [tensor.data for tensor, _ in away]
            versions = [tensor._version for tensor, _ in away]
            try:
                yield
            finally:
                for (tensor, data), here, version in zip(away, at_home, versions, strict=True):
                    if tensor._version != version:  # a buffer that forward writes to
                        data.copy_(here)
                    tensor.data = data
                self.busy -= 1

    def wake(self) -> None:
        """Bring the weights back for good.

        Raises:
            AITuneError: If they were given up.
        """
        self._need_weights()
        with self._lock:
            for owner, key, home in self._homes:
                owner[key].data = owner[key].data.to(home)

    def _need_weights(self) -> None:
        if self.place == "meta":
            raise AITuneError(
                f"{self._name}: its weights were given up by config.device_after_tuning='meta'; build the model again"
            )


def _entries(module: torch.nn.Module) -> Iterator[tuple[dict[str, Any], str, torch.Tensor]]:
    for part in module.modules():
        for owner in (part._parameters, part._buffers):
            for key, tensor in owner.items():
                if tensor is not None:
                    yield owner, key, tensor


def _moved(tensor: torch.Tensor, place: str) -> torch.Tensor:
    data = tensor.detach().to(place)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(data, requires_grad=tensor.requires_grad)
    return data
