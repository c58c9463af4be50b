"""The table of what a tuned module does misses no method of nn.Module."""

from __future__ import annotations

import re
from pathlib import Path

import torch

PAGE = (Path(__file__).parents[2] / "docs" / "transparency.md").read_text(encoding="utf-8")


def test_every_public_name_of_a_module_is_in_the_table_and_nothing_else_is():
    section = PAGE.split("## Methods of nn.Module")[1].split("## Around it")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    attributes = re.findall(r"`(\w+)`", section.rsplit("\n\n", 2)[-2] if section.endswith("\n") else section)
    members = {name: getattr(torch.nn.Module, name) for name in dir(torch.nn.Module) if not name.startswith("_")}
    # Libraries put names of their own there (transformers its smart_apply) once they are imported.
    public = {name for name, member in members.items() if getattr(member, "__module__", "torch").startswith("torch")}
    assert len(named) == len(set(named))
    assert {*named, *attributes} == {*public, "__call__"}


def test_every_row_says_what_happens():
    rows = [line for line in PAGE.splitlines() if line.startswith("|") and not line.startswith("|---")]
    assert all(len(cell.strip()) > 4 for row in rows[1:] for cell in row.split("|")[1:-1])
