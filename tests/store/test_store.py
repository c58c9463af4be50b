"""The store keeps what holds at another time, and hands out what is whole."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import replace

import pytest

from aitune.torch.backend import OpenVINOBackend
from aitune.torch.config import Config
from aitune.torch.measure import PairedTiming
from aitune.torch.store import Choice, Store, clear, list_entries, prune, verify
from aitune.torch.store.entry import ENGINE, MANIFEST
from aitune.torch.store.journal import Finding
from aitune.torch.trial import ORIGINAL, Trial, Verdict

TIMING = PairedTiming(
    speedup=2.0,
    low=1.9,
    high=float("inf"),
    confidence=0.99,
    basis="typical calls",
    blocks=12,
    fewest_blocks=10,
    candidate_seconds=1e-3,
    baseline_seconds=2e-3,
    outcome="faster",
    min_gain=0.01,
    spread=0.1,
    busy=False,
    ended="decided",
    seconds=3.0,
)


def entry_folder(store):
    return next(iter(list_entries(store.root))).folder


def test_an_engine_is_found_again_with_its_evidence(store, key, files, accepted, tmp_path):
    assert store.lookup(key) is None
    store.publish(key, accepted, files, timing=TIMING)
    entry = Store(store.root).lookup(key)
    assert (entry.trial, entry.timing) == (accepted, TIMING)
    assert dict(entry.facts) == dict(key.facts)
    brought = entry.bring_to(tmp_path / "mine")
    assert sorted(path.name for path in brought.iterdir()) == ["engine.json", "model.onnx"]
    assert (brought / "model.onnx").read_bytes() == (files / "model.onnx").read_bytes()


def test_an_engine_that_was_brought_outlives_its_entry(store, key, files, accepted, tmp_path):
    entry = store.publish(key, accepted, files)
    entry.bring_to(tmp_path / "mine")
    clear(store.root)
    assert store.lookup(key) is None
    assert (tmp_path / "mine" / "model.onnx").read_bytes() == (files / "model.onnx").read_bytes()


@pytest.mark.parametrize("verdict", Verdict)
def test_verdicts_are_kept_as_decision_22_says(store, key, verdict):
    kept = {"wrong", "unsupported", "build_failed", "crashed", "timed_out", "random"}
    store.publish(key, Trial(backend="X()", verdict=verdict, reason="why"))
    found = store.lookup(key)
    assert (found is not None) == (verdict.value in kept)
    assert found is None or (found.trial.verdict, found.trial.reason, found.has_engine) == (verdict, "why", False)


def test_an_accepted_engine_without_files_is_not_kept(store, key, accepted):
    assert store.publish(key, accepted) is None
    assert store.lookup(key) is None


def test_a_larger_time_limit_tries_again_what_timed_out(store, key):
    store.publish(key, Trial(backend="X()", verdict=Verdict.timed_out), limit_seconds=10.0)
    assert store.lookup(key, seconds=10.0) is not None
    assert store.lookup(key, seconds=5.0) is not None
    assert store.lookup(key, seconds=11.0) is None
    assert store.lookup(key, seconds=None) is None


def test_without_reuse_nothing_is_found_and_what_is_new_is_kept(store, key, files, accepted):
    store.publish(key, Trial(backend="X()", verdict=Verdict.wrong))
    anew = Store(store.root, reuse=False)
    assert anew.lookup(key) is None
    assert anew.choice(key) is None
    anew.publish(key, accepted, files)
    assert store.lookup(key).trial.verdict is Verdict.accepted


def test_an_entry_is_found_under_its_own_key_alone(store, key, key_of, module, files, accepted):
    other = key_of(module, OpenVINOBackend())
    store.publish(key, accepted, files)
    assert store.lookup(other) is None
    folder = store._folder.entry(other.text)
    folder.parent.mkdir(parents=True, exist_ok=True)
    entry_folder(store).rename(folder)  # somebody moved it
    assert store.lookup(other) is None
    assert not folder.exists()


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "flipped bit in the engine": lambda folder: flip(folder / ENGINE / "model.onnx"),
    "truncated engine": lambda folder: os.truncate(folder / ENGINE / "model.onnx", 100),
    "missing engine": lambda folder: (folder / ENGINE / "model.onnx").unlink(),
    "truncated manifest": lambda folder: os.truncate(folder / MANIFEST, 100),
    "empty manifest": lambda folder: os.truncate(folder / MANIFEST, 0),
    "manifest of the future": lambda folder: (folder / MANIFEST).write_text(
        (folder / MANIFEST).read_text().replace('"format": 1', '"format": 2')
    ),
    "key that the parts do not give": lambda folder: (folder / MANIFEST).write_text(
        (folder / MANIFEST).read_text().replace('"weights": "', '"weights": "0')
    ),
    "path out of the folder": lambda folder: (folder / MANIFEST).write_text(
        (folder / MANIFEST).read_text().replace('"model.onnx"', '"../manifest.json"')
    ),
    "absolute path": lambda folder: (folder / MANIFEST).write_text(
        (folder / MANIFEST).read_text().replace('"model.onnx"', '"/etc/passwd"')
    ),
    "huge size": lambda folder: (folder / MANIFEST).write_text(
        (folder / MANIFEST).read_text().replace('"size": 2', '"size": 922337203685477580700')
    ),
    "link in the place of a file": lambda folder: (
        (folder / ENGINE / "model.onnx").rename(folder / "elsewhere"),
        (folder / ENGINE / "model.onnx").symlink_to(folder / "elsewhere"),
    ),
    "link in the place of the folder": lambda folder: (
        (folder / ENGINE).rename(folder / "elsewhere"),
        (folder / ENGINE).symlink_to(folder / "elsewhere"),
    ),
    "folder in the place of a file": lambda folder: (
        (folder / ENGINE / "model.onnx").unlink(),
        (folder / ENGINE / "model.onnx").mkdir(),
    ),
    "somebody else's file": lambda folder: os.chown(folder / ENGINE / "model.onnx", 12345, 12345),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_entry_is_a_miss_and_is_removed(name, store, key, files, accepted, caplog):
    if name == "somebody else's file" and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    store.publish(key, accepted, files)
    folder = entry_folder(store)
    DAMAGES[name](folder)
    with caplog.at_level(logging.INFO):
        assert store.lookup(key) is None
    assert "a damaged entry of the store is not used" in caplog.text
    assert not folder.exists()
    assert store.publish(key, accepted, files) is not None
    assert store.lookup(key) is not None


def test_a_rejected_entry_is_gone(store, key, files, accepted, caplog):
    store.reject(store.publish(key, accepted, files), "it is wrong on a sample")
    assert store.lookup(key) is None
    assert "it is wrong on a sample" in caplog.text


@pytest.mark.parametrize("name", ["link", "pipe"])
def test_an_engine_folder_with_something_else_than_files_is_not_kept(name, store, key, files, accepted, caplog):
    (files / "odd").symlink_to("/etc/passwd") if name == "link" else os.mkfifo(files / "odd")
    assert store.publish(key, accepted, files) is None
    assert store.lookup(key) is None
    assert "nothing more is kept" in caplog.text
    assert not any((store.root / "v1" / "incoming").iterdir())


def test_the_folder_is_its_owners_alone(store, key, files, accepted):
    before = os.umask(0)
    try:
        store.publish(key, accepted, files)
    finally:
        os.umask(before)
    assert store.root.stat().st_mode & 0o777 == 0o700


def others_may_write(root):
    root.mkdir(parents=True)
    root.chmod(0o777)


def given_away(root):
    root.mkdir(parents=True)
    os.chown(root, 12345, 12345)


def a_link(root):
    (root.parent.parent / "target").mkdir()
    root.parent.mkdir(parents=True)
    root.symlink_to(root.parent.parent / "target")


@pytest.mark.parametrize("make", [others_may_write, given_away, a_link])
def test_a_folder_that_others_could_have_filled_is_not_used(make, store, key, files, accepted, caplog):
    if make is given_away and os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    make(store.root)
    assert store.lookup(key) is None
    assert store.publish(key, accepted, files) is None
    assert store.choice(key) is None
    assert [record.getMessage()[:25] for record in caplog.records] == ["going on without the stor"]
    assert not any(store.root.iterdir())


# --------------------------------------------------------------------------------------------- upkeep


def fill(store, key_of, module, files, accepted, count=3):
    """Entries that were used one after the other, the first one longest ago."""
    keys = [key_of(module, check=i) for i in range(count)]
    for i, key in enumerate(keys):
        entry = store.publish(key, accepted, files)
        os.utime(entry.folder / MANIFEST, (time.time() - 1000 + i, time.time() - 1000 + i))
    return keys


def test_what_was_used_longest_ago_is_evicted_first(store, key_of, module, files, accepted):
    keys = fill(store, key_of, module, files, accepted)
    assert store.lookup(keys[0]) is not None  # used again: now the second one is the oldest
    small = Store(store.root, size_limit=3 * list_entries(store.root)[0].size)
    small.publish(key_of(module, check="new"), accepted, files)
    assert [store.lookup(key) is not None for key in keys] == [True, False, True]


def test_an_engine_larger_than_the_limit_is_kept_alone(store, key_of, module, files, accepted):
    keys = fill(store, key_of, module, files, accepted)
    tiny = Store(store.root, size_limit=1)
    new = key_of(module, check="new")
    assert tiny.publish(new, accepted, files) is not None
    assert tiny.lookup(new) is not None
    assert not any(store.lookup(key) for key in keys)


def test_entries_are_listed_verified_pruned_and_cleared(store, key_of, module, files, accepted):
    keys = fill(store, key_of, module, files, accepted)
    listed = list_entries(store.root)
    assert [one.entry.key for one in listed] == [key.text for key in reversed(keys)]
    assert verify(store.root) == []
    flip(listed[0].folder / ENGINE / "model.onnx")
    assert [one.folder for one in verify(store.root)] == [listed[0].folder]
    verify(store.root, remove=True)
    assert len(list_entries(store.root)) == 2
    assert len(prune(store.root, unused_seconds=2000.0)) == 0
    assert len(prune(store.root, size_limit=listed[0].size)) == 1
    assert len(prune(store.root, unused_seconds=10.0)) == 1
    clear(store.root)
    assert not store.root.exists()


def test_clearing_leaves_what_is_not_ours(store, key, files, accepted):
    store.publish(key, accepted, files)
    theirs = [store.root / "notes.txt", store.root / "v1" / "entries" / "notes.txt"]
    for file in theirs:
        file.write_text("mine")
    clear(store.root)
    assert [file.read_text() for file in theirs] == ["mine", "mine"]
    assert store.lookup(key) is None


def test_leftovers_of_ended_processes_are_pruned_once_they_are_old(store, key, files, accepted):
    store.publish(key, accepted, files)
    left = store.root / "v1" / "incoming" / "abc"
    left.mkdir(parents=True)
    (left / "file").write_text("half")
    prune(store.root)
    assert left.exists()
    os.utime(left, (0, 0))
    prune(store.root)
    assert not left.exists()


def test_little_free_space_is_warned_about_once(root, key, key_of, module, files, accepted, caplog):
    store = Store(root, min_free=1 << 60)
    store.publish(key, accepted, files)
    store.publish(key_of(module, check=1), accepted, files)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "AITUNE_CACHE_MIN_FREE_BYTES" in caplog.text


def test_the_configuration_decides(tmp_path):
    config = Config({"AITUNE_CACHE_DIR": str(tmp_path), "AITUNE_REUSE_STORE": "0", "AITUNE_STORE_SIZE_LIMIT": "5"})
    store = Store.configured(config)
    assert store.root == tmp_path / "store"
    assert (store._reuse, store._size_limit, store._min_free) == (False, 5, None)
    assert not store.root.exists()


# -------------------------------------------------------------------------------- journals and choices


def slower(name):
    return Finding(name * 64, Trial(backend=f"{name}()", verdict=Verdict.slower, speedup=0.5), TIMING)


def test_an_interrupted_tune_goes_on_from_its_findings(store, key):
    journal = store.journal(key)
    assert not journal.found
    journal.begin(8)
    journal.add(slower("a"))
    again = Store(store.root).journal(key)  # as after kill -9: nothing was closed
    assert (again.found, again.batch_size) == (True, 8)
    assert again.find("a" * 64) == slower("a")
    assert again.find("b" * 64) is None
    again.begin(16)
    again.add(slower("b"))
    third = store.journal(key)
    assert (third.batch_size, third.find("b" * 64)) == (8, slower("b"))


def test_what_was_not_tried_is_not_in_the_journal(store, key):
    journal = store.journal(key)
    journal.begin(None)
    for verdict in (Verdict.skipped, Verdict.not_installed):
        journal.add(Finding("c" * 64, Trial(backend="C()", verdict=verdict)))
    assert store.journal(key).find("c" * 64) is None


@pytest.mark.parametrize("tail", [b"{", b'{"key": "aaa', b"\xff\xfe\n", b"{}\n", b"[]\n", b'{"key": 3, "trial": {}}\n'])
def test_a_torn_or_strange_line_costs_that_line_alone(store, key, tail):
    journal = store.journal(key)
    journal.begin(None)
    journal.add(slower("a"))
    file = store._folder.journal(key.text)
    file.write_bytes(file.read_bytes() + tail + b"\n")
    journal.add(slower("b"))
    again = store.journal(key)
    assert again.find("a" * 64) is not None
    assert again.find("b" * 64) is not None


def test_a_torn_line_does_not_take_the_next_one_with_it(store, key):
    store.journal(key).begin(8)
    file = next(store.root.glob("v1/tunes/*.journal"))
    file.write_bytes(file.read_bytes().strip()[:20])
    again = store.journal(key)
    again.begin(8)
    again.add(Finding(key.text, Trial(backend="b", verdict=Verdict.slower)))
    assert store.journal(key).find(key.text) is not None


def test_a_finished_tune_leaves_its_choice_and_no_journal(store, key):
    journal = store.journal(key)
    journal.begin(4)
    journal.add(slower("a"))
    choice = Choice("X()", "d" * 64, 4, (slower("a"),))
    store.finish(key, choice)
    assert Store(store.root).choice(key) == choice
    assert not store.journal(key).found
    store.finish(key, replace(choice, backend=ORIGINAL, key=None))
    assert store.choice(key).backend == ORIGINAL
    store.forget(key)
    assert store.choice(key) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 2}', '{"format": 1, "backend": 3}'])
def test_a_choice_that_cannot_be_read_is_none(store, key, text):
    store.finish(key, Choice("X()", None, None))
    store._folder.choice(key.text).write_text(text)
    assert store.choice(key) is None


def test_a_store_that_another_process_clears_meanwhile_is_begun_anew(store, root, key, files, accepted, caplog):
    journal = store.journal(key)
    journal.begin(8)
    with store.building(key, 0.0):
        clear(root)
        journal.add(slower("a"))
        assert store.publish(key, accepted, files) is not None
    store.finish(key, Choice("X()", "d" * 64, 4, (slower("a"),)))
    assert store.lookup(key) is not None
    assert store.choice(key) is not None
    assert [one for one in caplog.records if one.levelname == "WARNING"] == []
