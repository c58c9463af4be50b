"""Fuzzing of everything that reads a checkpoint or a store entry: any bytes are read, or are an error of ours.

``pytest --full tests/checkpoint/test_fuzz.py`` fuzzes for ten minutes, in pieces of one, each with a seed
of its own.
"""

from __future__ import annotations

import copy
import io
import json
import random
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from aitune.exceptions import AITuneError
from aitune.testing.modules import Mlp
from aitune.torch.backend.artifact import Artifact
from aitune.torch.checkpoint.archive import check_sums, extract, read_manifest
from aitune.torch.checkpoint.classes import classes_of
from aitune.torch.checkpoint.manifest import Manifest
from aitune.torch.checkpoint.storage import LocalTorchStorage
from aitune.torch.fields import Fields
from aitune.torch.graph.document import read_graph
from aitune.torch.graph.signature import CallSignature
from aitune.torch.store.entry import MANIFEST, Entry
from aitune.torch.store.journal import Choice, Finding, Journal, read_choice, write_choice
from aitune.torch.store.key import Key
from aitune.torch.trial import Trial, Verdict

PIECES = 10
INTERESTING = (
    b"\xff" * 4, b"\0" * 4, b"\xff\xff\x7f", b"PK\x05\x06", b"PK\x01\x02", b"PK\x06\x06", b'"', b"{", b"[", b"1e999",
)  # fmt: skip
JUNK = (
    None, True, -1, 2**70, 1.5, "", "../x", "os:system", [], {}, [{}], {"int": "x"}, ["module", 3], "x" * 500, "\ud800",
    [[]] * 50,
)  # fmt: skip


def bytes_changed(rolls, data):
    """Overwrite, cut, repeat or insert, mostly near the end, which zip readers believe."""
    data = bytearray(data)
    for _ in range(rolls.randint(1, 4)):
        at = rolls.randrange(len(data) + 1) if rolls.random() < 0.5 else max(0, len(data) - rolls.randrange(1, 500))
        piece = rolls.choice(INTERESTING) if rolls.random() < 0.5 else rolls.randbytes(rolls.randint(1, 8))
        way = rolls.random()
        if way < 0.6:
            data[at : at + len(piece)] = piece
        elif way < 0.75:
            data[at:at] = piece
        elif way < 0.9:
            del data[at : at + rolls.randint(1, 64)]
        else:
            data[at:at] = data[max(0, at - rolls.randint(1, 200)) : at]
    return bytes(data)


def json_changed(rolls, text):
    """Replace, remove or copy values anywhere."""
    document = json.loads(text)
    for _ in range(rolls.randint(1, 3)):
        places = [place for place in places_in(document) if place]
        if not places:
            break
        *way, last = rolls.choice(places)
        holder = document
        for key in way:
            holder = holder[key]
        kind = rolls.random()
        if kind < 0.2:
            del holder[last]
        elif kind < 0.8:
            holder[last] = copy.deepcopy(rolls.choice(JUNK))
        else:
            other = document
            for key in rolls.choice(places):
                other = other[key]
            holder[last] = json.loads(json.dumps(other))
    return json.dumps(document).encode()


def places_in(value, path=()):
    yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places_in(item, (*path, key))


def changed(rolls, data):
    return json_changed(rolls, data) if rolls.random() < 0.7 else bytes_changed(rolls, data)


@dataclass
class Seeds:
    """What is changed: a checkpoint with its manifest, and what a store keeps."""

    checkpoint: bytes
    manifest: bytes
    note: bytes
    entry: bytes
    choice: bytes
    journal: bytes


@pytest.fixture(scope="module")
def seeds(saved, tmp_path_factory):
    with zipfile.ZipFile(io.BytesIO(saved)) as archive:
        manifest, note = archive.read("manifest.json"), archive.read("engines/0/engine.json")
    folder = tmp_path_factory.mktemp("seeds")
    trial = Trial(backend="X()", verdict=Verdict.accepted, error=1e-7, evidence=("seen",))
    finding = Finding("a" * 64, trial)
    write_choice(folder / "choice", Choice("X()", "a" * 64, 4, (finding,)))
    journal = Journal(folder / "journal")
    journal.begin(4)
    journal.add(finding)
    entry = Entry.of(Key({"module": "1"}, {"torch": "2"}, "X()"), trial, limit_seconds=3.0)
    read = [(folder / name).read_bytes() for name in ("choice", "journal")]
    return Seeds(saved, manifest, note, entry.record().encode(), *read)


def read_everything(rolls, seeds, folder):
    """Read one changed thing."""
    kind = rolls.choice(["archive", "manifest", "note", "entry", "choice", "journal", "sums"])
    file = folder / kind
    if kind == "archive":
        file.write_bytes(bytes_changed(rolls, seeds.checkpoint))
        (folder / "out").mkdir()
        extract(file, read_manifest(file), folder / "out")
    elif kind == "manifest":
        for module in Manifest.read(changed(rolls, seeds.manifest), "manifest").modules:
            for graph in module.graphs:
                assert isinstance(graph.graph, Fields)
                read_graph(graph.graph, CallSignature.of(Mlp().forward), classes_of(Mlp()), {})
    elif kind == "note":
        (folder / "engine.json").write_bytes(changed(rolls, seeds.note))
        Artifact.read(folder, "OpenVINOBackend")
    elif kind == "entry":
        (folder / MANIFEST).write_bytes(changed(rolls, seeds.entry))
        Entry.read(folder)
    elif kind == "choice":
        file.write_bytes(changed(rolls, seeds.choice))
        read_choice(file)
    elif kind == "journal":
        file.write_bytes(bytes_changed(rolls, seeds.journal))
        Journal(file).find("a" * 64)
    else:
        file.write_bytes(seeds.checkpoint)
        (folder / "sums_sha256_sums.txt").write_bytes(bytes_changed(rolls, b"0" * 64 + b"  sums\n"))
        check_sums(file, LocalTorchStorage())


@pytest.mark.parametrize(
    "piece", [pytest.param(piece, marks=[pytest.mark.slow] if piece else []) for piece in range(PIECES)]
)
def test_whatever_is_read_is_an_error_of_ours_or_fine(piece, seeds, tmp_path, count):
    rolls, rounds, refused = random.Random(piece), 0, 0
    end = time.monotonic() + count(2, 60)
    while time.monotonic() < end:
        folder = Path(tmp_path / str(rounds))
        folder.mkdir()
        try:
            read_everything(rolls, seeds, folder)
        except AITuneError:
            refused += 1
        rounds += 1
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        folder.rmdir()
    print(f"{rounds} rounds, {refused} refused")
    assert 0 < refused < rounds
