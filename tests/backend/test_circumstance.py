"""Failures that were the machine's are told from those that were the candidate's."""

from __future__ import annotations

import errno
import os
import signal
import subprocess

import pytest

from aitune.exceptions import (
    BackendBuildError,
    BackendCrashedError,
    BackendMachineError,
    BackendTimeoutError,
    BackendUnsupportedError,
)
from aitune.torch.backend.circumstance import is_of_the_moment


def caused_by(cause):
    try:
        raise BackendBuildError("X", "the compiler fails") from cause
    except BackendBuildError as error:
        return error


OF_THE_MOMENT = [
    OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    PermissionError(errno.EACCES, os.strerror(errno.EACCES)),
    FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "g++"),
    ConnectionResetError("the peer has gone"),
    caused_by(OSError(errno.EMFILE, os.strerror(errno.EMFILE))),
    caused_by(RuntimeError("ld: final link failed: No space left on device")),
    RuntimeError("fatal error: Python.h: No such file or directory"),
    RuntimeError("No working C++ compiler found in torch._inductor.config.cpp.cxx: (None, 'g++')"),
    BackendMachineError("X", "needs a C++ compiler"),
    BackendCrashedError("X", "killed", signal.SIGKILL),
    BackendCrashedError("X", "its file went while it was mapped", signal.SIGBUS),
    BackendCrashedError("X", "left with 1: OSError: [Errno 28] No space left on device"),
]
OF_THE_CANDIDATE = [
    RuntimeError("operator not implemented"),
    caused_by(ValueError("shapes do not fit")),
    BackendUnsupportedError("X", "needs cuda"),
    BackendCrashedError("X", "segmentation fault", signal.SIGSEGV),
    BackendCrashedError("X", "left with 3"),
    BackendTimeoutError("X", "took too long", 3.0),
    OSError(errno.EISDIR, os.strerror(errno.EISDIR)),
    subprocess.CalledProcessError(1, "convert"),
]


@pytest.mark.parametrize("error", OF_THE_MOMENT, ids=repr)
def test_what_the_machine_lacked_is_of_the_moment(error):
    assert is_of_the_moment(error)


@pytest.mark.parametrize("error", OF_THE_CANDIDATE, ids=repr)
def test_what_the_candidate_cannot_is_not(error):
    assert not is_of_the_moment(error)


def test_causes_that_lead_in_a_circle_come_to_an_end():
    first, second = RuntimeError("a"), RuntimeError("b")
    first.__cause__, second.__cause__ = second, first
    assert not is_of_the_moment(first)
