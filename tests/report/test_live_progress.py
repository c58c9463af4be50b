"""The live display stays in the lowest lines, whatever else is printed, and goes when the tune ends."""

import io
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from aitune.torch.events import (
    GraphChosen,
    GraphStarted,
    ModuleFinished,
    ModuleStarted,
    Note,
    Recorded,
    StageStarted,
    TrialFinished,
    TuneStarted,
)
from aitune.torch.report.live import LiveProgress


@pytest.fixture
def screen(terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    return terminal


@pytest.fixture
def attached(terminal, monkeypatch):
    """Makes both standard streams end at the terminal; to be called in the test, pytest sets them before."""

    def attach():
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setattr(sys, "stdout", terminal)

    return attach


START = (
    TuneStarted(120.0),
    ModuleStarted("encoder", 0, 2, 1),
    GraphStarted("encoder", "graph0", ""),
    StageStarted("encoder", "graph0", "OpenVINOBackend()", "build"),
)


def feed(progress, *events):
    for event in events:
        progress(event)


def test_it_shows_where_the_tune_stands(screen, clock, trials):
    with LiveProgress(screen, clock) as progress:
        feed(progress, *START)
        clock.now += 75.0
        feed(
            progress,
            TrialFinished("encoder", "graph0", trials[0]),
            TrialFinished("encoder", "graph0", trials[2]),
        )
        feed(progress, StageStarted("encoder", "graph0", "OpenVINOBackend()", "check"))
        assert screen.screen() == [
            "aitune 1:15 of 2:00  encoder (1 of 2)  graph0",
            "  check          OpenVINOBackend()  0 s",
            "  accepted       ONNXRuntimeBackend()  1.35x [1.31, 1.38], error 3.2e-06",
            "  unsupported    TensorRTBackend()  needs cuda, the module is on cpu",
            "",
        ]


def test_while_calls_are_recorded_it_counts_them(screen, clock):
    with LiveProgress(screen, clock) as progress:
        feed(progress, TuneStarted(), Recorded(12, 2))
        assert screen.screen()[0] == "aitune 0:00  recording calls: 12"


def test_choices_failures_and_notes_stay_and_the_rest_goes(screen, clock, trials):
    with LiveProgress(screen, clock) as progress:
        feed(progress, *START, TrialFinished("encoder", "graph0", trials[2]))
        feed(progress, GraphChosen("encoder", "graph0", "ONNXRuntimeBackend()"), ModuleFinished("encoder"))
        feed(progress, ModuleFinished("head", "no such operator"), Note("mind the gap"))
    assert screen.screen() == [
        "encoder, graph0: chose ONNXRuntimeBackend(), 1.35x [1.31, 1.38], error 3.2e-06",
        "module head stays as it was: no such operator",
        "mind the gap",
        "",
    ]


def test_what_is_printed_and_logged_appears_above_it_unharmed(screen, clock, attached):
    attached()
    logger = logging.getLogger("somebody")
    handler = logging.StreamHandler(screen)
    logging.getLogger("somebody.else").addHandler(handler)
    logger.addHandler(handler)
    try:
        with LiveProgress(screen, clock) as progress:
            feed(progress, *START)
            print("printed [bold] text, longer than a line of the terminal is wide" + " and longer" * 5)
            logger.warning("logged")
            print("to stderr", file=sys.stderr)
            assert screen.screen()[-6:] == [
                "printed [bold] text, longer than a line of the terminal is wide" + " and longer" * 5,
                "logged",
                "to stderr",
                "aitune 0:00 of 2:00  encoder (1 of 2)  graph0",
                "  build          OpenVINOBackend()  0 s",
                "",
            ]
        assert handler.stream is screen
    finally:
        logging.getLogger("somebody.else").removeHandler(handler)
        logger.removeHandler(handler)


def test_a_progress_bar_of_somebody_else_keeps_its_line(screen, clock, attached):
    attached()
    with LiveProgress(screen, clock) as progress:
        feed(progress, *START)
        for percent in (10, 50, 100):
            sys.stderr.write(f"\rbar {percent}%")
            sys.stderr.flush()
            progress(Recorded(percent, None))  # draws
            assert screen.screen()[-1] == f"bar {percent}%"
        sys.stderr.write("\n")
        assert screen.screen()[0] == "bar 100%"
        assert screen.screen()[1].startswith("aitune 0:00")


def test_a_note_never_lands_in_the_middle_of_somebody_elses_line(screen, clock, attached):
    attached()
    with LiveProgress(screen, clock) as progress:
        feed(progress, *START)
        sys.stdout.write("half a line")
        progress(Note("a note"))
        assert screen.screen()[:2] == ["half a line", "a note"]


def test_the_streams_are_put_back_also_after_an_exception(screen, clock, attached):
    attached()

    def interrupted():
        with LiveProgress(screen, clock) as progress:
            feed(progress, *START)
            assert sys.stderr is not screen
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert sys.stderr is screen
    assert sys.stdout is screen
    assert screen.screen() == [""]
    assert not [thread for thread in threading.enumerate() if thread.name == "aitune-progress"]


def test_what_kept_the_stream_may_go_on_writing_to_it(screen, clock, attached):
    attached()
    with LiveProgress(screen, clock) as progress:
        feed(progress, *START)
        kept = sys.stderr
    kept.write("later\n")
    assert screen.screen() == ["later", ""]
    assert kept.isatty()


def test_a_stream_that_somebody_replaced_meanwhile_stays_as_they_set_it(screen, clock, monkeypatch, attached):
    attached()
    other = io.StringIO()
    with LiveProgress(screen, clock):
        monkeypatch.setattr(sys, "stdout", other)
    assert sys.stdout is other


def test_standard_output_in_a_file_is_left_alone(terminal, clock, monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "stdout", file)
    with LiveProgress(terminal, clock):
        assert sys.stdout is file


def test_a_terminal_that_goes_away_costs_the_display_and_nothing_else(screen, clock, attached):
    attached()
    with LiveProgress(screen, clock) as progress:
        feed(progress, *START)
        screen.close()
        feed(progress, Note("after"), *START)
        with pytest.raises(ValueError, match="closed"):  # the program's own matter
            sys.stdout.write("x\n")


def test_the_cursor_is_never_hidden(screen, clock):
    with LiveProgress(screen, clock) as progress:
        feed(progress, *START)
    assert "\x1b[?25l" not in screen.getvalue()


def test_a_low_terminal_shows_the_latest_trials(screen, clock, trials, monkeypatch):
    monkeypatch.setenv("LINES", "6")
    monkeypatch.setenv("COLUMNS", "40")
    with LiveProgress(screen, clock) as progress:
        feed(progress, *START, *[TrialFinished("encoder", "graph0", trial) for trial in trials])
        lines = screen.screen()
        assert len(lines) == 6
        assert lines[2].startswith("  skipped        TorchEagerBackend()")
        assert lines[4] == "  and 5 earlier"
        assert max(map(len, lines)) < 40


def test_time_goes_on_without_events(screen):
    with LiveProgress(screen) as progress:
        feed(progress, *START)
        drawn = len(screen.getvalue())
        deadline = time.monotonic() + 20.0
        while len(screen.getvalue()) == drawn and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(screen.getvalue()) > drawn


def test_threads_may_print_and_publish_at_once(screen, clock, attached):
    attached()

    def work(number):
        for step in range(50):
            print(f"thread {number} step {step}")
            progress(Recorded(step, None))

    with LiveProgress(screen, clock) as progress:
        feed(progress, TuneStarted())
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    words = " ".join(screen.screen()).split()
    assert words.count("thread") == 200
    assert "aitune" not in words


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_ctrl_c_leaves_a_real_terminal_clean(tmp_path):
    import pty

    script = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in what a shell starts in the background
        "from aitune.torch.events import *\n"
        "from aitune.torch.report.progress import progress_listener\n"
        "stderr = sys.stderr\n"
        "try:\n"
        "    with progress_listener(None) as listener, listening(listener):\n"
        "        publish(TuneStarted())\n"
        "        publish(Note('ready'))\n"
        "        time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', sys.stderr is stderr, file=sys.stderr)\n"
    )
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "CI"} | {"TERM": "xterm"}
    child = subprocess.Popen([sys.executable, "-c", script], stderr=theirs, env=environment)
    os.close(theirs)
    seen = b""
    try:
        while b"interrupted True\r\n" not in seen:
            was_ready = b"ready" in seen
            seen += os.read(ours, 4096)
            if b"ready" in seen and not was_ready:
                child.send_signal(signal.SIGINT)
        assert child.wait(60) == 0
    finally:
        child.kill()
        child.wait()
        os.close(ours)
    assert b"recording calls" in seen
    assert re.search(rb"\x1b\[J(ready\r\n)?interrupted True\r\n$", seen)  # in the first case before a redraw
