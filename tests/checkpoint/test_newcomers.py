"""What people do with checkpoints beside what was meant: each says what is wrong, and what to do."""

from __future__ import annotations

import errno
import subprocess

import pytest
import torch

import aitune.torch as ait
from aitune.exceptions import AITuneUserInputError, CheckpointError, CheckpointWriteError


@pytest.fixture
def model(tuned, fresh, tmp_path):
    return tuned(fresh(), tmp_path / "build")


@pytest.mark.parametrize("name", ["ünï ☃ 模型.ait", "with space.ait", "-rf", "a\udcffb.ait", "n" * 200])
def test_odd_names_work_and_have_their_digest_beside_them(name, model, fresh, tmp_path, assert_attached):
    file = ait.save(model, tmp_path / "here" / name)
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == sorted(
        [file.name, f"{file.stem}_sha256_sums.txt"]
    )
    assert_attached(ait.load(fresh(), file).__wrapped__, fresh())
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match="has another digest than"):
        ait.load(fresh(), file)


@pytest.mark.parametrize("name", ["a\0b.ait", "a\nb.ait", "folder/", ".", ".."])
def test_names_of_no_file_are_refused(name, model, fresh):
    with pytest.raises(AITuneUserInputError, match="path must"):
        ait.save(model, name)
    with pytest.raises(AITuneUserInputError, match="path must"):
        ait.load(fresh(), name)


@pytest.mark.parametrize("length", [245, 255, 300])
def test_a_name_that_is_too_long_says_so_and_leaves_nothing(length, model, tmp_path):
    (tmp_path / "here").mkdir()
    with pytest.raises(CheckpointWriteError, match="name too long; give another path") as caught:
        ait.save(model, tmp_path / "here" / ("n" * length))
    assert caught.value.errno == errno.ENAMETOOLONG
    assert isinstance(caught.value, OSError)
    assert list((tmp_path / "here").iterdir()) == []


def test_a_place_that_cannot_be_written_says_so(model, tmp_path):
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file" / "net.ait", "/proc/net.ait"):
        with pytest.raises(CheckpointWriteError, match="give another path"):
            ait.save(model, path)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_is_no_checkpoint(model, fresh, tmp_path):
    with pytest.raises(CheckpointError, match="is no file, and is not replaced"):
        ait.save(model, tmp_path)
    with pytest.raises(CheckpointError, match="is no file; give the path of a checkpoint"):
        ait.load(fresh(), tmp_path)


def test_a_file_of_the_users_beside_it_is_not_replaced(model, tmp_path):
    mine = tmp_path / "net_sha256_sums.txt"
    mine.write_text("notes")
    with pytest.raises(CheckpointError, match="is no list of digests"):
        ait.save(model, tmp_path / "net.ait")
    assert mine.read_text() == "notes"
    assert not (tmp_path / "net.ait").exists()


@pytest.mark.parametrize("retune", [False, True])
def test_a_model_on_meta_is_told_to_load_its_weights_first(retune, file, fresh):
    with pytest.raises(AITuneUserInputError, match=r"is on meta: load them first, for example with load_state_dict"):
        ait.load(fresh().to("meta"), file, retune=retune)


def test_a_device_that_is_not_here_is_named(file, fresh):
    with pytest.raises(AITuneUserInputError, match="'cuda:99' cannot be used here"):
        ait.load(fresh(), file, device_map="cuda:99")


def test_a_module_that_was_changed_since_is_not_saved(model, tmp_path):
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    with pytest.raises(CheckpointError, match="retune"):
        ait.save(model, tmp_path / "net.ait")
    assert not (tmp_path / "net.ait").exists()


def test_a_link_is_written_through(model, fresh, tmp_path, assert_attached):
    (tmp_path / "link.ait").symlink_to(tmp_path / "real.ait")
    ait.save(model, tmp_path / "link.ait")
    assert (tmp_path / "link.ait").is_symlink()
    assert_attached(ait.load(fresh(), tmp_path / "link.ait").__wrapped__, fresh())


def test_a_cache_without_room_is_done_without(file, fresh, tmp_path, monkeypatch, assert_attached):
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
    try:
        (place / "others").write_bytes(bytes(10_000))
        monkeypatch.setattr(ait.config, "cache_dir", place / "cache")
        assert_attached(ait.load(fresh(), file).__wrapped__, fresh())
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
