"""A function in another interpreter: its answer, its exception, its libraries, and its end."""

from __future__ import annotations

import os
import time

import pytest

from aitune.testing.fresh_process import FreshProcessError, in_fresh_process


class UnpicklableError(Exception):
    def __init__(self, message):
        super().__init__(message)
        self.hook = lambda: None

    def __reduce__(self):
        raise TypeError("no")


def facts(variable):
    try:
        import hypothesis
    except ImportError:
        hypothesis = None
    return os.getpid(), os.environ.get(variable), hypothesis is None


def raise_unpicklable():
    raise UnpicklableError("from far away")


def test_a_function_of_a_test_file_runs_elsewhere_without_a_library():
    pid, value, without = in_fresh_process(facts, "MARK", without=["hypothesis"], environment={"MARK": "1"})

    assert pid != os.getpid()
    assert (value, without) == ("1", True)


def test_what_it_raises_is_raised_here_even_if_it_does_not_pickle():
    with pytest.raises(RuntimeError, match="UnpicklableError: from far away"):
        in_fresh_process(raise_unpicklable)


def test_an_exit_and_a_hang_are_errors_that_say_so():
    with pytest.raises(FreshProcessError, match=r"exited \(7\)"):
        in_fresh_process(os._exit, 7)
    with pytest.raises(FreshProcessError, match="more than 1 s"):
        in_fresh_process(time.sleep, 60, timeout=1)
