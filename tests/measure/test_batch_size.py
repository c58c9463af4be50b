"""The search for the batch size."""

from __future__ import annotations

import pytest
import torch

from aitune.testing import FakeClock
from aitune.torch.measure import search_batch_size


def everything_fits(size: int) -> bool:
    return True


@pytest.mark.parametrize(
    ("throughput", "start", "limit", "best", "tried", "why"),
    [
        ({1: 100, 2: 190, 4: 350, 8: 360}, 1, 64, 4, (1, 2, 4, 8), "1.03 times the throughput of 4"),
        ({1: 100, 2: 105, 4: 110}, 1, 64, 2, (1, 2, 4), "1.05 times"),  # 5 % exactly is enough, 4.8 % is not
        ({1: 100, 2: 80}, 1, 64, 1, (1, 2), "0.8 times the throughput of 1"),
        ({1: 1, 2: 2, 4: 4, 8: 8}, 1, 8, 8, (1, 2, 4, 8), "above the limit of 8"),
        ({1: 1, 2: 2, 4: 4}, 1, 7, 4, (1, 2, 4), "batch size 8 is above the limit of 7"),
        ({3: 3, 4: 4, 8: 8}, 3, 8, 8, (3, 4, 8), "above the limit of 8"),  # powers of two from the start on
        ({5: 9}, 5, 5, 5, (5,), "above the limit of 5"),
    ],
)
def test_it_doubles_while_throughput_grows_by_five_percent(throughput, start, limit, best, tried, why):
    search = search_batch_size(lambda size: throughput[size], start, limit, everything_fits)
    assert search.best == best
    assert search.tried == tuple((size, throughput[size]) for size in tried)
    assert why in search.stopped_because


OUT_OF_MEMORY = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried"),
    RuntimeError("CUDA error: out of memory"),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda error: type(error).__name__)
def test_running_out_of_memory_ends_it_at_the_size_before(error):
    def throughput_at(size: int) -> float:
        if size == 8:
            raise error
        return float(size)

    search = search_batch_size(throughput_at, 1, 64, everything_fits)
    assert search.best == 4
    assert search.tried == ((1, 1.0), (2, 2.0), (4, 4.0))
    assert search.stopped_because == "batch size 8 ran out of memory"


def test_running_out_of_memory_at_once_leaves_no_size():
    def throughput_at(size: int) -> float:
        raise MemoryError

    search = search_batch_size(throughput_at, 1, 64, everything_fits)
    assert (search.best, search.tried) == (None, ())


def test_a_size_that_would_not_fit_is_not_tried():
    sizes: list[int] = []

    def throughput_at(size: int) -> float:
        sizes.append(size)
        return float(size)

    search = search_batch_size(throughput_at, 2, 64, lambda size: size < 16)
    assert sizes == [2, 4, 8]
    assert search.best == 8
    assert search.stopped_because == "batch size 16 would not fit in memory"


def test_another_error_is_not_taken_for_lack_of_memory():
    def throughput_at(size: int) -> float:
        raise RuntimeError("shape mismatch")

    with pytest.raises(RuntimeError, match="shape mismatch"):
        search_batch_size(throughput_at, 1, 8, everything_fits)


@pytest.mark.parametrize(("start", "limit"), [(0, 4), (8, 4)])
def test_a_range_that_makes_no_sense_is_refused(start, limit):
    with pytest.raises(ValueError, match="1 <= start <= limit"):
        search_batch_size(float, start, limit, everything_fits)


def test_one_stalled_figure_does_not_end_it():
    figures = {1: [100], 2: [190], 4: [3, 350], 8: [600], 16: [610, 7]}
    search = search_batch_size(lambda size: figures[size].pop(0), 1, 64, everything_fits)
    assert search.best == 8
    assert search.tried == ((1, 100), (2, 190), (4, 350), (8, 600), (16, 610))
    assert "1.02 times the throughput of 8" in search.stopped_because
    assert not any(figures.values())  # each figure that ended nothing was asked for once


def test_a_size_that_cannot_be_run_is_not_asked_for_again():
    sizes: list[int] = []

    def throughput_at(size: int) -> float:
        sizes.append(size)
        return 0.0 if size == 4 else float(size)

    assert search_batch_size(throughput_at, 1, 64, everything_fits).best == 2
    assert sizes == [1, 2, 4]


def test_a_burst_on_the_clock_does_not_end_it():
    clock = FakeClock()
    stalls = iter([0.0, 0.0, 0.0, 1.0])  # the machine is busy with something else the first time that 8 are tried

    def throughput_at(size: int) -> float:
        start = clock.now()
        clock.work(1e-3 + 1e-4 * size + next(stalls, 0.0))
        return size / (clock.now() - start)

    assert search_batch_size(throughput_at, 1, 64, everything_fits).best == 64
