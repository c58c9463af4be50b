"""One saved checkpoint of a small module, and ways to change what is in it."""

from __future__ import annotations

import io
import json
import zipfile

import pytest
import torch

import aitune.torch as ait
from aitune.testing.modules import Mlp
from aitune.torch.backend import OpenVINOBackend
from aitune.torch.backend.availability import missing_requirement
from aitune.torch.graph.dims import BatchDim
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.job import Job
from aitune.torch.graph.sample import Sample
from aitune.torch.graph.signature import CallForm, CallSignature
from aitune.torch.graph.spec import CallSpec, TensorSpec
from aitune.torch.graph.tree import flatten
from aitune.torch.module.served import Served
from aitune.torch.report import GraphResult, ModuleResult
from aitune.torch.store.digest import file_digest
from aitune.torch.trial import Trial, Verdict
from aitune.torch.worker import build_here


def _graph(module):
    def spec(name, size):
        shape = (BatchDim("batch0", 1, 4), size)
        leaf = TensorSpec((name,) if name else (), shape, torch.float32, torch.device("cpu"))
        return CallSpec(flatten({name: None} if name else None)[1], (leaf,))

    return GraphSpec("graph0", CallSignature.of(module.forward), spec("x", 8), spec("", 4), form=CallForm(1, ()))


def _tuned(module, folder, backend=None, x=None):
    """Tune a small network, without the measuring: the backend's engine is installed as a tune would."""
    backend = backend or OpenVINOBackend()
    if missing_requirement(backend) is not None:
        pytest.skip(f"{backend.name} is not installed")
    graph = _graph(module)
    samples = (Sample((torch.randn(2, 8) if x is None else x,), {}, 2),)
    job = Job("net", module, graph, samples, torch.device("cpu"), folder / "files", folder / "log")
    built = build_here(backend, job)
    assert built.engine is not None, built.error
    trial = Trial(
        backend=backend.describe(), verdict=Verdict.accepted, precision="float32", error=1e-7, build_seconds=3.0
    )
    result = GraphResult("graph0", (), (), backend.describe(), (trial,))
    handle = ait.handle(ait.Module(module, name="net"))
    handle.install([Served(graph, built.engine, backend.describe(), backend)], ModuleResult("net", "Mlp", (result,)))
    return module


def _fresh(seed=3):
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    module = Mlp().eval()
    torch.set_rng_state(state)
    return module


@pytest.fixture
def tuned():
    """Install an engine on a module: ``tuned(module, folder, backend)``."""
    return _tuned


@pytest.fixture
def fresh():
    """Build the module that was saved: ``fresh()``; another seed gives other weights."""
    return _fresh


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """Bytes of a checkpoint."""
    folder = tmp_path_factory.mktemp("saved")
    return ait.save(_tuned(_fresh(), folder), folder / "net.ait").read_bytes()


@pytest.fixture
def file(saved, tmp_path):
    """The checkpoint, in a folder of its own and without its digest beside it."""
    (tmp_path / "shipped").mkdir()
    path = tmp_path / "shipped" / "net.ait"
    path.write_bytes(saved)
    return path


class Archive:
    """What is in a checkpoint, to be changed and packed again.

    Attributes:
        manifest: The manifest.
        files: Content by name.
        attributes: External attributes by name.
    """

    def __init__(self, data: bytes) -> None:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            self.files = {name: archive.read(name) for name in archive.namelist()}
        self.manifest = json.loads(self.files.pop("manifest.json"))
        self.attributes: dict[str, int] = {}

    @property
    def graph(self):
        """The record of the only graph."""
        return self.manifest["modules"][0]["graphs"][0]

    def replace(self, name, content, folder):
        """Replace a file, with size and digest to match."""
        path = folder / "content"
        path.write_bytes(content)
        self.files[name] = content
        listed = next((entry for entry in self.manifest["files"] if entry["path"] == name), None)
        if listed is None:
            self.manifest["files"].append(listed := {"path": name})
        listed.update(size=len(content), digest=file_digest(path))

    def pack(self, path):
        """Write the archive."""
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in {"manifest.json": json.dumps(self.manifest).encode(), **self.files}.items():
                info = zipfile.ZipInfo("placeholder")
                info.filename = name  # the constructor would tidy it
                info.external_attr = self.attributes.get(name, 0o644 << 16)
                archive.writestr(info, content, zipfile.ZIP_DEFLATED)
        return path


@pytest.fixture
def archive(saved):
    return Archive(saved)


@pytest.fixture
def assert_attached():
    """Check that a module is served by its engine and answers as the original does."""

    def check(module, original):
        x = torch.randn(3, 8)
        handle = ait.handle(module)
        handle.reset_stats()
        with torch.no_grad():
            torch.testing.assert_close(module(x), original.forward(x))
        assert sum(handle.stats.engine_calls.values()) == 1, handle.stats

    return check
