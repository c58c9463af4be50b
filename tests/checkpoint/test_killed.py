"""kill -9 at any moment of saving leaves the old checkpoint or the new one, whole."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import zipfile

from aitune.torch.checkpoint.archive import check_sums, read_manifest
from aitune.torch.checkpoint.storage import LocalTorchStorage

SAVE_ALWAYS = f"""
import os, sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
from aitune.torch.checkpoint.archive import write_archive
from aitune.torch.checkpoint.storage import LocalTorchStorage
file, folder = Path(sys.argv[1]), Path(sys.argv[2])
manifest = (folder / "manifest.json").read_text()
storage = LocalTorchStorage(compress_checkpoint=False)
print("ready", flush=True)
# Importing torch takes seconds: one process has done so, and forks one child for each kill.
for line in sys.stdin:
    child = os.fork()
    if not child:
        number = int(line)
        while True:
            write_archive(file, manifest + " " * number, folder / "files", storage)
            number = (number + 1) % 1000
    print(child, flush=True)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


def test_a_kill_while_saving_leaves_the_old_checkpoint_or_the_new(file, tmp_path, count):
    storage = LocalTorchStorage()
    folder = tmp_path / "work"
    with zipfile.ZipFile(file) as archive:
        archive.extractall(folder / "files", [name for name in archive.namelist() if name != "manifest.json"])
        (folder / "manifest.json").write_bytes(archive.read("manifest.json"))
    rolls, longest = random.Random(5), 0.1
    seen = set()
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", SAVE_ALWAYS, str(file), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout.readline() == "ready\n"
    for number in range(count(20, 100)):
        server.stdin.write(f"{number}\n")
        server.stdin.flush()
        child = int(server.stdout.readline())
        time.sleep(rolls.uniform(0.0, longest))
        os.kill(child, signal.SIGKILL)
        assert server.stdout.readline() == "gone\n"
        manifest = read_manifest(file)
        check_sums(file, storage)
        seen.add(manifest.source)
        if len(seen) == 1:
            longest = min(2.0, longest * 1.5)  # a busy machine: nobody got as far as the end
    server.communicate(timeout=60)
    assert len(seen) > 1, "nothing was ever replaced"
