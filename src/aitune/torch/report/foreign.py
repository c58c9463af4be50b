"""Text that others wrote (messages of libraries, names given by users), made safe to show."""

from __future__ import annotations

import re

__all__ = ["one_line", "printable"]

# Escape sequences: CSI (colours, cursor), OSC (titles, links; ended by BEL or ST), then the two-character
# ones.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -~]?")
# C0 except tab and newline, DEL, C1, surrogates (no encoding takes them), marks that turn the direction of
# writing.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Return ``text`` without escape sequences and control characters; newlines and tabs stay."""
    lines = _ESCAPES.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", lines)


def one_line(text: str, limit: int | None = None) -> str:
    """Return ``text`` as one printable line with single spaces.

    Args:
        text: Anything.
        limit: Longest result in characters; the middle of a longer text is left out, since messages of
            compilers tend to have their point at either end.
    """
    line = " ".join(printable(text).split())
    if limit is None or len(line) <= limit:
        return line
    head = limit * 2 // 3
    tail = max(limit - head - 5, 0)
    return f"{line[:head].rstrip()} ... {line[len(line) - tail :].lstrip()}" if tail else line[:limit]
