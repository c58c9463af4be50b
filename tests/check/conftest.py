"""Modules, graphs and subjects that the tests of the value check share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from aitune.torch.check import Subject, prepare
from aitune.torch.graph.dims import infer_dims
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.sample import Sample
from aitune.torch.graph.signature import CallSignature
from aitune.torch.graph.spec import CallSpec, TensorSpec, constant_or_opaque, is_tensor
from aitune.torch.graph.tree import flatten


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The same random numbers in every run; one thread, since OpenMP regions stall on busy machines."""
    torch.manual_seed(7)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Net(nn.Module):
    """Two layers; what most tests need."""

    def __init__(self, inputs: int = 16, outputs: int = 8) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, 32)
        self.second = nn.Linear(32, outputs)
        self.register_buffer("table", torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def batches(*sizes: int, width: int = 16) -> list[Sample]:
    return [Sample((torch.randn(size, width),), {}, size) for size in sizes]


def graph_of(module: nn.Module, samples: Sequence[Sample]) -> GraphSpec:
    """Find the graph of samples as a recorder would."""
    signature = CallSignature.of(module.forward)
    calls = [flatten(signature.bind(sample.args, sample.kwargs)) for sample in samples]
    leaves, structure = calls[0]
    shapes = [[tuple(leaf.shape) for leaf in call if is_tensor(leaf)] for call, _ in calls]
    sizes = iter(infer_dims(shapes, [sample.batch_size for sample in samples]))
    specs = tuple(
        TensorSpec(path, next(sizes), leaf.dtype, leaf.device) if is_tensor(leaf) else constant_or_opaque(path, leaf)
        for path, leaf in zip(structure.paths(), leaves, strict=True)
    )
    outputs = CallSpec(structure, ())
    return GraphSpec("graph0", signature, CallSpec(structure, specs), outputs, module.training)


def subject_of(module: nn.Module, samples: Sequence[Sample], **options: Any) -> Subject:
    return prepare(module, graph_of(module, samples), samples, **options)


@pytest.fixture
def net() -> nn.Module:
    return Net().eval()


@pytest.fixture
def subject(net: nn.Module) -> Subject:
    return subject_of(net, batches(1, 4, 8))


@pytest.fixture
def make_net() -> Callable[..., nn.Module]:
    return Net


@pytest.fixture
def make_batches() -> Callable[..., list[Sample]]:
    return batches


@pytest.fixture
def make_subject() -> Callable[..., Subject]:
    return subject_of


@pytest.fixture
def make_graph() -> Callable[..., GraphSpec]:
    return graph_of
