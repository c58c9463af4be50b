"""The page about backends says of each what the code says."""

from __future__ import annotations

import re
from pathlib import Path

from aitune.torch.backend import registry

PAGE = (Path(__file__).parents[2] / "docs" / "backends.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `(\w+Backend)` \| (.*) \|$", PAGE, re.MULTILINE))


def test_every_shipped_backend_is_in_the_table_with_its_devices_and_extra():
    shipped = {name: registry.backend_by_name(name) for name in registry._BUILT_IN}
    assert set(ROWS) == set(shipped)
    for name, kind in shipped.items():
        devices, extras, _, _ = (cell.strip() for cell in ROWS[name].split("|"))
        assert devices.split(", ") == list(kind.devices)
        # The first library's extra brings the others as well.
        assert re.findall(r"`([\w-]+)`", extras) == [one.extra for one in kind.requires[:1]]


def test_what_the_table_calls_unfinished_says_so_itself():
    for name, row in ROWS.items():
        source = Path(__import__(registry.backend_by_name(name).__module__, fromlist=["x"]).__file__).read_text()
        unfinished = '"not built yet in this version of aitune"' in source
        assert (row.split("|")[-1].strip() == "not built yet") is unfinished, name
