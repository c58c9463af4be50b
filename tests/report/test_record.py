"""The tuning record grows by one entry a tune and never costs a tune."""

import json
import logging
import os
import threading

import pytest

from aitune.torch.report import TuneResult, write_record
from aitune.torch.report.document import from_document


def test_a_json_file_holds_every_tune(result, tmp_path):
    path = tmp_path / "deep" / "record.json"
    assert write_record(result, path) == path.resolve()
    write_record(TuneResult(seconds=2.0), str(path))
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["schema_version"] == 1
    assert [from_document(tune, TuneResult) for tune in document["tunes"]] == [
        result,
        TuneResult(seconds=2.0),
    ]
    assert all(tune["recorded_at"].endswith("Z") for tune in document["tunes"])


def test_a_folder_gets_one_file_a_tune(result, tmp_path):
    folder = tmp_path / "records"
    files = {write_record(result, folder) for _ in range(3)}
    assert len(files) == 3
    assert set(folder.iterdir()) == files
    for file in files:
        assert file.name.startswith("tuning_data-2")
        assert TuneResult.from_json(file.read_text(encoding="utf-8")) == result


def test_a_folder_that_is_called_like_a_file_is_a_folder(result, tmp_path):
    folder = tmp_path / "records.json"
    folder.mkdir()
    assert write_record(result, folder).parent == folder


@pytest.mark.parametrize("text", ["{", "[1, 2]", '{"tunes": 3}', "\udcff"])
def test_a_file_that_holds_something_else_is_left_alone_with_a_warning(result, tmp_path, caplog, text):
    path = tmp_path / "record.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    before = path.read_bytes()
    assert write_record(result, path) is None
    assert path.read_bytes() == before
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert str(path) in caplog.text


def test_an_empty_file_is_taken(result, tmp_path):
    path = tmp_path / "record.json"
    path.touch()
    assert write_record(result, path) == path.resolve()


@pytest.mark.parametrize("name", ["record.json", "folder"])
def test_a_place_that_cannot_be_written_is_a_warning(result, tmp_path, caplog, name):
    blocked = tmp_path / "file"
    blocked.touch()
    assert write_record(result, blocked / name) is None
    assert "was not written" in caplog.text


def test_a_full_disk_is_a_warning_and_leaves_the_record_as_it_was(result, tmp_path, caplog, monkeypatch):
    path = tmp_path / "record.json"
    write_record(result, path)
    before = path.read_bytes()

    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    assert write_record(result, path) is None
    assert path.read_bytes() == before
    assert not list(tmp_path.glob("*.tmp")) + list(tmp_path.glob(".*.tmp"))


def test_no_entry_is_lost_when_many_write_at_once(result, tmp_path):
    path = tmp_path / "record.json"
    threads = [threading.Thread(target=write_record, args=(result, path)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(json.loads(path.read_text(encoding="utf-8"))["tunes"]) == 8


@pytest.mark.skipif(os.name == "nt", reason="permission bits")
def test_a_record_is_as_readable_as_any_new_file(result, tmp_path):
    plain = tmp_path / "plain"
    plain.touch()
    assert write_record(result, tmp_path / "record.json").stat().st_mode == plain.stat().st_mode
