"""The environment is described in words, without touching a device."""

import platform

import torch

from aitune.torch.report import environment


def test_versions_and_hardware_are_there():
    facts = environment()
    assert facts["torch"] == torch.__version__
    assert facts["python"] == platform.python_version()
    assert facts["threads"] == str(torch.get_num_threads())
    assert list(facts)[:7] == ["aitune", "python", "torch", "platform", "cpu", "cores", "threads"]
    assert all(isinstance(value, str) and value for value in facts.values())


def test_only_installed_libraries_are_named(monkeypatch):
    import importlib.metadata

    def version(name):
        if name == "onnxruntime":
            return "1.2.3"
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    facts = environment()
    assert facts["onnxruntime"] == "1.2.3"
    assert "openvino" not in facts


def test_an_accelerator_that_is_not_in_use_is_not_asked_for_its_name():
    was = torch.cuda.is_initialized()
    facts = environment([torch.device("cpu"), "cpu", "cuda:0", torch.device("cuda:0")])
    assert "cpu:0" not in facts
    if not was:
        assert facts["cuda:0"] == "cuda"
    assert torch.cuda.is_initialized() == was
