"""The doctor says what can be used, why not, and what to do; a shallow look imports and writes nothing."""

from __future__ import annotations

import importlib.metadata
import json
import pickle
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

import aitune.torch as ait
from aitune.exceptions import AITuneUserInputError
from aitune.testing.fresh_process import in_fresh_process
from aitune.torch.backend.registry import available_backends
from aitune.torch.doctor import surroundings
from aitune.torch.doctor.problems import problems
from aitune.torch.doctor.surroundings import Accelerator


@pytest.fixture(scope="module")
def diagnosis():
    return ait.doctor()


def advice(cache_dir, gpus=()):
    return {one.what: one.advice for one in problems(gpus, cache_dir)}


def test_every_backend_is_there_usable_or_with_a_reason(diagnosis):
    assert [one.name for one in diagnosis.backends] == list(available_backends())
    assert all(one.usable != bool(one.reason) for one in diagnosis.backends)
    states = {one.name: one for one in diagnosis.backends}
    assert states["TorchEagerBackend"].usable
    if not torch.cuda.is_available():
        assert states["TensorRTBackend"].reason == "needs cuda"


def test_a_library_that_is_missing_comes_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    (state,) = [one for one in ait.doctor().backends if one.name == "OpenVINOBackend"]

    assert not state.usable
    assert state.reason == "openvino is not installed: pip install 'aitune[openvino]'"


def test_it_names_machine_versions_and_store(diagnosis, cache_dir):
    assert diagnosis.software["torch"].startswith(torch.__version__)
    assert diagnosis.machine["torch's threads"] == str(torch.get_num_threads())
    assert {"processor", "cores", "memory", "instructions"} <= set(diagnosis.machine)
    assert {"python", "system", "C++ compiler"} <= set(diagnosis.software)
    fresh = ait.doctor()
    assert str(cache_dir) in fresh.store["folder"]
    assert fresh.store["writable"] == "yes"


def test_it_prints_as_tables_that_fit_and_goes_to_json(diagnosis, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = str(diagnosis)
    data = json.loads(diagnosis.to_json())

    assert all(len(line) <= 80 for line in text.splitlines())
    assert all(one.name in text for one in diagnosis.backends)
    assert "Problems" in text
    assert "\x1b" not in text
    assert data["schema_version"] == 1
    assert [one["name"] for one in data["backends"]] == [one.name for one in diagnosis.backends]
    assert "backends usable" in repr(diagnosis)


def test_it_is_a_value(diagnosis):
    assert pickle.loads(pickle.dumps(diagnosis)) == diagnosis
    with pytest.raises(AttributeError):
        diagnosis.backends = ()


def brought_and_written(folder):
    """In a process of its own: what a shallow look imports, and whether it makes the store."""
    before = set(sys.modules)
    ait.config.cache_dir = Path(folder) / "store"
    ait.doctor()
    brought = {name.partition(".")[0] for name in set(sys.modules) - before}
    return brought, (Path(folder) / "store").exists(), torch.cuda.is_initialized()


def test_a_shallow_look_imports_no_library_writes_nothing_and_starts_no_device(tmp_path):
    brought, written, initialised = in_fresh_process(brought_and_written, str(tmp_path))

    libraries = {"onnx", "onnxruntime", "onnxscript", "openvino", "torchao", "transformers", "diffusers", "rich"}
    assert not brought & libraries
    assert not written
    assert not initialised


def test_two_builds_of_one_library_and_a_slow_pair_are_problems(monkeypatch, tmp_path):
    there = {"onnxruntime", "onnxruntime-gpu", "torchao", "transformers"}

    def version(name):
        if name not in there:
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(importlib.metadata, "version", version)
    found = advice(tmp_path)

    assert (
        "pip uninstall onnxruntime onnxruntime-gpu"
        in found["onnxruntime and onnxruntime-gpu are both installed and overwrite each other's files"]
    )
    assert any("importing transformers takes" in what for what in found)


def test_without_a_compiler_the_backends_that_compile_are_not_usable(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    states = {one.name: one for one in ait.doctor().backends}

    assert states["TorchInductorJitBackend"].reason == "needs a C++ compiler: install g++ or clang++"
    assert any("no C++ compiler" in what for what in advice(tmp_path))


def test_without_pythons_headers_torch_compile_cannot_build(monkeypatch, tmp_path):
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path / "none")})
    assert any(text.startswith("Python's headers are not in") for text in advice(tmp_path))


def test_a_gpu_that_torch_cannot_use_is_a_problem(tmp_path):
    gpu = Accelerator("NVIDIA H200", "575.1", "141 GB")
    if torch.version.cuda:
        assert not any("has no CUDA" in what for what in advice(tmp_path, [gpu]))
    else:
        assert "NVIDIA H200 is not used: this build of torch has no CUDA" in advice(tmp_path, [gpu])


def test_more_threads_than_cores_are_a_problem(tmp_path):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(512)
        assert any(text.startswith("torch uses 512 threads on") for text in advice(tmp_path))
    finally:
        torch.set_num_threads(before)


def test_a_store_that_cannot_be_used_is_a_problem(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("not a folder")
    assert any("the store is not writable" in what for what in advice(file / "store"))

    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=1000))
    assert advice(tmp_path)["only 1.00 kB are free where aitune writes"].startswith("make room")


def test_just_in_time_tuning_is_active_only_if_the_variable_names_it_and_the_hook_is_there(monkeypatch):
    monkeypatch.setenv("AUTOWRAPT_BOOTSTRAP", "other,aitune_enable_jit_tuning")
    assert surroundings.just_in_time()["AUTOWRAPT_BOOTSTRAP"] == "names aitune"
    monkeypatch.delenv("AUTOWRAPT_BOOTSTRAP")
    assert surroundings.just_in_time()["active"] == "no"


def test_a_deep_look_builds_with_each_backend_and_says_what_fails(monkeypatch):
    from aitune.torch.backend import TorchEagerBackend
    from aitune.torch.doctor import examine

    few = {"TorchEagerBackend": TorchEagerBackend, "NoSuchBackend": TorchEagerBackend}
    monkeypatch.setattr(examine, "available_backends", lambda: few)
    works, fails = ait.doctor(deep=True).backends

    assert (works.usable, works.built) == (True, True)
    assert (fails.usable, fails.built) == (False, True)
    assert "there is no backend 'NoSuchBackend'" in fails.reason


def test_deep_is_a_switch():
    with pytest.raises(AITuneUserInputError, match="deep must be True or False"):
        ait.doctor(deep="very")
