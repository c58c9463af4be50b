"""The code of the just-in-time guide runs as it is printed, and the calls that it makes work everywhere.

The guide is a text outside this repository; see ``tests/test_guides.py``. What a block needs and this machine lacks is
replaced, and each replacement is listed in ``REPLACED``.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import aitune.torch as ait

ROOT = Path(__file__).parents[2]
GUIDES = Path(os.environ.get("AITUNE_GUIDES", ROOT.parent / "shared" / "reference"))
GUIDE = GUIDES / "jit-tuning-guide.md"

needs_guide = pytest.mark.skipif(
    not GUIDE.is_file(), reason=f"no guide in {GUIDES}; AITUNE_GUIDES names another folder"
)

REPLACED = {
    "cuda": "without a GPU, .to('cuda'), .cuda() and device='cuda' of modules, pipelines and tensors mean the CPU",
    "stable-diffusion-3": "the hub's model is gigabytes: a pipeline of tiny parts stands in for it",
    "timm": "where it is not installed, a small ResNet stands in for timm.create_model('resnet18')",
    "diffusers": "where it is not installed, a pipeline of tiny parts under the name DiffusionPipeline",
}

# Names that a block takes from an earlier one, and the settings that let a test take seconds.
PREAMBLE = """
import sys
sys.path.insert(0, {here!r})
import guide_stand_ins
guide_stand_ins.install()
from aitune.torch import jit_config
"""
EPILOGUE = """
guide_stand_ins.show()
"""


def blocks(language):
    text = GUIDE.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def run(code, folder, **variables):
    script = folder / "block.py"
    script.write_text(PREAMBLE.format(here=str(Path(__file__).parent)) + code + EPILOGUE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)],
        env=environment, cwd=folder, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), done


@needs_guide
def test_the_guide_has_the_blocks_that_are_known():
    assert len(blocks("python")) == 21
    assert len(blocks("bash")) == 2


def _short(block):
    """Whether a block only sets, prints or defines something; the others run a pipeline or a model."""
    return not any(word in block for word in ("pipe(", "model("))


@needs_guide
def test_blocks_that_set_print_and_define_run(settings, monkeypatch):
    monkeypatch.setattr(logging.root, "level", logging.root.level)
    monkeypatch.setattr(logging.root, "handlers", list(logging.root.handlers))
    for number, block in enumerate(blocks("python")):
        if _short(block):
            exec(compile(block, f"{GUIDE.name}, block {number + 1}", "exec"), {"jit_config": ait.jit_config})


@needs_guide
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("position", range(3))
def test_blocks_that_run_something_run_and_tune(position, tmp_path):
    block = [block for block in blocks("python") if not _short(block)][position]
    seen, _ = run(block, tmp_path)
    assert seen
    states = {state for _, _, state in seen}
    assert states <= {"tuned", "eager", "detached", "skipped", "recording", "init"}
    assert {"tuned", "eager"} & states


@needs_guide
def test_the_commands_of_the_guide_turn_it_on(tmp_path):
    for block in blocks("bash"):
        names = re.findall(r"^export (\w+)=", block, re.MULTILINE)
        assert set(names) <= {"AUTOWRAPT_BOOTSTRAP", "AITUNE_JIT_CACHE_DIR"}
        assert "python your_script.py" in block


# ------------------------------------------------------- the same calls, on machines without the guide


def test_settings_of_the_guide_are_taken(settings):
    from aitune.torch.backend import TensorRTBackend, TensorRTBackendConfig, TorchInductorJitBackend
    from aitune.torch.jit.config import JITMode
    from aitune.torch.tune_strategy import FirstWinsStrategy

    settings.mode = JITMode.TUNE_EAGER
    settings.min_samples = 2
    settings.batch_axis_required = True
    settings.max_depth_level = 2
    settings.min_parameters = 1000
    settings.detect_graph_breaks = True
    settings.skip_modules = ["BatchNorm2d", "LayerNorm", "Dropout"]
    settings.device = "cuda"
    settings.dry_run = False
    settings.cache_dir = Path("/path/to/cache")
    settings.patch_exclude = ("my_package.MyCustomLayer", "third_party.SpecialModule")
    trt = TensorRTBackend(config=TensorRTBackendConfig(use_dynamo=True))
    settings.strategy = FirstWinsStrategy(backends=[trt, TorchInductorJitBackend()])
    assert ait.jit_config is settings


def test_imports_of_the_guide_exist():
    from aitune.torch import PatchedModule, jit_config, patch_for_jit_tuning  # noqa: F401
    from aitune.torch.jit.tune import deferred as jit_deferred  # noqa: F401

    assert importlib.util.find_spec("aitune.torch.jit.enable")
    assert importlib.util.find_spec("aitune.torch.jit.disable")
    assert importlib.util.find_spec("aitune.torch.jit.enable_inspection")


def test_the_decorator_block_of_the_guide(settings, seen):
    from aitune.torch import patch_for_jit_tuning

    settings.min_samples = 2
    settings.batch_axis_required = False

    @patch_for_jit_tuning
    def create():
        return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).eval()

    model = create()
    with torch.no_grad():
        model(torch.randn(1, 3, 8, 8))
        model(torch.randn(2, 3, 8, 8))
    assert seen()[0] == ("Sequential", 0, "tuned")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_deferred_block_of_the_guide(tmp_path):
    pytest.importorskip("diffusers")
    code = """
import aitune.torch.jit.enable
from aitune.torch.jit.config import JITMode
from aitune.torch.jit.tune import deferred as jit_deferred
from diffusers import DiffusionPipeline

jit_config.mode = JITMode.TUNE_DEFERRED
pipe = DiffusionPipeline.from_pretrained("any")
pipe("first")
jit_deferred()
pipe("second")
pipe("second")
"""
    seen, _ = run(code, tmp_path)
    assert {"tuned", "eager"} & {state for _, level, state in seen if level == 0}
