"""A small module, its graph, and keys of it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from aitune.testing.modules import Mlp
from aitune.torch.backend import ONNXRuntimeBackend
from aitune.torch.graph.dims import BatchDim
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.signature import CallSignature
from aitune.torch.graph.spec import CallSpec, TensorSpec
from aitune.torch.graph.tree import flatten
from aitune.torch.store import Store, describe_subject, entry_key
from aitune.torch.trial import Trial, Verdict


def _graph_of(module: nn.Module, features: int = 8, largest: int = 4) -> GraphSpec:
    """The graph of a module that takes rows ``x`` and returns rows."""

    def spec(name, size):
        shape = (BatchDim("batch0", 1, largest), size)
        leaf = TensorSpec((name,) if name else (), shape, torch.float32, torch.device("cpu"))
        return CallSpec(flatten({name: None} if name else None)[1], (leaf,))

    return GraphSpec("graph0", CallSignature.of(module.forward), spec("x", features), spec("", 4))


def _key_of(module: nn.Module, backend=None, check=None):
    subject = describe_subject(module, _graph_of(module), torch.device("cpu"))
    return entry_key(subject, backend or ONNXRuntimeBackend(), check)


def _engine_folder(place, content=b"engine"):
    """Files as ``Engine.save`` writes them."""
    place.mkdir()
    (place / "engine.json").write_text("{}")
    (place / "model.onnx").write_bytes(content * 1000)
    return place


ACCEPTED = Trial(
    backend="ONNXRuntimeBackend()",
    verdict=Verdict.accepted,
    precision="float32",
    error=1e-7,
    error_bound=1e-4,
    speedup=2.0,
    evidence=("checked",),
)


@pytest.fixture
def graph_of():
    return _graph_of


@pytest.fixture
def key_of():
    return _key_of


@pytest.fixture
def engine_folder():
    return _engine_folder


@pytest.fixture
def accepted():
    return ACCEPTED


@pytest.fixture
def module():
    return Mlp().eval()


@pytest.fixture
def key(module):
    return _key_of(module)


@pytest.fixture
def root(tmp_path):
    return tmp_path / "cache" / "store"


@pytest.fixture
def store(root):
    return Store(root)


@pytest.fixture
def files(tmp_path):
    return _engine_folder(tmp_path / "built")
