"""The proofs of one graph: how much an engine is asked depends on what it has passed already."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

from aitune.torch.backend import Engine
from aitune.torch.bench.budget import Budget
from aitune.torch.bench.proof import Proof
from aitune.torch.check import Check, Effort, Reference
from aitune.torch.graph.job import Job

__all__ = ["Proofs"]


class Proofs:
    """Prepares each kind of proof when it is first needed.

    Args:
        job: The graph with its samples.
        check: The user's check.
        budget: The time there is.
        reference: Gives the reference that was made elsewhere, or whether one is to be made here.
        seed: Seeds synthesised inputs.
    """

    def __init__(
        self, job: Job, check: Check | None, budget: Budget, reference: Callable[[], Reference | bool], seed: int
    ) -> None:
        self._job = job
        self._check = check
        self._budget = budget
        self._make_reference = reference
        self._seed = seed

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know about the reference and the questions; empty before anything was asked."""
        made = (self.__dict__.get(name) for name in ("_whole", "_samples", "_one_sample"))
        return next((proof.notes for proof in made if proof is not None), ())

    @property
    def foreign(self) -> str | None:
        """How the module in the worker, which made the reference, differs from this one; None if it does not."""
        return self._samples.subject.foreign

    def forget(self) -> None:
        """Prepare everything anew when it is needed: the reference was of another module."""
        for name in ("_whole", "_samples", "_one_sample", "_reference"):
            self.__dict__.pop(name, None)

    def of(self, engine: Engine, *, judged: bool, known: bool) -> Proof:
        """Return the questions for an engine, within what it serves.

        Args:
            engine: The engine.
            judged: Whether it passed the whole examination in a worker: then the samples are asked about.
            known: Whether it did in an earlier tune: then one sample is.
        """
        if engine.ranges:
            first = judged or known
            effort = Effort(synthesised=not first, reference=not first, seed=self._seed)
            return Proof.prepare(self._job.narrowed(engine.ranges), self._check, effort)
        if known:
            return self._one_sample
        return self._samples if judged else self._whole

    @cached_property
    def _whole(self) -> Proof:
        return self._prepared(synthesised=True)

    @cached_property
    def _samples(self) -> Proof:
        return self._prepared(synthesised=False)

    @cached_property
    def _one_sample(self) -> Proof:
        effort = Effort(synthesised=False, reference=False, seed=self._seed)
        return Proof.prepare(replace(self._job, samples=self._job.samples[:1]), self._check, effort)

    @cached_property
    def _reference(self) -> Reference | bool:
        return self._make_reference()

    def _prepared(self, *, synthesised: bool) -> Proof:
        effort = Effort(
            synthesised=synthesised,
            reference=self._reference,
            reference_seconds=self._budget.left(),
            seed=self._seed,
        )
        return Proof.prepare(self._job, self._check, effort)
