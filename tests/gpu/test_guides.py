"""Blocks of the guides that speak of a GPU, as they are printed; ``tests/test_guides.py`` says where they come from."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import aitune.torch as ait
from aitune.torch.backend import TensorRTBackend
from aitune.torch.backend.registry import missing_requirement

ROOT = Path(__file__).parents[2]
GUIDES = Path(os.environ.get("AITUNE_GUIDES", ROOT.parent / "shared" / "reference"))

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not GUIDES.is_dir(), reason=f"no guides in {GUIDES}; AITUNE_GUIDES names another"),
]

EPILOGUE = """
import json
from aitune.torch import PatchedModule
PatchedModule.print_hierarchy()
PatchedModule.print_history()
top = PatchedModule.hierarchy()[0]
print()
print(json.dumps({"name": top.name, "state": top.state.name, "backend": top.backend, "shape": list(output.shape)}))
"""


def resnet_block():
    text = (GUIDES / "jit-tuning-guide.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    (block,) = (one for one in blocks if 'timm.create_model("resnet18"' in one)
    return block


def run(code, folder):
    script = folder / "block.py"
    script.write_text(code + EPILOGUE)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)],
        env=environment, cwd=folder, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), done


@pytest.mark.timeout(600)
def test_the_resnet_of_the_jit_guide_as_it_is_printed(tmp_path):
    pytest.importorskip("timm")
    found, done = run(resnet_block(), tmp_path)
    assert found["name"] == "ResNet"
    assert found["shape"] == [2, 1000]
    # timm makes it in training mode, in which it changes its statistics at each call: it runs as it was written.
    assert found["state"] != "TUNED"
    assert "training mode" in done.stdout + done.stderr


@pytest.mark.timeout(600)
def test_the_resnet_of_the_jit_guide_is_tuned_once_it_is_for_inference(tmp_path):
    pytest.importorskip("timm")
    block = resnet_block()
    code = block.replace("model = create_resnet().cuda()", "model = create_resnet().cuda().eval()")
    assert code != block
    found, done = run(code, tmp_path)
    assert found["state"] == "TUNED", done.stdout[-3000:] + done.stderr[-3000:]
    assert found["backend"]
    assert found["shape"] == [2, 1000]


@pytest.mark.skipif(missing_requirement(TensorRTBackend()) is not None, reason="TensorRT is not installed")
@torch.no_grad()
def test_the_first_block_of_the_strategies_guide_chooses_tensorrt():
    text = (GUIDES / "tune-strategies-guide.txt").read_text(encoding="utf-8")
    block = re.search(r"^Usage\n+(from aitune.*?)\n+When to Use$", text, re.DOTALL | re.MULTILINE)[1]
    assert "TensorRTBackend(config)" in block
    model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(24)]).eval().cuda()
    x = torch.randn(3, 64, device="cuda")
    wanted = model(x)
    names = {"model": model, "input_data": list(torch.randn(8, 64))}
    exec(compile(block, "the guide's first block", "exec"), names)
    (graph,) = ait.handle(model).result.graphs
    assert graph.chosen == "TensorRTBackend()", str(ait.handle(model).result)
    assert float((names["model"](x) - wanted).norm() / wanted.norm()) < 1e-2
    assert ait.handle(model).stats.engine_calls
