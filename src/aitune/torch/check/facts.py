"""What can be said of an output tensor beside its values."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["Facts"]


@dataclass(frozen=True)
class Facts:
    """Properties of a tensor that code after the module may rely on.

    Attributes:
        kind: Exact type.
        dtype: Its dtype.
        device: Its device.
        layout: Its layout.
        shape: Its sizes.
        requires_grad: Its flag.
        inference: Whether it was made in inference mode, and so cannot take part in autograd later.
        contiguous: Whether ``view`` works on it in any shape.
        lazy: Whether it is to be conjugated or negated when it is read, which ``numpy()`` and ``data_ptr`` do not do.
    """

    kind: type
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    shape: tuple[int, ...]
    requires_grad: bool
    inference: bool
    contiguous: bool
    lazy: bool = False

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Facts:
        """Read the properties of a tensor."""
        return cls(
            kind=type(tensor),
            dtype=tensor.dtype,
            device=tensor.device,
            layout=tensor.layout,
            shape=tuple(tensor.shape),
            requires_grad=tensor.requires_grad,
            inference=tensor.is_inference(),
            contiguous=tensor.layout is not torch.strided or tensor.is_contiguous(),
            lazy=tensor.is_conj() or tensor.is_neg(),
        )

    def mismatch(self, expected: Facts) -> str | None:
        """Return how this differs from what eager's tensor is, as the end of a sentence; None if it does not.

        A contiguous tensor may stand for one that is not, since every view of the latter is possible of the
        former.
        """
        for name in ("kind", "dtype", "device", "layout", "shape"):
            mine, theirs = getattr(self, name), getattr(expected, name)
            if mine != theirs:
                return f"has {_WORDS[name]} {_text(mine)}, the module returns {_text(theirs)}"
        if self.requires_grad != expected.requires_grad:
            return f"{'requires' if self.requires_grad else 'does not require'} grad, unlike the module's"
        if self.inference != expected.inference:
            return f"{'is' if self.inference else 'is not'} an inference tensor, unlike the module's"
        if expected.contiguous and not self.contiguous:
            return "is not contiguous, the module's is"
        if self.lazy and not expected.lazy:
            return "has its conjugate or negative bit set, the module's has not"
        return None


_WORDS = {"kind": "type", "dtype": "dtype", "device": "device", "layout": "layout", "shape": "shape"}


def _text(value: object) -> str:
    if isinstance(value, type):
        return value.__qualname__
    if isinstance(value, tuple):
        return str(list(value))
    return str(value).removeprefix("torch.")
