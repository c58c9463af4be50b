"""The contract suite of backends: what every backend promises, as tests that its author inherits."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from typing import Any, ClassVar

import psutil
import torch

from aitune.testing.answers import mismatch, strided, tensors_of
from aitune.testing.cases import Case, odd_cases
from aitune.testing.errands import answers_of_kept, outcomes
from aitune.testing.fresh_process import in_fresh_process
from aitune.testing.modules import Mlp
from aitune.testing.recipe_contract import RecipeContract
from aitune.testing.surroundings import Surroundings
from aitune.testing.workshop import skip
from aitune.torch.backend import Engine
from aitune.torch.backend.resident import return_freed
from aitune.torch.backend.state import state_of
from aitune.torch.bench import unusable
from aitune.torch.check import judge, prepare
from aitune.torch.check.bounds import FLOORS
from aitune.torch.check.variations import forms
from aitune.torch.graph.sample import Sample
from aitune.torch.trial import PRECISIONS, Precision

__all__ = ["BackendContract"]

_THREADS = 4
_ROUNDS = 24  # an allocator may keep one set of pages for each of its arenas before it uses them again
_WIDTH = 1 << 18  # of a module whose weights take 13 MB


class BackendContract(RecipeContract):
    """Tests of one backend. Subclass it under a name that pytest collects, and implement :meth:`make_backend`.

    Each engine is built once for the class, in the way in which aitune builds in this process: the builder's output
    goes to a log, and global state that it changed is put back. What cannot be built because a library or device is
    missing, or because the backend says that it does not serve a module, is skipped with that reason.

    Attributes:
        device: Where modules are.
        contained: Whether engines are built in a worker process first, as aitune does with ``isolation="process"``.
        precision: What engines of float32 modules must declare; None leaves it to the backend.
        required: Names of the cases that the backend must not refuse.
        frees_memory: Whether memory that an engine took is expected back in this process when it is closed.
    """

    precision: ClassVar[Precision | None] = None
    required: ClassVar[tuple[str, ...]] = ("mlp",)
    frees_memory: ClassVar[bool] = True

    def test_the_required_cases_are_served(self) -> None:
        """A backend that refuses everything holds every promise; these it must not refuse."""
        reason = unusable(self.workshop.backend, torch.device(self.device))
        if reason is not None:
            raise skip(self.workshop.backend, reason)
        for case in self.cases():
            if case.name in self.required:
                try:
                    self.workshop.engine(case)
                except Exception as error:
                    raise AssertionError(f"{case.name} must be served: {error}") from error

    def test_building_changes_nothing(self, case: Case) -> None:
        """Module, samples and process are afterwards as before, and nothing was printed."""
        traces = self.workshop.made(case).traces
        assert not traces, f"the build left changed: {', '.join(traces)}"

    def test_it_computes_what_the_module_computes(self, case: Case) -> None:
        """Every question of aitune's own check is answered within the bound of the declared precision."""
        engine, job = self.workshop.engine(case), self.workshop.job(case)
        subject = prepare(job.module, job.graph, job.samples, forward=job.forward)
        judgement = judge(engine.run, subject, precision=engine.precision)
        assert judgement.accepted, judgement.reason

    def test_equal_inputs_give_equal_outputs(self, case: Case) -> None:
        """Whatever was computed in between, at whatever size."""
        first = self._answer(case, self._call(case, 4))
        for batch, variant in ((4, 1), (1, 0), (3, 2)):
            self._answer(case, self._call(case, batch, variant))
            self._expect(case, self._answer(case, self._call(case, 4)), first, 0.1)

    def test_outputs_are_never_overwritten(self, case: Case) -> None:
        """A later call leaves earlier outputs alone, and overwriting an output leaves later calls alone."""
        first = self._answer(case, self._call(case, 4))
        kept = copy.deepcopy(first)
        self._answer(case, self._call(case, 4, 1))
        assert mismatch(first, kept, 0.0) is None, "an output changed when the engine was called again"
        for tensor in tensors_of(first):
            tensor.zero_()
        self._expect(case, self._answer(case, self._call(case, 4)), kept, 0.1)

    def test_inputs_are_not_changed(self, case: Case) -> None:
        """What the caller passes is the caller's."""
        sample = self._call(case, 4)
        before = sample.fresh()
        self._answer(case, sample)
        assert mismatch(sample, before, 0.0) is None, "a call changed its inputs"

    def test_strides_of_inputs_do_not_matter(self, case: Case) -> None:
        """Transposed, sliced and expanded inputs are right."""
        for batch in (1, 4):
            sample = strided(self._call(case, batch))
            self._expect(case, self._answer(case, sample), self._module_answer(case, sample))

    def test_every_form_of_a_call_is_taken(self, case: Case) -> None:
        """By position, by keyword, defaults written or left out: one call."""
        sample = self._call(case, 4)
        wanted = self._module_answer(case, sample)
        for form in forms(self.workshop.job(case).graph, sample):
            self._expect(case, self._answer(case, form), wanted)

    def test_gradient_modes_do_not_matter(self, case: Case) -> None:
        """With gradients, without, and in inference mode the answer is the same."""
        sample = self._call(case, 4)
        wanted = self._module_answer(case, sample)
        engine = self.workshop.engine(case)
        for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
            with mode():
                found = engine.run(*sample.args, **sample.kwargs)
            self._expect(case, found, wanted)

    def test_calling_changes_nothing(self, case: Case, capfd: Any) -> None:
        """Module and process are after calls as they were before, and nothing was printed."""
        engine, samples = self.workshop.engine(case), [self._call(case, batch) for batch in (4, 1, 3)]
        before = Surroundings.capture(self.workshop.job(case).module)
        capfd.readouterr()
        with torch.no_grad():
            for sample in samples:
                engine.run(*sample.args, **sample.kwargs)
        printed = "".join(capfd.readouterr())
        assert not before.changes(), f"calls changed {', '.join(before.changes())}"
        assert not printed, f"calls printed {printed[:300]!r}"

    def test_engines_declare_their_facts(self, case: Case) -> None:
        """Precision and flags are there, and of the declared type."""
        engine = self.workshop.engine(case)
        assert isinstance(engine, Engine), f"a {type(engine).__name__} is no Engine"
        assert engine.precision in PRECISIONS, f"precision is {engine.precision!r}"
        assert self.precision in (None, engine.precision), f"computes in {engine.precision}, not in {self.precision}"
        for name in ("reentrant", "keeps_module", "live_weights", "refits", "own_errors"):
            assert isinstance(getattr(engine, name), bool), f"{name} is {getattr(engine, name)!r}"

    def test_threads_do_not_disturb_each_other(self, case: Case) -> None:
        """An engine that says that it is re-entrant gives each of several threads its own answers."""
        engine = self.workshop.engine(case)
        if not engine.reentrant:
            raise skip(self.workshop.backend, "its engines are not re-entrant")
        samples = [self._call(case, 1 + index % 4, index) for index in range(_THREADS)]
        wanted = [self._module_answer(case, sample) for sample in samples]
        problems: list[str] = []

        def work(index: int) -> None:
            try:
                torch.zeros(
                    (), device=self.device
                )  # torch warns where a matrix product is a thread's first work on cuda
                for _ in range(20):
                    self._expect(case, self._answer(case, samples[index]), wanted[index])
            except BaseException as error:  # noqa: BLE001 - whatever it is, the test has to see it
                problems.append(repr(error))

        threads = [threading.Thread(target=work, args=(index,)) for index in range(_THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not problems, problems[0]

    def test_closing_lets_go(self) -> None:
        """Closing twice is allowed, and neither engine nor module outlives its user."""
        case = self._first_case()
        job = case.job(self.workshop.folder(), self.device)
        engine = self.workshop.build(job)
        engine.close()
        engine.close()
        gone: dict[str, weakref.ref[Any]] = {"engine": weakref.ref(engine), "module": weakref.ref(job.module)}
        del engine, job
        gc.collect()
        held = [name for name, reference in gone.items() if reference() is not None]
        assert not held, f"something still holds the {' and the '.join(held)} after close()"

    def test_closing_gives_memory_back(self) -> None:
        """Of building and closing again and again, some round takes no more memory; a leak takes it in every one."""
        if not self.frees_memory:
            raise skip(self.workshop.backend, "frees_memory is False")
        self._first_case()  # skips where there is none
        large = Case(
            "large", lambda: Mlp(_WIDTH), lambda batch, random: ((torch.randn(batch, 8, generator=random),), {})
        )
        job = large.job(self.workshop.folder(), self.device)
        weights = sum(one.nbytes for one in job.module.parameters())
        process, resident = psutil.Process(), [0]
        for _ in range(_ROUNDS):
            engine = self.workshop.build(job)
            engine.run(*job.samples[0].args, **job.samples[0].kwargs)
            engine.close()
            del engine
            gc.collect()
            return_freed()
            resident.append(process.memory_info().rss)
            if resident[-1] - resident[-2] < weights / 2:
                return
        grown = resident[-1] - resident[1]
        raise AssertionError(f"{grown >> 20} MB are lost in {_ROUNDS - 1} builds over weights of {weights >> 20} MB")

    def test_a_kept_engine_answers_the_same_in_a_fresh_process(self) -> None:
        """What ``save`` wrote is loaded elsewhere, runs no pickle, and answers as before."""
        case = self._first_case()
        engine, job = self.workshop.engine(case), self.workshop.job(case)
        if type(engine).save is Engine.save:
            raise skip(self.workshop.backend, "its engines cannot be kept")
        folder = self.workshop.folder()
        try:
            engine.save(folder)
        except NotImplementedError as error:
            raise skip(self.workshop.backend, "its engines cannot be kept") from error
        samples = [self._call(case, batch) for batch in (4, 1, 3)]
        answers = in_fresh_process(answers_of_kept, self.make_backend(), job, folder, samples)
        for sample, answer in zip(samples, answers, strict=True):
            self._expect(case, answer, self._answer(case, sample), 0.1)

    def test_an_engine_that_says_so_takes_over_other_weights(self) -> None:
        """With the weights that the module has now, an engine answers as the module does, and is not kept any more."""
        case = self._first_case()
        if not self.workshop.engine(case).refits:
            raise skip(self.workshop.backend, "its engines take no other weights")
        job = case.job(self.workshop.folder(), self.device)
        engine = self.workshop.build(job)
        try:
            for _ in range(2):
                with torch.no_grad():
                    for parameter in job.module.parameters():
                        parameter.mul_(1.5)
                engine.refit(state_of(job.module))
                for batch in (4, 1, 3):
                    sample = self._call(case, batch)
                    with torch.no_grad():
                        got = engine.run(*sample.args, **sample.kwargs)
                        wanted = job.forward(*sample.args, **sample.kwargs)
                    self._expect(case, got, wanted)
            try:
                engine.save(self.workshop.folder())
            except NotImplementedError:
                return
            raise AssertionError("an engine was saved with the weights that it was built with")
        finally:
            engine.close()

    def test_what_it_cannot_serve_ends_in_an_exception(self) -> None:
        """A module beyond it is refused or fails; the process goes on."""
        self._first_case()
        jobs = [case.job(self.workshop.folder(), self.device) for case in odd_cases()]
        in_fresh_process(outcomes, self.make_backend(), jobs)

    def _first_case(self) -> Case:
        cases = self.cases()
        case = next((one for one in cases if one.name in self.required), cases[0])
        self.workshop.engine(case)  # skips where there is none
        return case

    def _call(self, case: Case, batch: int, variant: int = 0) -> Sample:
        return case.call(batch, variant, self.device)

    def _answer(self, case: Case, sample: Sample) -> Any:
        with torch.no_grad():
            return self.workshop.engine(case).run(*sample.args, **sample.kwargs)

    def _module_answer(self, case: Case, sample: Sample) -> Any:
        with torch.no_grad():
            return self.workshop.job(case).forward(*sample.args, **sample.kwargs)

    def _expect(self, case: Case, got: Any, expected: Any, share: float = 1.0) -> None:
        """Fail unless an answer is within a share of the bound of the engine's precision."""
        bound = share * FLOORS[self.workshop.engine(case).precision]
        problem = mismatch(got, expected, bound)
        assert problem is None, problem


def _rows(batch: int, random: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (torch.randn(batch, 8, generator=random),), {}
