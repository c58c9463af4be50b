"""Plain progress is one line for each thing that happened."""

import io

from aitune.torch.events import (
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
from aitune.torch.report.lines import PlainProgress


def lines_of(clock, *events, step=1.0):
    stream = io.StringIO()
    with PlainProgress(stream, clock) as progress:
        for event in events:
            progress(event)
            clock.now += step
    return [line.split(" s  ", 1)[1] for line in stream.getvalue().splitlines()]


def test_a_tune_reads_as_a_story(clock, trials):
    unsupported, _, accepted, *_ = trials
    assert lines_of(
        clock,
        TuneStarted(120.0),
        Recorded(1, 2),
        ModuleStarted("encoder", 0, 2, 1),
        GraphStarted("encoder", "graph0", "graph0(x: float32[4]) -> float32[2]"),
        StageStarted("encoder", "graph0", accepted.backend, "build"),
        StageStarted("encoder", "graph0", "", "reference"),
        StageStarted("encoder", "graph0", accepted.backend, "check"),
        TrialFinished("encoder", "graph0", accepted),
        TrialFinished("encoder", "graph0", unsupported),
        GraphChosen("encoder", "graph0", accepted.backend),
        GraphChosen("encoder", "graph1", "original"),
        ModuleFinished("encoder"),
        ModuleFinished("head", "the exporter\nfailed"),
        Note("a note"),
        TuneFinished(43.2),
    ) == [
        "tuning, for at most 2 min 0 s",
        "1 call recorded, the last of batch size 2",
        "module encoder (1 of 2), 1 graph",
        "encoder, graph0: graph0(x: float32[4]) -> float32[2]",
        "encoder, graph0: trying ONNXRuntimeBackend()",
        "encoder, graph0: reference of the original",
        "encoder, graph0: accepted: ONNXRuntimeBackend(); 1.35x [1.31, 1.38], error 3.2e-06",
        "encoder, graph0: unsupported: TensorRTBackend(); needs cuda, the module is on cpu",
        "encoder, graph0: chose ONNXRuntimeBackend(), 1.35x [1.31, 1.38], error 3.2e-06",
        "encoder, graph1: the original stays",
        "module head stays as it was: the exporter failed",
        "a note",
        "tuned in 43 s",
    ]


def test_recorded_calls_are_mentioned_every_few_seconds_only(clock):
    calls = [Recorded(call, None) for call in range(1, 101)]
    lines = lines_of(clock, TuneStarted(), *calls, Note("done"), step=0.1)
    assert lines == ["tuning", "1 call recorded", "51 calls recorded", "100 calls recorded", "done"]


def test_each_line_begins_with_the_seconds_since_the_start(clock):
    stream = io.StringIO()
    with PlainProgress(stream, clock) as progress:
        progress(TuneStarted())
        clock.now += 12.34
        progress(Note("later"))
    assert stream.getvalue() == "aitune    0.0 s  tuning\naitune   12.3 s  later\n"


def test_a_closed_stream_is_no_error(clock):
    stream = io.StringIO()
    with PlainProgress(stream, clock) as progress:
        progress(Note("before"))
        stream.close()
        progress(Note("after"))
        progress(Note("after"))


def test_no_stream_at_all_is_no_error(clock):
    with PlainProgress(None, clock) as progress:
        progress(Note("x"))
