"""The bench for authors of strategies: real trials, on a fake clock, of a module that takes time on it."""

from __future__ import annotations

import gc

import pytest
import torch

from aitune.testing import FakeClock, TimedModule, failing_backend, fake_bench, timed_backend
from aitune.torch.bench import Rules
from aitune.torch.trial import Verdict


def test_a_candidate_takes_its_fraction_of_the_modules_time():
    backend = timed_backend("half", 0.5)
    with fake_bench(rules=Rules(find_batch_size=False)) as bench:
        trial = bench.try_(backend)

    assert trial.accepted
    assert trial.speedup == pytest.approx(2.0)
    assert trial.latency_ms == pytest.approx(0.5 * 1.4)  # 1 ms and 0.1 ms for each of 4 rows
    assert (backend.builds, backend.open_engines) == (1, 0)


def test_the_module_takes_time_on_its_own_clock_and_keeps_no_other_state():
    clock = FakeClock()
    module = TimedModule(clock, seconds=0.5, seconds_a_row=0.25)

    assert torch.equal(module(torch.ones(2, 3)), torch.full((2, 3), 2.0))
    assert clock.now() == pytest.approx(1.0)
    assert module.clock is clock
    assert not module.training


def test_candidates_fail_as_they_are_told_to():
    error = MemoryError()
    with fake_bench() as bench:
        assert bench.try_(failing_backend()).verdict is Verdict.build_failed
        assert bench.try_(failing_backend("full", error)).verdict is Verdict.out_of_memory
        assert bench.try_(timed_backend("wrong", 0.5, lambda x: x)).verdict is Verdict.wrong
        assert bench.try_(timed_backend("coarse", 0.5, precision="bfloat16")).precision == "bfloat16"


def test_fallbacks_and_the_deadline_are_the_tests_to_set():
    with fake_bench(fallbacks=lambda: {"range": 2}) as bench:
        assert bench.try_(timed_backend("c", 0.5)).verdict is Verdict.unsupported
    module = TimedModule()
    module.clock.sleep(2.0)
    with fake_bench(module=module, deadline=1.0) as bench:
        assert bench.try_(timed_backend("c", 0.5)).verdict is Verdict.skipped


def test_files_go_to_a_folder_that_goes_with_the_bench_or_to_the_one_that_was_named(tmp_path):
    bench = fake_bench()
    place = bench.job.folder.parent
    assert place.is_dir()
    with bench:
        bench.try_(timed_backend("c", 0.5))
    del bench
    gc.collect()
    assert not place.exists()

    with fake_bench(folder=tmp_path) as bench:
        assert bench.job.folder.parent == tmp_path
