"""Whether the C++ compiler links the C++ runtime into what it makes, and how to keep it from that.

A library with a runtime of its own beside the process's crashes while it is loaded: what both have initialised is
mixed. Compilers do so where the runtime's development files are there in part only.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

__all__ = ["RUNTIME", "has_runtime_of_its_own", "links_runtime_in"]

RUNTIME = "libstdc++.so.6"

_SOURCE = "#include <string>\nstd::string made(int count) { return std::string(count, 'x'); }\n"
_SECONDS = 60.0
_HEAD_BYTES = 64 << 20  # what a library asks for stands before its weights


@functools.cache
def links_runtime_in(compiler: str) -> bool:
    """Whether shared libraries that a compiler makes have the C++ runtime in them; tried out once.

    Args:
        compiler: Name or path.
    """
    if not sys.platform.startswith("linux"):
        return False
    with tempfile.TemporaryDirectory(prefix="aitune-") as folder:
        source, library = Path(folder, "probe.cpp"), Path(folder, "probe.so")
        source.write_text(_SOURCE, encoding="utf-8")
        command = [compiler, "-shared", "-fPIC", str(source), "-o", str(library)]
        try:
            subprocess.run(command, capture_output=True, timeout=_SECONDS, check=True)
        except (OSError, subprocess.SubprocessError):
            return False  # whoever compiles with it next has more to say
        return _lacks_runtime(library.read_bytes())


def has_runtime_of_its_own(package: Path) -> bool:
    """Whether a library in a package, an archive, brings the C++ runtime instead of asking for the process's."""
    if not sys.platform.startswith("linux"):
        return False
    with zipfile.ZipFile(package) as archive:
        for name in archive.namelist():
            if name.endswith(".so"):
                with archive.open(name) as library:
                    if _lacks_runtime(library.read(_HEAD_BYTES)):
                        return True
    return False


def _lacks_runtime(library: bytes) -> bool:
    asked_for = RUNTIME.encode() in library or b"libc++.so" in library
    return not asked_for
