"""Modules that another interpreter does not find by their name are told apart from those that it does."""

from __future__ import annotations

import importlib.util
import json
import sys
import types

import torch

from aitune.torch.worker.module_files import ModuleFiles, files_by_name, modules_without_files, nothing_hidden


def imported_from(file, name, monkeypatch):
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def test_what_lies_below_the_path_is_not_listed():
    files = files_by_name()

    for module in (json, json.decoder, torch, torch.nn.functional, torch._C):
        assert module.__name__ not in files


def test_a_module_imported_from_a_file_is_listed_and_found(tmp_path, monkeypatch):
    (tmp_path / "odd name.py").write_text("value = 3\n")
    imported_from(tmp_path / "odd name.py", "made.deep", monkeypatch)

    files = files_by_name()
    assert files["made.deep"] == str(tmp_path / "odd name.py")

    monkeypatch.delitem(sys.modules, "made.deep")
    finder = ModuleFiles({})
    finder.add(files)
    assert finder.find_spec("made").submodule_search_locations == []
    assert finder.find_spec("made.deep").origin == str(tmp_path / "odd name.py")
    assert finder.find_spec("made.other") is None


def test_a_module_imported_from_a_hidden_file_is_listed(tmp_path, monkeypatch):
    (tmp_path / ".hidden.py").write_text("value = 3\n")
    imported_from(tmp_path / ".hidden.py", "seen", monkeypatch)

    assert files_by_name()["seen"] == str(tmp_path / ".hidden.py")


def test_a_folder_that_is_gone_does_not_stand_in_the_way(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    (tmp_path / "gone").rmdir()

    assert "json" not in files_by_name()


def test_folders_come_last_that_hide_what_was_imported_from_behind_them(tmp_path):
    hiding, harmless = tmp_path / "hiding", tmp_path / "harmless"
    for folder in (hiding, harmless / "json"):  # the latter is no package: what is behind it is found all the same
        folder.mkdir(parents=True)
    (hiding / "json.py").touch()
    (harmless / "nobody_imported_this.py").touch()

    assert nothing_hidden([str(hiding), str(harmless), *sys.path]) == [str(harmless), *sys.path, str(hiding)]
    assert nothing_hidden([*sys.path, str(hiding)]) == [*sys.path, str(hiding)]


def test_a_module_made_by_hand_is_known_as_one(monkeypatch):
    made = types.ModuleType("made_by_hand")
    monkeypatch.setitem(sys.modules, "made_by_hand", made)

    found = modules_without_files()
    assert made in found
    assert not [module for module in found if module.__name__.split(".")[0] in ("torch", "numpy", "sys")]
