"""Workers are there for scripts without a main guard, ``python -c`` and standard input, and end with whoever asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes as Linux shows them")

PROGRAM = textwrap.dedent(
    """
    import os, pathlib, signal, sys, time
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # as some servers do
    os.close(0)  # as daemons do
    import torch
    from aitune.testing import Case, FunctionBackend, FunctionBackendConfig
    from aitune.torch.worker import Assignment, Attempt, BuildFolders, ProcessExecutor

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 4)
            self.register_forward_hook(lambda module, inputs, output: output * 2)
        def forward(self, x):
            return self.layer(x)

    def inputs(batch, generator):
        return (torch.randn(batch, 8, generator=generator),), {}

    def environment(job):
        found = sorted(name for name in os.environ if name.startswith(("AUTOWRAPT", "AITUNE_JIT")))
        assert not found, found
        return job.forward

    def hang(job):
        def note():
            with open("pids", "a") as sink:
                sink.write(f"{os.getpid()}\\\\n")
        note()
        if os.fork() == 0:
            os.setsid()
            note()
        while True:
            time.sleep(0.1)

    folders = BuildFolders(pathlib.Path("builds").absolute())
    job = Case("net", Net, inputs).job(folders.new("job")[0])
    with ProcessExecutor(folders) as executor:
        assert executor.hindrance() is None
        with executor.workplace(Assignment(job=job, workload=job.samples)) as place:
            for build in (environment, hang):
                folder, log = folders.new(build.__name__)
                backend = FunctionBackend(build, FunctionBackendConfig(build.__name__))
                print(place.attempt(Attempt(backend=backend, folder=folder, log=log)).error, flush=True)
    """
).replace("\\\\", "\\")


UNLIKE_OTHERS = textwrap.dedent(
    """
    import json, os, pathlib, sys
    import torch
    from aitune.testing import Case, FunctionBackend, FunctionBackendConfig
    from aitune.torch.worker import Assignment, Attempt, BuildFolders, ProcessExecutor

    shadows = pathlib.Path("shadows").absolute()
    shadows.mkdir()
    for name in ("json", "resource", "queue", "torch"):
        (shadows / f"{name}.py").write_text("raise RuntimeError('this is not what the program imported')")
    sys.path[:0] = [str(shadows), *(f"/nowhere/{'x' * 150}{number}" for number in range(1000))]

    class Net(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) + (1.0 if __debug__ else 0.0)

    def inputs(batch, generator):
        return (torch.randn(batch, 8, generator=generator),), {}

    def like_the_program(job):
        assert_(sys.flags.optimize == 2 and sys.flags.no_user_site, sys.flags)
        return job.forward

    def assert_(true, text):
        if not true:  # assert statements are left out
            raise AssertionError(text)

    folders = BuildFolders(pathlib.Path("builds").absolute())
    job = Case("net", lambda: Net(8, 4), inputs).job(folders.new("job")[0])
    pathlib.Path("gone").mkdir()
    os.chdir("gone")
    os.rmdir(os.getcwd())
    with ProcessExecutor(folders) as executor:
        with executor.workplace(Assignment(job=job, workload=job.samples)) as place:
            folder, log = folders.new("one")
            backend = FunctionBackend(like_the_program, FunctionBackendConfig("like_the_program"))
            print(place.attempt(Attempt(backend=backend, folder=folder, log=log)).error, flush=True)
    """
)


def test_a_worker_is_an_interpreter_like_the_one_that_asks_even_where_its_folder_is_gone(tmp_path):
    (tmp_path / "program.py").write_text(UNLIKE_OTHERS)
    ran = subprocess.run(
        [sys.executable, "-OO", "-s", "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert (ran.stdout, ran.stderr) == ("None\n", "")


@pytest.fixture
def program(tmp_path):
    """Start the program in one of the ways in which programs are started; its second candidate hangs."""
    started = []

    def start(way):
        (tmp_path / "program.py").write_text(PROGRAM)
        command = {"file": ["program.py"], "-c": ["-c", PROGRAM], "stdin": ["-"]}[way]
        with (tmp_path / "program.py").open() as source:
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=tmp_path,
                stdin=source if way == "stdin" else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "AUTOWRAPT_BOOTSTRAP": "aitune_nothing", "AITUNE_JIT_CACHE_DIR": str(tmp_path)},
            )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("way", ["file", pytest.param("stdin", marks=pytest.mark.slow)])
def test_all_processes_end_when_the_one_that_asked_is_killed(program, pids, way):
    process = program(way)
    pids.read(2)
    process.kill()

    pids.end_within(2.0, 2)
    printed, errors = process.communicate()
    assert (printed, errors) == ("None\n", "")


@pytest.mark.parametrize("way", ["-c", pytest.param("file", marks=pytest.mark.slow)])
def test_ctrl_c_ends_everything_and_passes(program, pids, way):
    process = program(way)
    pids.read(2)
    process.send_signal(signal.SIGINT)

    printed, errors = process.communicate(timeout=30)
    pids.end_within(2.0, 2)
    assert printed == "None\n"
    assert errors.strip().endswith("KeyboardInterrupt")


WITH_SIGPIPE = textwrap.dedent(
    """
    import os, signal
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as command lines do whose output goes to head
    from aitune.torch.worker.messages import Release
    from aitune.torch.worker.worker_process import LostError, WorkerProcess

    for use in (lambda worker: worker.ask(Release(), 10.0), lambda worker: worker.begin(None, None)):
        worker = WorkerProcess()
        worker.wait_ready()
        os.kill(worker.guard_pid, signal.SIGKILL)
        os.waitid(os.P_PID, worker.guard_pid, os.WEXITED | os.WNOWAIT)
        try:
            use(worker)
        except LostError as error:
            print(error.kind)
        worker.end()
    """
)


def test_a_lost_worker_does_not_end_a_program_that_broken_pipes_end():
    ran = subprocess.run([sys.executable, "-c", WITH_SIGPIPE], capture_output=True, text=True, check=False)

    assert (ran.stdout, ran.stderr, ran.returncode) == ("crash\ncrash\n", "", 0)
