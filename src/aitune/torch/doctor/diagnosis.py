"""What the doctor found: frozen plain values that print as a table and go to JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from aitune.torch.report import FrozenMap, Section, sections_text

__all__ = ["BackendState", "Diagnosis", "Problem"]

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class BackendState:
    """Whether one backend can be used here.

    Attributes:
        name: Of its class.
        usable: Whether it can be tried on a device of this machine, as far as is known without building; with
            ``deep=True``, whether it served a small module.
        reason: Why not, and what to install; empty if it is usable.
        libraries: Version of each library that it needs and that is installed, by the library's import name.
        built: Whether it was asked to serve a small module (``deep=True``).
    """

    name: str
    usable: bool
    reason: str = ""
    libraries: Mapping[str, str] = field(default_factory=lambda: FrozenMap({}))
    built: bool = False


@dataclass(frozen=True)
class Problem:
    """Something that is wrong, or costs more than it should.

    Attributes:
        what: What was found.
        advice: What to do about it.
    """

    what: str
    advice: str


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """What this process can tune with. ``print`` shows it as tables.

    Attributes:
        machine: Processor, memory and devices, in words by name.
        software: Versions by name.
        store: Where aitune writes, whether it can, and how much room there is.
        jit: Whether modules are tuned without a change of code, and what decides it.
        backends: One entry for each backend, plugins among them.
        problems: What should be looked at; empty if all is well.
    """

    machine: Mapping[str, str]
    software: Mapping[str, str]
    store: Mapping[str, str]
    jit: Mapping[str, str]
    backends: tuple[BackendState, ...]
    problems: tuple[Problem, ...] = ()

    def to_json(self) -> str:
        """Return the whole as a JSON object: the names of these classes, and ``schema_version``."""
        content: dict[str, object] = {"schema_version": SCHEMA_VERSION}
        for item in dataclasses.fields(self):
            content[item.name] = _plain(getattr(self, item.name))
        return json.dumps(content, indent=2)

    def __str__(self) -> str:
        backends = {
            one.name: ("usable" + (", built and ran" if one.built else "")) if one.usable else one.reason
            for one in self.backends
        }
        marks = {one.name: "good" if one.usable else "bad" for one in self.backends}
        sections = [
            Section("Machine", self.machine),
            Section("Software", self.software),
            Section("Store", self.store),
            Section("Just-in-time tuning", self.jit),
            Section("Backends", backends, marks),
            Section("Problems", {one.what: one.advice for one in self.problems} or {"none": ""}),
        ]
        return sections_text(sections)

    def __repr__(self) -> str:
        usable = sum(one.usable for one in self.backends)
        found = f"{len(self.problems)} problems" if len(self.problems) != 1 else "1 problem"
        return f"<Diagnosis: {usable} of {len(self.backends)} backends usable, {found}; print it for the tables>"


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value):
        return {item.name: _plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
