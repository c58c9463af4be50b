"""Every registered backend keeps the contract, on the CPU; one that is added is held to it without an edit here."""

from __future__ import annotations

import pytest
import torch

from aitune.testing import BackendContract
from aitune.torch.backend import (
    TorchEagerBackend,
    TorchEagerBackendConfig,
    TorchInductorAotBackend,
    TorchInductorAotBackendConfig,
)
from aitune.torch.backend.registry import _BUILT_IN, available_backends
from aitune.torch.bench import unusable

# Those that must not be skipped: a backend that starts to refuse is a fault, not a skip.
RUN = {
    "ONNXRuntimeBackend",
    "OpenVINOBackend",
    "TorchEagerBackend",
    "TorchInductorAotBackend",
    "TorchInductorJitBackend",
}
SLOW = {"TorchInductorAotBackend", "TorchInductorJitBackend"}  # compile each module for a quarter of a minute


def copied(test):
    """Copy a function, so that a mark on it is not one on the suite's own."""

    def copy(self):
        test(self)

    return copy


def contract_of(name: str, kind: type) -> type[BackendContract]:
    """Make the test class of one backend."""
    body = {"make_backend": lambda self: kind(), "__doc__": f"The contract of {name}."}
    body["required"] = tuple(case.name for case in BackendContract().cases()) if name in RUN else ()
    if name not in RUN:  # a process for each, of which the library is mostly missing here as well
        test = BackendContract.test_constructing_it_needs_neither_library_nor_device
        body[test.__name__] = pytest.mark.slow(copied(test))
    made = type(f"Test{name}", (BackendContract,), body)
    # Of those that do not run here little is left to test but that they say so: see the last tests of this file.
    return pytest.mark.slow(made) if name in SLOW or name not in RUN else made


class TestTorchEagerBackendUnderAutocast(BackendContract):
    """Options that are not the defaults, and a precision that is not the module's own."""

    precision = "bfloat16"
    required = tuple(case.name for case in BackendContract().cases())

    def make_backend(self):
        return TorchEagerBackend(TorchEagerBackendConfig(autocast_enabled=True))


@pytest.mark.slow
class TestTorchInductorAotBackendWithoutFreezing(BackendContract):
    """Weights that stay what they are, which engines can take over when they change."""

    required = ("mlp",)
    frees_memory = False  # the library that it made stays mapped until the process ends

    def make_backend(self):
        return TorchInductorAotBackend(TorchInductorAotBackendConfig(freezing=False))


for _name, _kind in available_backends().items():
    globals()[f"Test{_name}"] = contract_of(_name, _kind)


def contract_in_a_worker(name: str, kind: type) -> type[BackendContract]:
    """Make the test class of one backend whose engines are built, checked and saved in a worker process first."""
    body = {
        "make_backend": lambda self: kind(),
        "contained": True,
        "required": tuple(case.name for case in BackendContract().cases()),
        "__doc__": f"The contract of {name}, in a worker process and in this one.",
    }
    return pytest.mark.slow(type(f"Test{name}InAWorker", (BackendContract,), body))


for _name in sorted(RUN):
    globals()[f"Test{_name}InAWorker"] = contract_in_a_worker(_name, available_backends()[_name])


def test_those_that_run_here_are_the_ones_that_are_meant_to():
    usable = {name for name, kind in available_backends().items() if unusable(kind(), torch.device("cpu")) is None}

    assert usable & set(_BUILT_IN) - {"TorchAOBackend"} == RUN  # torchao may be installed or not
