"""Checkpoints from an enemy, or a broken disk: an error of ours, nothing executed, nothing written outside."""

from __future__ import annotations

import ast
import io
import json
import os
import pickle
import random
import struct
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import aitune.torch as ait
import aitune.torch.checkpoint as checkpoint_room
from aitune.exceptions import (
    AITuneError,
    CheckpointDamagedError,
    CheckpointError,
    CheckpointMismatchError,
    CheckpointNativeError,
)
from aitune.torch.checkpoint.archive import extract, read_manifest

MODEL = "engines/0/model.bin"


def contents(folder):
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def refused(fresh, tmp_path, cache_dir):
    """Check that loading a file raises an error of ours, attaches nothing and writes nothing outside the cache."""

    def check(path, kind=CheckpointError, match=".", **options):
        module = fresh()
        before = contents(tmp_path)
        with pytest.raises(kind, match=match):
            ait.load(module, path, **options)
        assert contents(tmp_path) == before
        assert not module.__dict__.get("_compiled_call_impl")
        unpacked = cache_dir / "checkpoints"
        assert not unpacked.exists() or not any(path.name.startswith(".") for path in unpacked.iterdir())

    return check


# ------------------------------------------------------------------------------------------------- the archive

SLIPS = [
    "../evil",
    "/tmp/evil",
    "engines/../../evil",
    "C:\\evil",
    "engines\\..\\evil",
    "engines//evil",
    "./evil",
    "a/./b",
]


@pytest.mark.parametrize("name", SLIPS)
def test_paths_that_leave_the_folder_are_refused(name, archive, file, refused, tmp_path):
    archive.replace(name, b"evil", tmp_path)
    refused(archive.pack(file), CheckpointDamagedError, "is no path within the folder")


@pytest.mark.parametrize("name", SLIPS)
def test_unlisted_paths_that_leave_the_folder_are_refused(name, archive, file, refused):
    archive.files[name] = b"evil"
    refused(archive.pack(file), CheckpointDamagedError)


def test_a_link_in_the_archive_is_refused(archive, file, refused, tmp_path):
    archive.replace("engines/0/link", b"/etc/passwd", tmp_path)
    archive.attributes["engines/0/link"] = 0o120777 << 16
    refused(archive.pack(file), CheckpointDamagedError, "something else than files")


def test_a_folder_and_a_device_in_the_archive_are_refused(archive, file, refused, tmp_path):
    archive.files["engines/0/folder/"] = b""
    refused(archive.pack(file), CheckpointDamagedError, "something else than files")
    del archive.files["engines/0/folder/"]
    archive.replace("engines/0/device", b"", tmp_path)
    archive.attributes["engines/0/device"] = 0o020666 << 16
    refused(archive.pack(file), CheckpointDamagedError, "something else than files")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_occurs_twice_is_refused(file, refused):
    with zipfile.ZipFile(file, "a") as zipped:
        zipped.writestr(MODEL, b"the second one")
    refused(file, CheckpointDamagedError, "twice")


def test_names_that_differ_in_their_letters_alone_are_refused(archive, file, refused, tmp_path):
    archive.replace("engines/0/MODEL.BIN", b"other", tmp_path)
    refused(archive.pack(file), CheckpointDamagedError, "occurs twice")


def test_a_file_that_is_not_listed_or_missing_is_refused(archive, file, refused):
    archive.files["engines/0/more"] = b"x"
    refused(archive.pack(file), CheckpointDamagedError, "something else than its manifest says: engines/0/more")
    del archive.files["engines/0/more"]
    del archive.files[MODEL]
    refused(archive.pack(file), CheckpointDamagedError, "something else than its manifest says: engines/0/model.bin")


def test_a_graph_without_its_engine_is_refused(archive, file, refused):
    archive.files = {}
    archive.manifest["files"] = []
    refused(archive.pack(file), CheckpointDamagedError, "none of the engine")


