"""What was saved comes back: on a fresh model, in a pipeline, in another process, under other settings."""

from __future__ import annotations

import hashlib
import logging
import subprocess
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import aitune.torch as ait
from aitune.exceptions import AITuneUserInputError, CheckpointError
from aitune.testing.fresh_process import in_fresh_process
from aitune.testing.modules import Mlp
from aitune.torch.backend import (
    ONNXRuntimeBackend,
    OpenVINOBackend,
    OpenVINOBackendConfig,
    TorchEagerBackend,
    TorchInductorAotBackend,
)
from aitune.torch.report import ModuleResult


def test_engines_are_attached_to_a_fresh_model(file, fresh, assert_attached):
    module = fresh()
    root = ait.load(module, file)
    assert type(root) is ait.Module
    assert root.__wrapped__ is module
    assert_attached(module, fresh())
    handle = ait.handle(root)
    assert handle.state is ait.ModuleState.TUNED
    assert (handle.name, handle.result.graphs[0].chosen) == ("net", "OpenVINOBackend()")
    assert handle.result.graphs[0].trials[0].error == 1e-7
    handle.untune()
    assert torch.equal(module(torch.ones(1, 8)), fresh()(torch.ones(1, 8)))


def test_a_wrapped_model_keeps_its_stand_in(file, fresh, assert_attached):
    wrapped = ait.Module(fresh(), name="mine")
    assert ait.load(wrapped, file) is wrapped
    assert ait.handle(wrapped).name == "mine"
    assert_attached(wrapped.__wrapped__, fresh())


def first_answer(path):
    torch.manual_seed(3)
    module = Mlp().eval()
    x = torch.linspace(-1, 1, 16).view(2, 8)
    with torch.no_grad():
        before = module(x)
        after = ait.load(module, path, allow_native=True)(x)
    return (before - after).abs().max().item() / before.abs().max().item(), ait.handle(module).stats.engine_calls


@pytest.mark.parametrize(
    "backend",
    [
        OpenVINOBackend(),
        pytest.param(ONNXRuntimeBackend(), marks=pytest.mark.slow),
        pytest.param(TorchInductorAotBackend(), marks=pytest.mark.slow),
    ],
    ids=lambda one: one.name,
)
def test_another_process_gets_answers_within_the_bound(backend, tuned, fresh, tmp_path):
    path = ait.save(tuned(fresh(), tmp_path, backend), tmp_path / "net.ait")
    error, calls = in_fresh_process(first_answer, path)
    assert error < 1e-4
    assert calls == {backend.describe(): 1}


def test_configuration_of_a_backend_comes_back(tuned, fresh, tmp_path):
    backend = OpenVINOBackend(OpenVINOBackendConfig(num_streams=2, performance_hint="throughput"))
    path = ait.save(tuned(fresh(), tmp_path, backend), tmp_path / "net.ait")
    root = ait.load(fresh(), path)
    assert ait.handle(root).served[0].recipe == backend


def test_an_engine_that_cannot_be_kept_is_built_again_and_the_price_is_told(
    tuned, fresh, tmp_path, caplog, assert_attached
):
    path = ait.save(tuned(fresh(), tmp_path, TorchEagerBackend()), tmp_path / "net.ait")
    with caplog.at_level(logging.WARNING):
        root = ait.load(fresh(), path)
    assert "built again now; that took 3 s where it was saved" in caplog.text
    assert_attached(root.__wrapped__, fresh())


class Pipeline:
    """Holds modules as pipelines do."""

    def __init__(self, fresh):
        self.unet = nn.ModuleDict({"blocks": nn.ModuleList([nn.Identity(), fresh(1)])})
        self.encoders = [nn.ReLU(), {"text": fresh(2)}]
        self.unused = fresh(3)


def test_modules_at_any_depth_of_a_pipeline_are_found_again(tuned, fresh, tmp_path, assert_attached):
    pipeline = Pipeline(fresh)
    tuned(pipeline.unet["blocks"][1], tmp_path / "a")
    tuned(pipeline.encoders[1]["text"], tmp_path / "b")
    path = ait.save(pipeline, tmp_path / "pipeline.ait")
    again = Pipeline(fresh)
    assert ait.load(again, path, device_map={"unet.blocks.1": "cpu"}) is again
    assert_attached(again.unet["blocks"][1], fresh(1))
    assert_attached(again.encoders[1]["text"], fresh(2))
    with pytest.raises(AITuneUserInputError, match="is not wrapped"):
        ait.handle(again.unused)


class Holder(torch.nn.Module):
    """A module with another one that is not its child."""

    def __init__(self, held):
        super().__init__()
        self.held = [held]


def nested(inner):
    for _ in range(6):
        inner = {"a": [inner]}
    return inner


def nested_out(value):
    while isinstance(value, (dict, list)):
        value = value["a"] if isinstance(value, dict) else value[0]
    return value


