"""The contract of a backend: a frozen recipe that builds an engine for a job."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch

from aitune.exceptions import AITuneUserInputError
from aitune.torch.graph.job import Job
from aitune.torch.trial import Precision

__all__ = ["Backend", "BackendConfig", "Engine", "Requirement"]


@dataclass(frozen=True)
class Requirement:
    """A library that a backend needs at build time.

    Attributes:
        library: Import name.
        extra: The extra of aitune that brings it.
        alternatives: Import names of libraries that do as well.
    """

    library: str
    extra: str
    alternatives: tuple[str, ...] = ()


@dataclass(frozen=True)
class BackendConfig:
    """Base of all backend options: frozen, comparable, validated on construction, free of vendor types.

    Subclasses validate in ``__post_init__`` and raise :class:`~aitune.exceptions.AITuneUserInputError`, a
    ``ValueError`` that names the choices.
    """

    def describe(self) -> str:
        """Return the options that differ from their defaults, as they would be written."""
        changed = []
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            default = item.default_factory() if callable(item.default_factory) else item.default
            if value != default:
                changed.append(f"{item.name}={value!r}")
        return ", ".join(changed)


class Engine(ABC):
    """What a backend built: runs calls of one graph.

    Attributes:
        precision: The lowest precision that it computes in; outputs are held against the bound of that
            precision.
        reentrant: Whether several threads may be in :meth:`run` at once.
        keeps_module: Whether it calls into the user's module, so that the module must stay alive.
        live_weights: Whether it reads the module's parameters at each call, so that changed weights are
            followed.
        refits: Whether :meth:`refit` is there.
        own_errors: Whether what :meth:`run` raises is the module's own exception, to be passed to the caller.
        ranges: Smallest and largest size by the name of a dimension, where the engine serves less than the graph
            that it was built for. Calls outside never arrive; it is checked and measured on those inside.
        notes: What a reader of its trial should know, such as why it serves less.
    """

    precision: Precision = "float32"
    reentrant: bool = True
    keeps_module: bool = False
    live_weights: bool = False
    refits: bool = False
    own_errors: bool = False
    ranges: Mapping[str, tuple[int, int]] = MappingProxyType({})
    notes: tuple[str, ...] = ()

    @abstractmethod
    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Compute what the module's forward would return for a call of the graph.

        Inputs are never modified beyond what forward itself does, and outputs never alias memory that a later
        call writes to. Only calls inside the graph's ranges arrive here.
        """

    def close(self) -> None:  # noqa: B027 - having nothing to free is the ordinary case
        """Free what the engine holds; calling it twice is allowed, running it afterwards is not."""

    def save(self, folder: Path) -> None:
        """Write the engine's files into ``folder``, from which the backend's ``load`` makes it again.

        Raises:
            NotImplementedError: If engines of this kind cannot be kept.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be kept")

    def refit(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take over changed weights. The engine cannot be saved afterwards: its files hold those it was built with.

        Args:
            state: Every parameter and buffer of the module, by each of its names, with the shapes and dtypes that they
                had.

        Raises:
            NotImplementedError: If the engine has to be built anew.
            Exception: What the library raises; the engine is of no use then.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot take other weights")


ConfigT = TypeVar("ConfigT", bound=BackendConfig)


class Backend(ABC, Generic[ConfigT]):
    """A recipe for engines. Holds its configuration and nothing of a build: one instance serves everything.

    Subclasses set the class-level facts, and implement :meth:`build`; constructing one needs neither its
    library nor its device.

    Attributes:
        config_class: The dataclass of its options.
        devices: Device types that it can serve.
        requires: Libraries that must be importable to build, whatever the options.
        contained: Whether to build in a worker process first.
        complexity: Rank among equals: ties in speed go to the smaller one. 0 is the module itself, 1 and 2 are torch's
            own compilers, which compute what it computes, from 3 on are translations to another library, which may
            differ for values that no sample had.
        kept_as: What saved files of its engines are: ``"portable"`` data that any machine and version of the library
            may be given, ``"bound"`` data that is right for one kind of device and library alone, or ``"native"`` code,
            which runs with the rights of the process that loads it.
    """

    config_class: ClassVar[type[BackendConfig]] = BackendConfig
    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    requires: ClassVar[tuple[Requirement, ...]] = ()
    contained: ClassVar[bool] = True
    complexity: ClassVar[int] = 5
    kept_as: ClassVar[Literal["portable", "bound", "native"]] = "native"

    def __init__(self, config: ConfigT | None = None) -> None:
        if config is None:
            config = self.config_class()  # type: ignore[assignment]
        if not isinstance(config, self.config_class):
            raise AITuneUserInputError(
                f"{type(self).__name__} takes a {self.config_class.__name__}, not {type(config).__name__}"
            )
        self.config: ConfigT = config

    @property
    def name(self) -> str:
        """The backend's name, that of its class."""
        return type(self).__name__

    @property
    def safe_in_process(self) -> bool:
        """Whether, as configured, a build is safe enough to do without a worker process."""
        return False

    @property
    def requirements(self) -> tuple[Requirement, ...]:
        """The libraries that a build needs, as configured: those of ``requires``, and what its options add."""
        return self.requires

    def describe(self) -> str:
        """Return the backend as it would be written, options that are defaults left out."""
        return f"{self.name}({self.config.describe()})"

    def takes_varying(self, kinds: Collection[type]) -> bool:  # noqa: ARG002
        """Whether, as configured, its engines take arguments of these types that change from call to call.

        Most engines make constants of what is no tensor.
        """
        return False

    def unsuitable(self, job: Job) -> str | None:
        """Return why the job cannot be served, known without building; None if it may be tried."""
        if job.device.type not in self.devices:
            return f"needs {' or '.join(self.devices)}, the module is on {job.device.type}"
        return None

    @abstractmethod
    def build(self, job: Job) -> Engine:
        """Build an engine.

        Leaves the module, the samples and the process's global state as they were. May raise anything: the
        bench turns it into a failed trial with the reason.
        """

    def load(self, job: Job, folder: Path) -> Engine:
        """Make an engine from what ``Engine.save`` wrote into ``folder``.

        Raises:
            NotImplementedError: If engines of this backend cannot be kept.
        """
        raise NotImplementedError(f"{self.name} engines cannot be kept")

    def __repr__(self) -> str:
        return self.describe()

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.config == other.config

    def __hash__(self) -> int:
        return hash((type(self), self.describe()))
