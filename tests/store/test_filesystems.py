"""Full, read-only, noexec and lockless file systems: the store is done without, said once, and nothing is lost."""

from __future__ import annotations

import contextlib
import os
import subprocess

import pytest

from aitune.torch.store import Store, Turn, list_entries


def remount(folder, options):
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


def warnings_in(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_on_a_full_disk_nothing_is_kept_and_that_is_said_once(mounted, tmp_path, key, key_of, module, accepted, caplog):
    big = tmp_path / "big"
    big.mkdir()
    (big / "model.onnx").write_bytes(os.urandom(3 << 20))
    with mounted(tmp_path / "small", "size=1m") as place:
        store = Store(place / "cache" / "store")
        for check in range(3):
            assert store.publish(key_of(module, check=check), accepted, big) is None
        assert store.lookup(key) is None
        assert len(warnings_in(caplog)) == 1
        assert "No space left" in caplog.text
        assert list_entries(store.root) == []
        left = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
        assert left == 0, "half an entry was left behind"


def test_a_disk_that_fills_up_keeps_what_it_has(mounted, tmp_path, key, key_of, module, files, accepted, caplog):
    with mounted(tmp_path / "small", "size=1m") as place:
        store = Store(place / "store")
        store.publish(key, accepted, files)
        (place / "others").write_bytes(b"x" * (1 << 20 - 1))
        with contextlib.suppress(OSError), (place / "more").open("wb") as file:
            while file.write(b"x" * 4096):
                pass
        assert store.publish(key_of(module, check=1), accepted, files) is None
        assert store.lookup(key) is not None
        store.journal(key).begin(3)
        assert len(warnings_in(caplog)) == 1


def test_a_read_only_store_is_read(mounted, tmp_path, key, key_of, module, files, accepted, caplog):
    with mounted(tmp_path / "place", "size=4m") as place:
        Store(place / "store").publish(key, accepted, files)
        remount(place, "ro")
        store = Store(place / "store")
        entry = store.lookup(key)
        assert entry is not None
        assert entry.bring_to(tmp_path / "mine").is_dir()
        with store.building(key_of(module, check=1), 0.0) as turn:
            assert turn in (Turn.mine, Turn.without)
        assert store.publish(key_of(module, check=1), accepted, files) is None
        assert store.publish(key_of(module, check=2), accepted, files) is None
        store.journal(key).begin(3)
        assert len(warnings_in(caplog)) == 1
        remount(place, "rw")


def test_a_damaged_entry_of_a_read_only_store_is_a_miss(mounted, tmp_path, key, files, accepted):
    with mounted(tmp_path / "place", "size=4m") as place:
        entry = Store(place / "store").publish(key, accepted, files)
        (entry.folder / "engine" / "model.onnx").write_bytes(b"x")
        remount(place, "ro")
        assert Store(place / "store").lookup(key) is None
        remount(place, "rw")


def test_without_a_place_to_write_there_is_no_store(mounted, tmp_path, key, files, accepted, caplog):
    with mounted(tmp_path / "place", "size=4m,ro") as place:
        store = Store(place / "cache" / "store")
        assert store.lookup(key) is None
        with store.building(key, 5.0) as turn:
            assert turn is Turn.without
        assert store.publish(key, accepted, files) is None
        assert len(warnings_in(caplog)) == 1


def test_noexec_does_not_matter_to_files_that_are_read(mounted, tmp_path, key, files, accepted):
    with mounted(tmp_path / "place", "size=4m,noexec") as place:
        store = Store(place / "store")
        store.publish(key, accepted, files)
        entry = store.lookup(key)
        assert (entry.bring_to(tmp_path / "mine") / "model.onnx").read_bytes() == (files / "model.onnx").read_bytes()


@pytest.mark.parametrize("place", ["file in the place of the folder", "file above the folder"])
def test_a_file_where_the_folder_should_be_is_left_alone(place, tmp_path, key, files, accepted, caplog):
    file = tmp_path / "store"
    file.write_text("mine")
    store = Store(file if place.startswith("file in") else file / "below" / "store")
    assert store.lookup(key) is None
    assert store.publish(key, accepted, files) is None
    assert file.read_text() == "mine"
    assert len(warnings_in(caplog)) == 1
