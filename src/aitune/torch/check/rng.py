"""The state of every random number generator that a forward may draw from."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

__all__ = ["RngState"]


@dataclass(frozen=True, eq=False)
class RngState:
    """States of torch's generators on every device in use, of ``random`` and of ``numpy.random``.

    Attributes:
        torch: By device, ``cpu`` or ``cuda:0``; devices that this process has not used yet are left out,
            since asking would start them.
        python: State of the module ``random``.
        numpy: State of numpy's global generator.
    """

    torch: dict[str, torch.Tensor]
    python: Any
    numpy: Any

    @classmethod
    def capture(cls) -> RngState:
        """Read the states as they are now."""
        states = {"cpu": torch.get_rng_state()}
        for kind in ("cuda", "xpu"):
            devices = getattr(torch, kind)
            if devices.is_available() and devices.is_initialized():
                states |= {f"{kind}:{i}": state for i, state in enumerate(devices.get_rng_state_all())}
        if torch.backends.mps.is_available():
            states["mps"] = torch.mps.get_rng_state()
        return cls(states, random.getstate(), np.random.get_state())  # noqa: NPY002 - the global one is what users draw from

    def restore(self) -> None:
        """Set all states to what they were."""
        for name, state in self.torch.items():
            kind, _, index = name.partition(":")
            if kind == "cpu":
                torch.set_rng_state(state)
            elif kind == "mps":
                torch.mps.set_rng_state(state)
            else:
                getattr(torch, kind).set_rng_state(state, int(index))
        random.setstate(self.python)
        np.random.set_state(self.numpy)  # noqa: NPY002

    def same(self, other: RngState) -> bool:
        """Whether both would go on with the same numbers, on the devices that both know."""
        return (
            all(torch.equal(state, other.torch[name]) for name, state in self.torch.items() if name in other.torch)
            and self.python == other.python
            and all(np.array_equal(a, b) for a, b in zip(self.numpy, other.numpy, strict=True))
        )

    def elsewhere(self) -> None:
        """Set the generators to a state that is neither this one nor one that it leads to soon."""
        self.restore()
        # Drawn from the state itself, so that it is another one whatever it was, and the same in every run.
        seed = int(torch.randint(2**31, ()).item()) ^ 0x5EED
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
