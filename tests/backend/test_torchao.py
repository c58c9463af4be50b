"""TorchAO: a quantised copy, compiled. Needs torchao, which the tests' environment has not: it slows transformers.

The first tests need no torchao. The others: ``pip install torchao``, then ``pytest tests/backend/test_torchao.py``.
"""

import importlib.util
import warnings

import pytest
import torch
from torch import nn

from aitune.exceptions import BackendNotInstalledError, BackendUnsupportedError
from aitune.testing import BackendContract
from aitune.torch.backend import TorchAOBackend, TorchAOBackendConfig

needs_torchao = pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is not installed")


def backend(**options):
    """A backend that compiles as quickly as it can."""
    return TorchAOBackend(TorchAOBackendConfig(**{"mode": None, **options}))


class Tied(nn.Module):
    """Two layers of one weight, one layer under two names, and an embedding whose weight is that of the last layer."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(48, 32)
        self.first = nn.Linear(32, 64)
        self.second = nn.Linear(32, 64)
        self.second.weight = self.first.weight
        self.alias = self.first
        self.down = nn.Linear(64, 32)
        self.head = nn.Linear(32, 48, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(self.down(torch.relu(self.first(x) + self.second(x) + self.alias(x))))


def call(size):
    return size, (torch.randint(0, 48, (size, 5)),), {}


@pytest.fixture(scope="module")
def tied(job_of):
    torch.manual_seed(1)
    return job_of(Tied().eval(), call(1), call(6))


def test_without_a_scheme_it_is_unsuitable(linear_job):
    assert "no quantization chosen: one of int8wo, int8dq" in TorchAOBackend().unsuitable(linear_job)


@pytest.mark.parametrize("scheme", ["fp8wo", "fp8dq", "mxfp8dq", "nvfp4dq"])
def test_what_the_processor_cannot_compute_is_unsuitable(linear_job, scheme):
    assert backend(quantization=scheme).unsuitable(linear_job) == f"{scheme} needs cuda, the module is on cpu"


@pytest.mark.skipif(importlib.util.find_spec("torchao") is not None, reason="torchao is installed")
def test_without_the_library_it_says_what_to_install(linear_job, built):
    with pytest.raises(BackendNotInstalledError, match=r"pip install 'aitune\[torchao\]'"):
        built(backend(quantization="int8wo"), linear_job)


@needs_torchao
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("scheme", ["int8wo", "int8dq"])
def test_a_quantised_copy_answers_within_the_bound_of_int8(tied, built, assert_same, scheme, capfd):
    module = tied.module
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    engine = built(backend(quantization=scheme), tied)

    assert engine.precision == "int8"
    assert not engine.live_weights
    assert not engine.keeps_module
    assert capfd.readouterr().out == ""
    assert type(module.first.weight) is nn.Parameter
    assert module.head.weight is module.embed.weight
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    for size in (1, 3, 6):
        (ids,) = call(size)[1]
        with torch.no_grad():
            found, wanted = engine.run(ids), module(ids)
        assert_same(found, wanted, 1e-1)
        assert not torch.equal(found, wanted), "nothing was quantised"
    first = engine.run(ids)
    kept = first.clone()
    engine.run(call(6)[1][0])
    assert torch.equal(first, kept)
    engine.close()


@needs_torchao
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_weights_that_are_one_are_quantised_once(tied):
    from aitune.torch.backend.torchao import _twin

    twin = _twin(tied.module, "TorchAOBackend")
    assert backend(quantization="int8wo")._quantise(twin) == "int8"

    assert type(twin.first.weight) is not nn.Parameter
    assert twin.second.weight is twin.first.weight
    assert twin.alias is twin.first
    assert type(twin.embed.weight) is nn.Parameter
    assert type(twin.head.weight) is type(twin.first.weight)


@needs_torchao
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_filter_chooses_and_a_filter_that_takes_nothing_is_unsupported(tied, built, job_of):
    from aitune.torch.backend.torchao import _twin

    def only_down(module, name):
        return isinstance(module, nn.Linear) and name.endswith("down")

    twin = _twin(tied.module, "TorchAOBackend")
    backend(quantization="int8dq", filter_fn=only_down)._quantise(twin)
    assert type(twin.down.weight) is not nn.Parameter
    assert type(twin.head.weight) is nn.Parameter
    with pytest.raises(BackendUnsupportedError, match="nothing that filter_fn takes"):
        built(backend(quantization="int8wo", filter_fn=lambda module, name: False), tied)
    convolution = job_of(nn.Conv1d(2, 2, 1).eval(), (1, (torch.randn(1, 2, 4),), {}), (2, (torch.randn(2, 2, 4),), {}))
    with pytest.raises(BackendUnsupportedError, match=r"the module has no nn\.Linear"):
        built(backend(quantization="int8wo"), convolution)


@needs_torchao
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_config_of_the_library_is_taken_as_it_is(tied):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, IntxWeightOnlyConfig

    from aitune.torch.backend.torchao import _twin

    for config, precision in (
        (Int8DynamicActivationInt8WeightConfig(), "int8"),
        (IntxWeightOnlyConfig(weight_dtype=torch.int4), "int4"),
    ):
        own = TorchAOBackend(TorchAOBackendConfig(quantization_config=config))
        assert own._quantise(_twin(tied.module, "TorchAOBackend")) == precision
        assert own.unsuitable(tied) is None


@needs_torchao
@pytest.mark.slow
@pytest.mark.timeout(900)
class TestTorchAOBackend(BackendContract):
    """The contract of backends; the default options choose no scheme, so that the registered one is not tested."""

    precision = "int8"
    frees_memory = False  # torch.compile keeps code, and what it traced, for the process

    def make_backend(self):
        return backend(quantization="int8wo")
