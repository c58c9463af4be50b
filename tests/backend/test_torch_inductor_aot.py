"""What is particular to AOTInductor: options, memory of outputs, files, processors, what it needs and leaves behind."""

import gc
import json
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from torch import nn

import aitune.torch as ait
from aitune.exceptions import AITuneUserInputError, BackendBuildError, BackendUnsupportedError
from aitune.testing.fresh_process import in_fresh_process
from aitune.torch.backend import TorchInductorAotBackend, TorchInductorAotBackendConfig

AOT = TorchInductorAotBackend()


class Kinds(nn.Module):
    """Outputs that are computed, a constant of the module, a view of an input, and an integer."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("table", torch.arange(6.0))

    def forward(self, x, ids):
        return self.linear(x), self.table, x[:, :2], ids.sum(), self.table[2:4]


def call(size):
    return size, (torch.randn(size, 4), torch.arange(size)), {}


@pytest.fixture(scope="module")
def kinds(job_of):
    return job_of(Kinds().eval(), call(1), call(5))


@pytest.fixture(scope="module")
def engine(kinds, built):
    engine = built(AOT, kinds)
    yield engine
    engine.close()


@pytest.mark.parametrize("cxx", ["/nowhere/c++", "no-such-compiler"])
def test_a_missing_compiler_is_said_to_be_missing(linear_job, built, monkeypatch, cxx):
    monkeypatch.setenv("CXX", cxx)

    with pytest.raises(BackendUnsupportedError, match=r"needs a C\+\+ compiler, and there is no '.*c.*': install one"):
        built(AOT, linear_job)


def test_an_unknown_setting_is_named(linear_job, built):
    backend = TorchInductorAotBackend(TorchInductorAotBackendConfig(inductor_configs={"no_such_setting": 1}))

    with pytest.raises(AITuneUserInputError, match="Inductor has no no_such_setting"):
        built(backend, linear_job)


@pytest.mark.slow
def test_outputs_are_the_callers_own(engine, kinds, assert_same):
    x, ids = torch.randn(3, 4), torch.arange(3)
    kept = x.clone()
    first = engine.run(x, ids)
    assert_same(first, tuple(one.detach() for one in kinds.module(x, ids)))
    for one in first:
        one.fill_(9)

    assert torch.equal(x, kept)
    assert_same(engine.run(x, ids), tuple(one.detach() for one in kinds.module(x, ids)))


@pytest.mark.slow
def test_any_strides_and_negated_views_are_right(engine, kinds, assert_same):
    wide, ids = torch.randn(4, 10), torch.arange(10)
    negated = torch.randn(3, 4, dtype=torch.complex64).conj().imag
    for x, index in ((wide.t()[1:6], ids[::2]), (wide[:, ::2][:, :4], ids[:4]), (negated, ids[:3])):
        assert_same(engine.run(x, index), tuple(one.detach() for one in kinds.module(x, index)))


@pytest.mark.slow
def test_a_build_leaves_one_file_and_no_process(kinds, engine):
    assert [path.name for path in kinds.folder.rglob("*") if path != kinds.log] == ["model.pt2"]
    assert not [child for child in psutil.Process().children(recursive=True) if "python" not in child.name()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"torch": "2.0.0"}, "compiled for torch 2.0.0, here is .*; build it anew"),
        ({"processor": {"machine": "s390x", "features": [], "name": ""}}, "another processor: this is another kind"),
        ({"processor": None}, "another processor"),
        ({"gpu": "cuda 9.0"}, "compiled for cuda 9.0, the module is on cpu; build it anew"),
    ],
    ids=["torch", "machine", "unknown", "device"],
)
def test_a_package_from_elsewhere_is_refused_before_it_is_loaded(engine, kinds, tmp_path, change, reason):
    engine.save(tmp_path)
    note = tmp_path / "engine.json"
    record = json.loads(note.read_text())
    record["extra"].update(change)
    note.write_text(json.dumps(record))
    (tmp_path / "model.pt2").write_bytes(b"not to be looked at")

    with pytest.raises(BackendBuildError, match=reason):
        AOT.load(kinds, tmp_path)


@pytest.mark.slow
def test_a_damaged_package_is_refused(engine, kinds, tmp_path):
    engine.save(tmp_path)
    (tmp_path / "model.pt2").write_bytes(b"PK nonsense")

    with pytest.raises(BackendBuildError, match="the package cannot be loaded"):
        AOT.load(kinds, tmp_path)


def answers(backend, job, folder, sample):
    """For another process: load and run, with nothing of the module's own imported before."""
    engine = backend.load(job, folder)
    with torch.no_grad():
        return engine.run(*sample.args, **sample.kwargs)


class Sums(nn.Module):
    def forward(self, x):
        return x.sum(), (x * x).mean(), x.amax()


def answers_with_threads(backend, job, folder, counts, x):
    """For another process: the answers with several numbers of threads."""
    engine, found = backend.load(job, folder), []
    with torch.no_grad():
        for count in counts:
            torch.set_num_threads(count)
            found += [engine.run(x) for _ in range(50)]
    return found


@pytest.mark.slow
def test_more_threads_than_it_was_compiled_for_do_no_harm(job_of, built, assert_same, tmp_path):
    module, x = Sums(), torch.randn(64, 4096)
    job = job_of(module, *[(size, (torch.randn(size, 4096),), {}) for size in (2, 64)])
    engine = built(AOT, job)
    engine.save(tmp_path)
    engine.close()

    for found in in_fresh_process(answers_with_threads, AOT, job, tmp_path, (1, 2, 16), x):
        assert_same(found, module(x))


