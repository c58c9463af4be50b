"""The subject of a key: one graph of a module in its surroundings, digested once and shared by all its candidates."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from aitune.exceptions import text_of
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.store.canonical import Canonical, UndigestibleError
from aitune.torch.store.digest import Way, tensor_digests
from aitune.torch.store.replaced import write_replacements
from aitune.torch.store.structure import VISITS, write_module
from aitune.torch.store.surroundings import surroundings

__all__ = [
    "NoKeyError",
    "Subject",
    "canonical_digest",
    "describe_subject",
    "graph_digest",
    "module_digests",
    "structure_digest",
]


class NoKeyError(ValueError):
    """Something cannot be told apart reliably, so that nothing is kept for it.

    Args:
        reason: What and where, in one sentence.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Subject:
    """What all candidates of one graph have in common. Make one a module, and :meth:`with_graph` for each graph.

    Attributes:
        module: Digest of the module's structure, code and constants.
        weights: Digest of the values of its tensors.
        graph: Digest of the graph's inputs, outputs and ranges.
        facts: The surroundings, as words by name.
    """

    module: str
    weights: str
    graph: str
    facts: Mapping[str, str]

    @property
    def environment(self) -> str:
        """Digest of the surroundings."""
        lines = "\n".join(f"{name}: {text}" for name, text in sorted(self.facts.items()))
        return hashlib.blake2b(lines.encode(), digest_size=32).hexdigest()

    def with_graph(self, graph: GraphSpec) -> Subject:
        """Return the subject of another graph of the same module.

        Raises:
            NoKeyError: If the graph holds a value that cannot be told apart.
        """
        return Subject(self.module, self.weights, graph_digest(graph), self.facts)


def describe_subject(module: torch.nn.Module, graph: GraphSpec, device: torch.device) -> Subject:
    """Digest a module, a graph of it and the surroundings. Reads every weight once; modifies nothing.

    Args:
        module: The module as it is.
        graph: The graph.
        device: Where the module is.

    Raises:
        NoKeyError: If something of it cannot be told apart reliably.
    """
    structure, weights = module_digests(module)
    return Subject(structure, weights, graph_digest(graph), surroundings(device))


def module_digests(module: torch.nn.Module) -> tuple[str, str]:
    """Return the digests of structure, code and constants, and of the values of all tensors.

    Raises:
        NoKeyError: If something of the module cannot be told apart reliably.
    """
    out = _written(module)
    return out.digest, _joined(tensor_digests(out.tensors))


def structure_digest(module: torch.nn.Module, beside: Iterable[torch.Tensor] = (), way: Way | None = None) -> str:
    """Return the digest of structure, code and constants, among them tensors that are neither parameter nor buffer.

    Args:
        module: The module.
        beside: Its parameters and buffers, whose values are left out.
        way: How values are digested; None takes that of the device.

    Raises:
        NoKeyError: If something of the module cannot be told apart reliably.
    """
    out = _written(module)
    named = {id(tensor) for tensor in beside}
    with _told():
        return _joined([out.digest, *tensor_digests([one for one in out.tensors if id(one) not in named], way)])


def _written(module: torch.nn.Module) -> Canonical:
    out = Canonical(VISITS)
    with _told():
        write_module(out, module)
        write_replacements(out, module)
    return out


def graph_digest(graph: GraphSpec) -> str:
    """Return the digest of what a graph accepts and returns: not its name, nor how its first call was written.

    Raises:
        NoKeyError: If it holds a value that cannot be told apart reliably.
    """
    if graph.inputs.opaque or graph.outputs.opaque:
        raise NoKeyError(f"{graph.name} has values that cannot be compared")
    return canonical_digest((graph.signature, graph.inputs, graph.outputs, graph.training))


def canonical_digest(value: Any) -> str:
    """Return the digest of any value, tensors included.

    Raises:
        NoKeyError: If it cannot be told apart reliably.
    """
    out = Canonical(VISITS)
    with _told():
        out.write(value, "")
        return _joined([out.digest, *tensor_digests(out.tensors)])


class _told:  # noqa: N801 - reads as a word in a with statement
    """Turns what cannot be digested, and whatever foreign objects raise while they are looked at, into a reason."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, UndigestibleError):
            raise NoKeyError(f"{error.path or 'the module'} is {error.reason}") from error
        if isinstance(error, Exception):  # attributes and descriptors of users' classes run users' code
            raise NoKeyError(f"it cannot be looked at: {text_of(error)}") from error


def _joined(digests: list[str]) -> str:
    return hashlib.blake2b("\n".join(digests).encode(), digest_size=32).hexdigest()