NESTS = {
    "deep": (nested, nested_out),
    "keys that are numbers": (lambda inner: {0: inner, "a": 1}, lambda value: value[0]),
    "held by a module": (Holder, lambda value: value.held[0]),
    "held by a module in a list": (lambda inner: [Holder(inner)], lambda value: value[0].held[0]),
}


@pytest.mark.parametrize("name", NESTS)
def test_a_tuned_module_is_found_wherever_it_is_held(name, tuned, fresh, tmp_path, assert_attached):
    nest, out = NESTS[name]
    path = ait.save(nest(tuned(fresh(), tmp_path)), tmp_path / "net.ait")
    again = nest(fresh())
    ait.load(again, path)
    assert_attached(out(again), fresh())


def test_a_pipeline_without_the_module_is_refused_and_nothing_is_attached(tuned, fresh, tmp_path):
    pipeline = Pipeline(fresh)
    tuned(pipeline.unet["blocks"][1], tmp_path / "a")
    tuned(pipeline.encoders[1]["text"], tmp_path / "b")
    path = ait.save(pipeline, tmp_path / "pipeline.ait")
    again = Pipeline(fresh)
    del again.encoders[1]["text"]
    with pytest.raises(CheckpointError, match=r"encoders\[1\]\['text'\], where this Pipeline has no module"):
        ait.load(again, path)
    with pytest.raises(AITuneUserInputError, match="is not wrapped"):
        ait.handle(again.unet["blocks"][1])


@dataclass
class Options:
    scale: Any
    shift: Any


@dataclass
class Answer:
    value: Any
    note: str


class Structured(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, options: Options, *, twice: bool = False):
        value = self.linear(options.scale) + options.shift["by"]
        return Answer(value * 2 if twice else value, "done")


def test_dataclasses_of_the_models_own_program_come_back(tmp_path):
    torch.manual_seed(5)
    module = Structured().eval()
    strategy = ait.OneBackendStrategy(OpenVINOBackend()).enable_performance_validation(False)
    wrapped = ait.Module(module, strategy=strategy.enable_find_max_batch_size(False))
    handle = ait.handle(wrapped)
    handle.enable_recording()
    for batch in (1, 2, 3):
        wrapped(Options(torch.randn(batch, 4), {"by": torch.randn(batch, 4)}), twice=True)
    wrapped.tune()
    path = ait.save(wrapped, tmp_path / "net.ait")
    torch.manual_seed(5)
    again = ait.load(Structured().eval(), path)
    options = Options(torch.randn(2, 4), {"by": torch.randn(2, 4)})
    answer = again(options, twice=True)
    assert type(answer) is Answer
    assert answer.note == "done"
    torch.testing.assert_close(answer.value, module.forward(options, twice=True).value)
    assert sum(ait.handle(again).stats.engine_calls.values()) == 1


def test_a_second_load_uses_the_unpacked_files_once_they_are_verified(file, fresh, cache_dir, assert_attached):
    ait.load(fresh(), file)
    [folder] = [path for path in (cache_dir / "checkpoints").iterdir() if not path.name.startswith(".")]
    written = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    ait.load(fresh(), file)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} == written
    weights = folder / "engines" / "0" / "model.bin"
    weights.write_bytes(b"x" + weights.read_bytes()[1:])
    module = fresh()
    ait.load(module, file)
    assert_attached(module, fresh())
    assert weights.read_bytes()[:1] != b"x"


def test_a_loaded_model_can_be_saved_again(file, fresh, tmp_path, assert_attached):
    root = ait.load(fresh(), file)
    again = ait.save(root, tmp_path / "again.ait")
    module = fresh()
    ait.load(module, again)
    assert_attached(module, fresh())
    assert again.read_bytes() == file.read_bytes()


def test_two_checkpoints_of_one_name_do_not_meet_in_the_cache(file, tuned, fresh, tmp_path, assert_attached):
    ait.load(fresh(), file)
    other = ait.save(tuned(fresh(7), tmp_path / "o"), tmp_path / "net.ait")
    module = fresh(7)
    ait.load(module, other)
    assert_attached(module, fresh(7))


# -------------------------------------------------------------------------------------------- where it goes


