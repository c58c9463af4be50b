"""ResNet-18 and MobileNetV2, with random weights, from the tables of their papers.

He et al., "Deep Residual Learning for Image Recognition" (2015), table 1; Sandler et al., "MobileNetV2: Inverted
Residuals and Linear Bottlenecks" (2018), table 2.
"""

from __future__ import annotations

import itertools

import torch
from torch import nn

__all__ = ["MobileNetV2", "ResNet18"]

CLASSES = 1000


def normed(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Make a convolution that keeps the size (but for the stride), with batch normalisation."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs))


class Residual(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = normed(inputs, outputs, 3, stride)
        self.second = normed(outputs, outputs, 3)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else normed(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))) + self.shortcut(x))


class ResNet18(nn.Module):
    """Takes float32[batch, 3, 224, 224], returns float32[batch, 1000]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(normed(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1))
        widths = (64, 64, 128, 256, 512)
        blocks = []
        for index, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
            blocks += [Residual(inputs, outputs, 1 if index == 0 else 2), Residual(outputs, outputs, 1)]
        self.blocks = nn.Sequential(*blocks)
        self.classify = nn.Linear(512, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classify(self.blocks(self.stem(x)).mean((2, 3)))


class InvertedResidual(nn.Module):
    """Widen, filter each channel by itself, and narrow; with a shortcut where the shape stays."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        widen = [] if expansion == 1 else [normed(inputs, wide, 1), nn.ReLU6()]
        self.body = nn.Sequential(
            *widen, normed(wide, wide, 3, stride, groups=wide), nn.ReLU6(), normed(wide, outputs, 1)
        )
        self.same = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.same else self.body(x)


class MobileNetV2(nn.Module):
    """Takes float32[batch, 3, 224, 224], returns float32[batch, 1000]."""

    # expansion, channels, repeats, stride of the first
    STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [normed(3, 32, 3, 2), nn.ReLU6()]
        channels = 32
        for expansion, outputs, repeats, stride in self.STAGES:
            for index in range(repeats):
                layers.append(InvertedResidual(channels, outputs, stride if index == 0 else 1, expansion))
                channels = outputs
        self.features = nn.Sequential(*layers, normed(channels, 1280, 1), nn.ReLU6())
        self.classify = nn.Linear(1280, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classify(self.features(x).mean((2, 3)))