@pytest.mark.slow
def test_output_classes_of_transformers_come_back_in_a_fresh_process(job_of, built, assert_same, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=40
    )
    module = transformers.BertModel(config).eval()

    def tokens(size, length):
        return size, (), {"input_ids": torch.randint(0, 40, (size, length))}

    job = job_of(module, tokens(1, 4), tokens(4, 7))
    engine = built(AOT, job)
    engine.save(tmp_path / "kept")
    sample = job.samples[0]
    found = in_fresh_process(answers, AOT, replace(job, samples=(sample,)), tmp_path / "kept", sample)

    assert type(found) is type(module(**sample.kwargs))
    with torch.no_grad():
        assert_same(found, module(**sample.kwargs), 1e-5)
    engine.close()


@pytest.mark.slow
def test_without_freezing_and_with_settings_it_answers_the_same(linear_job, built, assert_same):
    config = TorchInductorAotBackendConfig(freezing=False, inductor_configs={"max_autotune": False})
    engine = built(TorchInductorAotBackend(config), linear_job)
    x = torch.randn(3, 4)

    assert_same(engine.run(x), linear_job.module(x).detach())
    assert not engine.live_weights
    engine.close()


@pytest.mark.slow
def test_a_tuned_module_goes_on_with_changed_weights():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.GELU(), nn.Linear(32, 16)).eval()
    backend = TorchInductorAotBackend(TorchInductorAotBackendConfig(freezing=False))
    strategy = ait.OneBackendStrategy(backend).enable_performance_validation(False).enable_find_max_batch_size(False)
    ait.tune(ait.Module(module, "net", strategy), list(torch.randn(8, 16)), batch_sizes=[1, 4])

    with torch.no_grad():
        for change in (lambda: module[0].weight.mul_(2), lambda: module[1].running_mean.add_(1)):
            change()
            for _ in range(100):
                x = torch.randn(3, 16)
                torch.testing.assert_close(module(x), module._call_impl(x))
            before = ait.handle(module).stats.engine_calls[backend.describe()]
            for _ in range(20):
                module(torch.randn(3, 16))
            assert ait.handle(module).stats.engine_calls[backend.describe()] == before + 20
    assert list(ait.handle(module).stats.fallbacks) == ["weights changed"]
    ait.handle(module).untune()


@pytest.mark.slow
def test_a_part_of_the_range_is_served_and_kept(job_of, built, assert_same, tmp_path):
    class Branch(nn.Module):
        def forward(self, x):
            return x * 2 if x.shape[0] > 3 else x + 1

    module = Branch()
    job = job_of(module, *[(size, (torch.randn(size, 4),), {}) for size in (1, 8)])
    engine = built(AOT, job)
    engine.save(tmp_path)
    loaded = AOT.load(job, tmp_path)

    for one in (engine, loaded):
        assert dict(one.ranges) == {"batch0": (4, 8)}
        assert one.notes[0].startswith("serves batch0")
        assert_same(one.run(job.samples[1].args[0]), module(job.samples[1].args[0]))
        one.close()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="tells allocated memory by /proc")
def test_what_an_engine_allocates_is_there_for_the_next(job_of, built, tmp_path):
    module = nn.Sequential(nn.Linear(64, 1 << 15), nn.ReLU(), nn.Linear(1 << 15, 64)).eval()  # 16 MB of weights
    job = job_of(module, *[(size, (torch.randn(size, 64),), {}) for size in (1, 4)])
    engine = built(AOT, job)
    engine.save(tmp_path)
    engine.close()
    after = []
    for _ in range(5):
        engine = AOT.load(job, tmp_path)
        engine.run(*job.samples[0].args)
        engine.close()
        gc.collect()
        after.append(allocated())

    assert after[-1] - after[1] < 12 << 20, "the weights of every engine are still there"


def allocated():
    """Return the bytes of memory that is backed by no file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon")).split()[1])


@pytest.fixture
def links_runtime_in(tmp_path):
    """Make the compiler link the C++ runtime into libraries, as it does where the runtime's files are there in part."""
    compiler = tmp_path / "c++"
    compiler.write_text(
        '#!/bin/sh\ncase " $* " in *" -shared "*) exec g++ "$@" -static-libstdc++;; *) exec g++ "$@";; esac\n'
    )
    compiler.chmod(0o755)
    return compiler


def answer_of(backend, job):
    with torch.no_grad():
        engine = backend.build(job)
        return engine.run(*job.samples[0].args)


@pytest.mark.slow
def test_a_compiler_that_links_the_runtime_in_is_kept_from_it(linear_job, links_runtime_in, assert_same):
    environment = {"CXX": str(links_runtime_in)}
    answer = in_fresh_process(answer_of, AOT, linear_job, environment=environment)  # Inductor remembers its compiler
    assert_same(answer, linear_job.module(*linear_job.samples[0].args).detach())


@pytest.mark.slow
def test_a_library_with_a_runtime_of_its_own_is_not_loaded(linear_job, links_runtime_in):
    backend = TorchInductorAotBackend(TorchInductorAotBackendConfig({"aot_inductor.custom_op_libs": []}))
    with pytest.raises(BackendBuildError, match="links the C\\+\\+ runtime into libraries"):
        in_fresh_process(answer_of, backend, linear_job, environment={"CXX": str(links_runtime_in)})
