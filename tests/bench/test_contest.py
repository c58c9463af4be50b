"""Between accepted candidates that are close, what does not vary decides; time is a fake clock's."""

from __future__ import annotations

import pytest

from aitune.testing import fake_bench, timed_backend
from aitune.torch import MaxThroughputStrategy
from aitune.torch.bench import Rules

FIXED = Rules(find_batch_size=False)


def chosen(*backends):
    with fake_bench(rules=FIXED) as bench:
        return MaxThroughputStrategy(backends).choose(bench), bench.notes


@pytest.mark.parametrize("slower", [0.5005, 0.509])
def test_within_two_percent_the_more_precise_one_is_taken(slower):
    quick, precise = timed_backend("quick", 0.5, precision="float16"), timed_backend("precise", slower)
    for order in ((quick, precise), (precise, quick)):
        assert "precise" in chosen(*order)[0].backend


def test_beyond_two_percent_the_quicker_one_is_taken():
    quick, precise = timed_backend("quick", 0.5, precision="float16"), timed_backend("precise", 0.515)
    for order in ((quick, precise), (precise, quick)):
        assert "quick" in chosen(*order)[0].backend


def test_what_ties_give_away_does_not_add_up():
    """Each is less than two percent slower than the one before; the last one is nearly four behind the first."""
    steps = [("bfloat16", 0.5), ("float16", 0.509), ("float32", 0.518)]
    trial, _ = chosen(*(timed_backend(precision, fraction, precision=precision) for precision, fraction in steps))
    assert trial.precision == "float16"


def test_the_contest_is_on_the_record():
    trial, notes = chosen(timed_backend("a", 0.5), timed_backend("b", 0.5))
    assert "'a'" in trial.backend
    (note,) = [note for note in notes if "head to head" in note]
    assert note.endswith("head to head: 1.00x [1.00, 1.00]")