def test_a_huge_declared_size_is_refused_before_anything_is_written(archive, file, refused):
    entry = next(entry for entry in archive.manifest["files"] if entry["path"] == MODEL)
    entry["size"] = 2**50
    with zipfile.ZipFile(archive.pack(file), "a") as zipped:
        zipped.getinfo(MODEL).file_size = 2**50
        zipped._didModify = True
    refused(file, CheckpointError, "needs 1073741824 MB")


def test_a_bomb_that_declares_little_is_refused(archive, file, refused, tmp_path):
    archive.replace(MODEL, bytes(50 << 20), tmp_path)
    next(entry for entry in archive.manifest["files"] if entry["path"] == MODEL)["size"] = 10
    with zipfile.ZipFile(archive.pack(file), "a") as zipped:
        zipped.getinfo(MODEL).file_size = 10
        zipped._didModify = True
    assert file.stat().st_size < 1 << 20
    refused(file, CheckpointDamagedError)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_ways_of_packing_are_refused(method, archive, file, refused):
    with zipfile.ZipFile(file, "w", method) as zipped:
        zipped.writestr("manifest.json", json.dumps(archive.manifest))
    refused(file, CheckpointDamagedError, "in a way that is not used here")


def test_an_encrypted_member_is_refused(file, refused):
    data = file.read_bytes()
    for signature, offset in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        place = data.index(signature) + offset
        data = data[:place] + struct.pack("<H", 1) + data[place + 2 :]
    file.write_bytes(data)
    refused(file, CheckpointDamagedError)


def test_every_truncation_is_refused(file, refused, count):
    data = file.read_bytes()
    lengths = random.Random(1).sample(range(len(data)), count(15, 300))
    for length in {0, 1, len(data) - 1, *lengths}:
        file.write_bytes(data[:length])
        refused(file, CheckpointDamagedError)


def test_a_flipped_bit_is_noticed_or_does_not_matter(file, fresh, count):
    """Without the digest beside it: some bits of an archive, such as times of files, mean nothing."""
    data = file.read_bytes()
    x = torch.randn(2, 8)
    with torch.no_grad():
        expected = fresh()(x)
    for place in random.Random(2).sample(range(len(data)), count(12, 1000)):
        broken = bytearray(data)
        broken[place] ^= 1 << place % 8
        file.write_bytes(broken)
        module = fresh()
        try:
            ait.load(module, file)
        except AITuneError:
            continue
        with torch.no_grad():
            torch.testing.assert_close(module(x), expected)


def test_with_the_digest_beside_it_every_flipped_bit_is_noticed(tuned, fresh, tmp_path, refused):
    path = ait.save(tuned(fresh(), tmp_path), tmp_path / "net.ait")
    data = path.read_bytes()
    for place in random.Random(3).sample(range(len(data)), 10):
        broken = bytearray(data)
        broken[place] ^= 1 << place % 8
        path.write_bytes(broken)
        refused(path, CheckpointDamagedError)


@given(st.binary(max_size=300))
def test_any_bytes_are_an_error_of_ours(data):
    path = Path(os.environ["AITUNE_CACHE_DIR"]) / "junk.ait"
    path.write_bytes(data)
    with pytest.raises(CheckpointError):
        read_manifest(path)


@given(st.data())
def test_a_checkpoint_with_bytes_overwritten_is_read_or_is_an_error_of_ours(saved, data):
    broken = bytearray(saved)
    for _ in range(data.draw(st.integers(1, 4))):
        # most of what a zip reader believes is at the end
        at = data.draw(st.integers(0, len(saved) - 1) | st.integers(max(0, len(saved) - 400), len(saved) - 1))
        piece = data.draw(st.binary(min_size=1, max_size=8) | st.sampled_from([b"\xff" * 4, b"\0" * 4, b"PK\x05\x06"]))
        broken[at : at + len(piece)] = piece
    root = Path(os.environ["AITUNE_CACHE_DIR"])
    path, folder = root / "junk.ait", Path(tempfile.mkdtemp(dir=root))
    path.write_bytes(broken)
    try:
        extract(path, read_manifest(path), folder)
    except CheckpointError:
        return


# ------------------------------------------------------------------------------------------------- the manifest


