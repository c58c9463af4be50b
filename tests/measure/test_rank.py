"""The choice between accepted candidates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aitune.torch.measure import Contender, PairedTiming, preferred, rivals


def timing(low: float, high: float) -> PairedTiming:
    speedup = (low * high) ** 0.5
    return PairedTiming(
        speedup=speedup,
        low=low,
        high=high,
        confidence=0.99,
        basis="typical calls",
        blocks=10,
        fewest_blocks=8,
        candidate_seconds=1 / speedup,
        baseline_seconds=1.0,
        outcome="faster",
        min_gain=0.01,
        spread=0.01,
        busy=False,
        ended="decided",
        seconds=1.0,
    )


def contender(name: str, low: float = 1.4, high: float = 1.6, **facts: object) -> Contender:
    defaults = {"storable": True, "error_class": 0, "complexity": 0, "position": 0}
    return Contender(name=name, timing=timing(low, high), **{**defaults, **facts})


def test_the_faster_one_wins_whatever_speaks_for_the_other():
    fast = contender("fast", 1.8, 2.0, storable=False, error_class=3, complexity=9, position=9)
    assert preferred([contender("handy", 1.4, 1.6), fast]) is fast


@pytest.mark.parametrize(
    ("winner", "loser"),
    [
        ({"storable": True, "error_class": 2, "complexity": 9, "position": 9}, {"storable": False}),
        ({"error_class": 0, "complexity": 9, "position": 9}, {"error_class": 1}),
        ({"complexity": 0, "position": 9}, {"complexity": 1}),
        ({"position": 0}, {"position": 1}),
    ],
    ids=["storable", "exact", "simple", "listed first"],
)
def test_within_noise_the_first_difference_decides(winner, loser):
    # The loser looks faster, and its interval overlaps.
    wins, loses = contender("wins", 1.40, 1.60, **winner), contender("loses", 1.45, 1.65, **loser)
    assert preferred([wins, loses]) is preferred([loses, wins]) is wins


def test_an_interval_that_reaches_down_to_the_others_proves_nothing():
    handy, unsure = contender("handy", 1.4, 1.6), contender("unsure", 1.4, 2.2, storable=False)
    assert preferred([handy, unsure]) is handy


def test_a_proven_difference_of_less_than_two_percent_is_a_tie():
    handy, fast = contender("handy", 1.500, 1.501), contender("fast", 1.525, 1.530, storable=False)
    assert preferred([handy, fast]) is handy
    assert preferred([handy, fast], margin=0.01) is fast


def test_a_direct_comparison_counts_more_than_overlapping_intervals():
    handy, fast = contender("handy"), contender("fast", storable=False)
    assert preferred([handy, fast]) is handy
    assert preferred([handy, fast], {("fast", "handy"): timing(1.05, 1.07)}) is fast
    assert preferred([handy, fast], {("handy", "fast"): timing(1 / 1.07, 1 / 1.05)}) is fast
    assert preferred([handy, fast], {("fast", "handy"): timing(0.99, 1.02)}) is handy


def test_a_direct_comparison_undoes_a_difference_seen_over_the_original():
    handy, fast = contender("handy", 1.40, 1.45), contender("fast", 1.50, 1.55, storable=False)
    assert preferred([handy, fast]) is fast
    assert preferred([handy, fast], {("fast", "handy"): timing(0.99, 1.01)}) is handy


def test_beaten_by_anyone_is_beaten():
    first = contender("first", 1.3, 2.0, storable=False)
    middle = contender("middle", 1.5, 1.6, storable=False, position=1)
    slow = contender("slow", 1.2, 1.4)  # overlaps the first, but is slower than the middle one
    assert preferred([first, middle, slow]) is first


def test_direct_comparisons_that_go_in_a_circle_decide_nothing():
    names = ("a", "b", "c")
    three = [contender(name, position=place) for place, name in enumerate(names)]
    circle = {("a", "b"): timing(1.1, 1.2), ("b", "c"): timing(1.1, 1.2), ("c", "a"): timing(1.1, 1.2)}
    assert preferred(three, circle).name == "a"


def test_rivals_are_those_to_compare_directly_the_quickest_looking_first():
    a, b, c = contender("a", 1.4, 1.6), contender("b", 1.5, 1.7), contender("c", 1.0, 1.2)
    assert [rival.name for rival in rivals([a, b, c])] == ["b", "a"]


def test_nobody_and_namesakes_are_refused():
    with pytest.raises(ValueError, match="no contender"):
        preferred([])
    with pytest.raises(ValueError, match="same name"):
        preferred([contender("a"), contender("a")])


speeds = st.tuples(st.floats(0.5, 3.0), st.floats(1.0, 1.5)).map(lambda pair: (pair[0], pair[0] * pair[1]))
facts = st.tuples(st.booleans(), st.integers(0, 2), st.integers(0, 2), st.integers(0, 3))


@st.composite
def fields_of_contenders(draw):
    drawn = draw(st.lists(st.tuples(speeds, facts), min_size=1, max_size=6))
    field = [
        contender(f"c{n}", *speed, storable=kept, error_class=error, complexity=complexity, position=position)
        for n, (speed, (kept, error, complexity, position)) in enumerate(drawn)
    ]
    pairs = [(a.name, b.name) for a in field for b in field if a.name < b.name]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return field, {pair: timing(*draw(speeds)) for pair in chosen}


@given(fields_of_contenders(), st.randoms(use_true_random=False))
def test_the_order_of_the_contenders_does_not_matter(drawn, shuffler):
    field, direct = drawn
    shuffled = list(field)
    shuffler.shuffle(shuffled)
    assert preferred(shuffled, direct) is preferred(field, direct)
    assert rivals(shuffled, direct) == rivals(field, direct)


@given(fields_of_contenders())
def test_the_winner_is_never_beaten_over_the_original(drawn):
    field, _ = drawn
    assert all(other.timing.low < preferred(field).timing.high * 1.02 for other in field)
