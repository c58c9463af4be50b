"""What is particular to OpenVINO: precision, buffers, dtypes, telemetry."""

import json
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from aitune.exceptions import BackendUnsupportedError
from aitune.torch.backend import OpenVINOBackend, OpenVINOBackendConfig

pytest.importorskip("openvino")


@pytest.fixture
def compiled(monkeypatch):
    """Options and models of what was compiled."""
    import openvino

    seen = []
    original = openvino.Core.compile_model

    def compile_model(self, model, device, options):
        result = original(self, model, device, options)
        seen.append((device, options, result))
        return result

    monkeypatch.setattr(openvino.Core, "compile_model", compile_model)
    return seen


def test_the_precision_is_asked_for(linear_job, built, compiled):
    import openvino

    engine = built(OpenVINOBackend(), linear_job)
    device, options, model = compiled[0]

    assert device == "CPU"
    assert model.get_property("INFERENCE_PRECISION_HINT") == openvino.Type.f32
    assert engine.precision == "float32"
    assert options["INFERENCE_NUM_THREADS"] == torch.get_num_threads()
    assert options["PERFORMANCE_HINT"] == "LATENCY"
    assert "NUM_STREAMS" not in options


def test_inputs_on_which_operators_do_nothing(job_of, built, assert_same):
    class Idle(nn.Module):
        def forward(self, x, time):
            return x * 2 + (time * 1)[:, None], time * torch.ones(1, dtype=torch.int64), (x + 0) * 1

    module, x, when = Idle(), torch.randn(2, 4), torch.tensor([3, 5])
    engine = built(OpenVINOBackend(), job_of(module, (2, (x, when), {})))
    assert_same(engine.run(x, when), module(x, when))


def test_hints_are_passed_on(linear_job, built, compiled):
    built(OpenVINOBackend(OpenVINOBackendConfig(performance_hint="throughput", num_streams=2)), linear_job)

    assert compiled[0][1]["PERFORMANCE_HINT"] == "THROUGHPUT"
    assert compiled[0][2].get_property("NUM_STREAMS") == 2


def test_a_lower_precision_is_declared_or_refused(linear_job, built):
    x = torch.randn(2, 4)
    backend = OpenVINOBackend(OpenVINOBackendConfig(precision="bfloat16"))
    if not torch.cpu._is_avx512_bf16_supported():
        with pytest.raises(BackendUnsupportedError, match="this processor computes in"):
            built(backend, linear_job)
        return
    engine = built(backend, linear_job)
    assert engine.precision == "bfloat16"
    assert (engine.run(x) - linear_job.module(x)).norm() / linear_job.module(x).norm() < 3e-2


def test_inputs_may_be_small_or_large_from_call_to_call(job_of, built, assert_same):
    class Double(nn.Module):
        def forward(self, x):
            return torch.relu(x) * 2, x.reshape(x.shape[0], -1)

    module = Double()
    job = job_of(module, (1, (torch.randn(1, 8, 128),), {}), (64, (torch.randn(64, 8, 128),), {}))
    engine = built(OpenVINOBackend(), job)
    for size in (2, 64, 2, 50, 50, 1, 64):
        x = torch.randn(size, 8, 128)
        kept = x.clone()
        first = engine.run(x)
        x_t = torch.randn(size, 128, 8).transpose(1, 2)
        assert_same(engine.run(x_t), module(x_t))
        negated = torch.randn(size, 8, 128, dtype=torch.complex64).conj().imag
        assert_same(engine.run(negated), module(negated))
        assert_same(first, module(x))
        assert torch.equal(x, kept)


def test_a_buffer_made_in_inference_mode_serves_outside(linear_job, built):
    engine = built(OpenVINOBackend(), linear_job)
    x = torch.randn(3, 4)
    with torch.inference_mode():
        first = engine.run(x.clone())
    with torch.inference_mode():
        inside = torch.randn(2, 4)
        engine.run(inside)

    assert torch.equal(engine.run(x), first)
    assert torch.equal(engine.run(x.clone().requires_grad_()), first)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_go_in_and_come_out(job_of, built, assert_same, dtype):
    module, x = nn.Linear(4, 3).to(dtype).eval(), torch.randn(3, 4).to(dtype)
    job = job_of(module, (1, (x[:1],), {}), (3, (x,), {}))
    engine = built(OpenVINOBackend(), job)

    assert engine.precision == str(dtype).removeprefix("torch.")
    assert_same(engine.run(x), module(x).detach(), 3e-2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_dtypes_that_it_would_not_compute_in_are_unsuitable(job_of, dtype):
    job = job_of(nn.Identity(), (1, (torch.zeros(1, 2, dtype=dtype),), {}))

    assert "OpenVINO does not compute in" in OpenVINOBackend().unsuitable(job)


def test_changed_weights_do_not_reach_a_built_engine(job_of, built):
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
    module.register_buffer("extra", torch.ones(3))
    x = torch.randn(2, 4)
    engine = built(OpenVINOBackend(), job_of(module, (1, (x[:1],), {}), (2, (x,), {})))
    before = engine.run(x)
    with torch.no_grad():
        module[0].weight.zero_()

    assert torch.equal(engine.run(x), before)


def test_importing_it_sends_no_telemetry():
    code = (
        "import sys; from aitune.torch.backend.openvino import _import_openvino; _import_openvino();"
        "print(sorted(m for m in sys.modules if 'telemetry' in m and not m.startswith('openvino.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_a_kept_engine_is_not_compiled_again(linear_job, built, compiled, assert_same, tmp_path):
    built(OpenVINOBackend(), linear_job).save(tmp_path)
    before = len(compiled)
    loaded = OpenVINOBackend().load(linear_job, tmp_path)

    assert len(compiled) == before
    x = torch.randn(3, 4)
    assert_same(loaded.run(x), linear_job.module(x).detach())
    loaded.close()


DAMAGE = {
    "nothing is in it": lambda folder: (folder / "model.blob").write_bytes(b""),
    "half of it is gone": lambda folder: os.truncate(
        folder / "model.blob", (folder / "model.blob").stat().st_size // 2
    ),
    "it is something else": lambda folder: (folder / "model.blob").write_bytes(os.urandom(5000)),
    "the model is another": lambda folder: (folder / "model.xml").write_text((folder / "model.xml").read_text() + "\n"),
    "it is gone": lambda folder: (folder / "model.blob").unlink(),
    "another version made it": lambda folder: _rewrite(folder, "version", "2020.1"),
    "another processor made it": lambda folder: _rewrite(folder, "processor", {"machine": "z80"}),
    "it has other options": lambda folder: _rewrite(folder, "config", "precision='bfloat16'"),
}


def _rewrite(folder, key, value):
    note = folder / "engine.json"
    record = json.loads(note.read_text())
    record["extra"]["compiled"][key] = value
    note.write_text(json.dumps(record))


@pytest.mark.parametrize("name", DAMAGE)
def test_a_compiled_model_that_cannot_be_used_is_compiled_again(
    linear_job, built, compiled, assert_same, tmp_path, name
):
    built(OpenVINOBackend(), linear_job).save(tmp_path)
    before = len(compiled)
    DAMAGE[name](tmp_path)
    loaded = OpenVINOBackend().load(linear_job, tmp_path)

    assert len(compiled) == before + 1
    x = torch.randn(3, 4)
    assert_same(loaded.run(x), linear_job.module(x).detach())
    loaded.close()
