"""Keys: the content that an entry of the store was made from, as one digest and the parts that it consists of."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from aitune.torch.backend import Backend
from aitune.torch.backend.guarded import described
from aitune.torch.store.subject import NoKeyError, Subject, canonical_digest

__all__ = ["Key", "NoKeyError", "entry_key", "is_key", "tune_key"]

_FORMAT = "aitune store 1"
_HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Key:
    """What an entry was made from.

    Attributes:
        parts: Digest by what it is of: module, weights, graph, environment and so on.
        facts: The surroundings in words, so that a difference can be told.
        label: What a reader calls it; no part of the key.
    """

    parts: Mapping[str, str]
    facts: Mapping[str, str]
    label: str = ""

    @property
    def text(self) -> str:
        """The key: 64 hexadecimal digits."""
        lines = [_FORMAT, *(f"{name}: {digest}" for name, digest in sorted(self.parts.items()))]
        return hashlib.blake2b("\n".join(lines).encode(), digest_size=32).hexdigest()


def is_key(text: str) -> bool:
    """Whether a text has the form of a key."""
    return _HEX.fullmatch(text) is not None


def entry_key(subject: Subject, backend: Backend[Any], check: object = None) -> Key:
    """Return the key of the engine, or of the verdict, of one candidate.

    Args:
        subject: Module, graph and surroundings.
        backend: The candidate with its configuration.
        check: What else a verdict depends on: the user's check, and whether values were checked.

    Raises:
        NoKeyError: If configuration or check cannot be told apart reliably.
    """
    parts = {**_parts_of(subject), "backend": _backend_digest(backend), "check": canonical_digest(check)}
    return Key(MappingProxyType(parts), subject.facts, described(backend))


def tune_key(subject: Subject, strategy: object, candidates: Sequence[Backend[Any]], check: object = None) -> Key:
    """Return the key of a tune: of its journal, and of what it chose.

    Args:
        subject: Module, graph as it was recorded, and surroundings.
        strategy: The strategy with its settings.
        candidates: What it will try, in order.
        check: The user's check, where the strategy has none of its own.

    Raises:
        NoKeyError: If the strategy, a candidate or the check cannot be told apart reliably.
    """
    parts = {
        **_parts_of(subject),
        "strategy": canonical_digest(strategy),
        "candidates": canonical_digest([_backend_digest(backend) for backend in candidates]),
        "check": canonical_digest(check),
    }
    return Key(MappingProxyType(parts), subject.facts, f"{strategy!r}")


def _parts_of(subject: Subject) -> dict[str, str]:
    return {
        "module": subject.module,
        "weights": subject.weights,
        "graph": subject.graph,
        "environment": subject.environment,
    }


def _backend_digest(backend: Backend[Any]) -> str:
    """Return the digest of a configured backend and of the file that its class comes from."""
    file = getattr(sys.modules.get(type(backend).__module__), "__file__", None) or ""
    try:
        source = hashlib.blake2b(Path(file).read_bytes(), digest_size=32).hexdigest() if file.endswith(".py") else ""
    except OSError:
        source = ""
    return canonical_digest((backend, source))
