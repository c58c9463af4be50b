"""Several processes on one store: one builds, the others wait or go without, and kill -9 leaves it whole."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from aitune.torch.store import Store, Turn, list_entries, verify
from aitune.torch.store.key import Key
from aitune.torch.trial import Trial, Verdict

KEY = Key({"module": "1"}, {"torch": "2"}, "X()")

PREFACE = f"""
import os, sys, time
sys.path[:0] = {sys.path!r}
from pathlib import Path
from aitune.torch.store import Store
from aitune.torch.store.key import Key
from aitune.torch.trial import Trial, Verdict
KEY = Key({{"module": "1"}}, {{"torch": "2"}}, "X()")
root, work = Path(sys.argv[1]), Path(sys.argv[2])
store = Store(root)
ACCEPTED = Trial(backend="X()", verdict=Verdict.accepted)
def built(size=200_000):
    folder = work / f"built{{os.getpid()}}"
    folder.mkdir(exist_ok=True)
    (folder / "engine").write_bytes(os.urandom(4) * (size // 4))
    return folder
print("ready", flush=True)
sys.stdin.readline()
"""

# What a bench does: look, take the turn, look again, build, publish.
BUILD_ONCE = """
for number in range(int(sys.argv[3])):
    key = Key({"module": str(number)}, {}, "X()")
    entry = store.lookup(key)
    if entry is None:
        with store.building(key, 60.0) as turn:
            entry = store.lookup(key)
            if entry is None:
                time.sleep(0.002)
                (work / "builds").open("a").write(f"{number}\\n")
                entry = store.publish(key, ACCEPTED, built(4000))
    assert entry is not None
    print((entry.bring_to(work / f"{os.getpid()}-{number}") / "engine").read_bytes()[:4].hex())
"""

PUBLISH_ALWAYS = """
while True:
    store.publish(KEY, ACCEPTED, built())
"""

# Importing torch takes seconds: a process that has done so forks one child for each kill.
PUBLISH_IN_CHILDREN = """
for line in sys.stdin:
    child = os.fork()
    if not child:
        work = Path(line.strip())
        while True:
            store.publish(KEY, ACCEPTED, built())
    print(child, flush=True)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""

HOLD = """
with store.building(KEY, 0.0) as turn:
    print(turn.value, flush=True)
    time.sleep(60)
"""


def start(body, *arguments):
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PREFACE + body, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def go(*processes):
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()


def race(root, work, rounds):
    """Two processes ask for the same keys at once; each key is built once and both get the same engine."""
    work.mkdir()
    processes = [start(BUILD_ONCE, root, work, rounds) for _ in range(2)]
    go(*processes)
    answers = [process.communicate(timeout=200)[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert answers[0] == answers[1]
    assert sorted((work / "builds").read_text().split()) == sorted(map(str, range(rounds)))
    assert verify(root) == []


def test_two_processes_on_one_store_build_each_engine_once(root, tmp_path, count):
    race(root, tmp_path / "work", count(50, 200))


def test_a_process_killed_while_it_publishes_leaves_an_entry_that_is_whole_or_none(root, tmp_path, count):
    store = Store(root)
    rolls, longest, found = random.Random(1), 0.1, 0
    server = start(PUBLISH_IN_CHILDREN, root, tmp_path)
    go(server)
    for number in range(count(20, 100)):
        work = tmp_path / f"work{number}"
        work.mkdir()
        server.stdin.write(f"{work}\n")
        server.stdin.flush()
        child = int(server.stdout.readline())
        time.sleep(rolls.uniform(0.0, longest))
        os.kill(child, signal.SIGKILL)
        assert server.stdout.readline() == "gone\n"
        assert verify(root) == []
        entry = store.lookup(KEY)
        if entry is None:
            longest = min(2.0, longest * 1.5)  # a busy machine: nobody got as far as the end
        else:
            found += 1
            assert len((entry.bring_to(work / "mine") / "engine").read_bytes()) == 200_000
    server.communicate(timeout=60)
    assert found, "no process got as far as publishing"


def test_a_builder_that_is_killed_lets_go(root, tmp_path):
    process = start(HOLD, root, tmp_path)
    go(process)
    assert process.stdout.readline() == "mine\n"
    store = Store(root)
    with store.building(KEY, 0.05) as turn:
        assert turn is Turn.without
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    process.stdin.close()
    with store.building(KEY, 10.0) as turn:
        assert turn in (Turn.mine, Turn.after_another)


def test_the_turn_is_anybodys_again_afterwards_also_after_an_exception(root):
    store = Store(root)

    def fail():
        with store.building(KEY, 0.0):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with store.building(KEY, 0.0) as turn:
        assert turn is Turn.mine
        with Store(root).building(Key({"module": "2"}, {}), 0.0) as other:
            assert other is Turn.mine
        with Store(root).building(KEY, 0.0) as same:
            assert same is Turn.without


@pytest.mark.slow
def test_two_publishers_of_one_key_leave_one_whole_entry(root, tmp_path):
    processes = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        processes.append(start(PUBLISH_ALWAYS, root, tmp_path / str(number)))
    go(*processes)
    store, found = Store(root), 0
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        found += store.lookup(KEY) is not None
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stdin.close()
    assert found
    assert len(list_entries(root)) == 1
    assert verify(root) == []
    assert Trial(backend="X()", verdict=Verdict.accepted) == store.lookup(KEY).trial
