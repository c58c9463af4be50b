"""What the machine has or lacks at a moment, and whether that is why a candidate failed."""

from __future__ import annotations

import errno
import os
import signal
import sys

from aitune.exceptions import AITuneError, BackendCrashedError, BackendMachineError, chain_of, said

__all__ = ["cxx", "is_of_the_moment"]

_CODES = frozenset(
    {
        errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOMEM, errno.EMFILE,
        errno.ENFILE, errno.EAGAIN, errno.EIO, errno.EBUSY, errno.ETXTBSY, errno.ENODEV, errno.ESTALE,
        errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ETIMEDOUT,
    }
)  # fmt: skip
_TEXTS = (
    # What compilers and vendors' libraries, which raise errors of their own, pass on of the system's messages.
    *(os.strerror(code).lower() for code in sorted(_CODES)),
    "no working c++ compiler",  # torch._inductor
    "is not found.",  # torch._inductor, of a compiler that was named
    "command not found",
    "cannot find -l",  # the linker, for want of a library
    "name resolution",
)
_OF_THE_CANDIDATE = frozenset(
    getattr(signal, name) for name in ("SIGSEGV", "SIGABRT", "SIGILL", "SIGFPE", "SIGTRAP") if hasattr(signal, name)
)


def cxx() -> str:
    """Return the name of the C++ compiler that Inductor calls."""
    return os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")


def is_of_the_moment(error: BaseException) -> bool:
    """Whether an exception, or one that it was raised from, speaks of what the machine lacked.

    A full or read-only disk, no rights, no compiler, no driver, too many open files, no network: at another time the
    same candidate may do well. So may one whose process was ended by somebody, or lost files that it had mapped. Memory
    has a verdict of its own.
    """
    return any(_is_of_the_moment(one) for one in chain_of(error))


def _is_of_the_moment(error: BaseException) -> bool:
    if isinstance(error, BackendMachineError):
        return True
    if isinstance(error, BackendCrashedError) and error.signal is not None and error.signal not in _OF_THE_CANDIDATE:
        return True
    # Those of ours that are OSErrors are so for the sake of ``except`` clauses.
    if isinstance(error, OSError) and not isinstance(error, AITuneError):
        return error.errno in _CODES or isinstance(error, ConnectionError)
    text = said(error).lower()
    return any(words in text for words in _TEXTS)
