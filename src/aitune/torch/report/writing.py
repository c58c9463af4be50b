"""Writing a text file so that a reader sees the old one or the new one, never half of one."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

__all__ = ["write_text"]


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write ``text`` as UTF-8 to a temporary file in the folder of ``path``, then rename it to ``path``.

    A symbolic link is followed, the permissions are those of any new file. Characters without an encoding
    (lone surrogates) become question marks.

    Returns:
        The file that was written.

    Raises:
        OSError: If the folder does not exist or cannot be written; nothing is left behind then.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name[:100]}.{uuid.uuid4().hex}.tmp")
    try:
        # "x": never through a file or link that somebody else put there.
        with temporary.open("x", encoding="utf-8", errors="replace", newline="\n") as file:
            file.write(text)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return target
