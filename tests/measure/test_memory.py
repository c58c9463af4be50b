"""What is left of memory, and what a larger batch will need."""

from __future__ import annotations

import threading

import psutil
import pytest
import torch

from aitune.torch.measure import MemoryForecast, available_bytes, is_out_of_memory, peak_growth_bytes
from aitune.torch.measure.control_group import left_in_control_group

CPU = torch.device("cpu")
MIB = 1 << 20


def test_a_forecast_grows_in_proportion_and_leaves_headroom():
    forecast = MemoryForecast(size=4, peak_bytes=100 * MIB, headroom=0.2)
    assert forecast.needed_bytes(8) == 200 * MIB
    assert forecast.fits(8, available=250 * MIB)
    assert not forecast.fits(8, available=249 * MIB)


def test_the_host_has_no_more_than_the_system_says():
    assert 0 < available_bytes(CPU) <= psutil.virtual_memory().total


def test_the_peak_of_a_call_is_seen_though_its_memory_is_given_back():
    def call() -> float:
        return float(torch.ones(64 * MIB // 4).mul_(2).sum())

    growth = peak_growth_bytes(call, CPU)
    assert 32 * MIB < growth < 256 * MIB


def test_a_call_that_raises_leaves_no_thread_behind():
    def call() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        peak_growth_bytes(call, CPU)
    assert "aitune-memory" not in {thread.name for thread in threading.enumerate()}


def test_lack_of_memory_is_seen_behind_an_error_raised_from_it():
    error = ValueError("engine failed")
    error.__cause__ = MemoryError()
    assert is_out_of_memory(error)
    error = ValueError("failed while cleaning up")
    error.__context__ = MemoryError()
    assert is_out_of_memory(error)
    assert not is_out_of_memory(ValueError("out of memory, says a text"))
    assert not is_out_of_memory(RuntimeError("size mismatch"))


def test_the_limit_of_a_container_counts_at_every_level(tmp_path):
    inner = tmp_path / "user" / "job"
    inner.mkdir(parents=True)
    membership = tmp_path / "membership"
    membership.write_text("0::/user/job\n")
    write_group(inner, "max", 70, 10)
    assert left_in_control_group(tmp_path, membership) is None
    write_group(tmp_path / "user", "100", 70, 10)
    assert left_in_control_group(tmp_path, membership) == 40
    write_group(inner, "60", 50, 0)
    assert left_in_control_group(tmp_path, membership) == 10


def test_the_older_interface_of_containers_counts_as_well(tmp_path):
    membership = tmp_path / "membership"
    membership.write_text("5:memory:/docker/abc\n")
    folder = tmp_path / "memory"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text("1000\n")
    (folder / "memory.usage_in_bytes").write_text("900\n")
    (folder / "memory.stat").write_text("cache 50\ntotal_inactive_file 30\n")
    assert left_in_control_group(tmp_path, membership) == 130


def test_a_system_without_control_groups_has_no_such_limit(tmp_path):
    assert left_in_control_group(tmp_path, tmp_path / "missing") is None


def write_group(folder, limit, used, inactive):
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {inactive}\n")
