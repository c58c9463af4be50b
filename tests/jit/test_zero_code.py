"""Programs that are not changed: started under the environment variable, or by ``python -m aitune run``."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

TINY = """
import sys
import torch

class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
    def forward(self, x):
        return self.linear(x)

def main():
    torch.manual_seed(0)
    model = Tiny().eval()
    with torch.no_grad():
        print(sum(float(model(torch.ones(1, 8)).sum()) for _ in range(3)))

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def start(tmp_path):
    """Run the interpreter in a folder of its own, where this checkout's entry points are found."""
    described = tmp_path / "installed" / "aitune-0.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: aitune\nVersion: 0\n")
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (target,) = re.findall(r'\[project\.entry-points\.aitune_enable_jit_tuning\]\ntorch = "([\w.:]+)"', project)
    (described / "entry_points.txt").write_text(f"[aitune_enable_jit_tuning]\ntorch = {target}\n")

    def run(*arguments, expected=0, **variables):
        paths = os.pathsep.join([str(described.parent), str(ROOT / "src")])
        environment = {**os.environ, "PYTHONPATH": paths, "AITUNE_JIT_DRY_RUN": "1", **variables}
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == expected, done.stdout + done.stderr
        return done

    return run


@pytest.fixture
def script(tmp_path):
    def write(text, name="script.py"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


ZERO_CODE = {"AUTOWRAPT_BOOTSTRAP": "aitune_enable_jit_tuning"}


def test_the_variable_turns_it_on_in_a_program_that_is_not_changed(start, script):
    pytest.importorskip("autowrapt")
    plain = start(script(TINY))
    done = start(script(TINY), **ZERO_CODE)
    assert done.stdout == plain.stdout
    assert plain.stderr == ""
    assert done.stderr == "aitune: 1 module called by the program, 0 tuned; Tiny: dry run\n"


def test_a_program_without_torch_imports_neither_torch_nor_aitune_torch(start, script):
    check = "import sys; print([name for name in ('torch', 'numpy', 'aitune.torch') if name in sys.modules])"
    assert start(script(check), **ZERO_CODE).stdout == "[]\n"
    assert start("-m", "aitune", "run", script(check)).stdout == "[]\n"


def test_the_hook_imports_the_standard_library_alone(start):
    code = """
import sys
before = set(sys.modules)
import aitune._bootstrap
print(sorted(name for name in set(sys.modules) - before if name.split(".")[0] not in sys.stdlib_module_names))
"""
    assert start("-S", "-c", code).stdout == "['aitune', 'aitune._bootstrap']\n"


def test_a_bad_setting_in_the_environment_is_a_warning(start, script):
    done = start("-m", "aitune", "run", script(TINY), AITUNE_JIT_MIN_SAMPLES="few")
    assert done.stderr.count("AITUNE_JIT_MIN_SAMPLES") == 1
    assert "an integer of at least 1" in done.stderr


def test_where_it_cannot_start_the_program_runs_without_it(start, script, tmp_path):
    broken = script("raise RuntimeError('broken')", "wrapt_broken.py")
    code = f"import sys, importlib; sys.modules['aitune.torch.jit'] = None; exec(open({str(script(TINY))!r}).read())"
    done = start("-m", "aitune", "run", "-c", code)
    assert broken.exists()
    assert "aitune: just-in-time tuning is off: ModuleNotFoundError" in done.stderr
    assert float(done.stdout)


@pytest.mark.parametrize(
    ("mode", "reason"), [("inspect", "only inspected"), ("tune_deferred", "deferred() was not called yet")]
)
def test_the_summary_says_what_is_waited_for(start, script, mode, reason):
    pytest.importorskip("autowrapt")
    done = start(script(TINY), AITUNE_JIT_MODE=mode, **ZERO_CODE)
    assert done.stderr == f"aitune: 1 module called by the program, 0 tuned; Tiny: {reason}\n"


def test_the_summary_is_switched_off_by_a_setting(start, script):
    assert start("-m", "aitune", "run", script(TINY), AITUNE_JIT_SUMMARY="0").stderr == ""


# ------------------------------------------------------------------------------------------ aitune run

SHOW = """
import sys
main = sys.modules["__main__"]
print(sys.argv, sys.path[0], __name__, __package__, __spec__ and __spec__.name, main.__dict__ is globals())
"""


def test_a_script_sees_what_python_shows_it(start, script, tmp_path):
    path = script(SHOW, "show.py")
    for name in (path, "show.py"):
        plain = start(name, "--strategy", "x", "-m", "y").stdout
        assert start("-m", "aitune", "run", "--min-samples", "2", name, "--strategy", "x", "-m", "y").stdout == plain


def test_a_module_sees_what_python_shows_it(start, script, tmp_path):
    (tmp_path / "pack").mkdir()
    script("", "pack/__init__.py")
    script(SHOW, "pack/__main__.py")
    script(SHOW, "pack/show.py")
    for name in ("pack", "pack.show"):
        plain = start("-m", name, "--help", "x").stdout
        assert start("-m", "aitune", "run", "-m", name, "--help", "x").stdout == plain


def test_a_text_sees_what_python_shows_it(start):
    code = "import sys; print(sys.argv, repr(sys.path[0]), __name__)"
    assert start("-m", "aitune", "run", "-c", code, "-x", "y").stdout == start("-c", code, "-x", "y").stdout


def test_a_folder_runs_its_main(start, script, tmp_path):
    (tmp_path / "app").mkdir()
    script("import sys; print(__name__, sys.path[0])", "app/__main__.py")
    assert start("-m", "aitune", "run", "app").stdout == start("app").stdout


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [("import sys; sys.exit(7)", 7), ("import sys; sys.exit('bye')", 1), ("raise ValueError('mine')", 1)],
)
def test_a_program_ends_as_under_python(start, script, code, exit_code):
    path = script(f"def end():\n    {code}\nend()")
    done = start("-m", "aitune", "run", path, expected=exit_code)
    assert done.stderr == start(path, expected=exit_code).stderr