def test_a_manifest_of_the_future_is_refused_with_who_reads_it(archive, file, refused):
    archive.manifest.update(format=99, aitune="7.1")
    refused(archive.pack(file), CheckpointDamagedError, "format is 99.*written by aitune 7.1, which reads it")


def test_an_archive_of_something_else_is_refused(file, refused):
    with zipfile.ZipFile(file, "w") as zipped:
        zipped.writestr("data.pkl", pickle.dumps(3))
    refused(file, CheckpointDamagedError, "no checkpoint of aitune")


def places_in(value, path=()):
    yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places_in(item, (*path, key))


JUNK = [None, True, -1, 2**70, 1.5, "", "../x", "os:system", [], {}, [{}], {"int": "x"}, ["module", 3], "x" * 500]


def test_a_manifest_changed_anywhere_is_an_error_of_ours_or_loads_what_is_right(archive, file, fresh, count):
    rolls = random.Random(4)
    original = json.dumps(archive.manifest)
    places = [place for place in places_in(archive.manifest) if place]
    x = torch.randn(2, 8)
    with torch.no_grad():
        expected = fresh()(x)
    for _ in range(count(25, 3000)):
        archive.manifest = json.loads(original)
        *way, last = rolls.choice(places)
        holder = archive.manifest
        for key in way:
            holder = holder[key]
        if rolls.random() < 0.2:
            del holder[last]
        else:
            holder[last] = rolls.choice(JUNK)
        module = fresh()
        try:
            ait.load(module, archive.pack(file))
        except AITuneError:
            continue
        with torch.no_grad():
            torch.testing.assert_close(module(x), expected)


@pytest.mark.parametrize(
    "name",
    ["os:system", "subprocess:Popen", "builtins:eval", "antigravity:fly", "torch:Tensor", "argparse:Namespace",
     "collections:Counter.fromkeys", "logging:Logger", "json:JSONDecoder", "os:environ", "http.cookies:SimpleCookie"],
)  # fmt: skip
def test_a_class_of_another_program_is_not_looked_for_nor_imported(name, archive, file, refused):
    inner = archive.graph["graph"]["outputs"]
    inner["structure"] = {"kind": name, "keys": [{"str": "a"}], "children": [{}]}
    refused(archive.pack(file), CheckpointDamagedError, "names")
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("name", ["os.system", "Backend", "", "ONNXRuntimeBackendConfig", "../x"])
def test_a_backend_that_does_not_exist_is_refused(name, archive, file, refused):
    archive.graph["recipe"]["name"] = name
    refused(archive.pack(file), CheckpointDamagedError, "no backend")


@pytest.mark.parametrize(
    "config",
    [{"precision": "float7"}, {"unknown": 1}, {"precision": {"enum": "Verdict", "member": "wrong"}},
     {"precision": {"config": "Popen", "fields": {}}}, {"num_streams": {"dict": {"a": 1}}}],
)  # fmt: skip
def test_options_that_a_backend_does_not_take_are_refused(config, archive, file, refused):
    archive.graph["recipe"]["config"] = config
    refused(archive.pack(file), CheckpointDamagedError, "cannot be used")


def test_options_that_reach_a_library_unchecked_need_trust(archive, file, refused, tmp_path):
    """Session options of ONNX Runtime can name files to write."""
    written = tmp_path / "written"
    archive.graph["recipe"] = {
        "name": "ONNXRuntimeBackend",
        "config": {"session_options": {"dict": {"enable_profiling": True, "profile_file_prefix": str(written)}}},
    }
    refused(archive.pack(file), CheckpointNativeError, "session_options.*allow_native=True")
    refused(archive.pack(file), CheckpointNativeError, "session_options.*allow_native=True", retune=True)


def test_native_code_needs_trust(archive, file, refused):
    archive.graph["recipe"] = {"name": "TorchInductorAotBackend", "config": {}}
    refused(archive.pack(file), CheckpointNativeError, "native code.*allow_native=True.*retune=True")
    refused(archive.pack(file), CheckpointError, allow_native=True)  # what is in there is no such engine


# ------------------------------------------------------------------------------------------------- the engine


