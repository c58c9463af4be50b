"""Where a tune stands follows from its events alone."""

import pytest

from aitune.torch.events import (
    Event,
    GraphChosen,
    GraphStarted,
    ModuleFinished,
    ModuleStarted,
    Note,
    Recorded,
    StageStarted,
    TrialFinished,
    TuneFinished,
    TuneStarted,
)
from aitune.torch.report.situation import Situation


def after(*events):
    situation = Situation(started=0.0)
    for now, event in enumerate(events, 1):
        situation = situation.after(event, float(now))
    return situation


def test_a_stage_is_known_with_its_beginning():
    situation = after(
        TuneStarted(60.0),
        ModuleStarted("m", 0, 2, 1),
        GraphStarted("m", "g", ""),
        StageStarted("m", "g", "A()", "build"),
    )
    assert (situation.module, situation.graph, situation.backend, situation.stage) == (
        "m",
        "g",
        "A()",
        "build",
    )
    assert (situation.place, situation.total, situation.time_limit) == (0, 2, 60.0)
    assert situation.since == 4.0
    assert situation.elapsed(11.0) == 10.0


def test_finished_trials_are_kept_until_the_next_graph(trials):
    finished = [TrialFinished("m", "g", trial) for trial in trials[:2]]
    assert after(GraphStarted("m", "g", ""), *finished).trials == trials[:2]
    assert after(GraphStarted("m", "g", ""), *finished, GraphStarted("m", "h", "")).trials == ()


@pytest.mark.parametrize("end", [GraphChosen("m", "g", "A()"), ModuleFinished("m"), TuneFinished(1.0)])
def test_nothing_is_tried_after_an_end(end):
    situation = after(TuneStarted(), StageStarted("m", "g", "A()", "build"), end)
    assert (situation.backend, situation.stage) == ("", "")


def test_calls_are_counted():
    assert after(TuneStarted(), Recorded(1, None), Recorded(7, 2)).calls == 7


@pytest.mark.parametrize("event", [Note("x"), Event()])
def test_other_events_change_nothing(event):
    situation = after(TuneStarted())
    assert situation.after(event, 9.0) is situation


def test_a_tune_within_a_tune_leaves_the_clock_of_the_outer_one_alone():
    inside = after(TuneStarted(60.0), TuneStarted(5.0))
    assert (inside.started, inside.time_limit, inside.tunes) == (1.0, 60.0, 2)
    assert after(TuneStarted(60.0), TuneStarted(5.0), TuneFinished(1.0), TuneFinished(2.0)).tunes == 0


def test_a_second_tune_starts_anew():
    situation = after(TuneStarted(60.0), Recorded(7, 2), TuneFinished(2.0), TuneStarted())
    assert (situation.started, situation.time_limit, situation.calls) == (4.0, None, 0)


def test_what_is_left_follows_from_what_was_tried(trials):
    events = [TuneStarted(), ModuleStarted("m", 0, 2, 2), GraphStarted("m", "g", "", 4)]
    assert after(*events).left(9.0) is None, "nothing was tried yet"
    begun = after(*events, TrialFinished("m", "g", trials[0]), TrialFinished("m", "g", trials[1]))
    # 2 trials in 10 s; 2 more here, 4 in the module's other graph, 4 in the other module
    assert begun.left(13.0) == 10 * 5.0


def test_the_time_limit_is_the_most_that_is_left(trials):
    begun = after(TuneStarted(20.0), GraphStarted("m", "g", "", 4), TrialFinished("m", "g", trials[0]))
    assert begun.left(12.0) == 20.0 - 11.0
