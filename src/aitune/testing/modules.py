"""Small modules, each of another kind, on which a contract suite holds backends to their promises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

__all__ = [
    "Branching",
    "ConvNet",
    "Discrete",
    "Keywords",
    "Mlp",
    "Nested",
    "Ragged",
    "Scalars",
    "Spectrum",
]


class Mlp(nn.Module):
    """Two linear layers: rows of 8 numbers in, rows of 4 out.

    Args:
        width: Size of the layer in between.
    """

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, width), nn.GELU(), nn.Linear(width, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute float32[batch, 4] from float32[batch, 8]."""
        output: torch.Tensor = self.layers(x)
        return output


class ConvNet(nn.Module):
    """Convolutions with running statistics: images of any size in, 5 numbers an image out."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, stride=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 5),
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Compute float32[batch, 5] from float32[batch, 3, height, width]."""
        output: torch.Tensor = self.layers(image)
        return output


class Nested(nn.Module):
    """Containers on both sides: a pair and a dict in, a dict with a tuple and a list out."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("table", torch.linspace(0.0, 1.0, 6))

    def forward(self, pair: tuple[Any, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        """Return sums under string keys; one output is the same tensor as another."""
        left, right = pair
        total = self.linear(left) + right * self.table
        masked = torch.where(options["mask"], total, options["shift"])
        return {"total": total, "parts": (masked, [masked.sum(-1), total.mean()]), "again": total, "nothing": None}


class Keywords(nn.Module):
    """Defaults and keyword-only parameters, one of them a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 5)

    def forward(
        self, x: torch.Tensor, scale: float = 2.0, *, bias: torch.Tensor | None = None, flip: bool = False
    ) -> torch.Tensor:
        """Compute float32[batch, 5] from float32[batch, 5]."""
        output: torch.Tensor = self.linear(x) * scale
        if bias is not None:
            output = output + bias
        return output.flip(-1) if flip else output


class Discrete(nn.Module):
    """Integers in; integers and bools out, which allow no error at all.

    What is computed in between are whole numbers below 256, so that a low precision is no excuse.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding.from_pretrained(torch.randint(0, 4, (12, 7)).float())  # type: ignore[no-untyped-call]
        self.register_buffer("place", torch.arange(7.0))

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return int64[batch], bool[batch, length] and int64[batch, length] from int64[batch, length]."""
        scores = self.embed(ids).sum(1) * 7 + self.place
        return scores.argmax(-1), ids > 5, ids * 3 + 1


class Scalars(nn.Module):
    """Tensors without axes, in and out."""

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return float32[batch, 3] and float32[] from float32[batch, 3] and float32[]."""
        scaled = x * scale
        return scaled, scaled.sum()


class Branching(nn.Module):
    """A Python branch over values that leave torch on the way: what exporters cannot follow."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute float32[batch, 8] from float32[batch, 8]."""
        if float(x.detach().cpu().numpy().sum()) > 0:
            return torch.from_numpy(x.detach().cpu().numpy() * 2).to(x.device)
        return x - 1


class Spectrum(nn.Module):
    """Complex numbers, which few libraries know."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute complex64[batch, 8] from float32[batch, 8]."""
        return torch.complex(x, x.flip(-1)).conj()


class Ragged(nn.Module):
    """An output whose size follows from values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute float32[any] from float32[batch, 8]."""
        return x[x > 0]
