"""Savers and loaders of one folder at once: each checkpoint keeps its own digest, and no loader sees a mixture."""

from __future__ import annotations

import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest

import aitune.torch as ait
from aitune.exceptions import CheckpointDamagedError
from aitune.torch.checkpoint.archive import check_sums, write_archive

STORAGE = ait.LocalTorchStorage(compress_checkpoint=False)


@pytest.fixture
def write(file, tmp_path):
    """Write the checkpoint once more, told apart by a number: ``write(path, number)``."""
    with zipfile.ZipFile(file) as archive:
        archive.extractall(tmp_path / "held", [name for name in archive.namelist() if name != "manifest.json"])
        manifest = archive.read("manifest.json").decode()
    return lambda path, number: write_archive(path, manifest + " " * number, tmp_path / "held", STORAGE)


def test_savers_of_one_name_leave_a_file_with_its_own_digest(write, tmp_path):
    path = tmp_path / "net.ait"

    def save_and_check(number):
        write(path, number)
        return number

    with ThreadPoolExecutor(4) as pool:
        for round_ in range(20):
            list(pool.map(save_and_check, range(4 * round_, 4 * round_ + 4)))
            check_sums(path, STORAGE)


def test_savers_of_names_with_one_list_of_digests_keep_each_others(write, tmp_path):
    paths = [tmp_path / f"net.{number}" for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, paths * 3, range(12)))
    lines = (tmp_path / "net_sha256_sums.txt").read_text().splitlines()
    assert sorted(line.split()[1] for line in lines) == [path.name for path in paths]
    paths[0].write_bytes(paths[1].read_bytes())
    with pytest.raises(CheckpointDamagedError, match="another digest"):
        check_sums(paths[0], STORAGE)
    paths[2].unlink()
    write(paths[3], 99)
    assert "net.2" not in (tmp_path / "net_sha256_sums.txt").read_text()


def test_a_checkpoint_that_is_removed_leaves_the_digests_of_others(tuned, fresh, tmp_path, write):
    path = ait.save(tuned(fresh(), tmp_path), tmp_path / "net.ait", STORAGE)
    write(tmp_path / "net.other", 1)
    ait.load(fresh(8), path, ait.LocalTorchStorage(remove_checkpoint_after_tune=True), retune=True)
    assert not path.exists()
    assert (tmp_path / "net_sha256_sums.txt").read_text().split()[1:] == ["net.other"]


def test_a_checkpoint_that_is_replaced_meanwhile_is_loaded(write, fresh, tmp_path, assert_attached):
    path = tmp_path / "net.ait"
    write(path, 0)
    over = threading.Event()

    def replace_always():
        number = 0
        while not over.wait(0.02):
            number = (number + 1) % 1000
            write(path, number)

    saver = threading.Thread(target=replace_always)
    saver.start()
    try:
        for _ in range(10):
            module = fresh()
            ait.load(module, path)
            assert_attached(module, fresh())
    finally:
        over.set()
        saver.join()
