"""What a checkpoint knows of the module it belongs to, and how another module differs from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from aitune.torch.fields import Fields
from aitune.torch.store.digest import Way, tensor_digests
from aitune.torch.store.subject import NoKeyError, structure_digest
from aitune.torch.store.surroundings import surroundings

__all__ = ["Identity", "environment_differences"]

_MOST_TENSORS = 1_000_000
_MOST_NAMED = 3
# Facts that do not decide whether an engine runs, or runs right.
_NO_MATTER = frozenset({"threads", "python", "device memory", "aitune", "compiler"})


@dataclass(frozen=True)
class Tensor:
    """One parameter or buffer.

    Attributes:
        dtype: Its dtype.
        shape: Its shape.
        digest: Digest of its values.
    """

    dtype: str
    shape: tuple[int, ...]
    digest: str


@dataclass(frozen=True)
class Identity:
    """A module as it was when its engines were saved.

    Attributes:
        kind: Name of its class.
        structure: Digest of code, structure and constants; None where they cannot be told apart.
        way: How values were digested.
        tensors: Parameters and buffers by name.
        facts: The surroundings.
        unread: Why there is no digest of code, structure and constants; not kept.
    """

    kind: str
    structure: str | None
    way: Way
    tensors: Mapping[str, Tensor]
    facts: Mapping[str, str]
    unread: str = ""

    @classmethod
    def of(cls, module: torch.nn.Module, device: torch.device, way: Way | None = None) -> Identity:
        """Describe a module as it is. Reads every weight.

        Args:
            module: The module.
            device: Where it is.
            way: How values are digested; None takes that of the device.
        """
        way = way or ("hashed" if device.type == "cpu" else "mixed")
        named = {
            **dict(module.named_parameters(remove_duplicate=False)),
            **dict(module.named_buffers(remove_duplicate=False)),
        }
        structure, unread = None, ""
        try:
            structure = structure_digest(module, named.values(), way)
        except NoKeyError as error:
            unread = error.reason
        digests = tensor_digests(list(named.values()), way)
        tensors = {
            name: Tensor(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), digest)
            for (name, tensor), digest in zip(named.items(), digests, strict=True)
        }
        kind = f"{type(module).__module__}.{type(module).__qualname__}"
        return cls(kind, structure, way, tensors, surroundings(device), unread)

    def differences(self, other: Identity) -> tuple[str, ...]:
        """Return how another module differs, one sentence each; code counts only in the same environment."""
        if self.kind != other.kind:
            return (f"it was saved for a {self.kind}, this is a {other.kind}",)
        found = self._tensor_differences(other)
        if not found and self._same_versions(other) and self.structure != other.structure:
            found.append(
                "code, structure or constants of the module are not those it was saved with"
                + (f": here they cannot be read in full, {other.unread}" if other.unread else "")
            )
        return tuple(found)

    def tells_code(self, other: Identity) -> bool:
        """Whether a difference in code or constants between the two would show without running them."""
        return self._same_versions(other) and None not in (self.structure, other.structure)

    def _same_versions(self, other: Identity) -> bool:
        """Whether equal code has equal digests."""
        return (
            not environment_differences(self.facts, other.facts) and self.facts.get("python") == other.facts["python"]
        )

    def _tensor_differences(self, other: Identity) -> list[str]:
        missing = [name for name in self.tensors if name not in other.tensors]
        extra = [name for name in other.tensors if name not in self.tensors]
        both = [name for name in self.tensors if name in other.tensors]
        ours, theirs = self.tensors, other.tensors
        shaped = [n for n in both if (ours[n].dtype, ours[n].shape) != (theirs[n].dtype, theirs[n].shape)]
        valued = [n for n in both if n not in shaped and ours[n].digest != theirs[n].digest]
        groups = (
            (missing, "the module has no"),
            (extra, "the module has more:"),
            (shaped, "another shape or dtype has"),
            (valued, "other values has"),
        )
        return [f"{what} {_few(names)}" for names, what in groups if names]

    def record(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "class": self.kind,
            "structure": self.structure,
            "way": self.way,
            "facts": dict(self.facts),
            "tensors": [
                {"name": name, "dtype": tensor.dtype, "shape": list(tensor.shape), "digest": tensor.digest}
                for name, tensor in self.tensors.items()
            ],
        }

    @classmethod
    def read(cls, record: Fields) -> Identity:
        """Read it.

        Raises:
            DocumentError: If a field is missing or of another kind.
        """
        tensors = {}
        for item in record.objects("tensors", _MOST_TENSORS):
            shape = item.list("shape", 64)
            if not all(type(size) is int and size >= 0 for size in shape):
                raise item.error("shape", "must be sizes")
            tensors[item.text("name")] = Tensor(item.text("dtype"), tuple(shape), item.text("digest"))
        way: Way = "hashed" if record.word("way", ("hashed", "mixed")) == "hashed" else "mixed"
        structure = record.optional("structure", record.text)
        return cls(record.text("class"), structure, way, tensors, record.words("facts"))


def environment_differences(saved: Mapping[str, str], here: Mapping[str, str]) -> tuple[str, ...]:
    """Return in which facts two surroundings differ, one sentence each."""
    differences = []
    for name in sorted({*saved, *here} - _NO_MATTER):
        first, second = saved.get(name, "none"), here.get(name, "none")
        if first == second:
            continue
        if name == "processor flags":
            gone, new = {*first.split()} - {*second.split()}, {*second.split()} - {*first.split()}
            first, second = " ".join(sorted(gone)) or "no more", " ".join(sorted(new)) or "no more"
        differences.append(f"{name} was {first}, here it is {second}")
    return tuple(differences)


def _few(names: list[str]) -> str:
    shown = ", ".join(name[:200] for name in names[:_MOST_NAMED])
    return f"{shown} and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else shown