def test_a_bare_name_goes_below_checkpoints_with_its_digest_beside_it(tuned, fresh, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = tuned(fresh(), tmp_path)
    path = ait.save(module, "tuned.ait")
    assert str(path) == "checkpoints/tuned.ait"
    sums = tmp_path / "checkpoints" / "tuned_sha256_sums.txt"
    assert sums.read_text() == f"{hashlib.sha256(path.read_bytes()).hexdigest()}  tuned.ait\n"
    done = subprocess.run(["sha256sum", "-c", sums.name], cwd=sums.parent, capture_output=True, check=False)
    assert done.returncode == 0
    ait.load(fresh(), "tuned.ait")
    assert ait.save(module, tmp_path / "deep" / "er" / "x.ait").is_file()


def test_settings_of_the_storage_are_honoured(tuned, fresh, tmp_path):
    module = tuned(fresh(), tmp_path)
    storage = ait.LocalTorchStorage(tmp_path / "mine", compress_checkpoint=False, sha_type="512")
    path = ait.save(module, "net.ait", storage)
    assert path == tmp_path / "mine" / "net.ait"
    assert path.stat().st_size > ait.save(module, tmp_path / "small.ait").stat().st_size
    assert len((tmp_path / "mine" / "net_sha512_sums.txt").read_text().split()[0]) == 128
    ait.load(fresh(), "net.ait", storage)
    keep = ait.LocalTorchStorage(tmp_path / "mine", overwrite_checkpoint_on_tune=False)
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match="is there already"):
        ait.save(module, "net.ait", keep)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"my thesis", b"PK\x03\x04 not really"])
def test_what_is_no_checkpoint_is_never_replaced(content, tuned, fresh, tmp_path):
    target = tmp_path / "net.ait"
    target.write_bytes(content)
    with pytest.raises(CheckpointError, match="is no checkpoint of aitune, and is not replaced"):
        ait.save(tuned(fresh(), tmp_path), target)
    assert target.read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir() if "ait" in path.name) == ["net.ait"]


def test_a_damaged_checkpoint_is_replaced(tuned, fresh, file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    ait.save(tuned(fresh(), file.parent / "work"), file)
    ait.load(fresh(), file)


def test_a_full_disk_leaves_the_old_checkpoint(tuned, fresh, tmp_path, file):
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(file.parent)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
    try:
        module = tuned(fresh(), tmp_path)
        ait.save(module, file)
        before = file.read_bytes()
        (file.parent / "others").write_bytes(b"x" * (48_000 - len(before)))
        with pytest.raises(OSError, match="No space left"):
            ait.save(module, file, ait.LocalTorchStorage(compress_checkpoint=False))
        assert file.read_bytes() == before
        assert not list(file.parent.glob(".*"))
    finally:
        subprocess.run(["umount", "-l", str(file.parent)], check=True)


def test_no_sample_of_the_user_is_in_a_checkpoint(tuned, fresh, tmp_path):
    secret = 1234.5678
    module = tuned(fresh(), tmp_path, x=torch.full((2, 8), secret))
    path = ait.save(module, tmp_path / "net.ait", ait.LocalTorchStorage(compress_checkpoint=False))
    pattern = torch.full((8,), secret).numpy().tobytes()
    assert pattern not in path.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"path": 3}, "path"),
        ({"path": ""}, "path"),
        ({"storage": "here"}, "LocalTorchStorage"),
        ({"allow_native": 1}, "allow_native"),
        ({"retune": "yes"}, "retune"),
        ({"disable_external_logging": None}, "disable_external_logging"),
        ({"device_map": "nowhere"}, "device_map"),
        ({"device_map": {"other": "cpu"}}, "the tuned modules are net"),
    ],
)
def test_arguments_that_cannot_be_used_are_named(arguments, message, file, fresh):
    with pytest.raises(AITuneUserInputError, match=message):
        ait.load(fresh(), **{"path": file, **arguments})


def test_a_model_that_the_original_serves_is_saved_and_loaded_as_that(fresh, tmp_path):
    root = ait.Module(fresh(), name="net")
    ait.handle(root).install((), ModuleResult("net", "Mlp", ()))
    again = ait.load(fresh(), ait.save(root, tmp_path / "net.ait"))
    assert ait.handle(again).state is ait.ModuleState.TUNED
    assert not ait.handle(again).serves
    assert torch.equal(again(torch.ones(1, 8)), fresh()(torch.ones(1, 8)))


def test_saving_what_is_not_tuned_is_refused(fresh, tmp_path):
    with pytest.raises(AITuneUserInputError, match="nothing in this Mlp is tuned"):
        ait.save(fresh(), tmp_path / "net.ait")
    with pytest.raises(CheckpointError, match="is not there"):
        ait.load(fresh(), tmp_path / "net.ait")


@pytest.mark.parametrize("bad", [{"sha_type": "1"}, {"compress_checkpoint": 1}, {"base_folder": 3}])
def test_storage_refuses_what_it_does_not_know(bad):
    with pytest.raises(AITuneUserInputError, match=next(iter(bad))):
        ait.LocalTorchStorage(**bad)


def test_unpacking_goes_elsewhere_where_the_cache_is_not_ours(file, fresh, cache_dir, caplog, assert_attached):
    (cache_dir / "checkpoints").mkdir(mode=0o777)
    (cache_dir / "checkpoints").chmod(0o777)
    module = fresh()
    ait.load(module, file)
    assert "temporary folder" in caplog.text
    assert not any((cache_dir / "checkpoints").iterdir())
    assert_attached(module, fresh())
