"""Where two nested values are nested in different ways."""

from __future__ import annotations

from aitune.torch.graph.tree import Path, Structure, path_text

__all__ = ["structure_mismatch"]


def structure_mismatch(got: Structure, expected: Structure, path: Path = ("output",)) -> str | None:
    """Return the first difference as a sentence that begins with its path, None if there is none.

    Container types count exactly: a list is no tuple, and a dict no ``ModelOutput``. So does the order of
    keys.
    """
    if got == expected:
        return None
    name = path_text(path)
    if got.kind is not expected.kind:
        return f"{name} is {_kind(got)}, the module returns {_kind(expected)}"
    missing = [key for key in expected.keys if key not in got.keys]
    added = [key for key in got.keys if key not in expected.keys]
    if missing or added:
        words = [f"lacks {missing}"] if missing else []
        words += [f"has {added} in addition"] if added else []
        return f"{name} {' and '.join(words)}"
    if got.keys != expected.keys:
        return f"{name} has its keys in the order {list(got.keys)}, the module's is {list(expected.keys)}"
    for key, mine, theirs in zip(got.keys, got.children, expected.children, strict=True):
        found = structure_mismatch(mine, theirs, (*path, key))
        if found is not None:
            return found
    return f"{name} is {_kind(got)} made in another way: {got.mark!r} instead of {expected.mark!r}"


def _kind(structure: Structure) -> str:
    if structure.kind is None:
        return "a single value"
    return f"a {structure.kind.__qualname__}"
