"""Folders of builds: in use they are left alone, and they are where there is room."""

from __future__ import annotations

import gc
import subprocess
import sys

from aitune.torch.worker import BuildFolders

HOLD = f"""
import sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
from aitune.torch.worker import BuildFolders
folders = BuildFolders(Path(sys.argv[1]))
(folders.root / "half").write_text("built")
print(folders.root, flush=True)
sys.stdin.readline()
"""


def test_clearing_leaves_what_another_process_is_building(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    root = process.stdout.readline().strip()
    assert root
    BuildFolders.clear(tmp_path)
    assert (tmp_path / "builds" / root.rpartition("/")[2] / "half").read_text() == "built"
    process.communicate("\n", timeout=60)
    BuildFolders.clear(tmp_path)
    assert list((tmp_path / "builds").iterdir()) == []


def test_a_tune_that_is_over_leaves_nothing_that_is_in_use(tmp_path):
    folders = BuildFolders(tmp_path)
    (folders.root / "left").write_text("built")
    BuildFolders.clear(tmp_path)
    assert folders.root.exists()
    del folders
    gc.collect()
    BuildFolders.clear(tmp_path)
    assert list((tmp_path / "builds").iterdir()) == []


def test_a_link_in_the_place_of_a_folder_is_not_followed(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    (tmp_path / "builds").mkdir()
    (tmp_path / "builds" / "20200101-000000-abc").symlink_to(tmp_path / "mine")
    BuildFolders.clear(tmp_path)
    assert (tmp_path / "mine" / "file").read_text() == "mine"
