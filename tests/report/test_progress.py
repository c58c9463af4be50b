"""``progress=`` chooses what is shown, and nothing of it can disturb a tune."""

import contextlib
import io
import sys
import threading

import pytest

from aitune.exceptions import AITuneUserInputError
from aitune.torch.events import Note, TuneStarted, listening, publish
from aitune.torch.report.progress import can_draw, progress_listener


@pytest.fixture(autouse=True)
def no_ci(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def shown(monkeypatch, progress, stream):
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_listener(progress) as listener, listening(listener):
        publish(TuneStarted())
        publish(Note("a note"))
    return "" if stream is None else stream.getvalue()


def test_none_draws_on_a_terminal(terminal, monkeypatch):
    assert "\x1b[" in shown(monkeypatch, None, terminal)


def test_none_shows_nothing_elsewhere(monkeypatch):
    assert shown(monkeypatch, None, io.StringIO()) == ""


def test_true_draws_on_a_terminal(terminal, monkeypatch):
    assert "\x1b[" in shown(monkeypatch, True, terminal)


def test_true_writes_plain_lines_elsewhere(monkeypatch):
    text = shown(monkeypatch, True, io.StringIO())
    assert text.endswith("a note\n")
    assert "\x1b" not in text


def test_false_shows_nothing(terminal, monkeypatch):
    assert shown(monkeypatch, False, terminal) == ""


def test_a_callable_gets_every_event_and_nothing_is_drawn(terminal, monkeypatch):
    events = []
    assert shown(monkeypatch, events.append, terminal) == ""
    assert events == [TuneStarted(), Note("a note")]


def test_what_a_callable_raises_reaches_the_tune():
    def stop(event):
        raise RuntimeError("enough")

    with progress_listener(stop) as listener, listening(listener):
        with pytest.raises(RuntimeError, match="enough"):
            publish(TuneStarted())


@pytest.mark.parametrize("progress", ["yes", 1, 0.5, []])
def test_anything_else_is_refused_before_anything_runs(progress):
    with pytest.raises(AITuneUserInputError, match="progress must be True, False, None or a callable"):
        progress_listener(progress)


@pytest.mark.parametrize("progress", [None, True, False])
def test_a_process_without_standard_error_is_fine(progress, monkeypatch):
    shown(monkeypatch, progress, None)


@pytest.mark.parametrize("progress", [None, True, False])
def test_a_closed_standard_error_is_fine(progress, monkeypatch):
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_listener(progress) as listener, listening(listener):
        publish(Note("x"))


@pytest.mark.parametrize("environ", [{"CI": "true"}, {"CI": "1"}, {"TERM": "dumb"}, {"TERM": "unknown"}])
def test_logs_and_dumb_terminals_are_not_drawn_on(terminal, environ):
    assert not can_draw(terminal, environ)


@pytest.mark.parametrize("environ", [{}, {"CI": "false"}, {"TERM": "xterm"}, {"NO_COLOR": "1"}])
def test_other_terminals_are(terminal, environ):
    assert can_draw(terminal, environ)


def test_no_color_takes_the_colour_only(terminal, monkeypatch, trials):
    from aitune.torch.events import TrialFinished

    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_listener(None) as listener:
        listener(TrialFinished("m", "g", trials[2]))
        assert "  accepted       ONNXRuntimeBackend()" in terminal.screen()[2]
    assert "\x1b[32m" not in terminal.getvalue()


def test_a_tune_within_a_tune_is_shown_once(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with contextlib.ExitStack() as tunes:
        for _ in range(2):
            tunes.enter_context(listening(tunes.enter_context(progress_listener(True))))
        publish(Note("once"))
    assert stream.getvalue().count("once") == 1


def test_a_live_tune_within_a_live_tune_leaves_the_screen_whole(terminal, monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_listener(None) as outer, listening(outer):
        publish(TuneStarted())
        with progress_listener(None) as inner, listening(inner):
            publish(TuneStarted())
            publish(Note("once"))
        publish(Note("twice"))
    assert sys.stderr is terminal
    assert terminal.screen() == ["once", "twice", ""]


def test_after_a_tune_the_next_one_is_shown_again(monkeypatch):
    for _ in range(2):
        assert "a note" in shown(monkeypatch, True, io.StringIO())


def test_two_tunes_in_two_threads_share_a_terminal(terminal, monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal)

    def other():
        with progress_listener(True) as listener, listening(listener):
            publish(Note("from the other thread"))

    with progress_listener(None) as listener, listening(listener):
        publish(TuneStarted())
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        lines = terminal.screen()
        assert lines[0].endswith("from the other thread")
        assert lines[1].startswith("aitune 0:00  recording calls")
    assert sys.stderr is terminal


def test_it_does_not_draw_where_rich_draws_already(terminal, monkeypatch):
    from rich.console import Console
    from rich.live import Live

    monkeypatch.setattr(sys, "stderr", terminal)
    with Live("theirs", console=Console(file=terminal, force_terminal=True), auto_refresh=False):
        assert not can_draw(sys.stderr)
