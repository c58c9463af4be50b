"""The contract suite of strategies fails one for each fault that it is there to find."""

from __future__ import annotations

import pytest

import aitune.torch as ait
from aitune.testing import StrategyContract
from aitune.torch.tune_strategy.base import ListStrategy


class Broken(ListStrategy):
    """Right, but for what ``fault`` names."""

    fault = ""

    def choose(self, bench):
        if self.fault == "keeps":
            self.bench = bench
        if self.fault == "counts":
            self.count = getattr(self, "count", 0) + 1
        if self.fault == "never":
            return bench.original()
        trials = [bench.try_(backend) for backend in self.backends]
        if self.fault == "first":
            return trials[0]
        if self.fault == "invents":
            return ait.Trial(backend="other", verdict=ait.Verdict.accepted)
        accepted = [trial for trial in trials if trial.accepted]
        if self.fault == "raises" and not accepted:
            raise RuntimeError("nothing to choose from")
        if self.fault == "naive" and accepted:
            return max(accepted, key=lambda trial: trial.throughput)
        if self.fault == "alternates" and accepted:
            self.count = getattr(self, "count", 0) + 1
            return accepted[self.count % len(accepted)]
        return bench.best(accepted) if accepted else bench.original()

    def candidates(self, device):
        return list(self.backends) if self.fault == "plans" else self.backends

    def describe(self):
        if self.fault == "address":
            return f"{type(self).__name__}({object()})"
        return "Broken\n()" if self.fault == "lines" else super().describe()

    def enable_performance_validation(self, enabled=True):
        super().enable_performance_validation(enabled)
        return None if self.fault == "switch" else self

    @property
    def rules(self):
        rules = super().rules
        return ait_rules(rules) if self.fault in ("lax", "careless") else rules


def ait_rules(rules):
    import dataclasses

    return dataclasses.replace(rules, correctness=False, performance=False)


class Contract(StrategyContract):
    fault = ""

    def make_strategy(self, backends):
        strategy = Broken(backends)
        strategy.fault = self.fault
        return strategy


class TestRightOne(Contract):
    """No fault at all."""


@pytest.mark.parametrize(
    ("fault", "method", "says"),
    [
        ("never", "test_a_right_and_faster_candidate_is_used", "chose original"),
        ("lax", "test_a_wrong_candidate_is_never_chosen", "wrong"),
        ("first", "test_a_wrong_candidate_is_never_chosen", "that is wrong"),
        ("first", "test_a_failed_candidate_is_never_chosen", "build_failed"),
        ("raises", "test_a_failed_candidate_is_never_chosen", "nothing to choose from"),
        ("invents", "test_a_failed_candidate_is_never_chosen", "no trial of this bench"),
        ("lax", "test_a_slower_candidate_is_never_chosen", "slow"),
        ("lax", "test_a_slower_one_is_not_chosen_on_a_noisy_machine", "slower"),
        ("raises", "test_a_slower_candidate_is_never_chosen", "raised"),
        ("careless", "test_without_performance_validation_a_wrong_one_is_still_refused", "wrong"),
        ("naive", "test_the_choice_is_stable_on_a_noisy_machine", "10 runs chose"),
        ("keeps", "test_it_keeps_nothing_of_a_run", "attribute"),
        ("counts", "test_it_keeps_nothing_of_a_run", "attribute"),
        ("alternates", "test_one_instance_serves_two_graphs", "then"),
        ("address", "test_it_describes_itself", "described as"),
        ("lines", "test_it_describes_itself", "described as"),
        ("switch", "test_switches_return_the_strategy_and_reach_the_rules", "does not return"),
        ("plans", "test_planning_builds_nothing", "no tuple"),
    ],
)
def test_a_faulty_strategy_is_found(fault, method, says):
    contract = type("C", (Contract,), {"fault": fault})()
    with pytest.raises(AssertionError) as caught:
        getattr(contract, method)()
    assert says in str(caught.value)
