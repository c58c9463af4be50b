"""A builder in this process cannot change it, and its output goes to the log."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from aitune.torch.worker.quiet import process_state_kept


def misbehave(folder):
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - what a builder may do
    os.chdir(folder)
    os.environ["LEFT_BEHIND"] = "1"
    sys.path.append("nowhere")
    warnings.simplefilter("error")
    logging.getLogger().setLevel(logging.CRITICAL)
    logging.getLogger("some.library").addHandler(logging.StreamHandler())
    logging.disable(logging.CRITICAL)
    sys.setrecursionlimit(5000)
    torch.set_autocast_enabled("cpu", True)
    torch.set_flush_denormal(True)
    torch.set_printoptions(precision=2)
    np.set_printoptions(precision=2)
    np.seterr(all="raise")
    os.umask(0o777)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 3600)


def the_rest():
    """What Python, numpy and the system are set to."""
    mask = os.umask(0o022)
    os.umask(mask)
    small = torch.tensor(1e-40) * 1
    handlers, timer = signal.getsignal(signal.SIGTERM), signal.getitimer(signal.ITIMER_REAL)[0]
    printed = f"{torch.tensor(1 / 3)} {np.array([1 / 3])}"
    return mask, bool(small), handlers, timer > 1000, printed, np.geterr(), torch.is_autocast_enabled("cpu")


def test_global_state_is_put_back(tmp_path, unchanged_torch_state):
    cwd, environment, path, filters = Path.cwd(), dict(os.environ), list(sys.path), list(warnings.filters)
    level, handlers, depth = logging.root.level, list(logging.root.handlers), sys.getrecursionlimit()
    rest = the_rest()
    with unchanged_torch_state(), process_state_kept(tmp_path / "build.log"):
        misbehave(tmp_path)
    assert Path.cwd() == cwd
    assert dict(os.environ) == environment
    assert sys.path == path
    assert list(warnings.filters) == filters
    assert (logging.root.level, logging.root.handlers) == (level, handlers)
    assert logging.root.manager.disable == 0
    assert sys.getrecursionlimit() == depth
    assert the_rest() == rest


def test_state_is_put_back_after_an_exception(tmp_path, unchanged_torch_state):
    def fail():
        with process_state_kept(tmp_path / "build.log"):
            misbehave(tmp_path)
            raise KeyError

    with unchanged_torch_state(), pytest.raises(KeyError):
        fail()


def test_output_goes_to_the_log(tmp_path, capsys):
    held = logging.StreamHandler(sys.stderr)  # as libraries do when they are imported
    logger = logging.getLogger("held.library")
    logger.addHandler(held)
    log = tmp_path / "deep" / "build.log"
    try:
        with process_state_kept(log):
            print("printed")
            print("complained", file=sys.stderr)
            warnings.warn("warned", stacklevel=1)
            logger.warning("logged")
    finally:
        logger.removeHandler(held)
    assert held.stream is sys.stderr
    assert capsys.readouterr() == ("", "")
    assert log.read_text().splitlines() == ["printed", "complained", "logged"]


def test_a_handler_that_was_made_meanwhile_does_not_keep_the_log(tmp_path, capfd):
    with process_state_kept(tmp_path / "build.log"):
        logger = logging.getLogger("made.meanwhile")
        logger.addHandler(logging.StreamHandler())
    try:
        logger.warning("later")
    finally:
        logger.handlers.clear()
    assert "later" in capfd.readouterr().err


def test_the_console_can_be_asked_for(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("AITUNE_CONSOLE_OUTPUT", "1")
    with process_state_kept(tmp_path / "build.log"):
        print("live")
    assert capsys.readouterr().out == "live\n"
