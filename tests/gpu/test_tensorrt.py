"""TensorRT on a CUDA device, with whichever of its libraries is installed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from aitune.exceptions import AITuneUserInputError, BackendBuildError, BackendUnsupportedError
from aitune.testing import Case
from aitune.torch.backend import ProfileMode, TensorRTBackend, TensorRTBackendConfig, TensorRTProfile
from aitune.torch.backend.registry import missing_requirement
from aitune.torch.backend.tensorrt.library import import_library, is_rtx
from aitune.torch.worker import build_here

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(missing_requirement(TensorRTBackend()) is not None, reason="TensorRT is not installed"),
]


def net():
    return nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 8))


def rows(batch, random):
    return (torch.randn(batch, 8, generator=random),), {}


@pytest.fixture
def engine_of(tmp_path):
    made = []

    def make(kind=net, batches=(1, 4, 16), **options):
        job = Case("case", kind, rows, batches).job(Path(tmp_path, str(len(made))), "cuda")
        built = build_here(TensorRTBackend(TensorRTBackendConfig(**options)), job)
        if built.error is not None:
            raise built.error
        made.append(built.engine)
        return made[-1], job.module

    yield make
    for engine in made:
        engine.close()


def error(found, wanted):
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


@pytest.mark.parametrize("graphs", [False, True])
@torch.no_grad()
def test_every_size_of_the_range_on_any_stream(engine_of, graphs):
    engine, module = engine_of(use_cuda_graphs=graphs)
    for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            for batch in (1, 3, 16, 3, 1):
                x = torch.randn(batch, 8, device="cuda")
                assert error(engine.run(x), module(x)) < 1e-2
    torch.cuda.synchronize()


@pytest.mark.parametrize("graphs", [False, True])
@torch.no_grad()
def test_threads_with_streams_of_their_own_share_one_engine(engine_of, graphs):
    engine, module = engine_of(use_cuda_graphs=graphs, enable_tf32=False)
    problems = []

    def work(index):
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            random = torch.Generator("cuda").manual_seed(index)
            for _ in range(50):
                x = torch.randn(1 + index, 8, device="cuda", generator=random)
                found = error(engine.run(x), module(x))
                if found > 1e-2:
                    problems.append(found)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems, problems[:3]


@torch.no_grad()
def test_the_precision_is_declared_as_it_is(engine_of):
    def wide():
        return nn.Linear(8, 4096)

    x = torch.randn(16, 8, device="cuda")
    exact, module = engine_of(wide, enable_tf32=False)
    assert exact.precision == ("tf32" if is_rtx(import_library()) else "float32")
    assert error(exact.run(x), module(x)) < (1e-2 if exact.precision == "tf32" else 1e-5)


@torch.no_grad()
def test_profiles_of_samples_and_of_ones_own_serve_the_whole_range(engine_of):
    own = [TensorRTProfile().add_input_shape("input", (2, 8), (4, 8), (4, 8))]
    for profiles in (ProfileMode.SAMPLES_USED, own):
        engine, module = engine_of(profiles=profiles)
        for batch in (1, 4, 16, 7, 2):
            x = torch.randn(batch, 8, device="cuda")
            assert error(engine.run(x), module(x)) < 1e-2


def test_a_profile_of_an_input_that_is_not_there_is_the_users_error(engine_of):
    with pytest.raises(AITuneUserInputError, match=r"no input \('mask',\)"):
        engine_of(profiles=[TensorRTProfile().add_input_shape("mask", (1, 8), (1, 8), (1, 8))])


def test_sizes_that_follow_from_values_are_refused(engine_of):
    class Ragged(nn.Module):
        def forward(self, x):
            return x[x > 0]

    with pytest.raises((BackendUnsupportedError, BackendBuildError)):
        engine_of(Ragged)


@torch.no_grad()
def test_a_kept_engine_is_not_built_again(engine_of, tmp_path):
    engine, _ = engine_of()
    job = Case("case", net, rows, (1, 4, 16)).job(tmp_path / "again", "cuda")
    kept = tmp_path / "kept"
    engine.save(kept)
    assert (kept / "engine.plan").exists()
    loaded = TensorRTBackend().load(job, kept)
    x = torch.randn(4, 8, device="cuda")
    assert torch.equal(loaded.run(x), engine.run(x))
    loaded.close()
    (kept / "engine.plan").write_bytes(b"nonsense")
    with pytest.raises(BackendBuildError, match="cannot load the engine"):
        TensorRTBackend().load(job, kept)


@pytest.mark.parametrize(
    "options",
    [
        {"workspace_size": 64 << 20},
        {"optimization_level": 0},
        {"optimization_level": 5},
        {"opset_version": 18},
        {"timing_cache": "kernels.cache"},
    ],
    ids=lambda options: ",".join(options),
)
@torch.no_grad()
def test_options_of_the_build_are_taken(engine_of, tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    engine, module = engine_of(**options)
    x = torch.randn(3, 8, device="cuda")
    assert error(engine.run(x), module(x)) < 1e-2
    if "timing_cache" in options and not is_rtx(import_library()):  # which measures nothing while it builds
        assert Path("kernels.cache").stat().st_size > 0