class Evil:
    """Writes a file when it is unpickled."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return Path.write_text, (Path(self.target), "executed")


@pytest.mark.parametrize("name", ["engines/0/model.xml", MODEL, "engines/0/engine.json"])
@pytest.mark.parametrize("form", ["pickle", "torch"])
def test_scenario_38_a_pickle_where_a_tensor_or_graph_should_be_does_not_run(
    form, name, archive, file, refused, tmp_path
):
    target = tmp_path / "executed"
    if form == "pickle":
        data = pickle.dumps(Evil(str(target)))
    else:
        stream = io.BytesIO()
        torch.save(Evil(str(target)), stream)
        data = stream.getvalue()
    archive.replace(name, data, tmp_path)
    refused(archive.pack(file), CheckpointMismatchError, "retune=True")
    assert not target.exists()
    pickle.loads(pickle.dumps(Evil(str(target))))
    assert target.exists(), "the attack itself does not work, so the test shows nothing"


def test_scenario_38_a_pickle_in_the_place_of_everything_does_not_run(file, refused, tmp_path):
    target = tmp_path / "executed"
    file.write_bytes(pickle.dumps(Evil(str(target))))
    refused(file, CheckpointDamagedError, "no archive that can be read")
    torch.save(Evil(str(target)), file)
    refused(file, CheckpointDamagedError, "no checkpoint of aitune|something else")
    assert not target.exists()


def test_an_engine_of_other_weights_is_refused_though_all_digests_fit(tuned, fresh, archive, file, refused, tmp_path):
    other = ait.save(tuned(fresh(9), tmp_path / "other"), tmp_path / "other.ait")
    with zipfile.ZipFile(other) as zipped:
        for name in zipped.namelist():
            if name.startswith("engines/"):
                archive.replace(name, zipped.read(name), tmp_path)
    refused(archive.pack(file), CheckpointMismatchError, "does not compute what the module computes")


def test_an_engine_note_that_leads_out_of_the_folder_is_refused(archive, file, refused, tmp_path):
    note = json.loads(archive.files["engines/0/engine.json"])
    note["files"] = ["../../../../etc/passwd"]
    archive.replace("engines/0/engine.json", json.dumps(note).encode(), tmp_path)
    refused(archive.pack(file), CheckpointMismatchError, "cannot be loaded")


# ------------------------------------------------------------------------------------------------- our own code

FORBIDDEN = {
    "eval",
    "exec",
    "__import__",
    "import_module",
    "pickle",
    "cloudpickle",
    "marshal",
    "shelve",
    "dill",
    "loads_pickle",
}
UNPICKLERS = {("torch", "load"), ("np", "load"), ("numpy", "load"), ("pickle", "loads"), ("joblib", "load")}


def load_path():
    """Every file of ours that reads what a checkpoint or a store entry holds."""
    room = Path(checkpoint_room.__file__).parent
    root = room.parent
    files = [*room.glob("*.py"), *(root / "store").glob("*.py"), root / "fields.py", root / "graph" / "document.py"]
    return [
        *files,
        root / "backend" / "artifact.py",
        root / "backend" / "onnxruntime.py",
        root / "backend" / "openvino.py",
        root / "backend" / "torch_inductor_aot.py",
    ]


@pytest.mark.parametrize("file", load_path(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_nothing_on_the_load_path_unpickles_evaluates_or_imports_by_name(file):
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(node.module or "").partition(".")[0], *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Name):
            names = [node.id]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) not in UNPICKLERS, f"{file.name}:{node.lineno}"
        bad = FORBIDDEN.intersection(names)
        assert not bad, f"{file.name}:{getattr(node, 'lineno', 0)} uses {bad}"


def test_the_look_at_our_own_code_finds_what_it_looks_for(tmp_path):
    for text in ("import pickle", "from importlib import import_module", "eval('1')", "torch.load('x')"):
        bad = tmp_path / "bad.py"
        bad.write_text(text)
        with pytest.raises(AssertionError):
            test_nothing_on_the_load_path_unpickles_evaluates_or_imports_by_name(bad)
