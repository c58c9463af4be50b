"""The contract suite of backends, first part: the recipe, before anything is built."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from aitune.testing.cases import Case, standard_cases
from aitune.testing.errands import description
from aitune.testing.fresh_process import in_fresh_process
from aitune.testing.workshop import Workshop
from aitune.torch.backend import Backend, BackendConfig, Requirement

__all__ = ["RecipeContract"]

_ELSEWHERE = {"PYTHONHASHSEED": "12345", "CUDA_VISIBLE_DEVICES": ""}


class RecipeContract:
    """Tests of a backend that build nothing. :class:`~aitune.testing.BackendContract` goes on from here.

    Attributes:
        device: Where modules are.
        contained: Whether engines are built in a worker process first, as aitune does with ``isolation="process"``.
    """

    device: ClassVar[str] = "cpu"
    contained: ClassVar[bool] = False
    workshop: ClassVar[Workshop]

    def make_backend(self) -> Backend[Any]:
        """Return the backend under test, a new one at each call, all of them equal."""
        raise NotImplementedError(f"{type(self).__name__} must implement make_backend()")

    def cases(self) -> Sequence[Case]:
        """Return the modules that the backend is asked to serve; replace or extend them as you like."""
        return standard_cases()

    @classmethod
    def setup_class(cls) -> None:
        """Open the workshop."""
        cls.workshop = Workshop(cls().make_backend(), cls.device, contained=cls.contained)

    @classmethod
    def teardown_class(cls) -> None:
        """Close every engine."""
        cls.workshop.close()

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Run a test that takes a ``case`` once for each."""
        if "case" in metafunc.fixturenames:
            metafunc.parametrize("case", self.cases(), ids=lambda case: case.name)

    def test_its_options_are_frozen(self) -> None:
        """A backend is a value: nobody can change what it stands for."""
        config = self.make_backend().config
        assert isinstance(config, BackendConfig), f"{type(config).__name__} is no BackendConfig"
        assert config.__dataclass_params__.frozen, f"{type(config).__name__} is no frozen dataclass"  # type: ignore[attr-defined]

    def test_it_pickles_and_equals_itself(self) -> None:
        """It travels to other processes, and serves as a key."""
        backend, other = self.make_backend(), self.make_backend()
        for twin in (other, pickle.loads(pickle.dumps(backend)), copy.deepcopy(backend)):
            assert twin == backend, f"{twin} does not equal {backend}"
            assert hash(twin) == hash(backend), f"{twin} has another hash than its equal"
        assert pickle.loads(pickle.dumps(backend.config)) == backend.config, "the options change when pickled"

    def test_it_describes_itself_without_defaults(self) -> None:
        """Reports and keys name it by its class and the options that were set."""
        backend = self.make_backend()
        text = backend.describe()
        form = text.startswith(f"{backend.name}("), text.endswith(")"), "\n" not in text
        assert all(form), f"described as {text!r}, not as one line {backend.name}(...)"
        assert " at 0x" not in text, f"{text!r} names an address, which is another in every process"
        for item in dataclasses.fields(backend.config):
            factory = item.default_factory
            default = factory() if factory is not dataclasses.MISSING else item.default
            is_default = getattr(backend.config, item.name) == default
            assert is_default is (f"{item.name}=" not in text), f"{item.name} is or is not in {text!r}"

    def test_its_facts_are_declared(self) -> None:
        """What is known without building is there, and of the declared type."""
        backend = self.make_backend()
        assert backend.devices, "it has no devices"
        for name, kind in {"devices": str, "requires": Requirement, "requirements": Requirement}.items():
            facts = getattr(backend, name)
            assert isinstance(facts, tuple), f"{name}={facts!r} is no tuple"
            assert all(isinstance(one, kind) for one in facts), f"{name}={facts!r}"
        kinds = {"contained": bool, "safe_in_process": bool, "complexity": int, "name": str}
        for name, kind in kinds.items():
            assert isinstance(getattr(backend, name), kind), f"{name}={getattr(backend, name)!r}"

    def test_constructing_it_needs_neither_library_nor_device(self) -> None:
        """In a process without its libraries it is made, and is described as it is here: its key is stable."""
        backend = self.make_backend()
        libraries = [name for one in backend.requirements for name in (one.library, *one.alternatives)]
        there = in_fresh_process(description, type(backend), backend.config, without=libraries, environment=_ELSEWHERE)
        assert there == backend.describe(), f"{backend.describe()} is {there} in another process"

    def test_it_says_without_building_what_it_cannot_serve(self) -> None:
        """A device that is not among its own is a reason, not a build."""
        backend = self.make_backend()
        job = dataclasses.replace(self.workshop.job(self.cases()[0]), device=torch.device("meta"))
        assert isinstance(backend.unsuitable(job), str), "no reason is given for a device that is not in devices"
