"""What is particular to torch.compile: code of its own, nothing compiled, changed weights, freezing."""

import pytest
import torch
from torch import nn

from aitune.exceptions import BackendBuildError, BackendUnsupportedError
from aitune.torch.backend import TorchInductorJitBackend, TorchInductorJitBackendConfig

JIT = TorchInductorJitBackend()


class Uncompiled(nn.Module):
    @torch.compiler.disable
    def forward(self, x):
        return x * 2


class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x)
        torch._dynamo.graph_break()
        return self.linear(y)


def call(size):
    return size, (torch.randn(size, 4),), {}


def test_a_module_of_which_nothing_is_compiled_is_unsupported(job_of, built):
    with pytest.raises(BackendUnsupportedError, match="nothing in the module to compile"):
        built(JIT, job_of(Uncompiled(), call(1), call(2)))


@pytest.mark.slow
def test_sizes_in_the_range_are_served_without_compiling_again(linear_job, built, assert_same):
    engine = built(JIT, linear_job)
    compiled = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for size in (1, 2, 3, 4):
        x = torch.randn(size, 4)
        with torch.no_grad():
            assert_same(engine.run(input=x), linear_job.module(x))

    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == compiled
    assert engine.live_weights
    assert engine.keeps_module


@pytest.mark.slow
def test_many_engines_of_one_module_are_all_compiled(linear_job, built):
    for _ in range(10):  # more than torch.compile's limit for one function
        before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        built(JIT, linear_job).close()
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > before


@pytest.mark.slow
def test_changed_weights_are_followed(job_of, built):
    module = nn.Linear(4, 3).eval()
    engine = built(JIT, job_of(module, call(1), call(4)))
    with torch.no_grad():
        module.weight.zero_()

    assert torch.allclose(engine.run(torch.randn(2, 4)), module.bias.expand(2, 3))


@pytest.mark.slow
def test_a_graph_break_is_allowed_unless_fullgraph(job_of, built, assert_same):
    job = job_of(Broken().eval(), call(1), call(2))
    x = torch.randn(2, 4)
    for _ in range(2):  # the second finds the parts compiled
        assert_same(built(JIT, job).run(x), job.module(x).detach())

    with pytest.raises(BackendBuildError, match=r"torch\.compile fails"):
        built(TorchInductorJitBackend(TorchInductorJitBackendConfig(fullgraph=True)), job)


@pytest.mark.slow
def test_autocast_and_freezing_are_declared(linear_job, built, assert_same):
    x = torch.randn(3, 4)
    half = built(TorchInductorJitBackend(TorchInductorJitBackendConfig(autocast_enabled=True)), linear_job)
    frozen_backend = TorchInductorJitBackend(TorchInductorJitBackendConfig(freezing=True))
    frozen = built(frozen_backend, linear_job)

    assert (half.precision, half.live_weights) == ("bfloat16", True)
    assert_same(half.run(x), linear_job.module(x).detach(), 3e-2)
    assert (frozen.precision, frozen.live_weights) == ("float32", False)
    assert_same(frozen.run(x), linear_job.module(x).detach())
    assert JIT.safe_in_process
    assert not frozen_backend.safe_in_process


@pytest.mark.slow
def test_a_forward_that_writes_to_its_inputs_goes_on_doing_so(job_of, built):
    class Writes(nn.Module):
        def forward(self, x):
            x.add_(1)
            return x * 2

    engine = built(JIT, job_of(Writes(), call(1), call(3)))
    x = torch.zeros(4, 3).t()
    assert torch.equal(engine.run(x), torch.full((3, 4), 2.0))
    assert torch.equal(x, torch.ones(3, 4))


@pytest.fixture
def compiles():
    """Tell how many graphs were compiled since the test began."""
    counters = torch._dynamo.utils.counters["stats"]
    before = counters["unique_graphs"]
    return lambda: counters["unique_graphs"] - before


@pytest.mark.slow
def test_sizes_that_forward_turns_into_constants_narrow_the_engine(job_of, built, assert_same, compiles):
    class Counted(nn.Module):
        def forward(self, x):
            return x * len([None] * x.shape[0])

    module = Counted()
    engine = built(JIT, job_of(module, call(1), call(7)))
    assert dict(engine.ranges) == {"batch0": (7, 7)}
    assert "would be compiled in a call" in engine.notes[0]
    before = compiles()
    x = torch.randn(7, 4)
    assert_same(engine.run(x), module(x))
    assert compiles() == before


@pytest.mark.slow
def test_without_dynamic_shapes_one_size_is_served(linear_job, built, assert_same, compiles):
    engine = built(TorchInductorJitBackend(TorchInductorJitBackendConfig(dynamic=False)), linear_job)
    assert dict(engine.ranges) == {"batch0": (4, 4)}
    assert compiles() == 1
    x = torch.randn(4, 4)
    assert_same(engine.run(x), linear_job.module(x).detach())
    assert compiles() == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "options",
    [
        {"mode": "default"},
        {"mode": "reduce-overhead"},
        {"mode": "max-autotune"},
        {"mode": "max-autotune-no-cudagraphs"},
        {"options": {"epilogue_fusion": False}},
        {"dynamic": True},
        {"fullgraph": True},
    ],
    ids=str,
)
def test_every_mode_runs_on_a_processor(linear_job, built, assert_same, options, compiles):
    engine = built(TorchInductorJitBackend(TorchInductorJitBackendConfig(**options)), linear_job)
    before = compiles()
    for size in (1, 2, 3, 4):
        x = torch.randn(size, 4)
        first = engine.run(x)
        kept = first.clone()
        engine.run(torch.randn(size, 4))
        assert torch.equal(first, kept)
        assert_same(first, linear_job.module(x).detach())
    assert compiles() == before
    assert not engine.ranges


@pytest.mark.slow
def test_the_users_own_compiled_functions_stay_compiled(linear_job, built, compiles):
    @torch.compile
    def double(x):
        return x * 2

    double(torch.ones(3))
    engine = built(JIT, linear_job)
    engine.close()
    before = compiles()
    double(torch.ones(3))
    assert compiles() == before
