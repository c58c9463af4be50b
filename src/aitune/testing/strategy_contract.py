"""The contract suite of strategies: what every strategy promises, as tests that its author inherits."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from aitune.testing.backends import FunctionBackend
from aitune.testing.bench import TimedModule, failing_backend, fake_bench, timed_backend
from aitune.testing.clock import Disturbance, FakeClock
from aitune.torch.backend import Backend
from aitune.torch.bench import Bench
from aitune.torch.trial import ORIGINAL, Trial
from aitune.torch.tune_strategy import TuneStrategy

__all__ = ["StrategyContract"]

_RUNS = 10
_BUSY = Disturbance(noise=0.03, noise_hold=0.2, burst_rate=0.5)


@dataclass(frozen=True)
class Choice:
    """What came of one run of a strategy.

    Attributes:
        trial: What it returned; None if it raised.
        engines: How many engines were open when the bench was left.
    """

    trial: Trial | None
    engines: int

    @property
    def backend(self) -> str:
        """The description of what was chosen, ``original``, or ``raised``."""
        return "raised" if self.trial is None else self.trial.backend


class StrategyContract:
    """Tests of one strategy. Subclass it under a name that pytest collects, and implement :meth:`make_strategy`.

    Candidates are functions that take time on a fake clock, so that nothing depends on the machine.

    Attributes:
        raises_failures: Whether the strategy raises what a candidate failed with, instead of leaving the original.
        uses_a_gain: Whether it takes the only candidate there is, if that is right and faster.
    """

    raises_failures: ClassVar[bool] = False
    uses_a_gain: ClassVar[bool] = True

    def make_strategy(self, backends: Sequence[Backend[Any]]) -> TuneStrategy:
        """Return a new strategy over some candidates, everything else at its default.

        Args:
            backends: At least one; a strategy over fewer takes the first ones.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement make_strategy()")

    # ------------------------------------------------------------------------------------------ what it chooses

    def test_a_right_and_faster_candidate_is_used(self) -> None:
        """What is on offer is taken: its trial is an accepted one of the bench."""
        choice = self._choose([timed_backend("quick", 0.5)])
        if self.uses_a_gain:
            assert "quick" in choice.backend, f"chose {choice.backend}, though a right candidate takes half the time"
        assert choice.engines == (choice.backend != ORIGINAL), f"{choice.engines} engines are open after the choice"

    def test_a_wrong_candidate_is_never_chosen(self) -> None:
        """However fast it is."""
        self._stays([timed_backend("wrong", 0.1, lambda x: x * 2.01)])
        self._stays([timed_backend("other shape", 0.1, lambda x: x[:1] * 2)])
        self._stays([timed_backend("raises", 0.1, _raise)])

    def test_a_failed_candidate_is_never_chosen(self) -> None:
        """A build that fails costs that candidate alone."""
        self._stays([failing_backend()])
        self._stays([failing_backend("no memory", MemoryError())])

    def test_a_slower_candidate_is_never_chosen(self) -> None:
        """Nor one that is equally fast: the original stays."""
        for fraction in (1.0, 1.05, 2.0):
            self._stays([timed_backend("slow", fraction)], raising=False)

    def test_a_good_one_among_bad_ones_is_found(self) -> None:
        """Failures of others do not matter."""
        bad = [failing_backend(), timed_backend("wrong", 0.1, lambda x: x), timed_backend("slow", 1.5)]
        choice = self._choose([*bad, timed_backend("good", 0.5)])
        allowed = ("good", ORIGINAL, "raised") if self.raises_failures else ("good", ORIGINAL)
        assert any(name in choice.backend for name in allowed), f"chose {choice.backend}"

    def test_without_performance_validation_a_wrong_one_is_still_refused(self) -> None:
        """The switch gives up the speed, not the values."""
        wrong = [timed_backend("wrong", 0.1, lambda x: x * 2.01)]
        strategy = self.make_strategy(wrong).enable_performance_validation(False)
        choice = self._run(strategy, wrong)
        assert choice.backend in (ORIGINAL, "raised"), f"chose {choice.backend}"

    def test_the_choice_is_stable_on_a_noisy_machine(self) -> None:
        """Ten runs choose the same ten times, also between candidates that are equally fast."""
        chosen = set()
        for seed in range(_RUNS):
            candidates = [timed_backend("one", 0.5), timed_backend("twin", 0.5), timed_backend("third", 0.8)]
            module = TimedModule(FakeClock(seed, _BUSY))
            chosen.add(self._run(self.make_strategy(candidates), candidates, module=module).backend)
        assert len(chosen) == 1, f"{_RUNS} runs chose {', '.join(sorted(chosen))}"

    def test_a_slower_one_is_not_chosen_on_a_noisy_machine(self) -> None:
        """Noise, drift and stalls do not make a candidate look faster than it is."""
        for seed in range(_RUNS):
            self._stays([timed_backend("slower", 1.05)], raising=False, module=TimedModule(FakeClock(seed, _BUSY)))

    # --------------------------------------------------------------------------------------------- how it behaves

    def test_no_engine_stays_open_but_the_chosen_one(self) -> None:
        """Losers are closed, whatever their number."""
        candidates = [timed_backend(f"c{number}", 0.9 - number / 10) for number in range(4)]
        choice = self._choose(candidates)
        assert choice.engines == (choice.backend not in (ORIGINAL, "raised")), f"{choice.engines} engines are open"

    def test_it_keeps_nothing_of_a_run(self) -> None:
        """Its attributes are as before, and the bench can go."""
        candidates = [timed_backend("quick", 0.5), timed_backend("quicker", 0.4)]
        strategy = self.make_strategy(candidates)
        before = _contents(strategy)
        bench = fake_bench(strategy)
        with bench:
            self._chosen(strategy, bench)
        assert _contents(strategy) == before, "choose() changed an attribute of the strategy"
        gone = weakref.ref(bench)
        del bench
        gc.collect()
        assert gone() is None, "the strategy keeps the bench of a run"

    def test_one_instance_serves_two_graphs(self) -> None:
        """The second choice is what a new instance would choose."""
        candidates = [timed_backend("a", 0.8), timed_backend("b", 0.6)]
        strategy = self.make_strategy(candidates)
        first, second = self._run(strategy, candidates), self._run(strategy, candidates)
        assert first.backend == second.backend, f"chose {first.backend}, then {second.backend}"

    def test_it_describes_itself(self) -> None:
        """One line, as it would be written: the same for equal ones, another when a switch is set."""
        candidates = [timed_backend("a", 0.5)]
        text, twin = (self.make_strategy(candidates).describe() for _ in range(2))
        assert text.startswith(type(self.make_strategy(candidates)).__name__), f"described as {text!r}"
        assert text == twin, f"equal ones are described as {text!r} and {twin!r}"
        assert not any(part in text for part in ("\n", " at 0x")), f"described as {text!r}"
        assert self.make_strategy(candidates).enable_correctness_check(False).describe() != text

    def test_switches_return_the_strategy_and_reach_the_rules(self) -> None:
        """They change it in place, so they work as statements too."""
        strategy = self.make_strategy([timed_backend("a", 0.5)])
        switches = {
            "performance": strategy.enable_performance_validation,
            "correctness": strategy.enable_correctness_check,
            "find_batch_size": strategy.enable_find_max_batch_size,
        }
        for rule, switch in switches.items():
            for value in (False, True):
                assert switch(value) is strategy, f"the switch of {rule} does not return the strategy"
                assert getattr(strategy.rules, rule) is value, f"the switch of {rule} does not reach the rules"

    def test_planning_builds_nothing(self) -> None:
        """What would be tried is known without trying."""
        candidates = [timed_backend("a", 0.5), timed_backend("b", 0.5)]
        planned = self.make_strategy(candidates).candidates(torch.device("cpu"))
        assert isinstance(planned, tuple), f"plans {planned!r}, no tuple"
        assert all(isinstance(one, Backend) for one in planned), f"plans {planned!r}"
        assert not any(one.builds for one in candidates), "candidates() built an engine"

    def test_after_the_deadline_nothing_is_begun(self) -> None:
        """What was accepted before is used; else the original stays."""
        late = [timed_backend("late", 0.5), timed_backend("later", 0.5)]
        module = TimedModule()
        module.clock.sleep(10.0)
        choice = self._run(self.make_strategy(late), late, module=module, deadline=5.0)
        assert choice.backend in (ORIGINAL, "raised"), f"chose {choice.backend} after the deadline"
        assert not any(one.builds for one in late), "a candidate was built after the deadline"
        both = [timed_backend("in time", 0.9), timed_backend("late", 0.1)]
        choice = self._run(self.make_strategy(both), both, deadline=1e-6)
        assert choice.backend in (ORIGINAL, "raised") or "in time" in choice.backend, f"chose {choice.backend}"
        assert both[1].builds == 0, "a candidate was built after the deadline"

    # ------------------------------------------------------------------------------------------------------------

    def _choose(self, candidates: Sequence[FunctionBackend]) -> Choice:
        return self._run(self.make_strategy(candidates), candidates)

    def _run(self, strategy: TuneStrategy, candidates: Sequence[FunctionBackend], **options: Any) -> Choice:
        """Run a strategy once; the engine that it chose is closed afterwards."""
        with fake_bench(strategy, **options) as bench:
            trial = self._chosen(strategy, bench)
            engine = None if trial is None else bench.take(trial)
        choice = Choice(trial, sum(one.open_engines for one in candidates))
        if engine is not None:
            engine.close()
        assert not any(one.open_engines for one in candidates), "an engine is open that nobody chose"
        return choice

    def _chosen(self, strategy: TuneStrategy, bench: Bench) -> Trial | None:
        try:
            trial = strategy.choose(bench)
        except Exception as error:
            if not self.raises_failures:
                raise AssertionError(f"choose() raised {error!r} instead of leaving the original") from error
            return None
        known = trial.backend == ORIGINAL or any(trial is one for one in bench.trials)
        assert known, f"choose() returned {trial!r}, no trial of this bench"
        assert trial.accepted, f"choose() returned a trial that is {trial.verdict}"
        return trial

    def _stays(self, candidates: Sequence[FunctionBackend], *, raising: bool = True, **options: Any) -> None:
        choice = self._run(self.make_strategy(candidates), candidates, **options)
        allowed = (ORIGINAL, "raised") if raising and self.raises_failures else (ORIGINAL,)
        assert choice.backend in allowed, f"chose {choice.backend}"


def _raise(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError(f"this engine does not run {tuple(x.shape)}")


def _contents(strategy: TuneStrategy) -> dict[str, Any]:
    """Return the attributes of a strategy, with copies of the containers among them."""
    values = vars(strategy).items()
    return {name: value.copy() if isinstance(value, (list, dict, set)) else value for name, value in values}