def test_options_are_settings(start):
    code = "from aitune.torch import jit_config as c; print(c.min_samples, c.strategy, c.dry_run)"
    options = ["--strategy", "max-throughput", "--backends", "TorchEagerBackend,OpenVINOBackend", "--min-samples", "3"]
    done = start("-m", "aitune", "run", *options, "-c", code)
    assert done.stdout == "3 MaxThroughputStrategy(backends=[TorchEagerBackend(), OpenVINOBackend()]) True\n"


@pytest.mark.parametrize(
    "arguments",
    [[], ["--min-samples", "0", "x.py"], ["--strategy", "one-backend", "x.py"], ["nowhere.py"]],
)
def test_a_command_line_that_cannot_be_carried_out_says_why(start, arguments):
    done = start("-m", "aitune", "run", *arguments, expected=2)
    assert done.stderr.strip()
    assert "Traceback" not in done.stderr


SPAWNS = """
import multiprocessing
import torch

def work(size):
    torch.manual_seed(0)
    with torch.no_grad():
        return float(torch.nn.Linear(size, 2).eval()(torch.ones(1, size)).sum())

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(pool.map(work, [3, 4]), work(3))
"""


@pytest.mark.slow
def test_processes_that_are_spawned_work(start, script):
    path = script(SPAWNS)
    plain = start(path).stdout
    assert start("-m", "aitune", "run", path).stdout == plain
    assert start(path, **ZERO_CODE).stdout == plain


LOADS = """
import torch

class Data(torch.utils.data.Dataset):
    def __init__(self):
        self.model = torch.nn.Linear(3, 2).eval()
    def __len__(self):
        return 6
    def __getitem__(self, index):
        with torch.no_grad():
            return self.model(torch.full((3,), float(index)))

if __name__ == "__main__":
    torch.manual_seed(0)
    data = Data()
    data[0]
    print(torch.cat(list(torch.utils.data.DataLoader(data, batch_size=2, num_workers=2))).tolist())
"""


def test_workers_of_a_loader_work(start, script):
    path = script(LOADS)
    assert start("-m", "aitune", "run", path).stdout == start(path).stdout


def test_the_entry_point_is_found_by_its_group(start):
    code = "import importlib.metadata as m; print([p.name for p in m.entry_points(group='aitune_enable_jit_tuning')])"
    assert start("-c", code).stdout == "['torch']\n"
    assert importlib.metadata.version("aitune")
