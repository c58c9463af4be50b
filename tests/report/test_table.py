"""The table says at once what was chosen, and of every other candidate why it was not."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aitune.torch.report import EndToEnd, GraphResult, ModuleResult, TuneResult
from aitune.torch.report.columns import _wrapped
from aitune.torch.report.table import as_text
from aitune.torch.trial import Trial, Verdict

WIDTHS = [80, 100, 160]


def squeezed(text):
    """Return text without what wrapping adds."""
    return re.sub(r"\s+", "", text)


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_is_wider_than_asked_for_and_none_ends_in_blanks(result, width):
    lines = as_text(result, width).splitlines()
    assert max(map(len, lines)) <= width
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize("width", WIDTHS)
def test_it_is_plain_text(result, width):
    assert "\x1b" not in as_text(result, width)
    assert as_text(result, width, ascii_only=True).isascii()


@pytest.mark.parametrize("width", WIDTHS)
def test_the_chosen_candidate_is_marked_and_first(result, width):
    lines = as_text(result, width).splitlines()
    marked = [line for line in lines if line.startswith(">")]
    assert len(marked) == 1
    assert "ONNXRuntimeBackend()" in marked[0]
    assert "accepted" in marked[0]
    assert "backend" in lines[lines.index(marked[0]) - 1]


@pytest.mark.parametrize("width", WIDTHS)
def test_every_verdict_is_whole_and_in_one_column(result, trials, width):
    lines = as_text(result, width).splitlines()
    columns = set()
    for trial in trials:
        found = [match.start() for line in lines if (match := re.search(rf"  ({trial.verdict})(\s|$)", line))]
        assert len(found) == 1, trial.verdict
        columns.update(found)
    assert len(columns) == 1


@pytest.mark.parametrize("width", WIDTHS)
def test_a_backend_is_wrapped_before_an_option_and_never_cut(result, trials, width):
    lines = as_text(result, width).splitlines()
    column = next(line.index("verdict") for line in lines if line.lstrip().startswith("backend"))
    left = squeezed("".join(line[1:column].replace("float32", "").replace("bfloat16 ", "") for line in lines))
    for trial in trials:
        assert trial.backend.split("(")[0] in left
        assert all(any(option in line for line in lines) for option in re.findall(r"\w+=[^,)]*", trial.backend))


@pytest.mark.parametrize("width", WIDTHS)
def test_long_reasons_are_wrapped_whole_below_their_verdict(result, trials, width):
    lines = as_text(result, width).splitlines()
    column = next(line.index("verdict") for line in lines if line.lstrip().startswith("backend"))
    right = squeezed("".join(line[column:] for line in lines))
    for trial in trials:
        assert squeezed(trial.reason) in right


@pytest.mark.parametrize("width", WIDTHS)
def test_the_figures_are_there(result, width):
    text = as_text(result, width)
    for figure in (
        "3.2e-06",
        "1e-04",
        "1.35x",
        "[1.31, 1.38]",
        "12.3 ms",
        "batch 8",
        "4.1 s",
        "float32",
        "0.21",
    ):
        assert figure in text


def test_a_wide_table_has_one_line_of_figures_a_candidate(result):
    line = next(line for line in as_text(result, 160).splitlines() if line.startswith(">"))
    assert re.sub(r"\s{2,}", "|", line) == (
        ">|ONNXRuntimeBackend()|float32|accepted|3.2e-06 (1e-04)|1.35x [1.31, 1.38]|12.3 ms, batch 8|4.1 s"
    )


def test_modules_graphs_and_the_whole_have_their_lines(result):
    text = as_text(result, 120)
    for line in (
        "Tuned 1 of 2 modules in 43 s",
        "encoder (BertModel): tuned",
        "graph0  in:  input_ids: int64[batch0=1..8, dim0=8..64], return_dict = True",
        "        out: float32[batch0=1..8, 384]",
        "        runs ONNXRuntimeBackend(), 1.35x [1.31, 1.38], error 3.2e-06",
        "  note: graph note",
        "        runs the original, as before",
        "head (Linear): not tuned, runs as before",
        "  why: the exporter does not know aten::foo",
        "End to end: 1.28x [1.25, 1.31], 41.2 ms before, 32.1 ms now",
        "Note: head is in training mode",
        "torch 2.13.0, cpu Some CPU",
    ):
        assert line in text.splitlines()


def test_a_candidate_that_was_never_built_has_its_reason_beside_its_verdict_even_if_that_took_time():
    trial = Trial(
        backend="A()",
        verdict=Verdict.unsupported,
        reason="not yet",
        build_seconds=0.001,
        log_path="/empty.log",
    )
    result = TuneResult({"m": ModuleResult("m", "Linear", (GraphResult("graph0", trials=(trial,)),))})
    line = next(line for line in as_text(result, 100).splitlines() if "A()" in line)
    assert line.split() == ["A()", "unsupported", "not", "yet"]
    assert "/empty.log" not in as_text(result, 100)


def test_the_log_of_a_failed_build_and_the_evidence_of_the_chosen_one_are_shown(result):
    text = as_text(result, 120)
    assert "log: /logs/encoder/build.log" in text
    assert "the reference is float64" in text


def test_a_module_that_was_put_back_does_not_claim_to_be_served_by_its_choice(trials):
    graph = GraphResult("graph0", chosen="ONNXRuntimeBackend()", trials=trials)
    end = EndToEnd(1.0, 1.0, 1.0, 0.99, 1.01, put_back=("m",), note="timed 12 times")
    text = as_text(TuneResult({"m": ModuleResult("m", "Linear", (graph,), put_back=True)}, end), 120)
    assert "m (Linear): put back: the whole was slower with it" in text
    assert "runs the original, as before; ONNXRuntimeBackend(), 1.35x [1.31, 1.38], error 3.2e-06 was its best" in text
    assert "put back, because the whole was slower with them: m" in text
    assert "timed 12 times" in text


def test_a_result_without_modules_says_so():
    assert str(TuneResult()) == "No module was tuned"


def test_a_dry_run_and_an_interrupted_tune_say_so():
    modules = {"m": ModuleResult("m", "Linear")}
    assert "Dry run over 1 module: nothing was changed" in str(TuneResult(modules, dry_run=True))
    assert "interrupted or ran out of time" in str(TuneResult(modules, complete=False))


def test_markup_and_escapes_in_foreign_text_are_shown_as_text():
    trial = Trial(backend="A(x='[red]b[/red]')", verdict=Verdict.wrong, reason=":smile: [bold]\x1b[31mno[/bold]")
    text = as_text(TuneResult({"[m]": ModuleResult("[m]", "L", (GraphResult("graph0", trials=(trial,)),))}), 120)
    assert "A(x='[red]b[/red]')" in text
    assert ":smile: [bold]no[/bold]" in text
    assert "[m] (L)" in text


def test_str_uses_the_width_of_the_terminal_and_what_standard_output_can_encode(result, monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="cp1252"))
    assert str(result) == as_text(result, 90, ascii_only=True)


def test_a_rich_console_shows_it_in_colour(result):
    from rich.console import Console

    file = io.StringIO()
    Console(file=file, width=100, force_terminal=True, color_system="standard", no_color=False).print(result)
    assert "\x1b[32maccepted" in file.getvalue()


@given(
    st.lists(st.from_regex(r"[a-z_]{1,12}=('[a-z ]{0,6}'|\d{1,5}|A\(b=\d\))", fullmatch=True), max_size=5),
    st.integers(20, 60),
)
def test_wrapping_a_backend_only_adds_space(options, width):
    backend = f"SomeBackend({', '.join(options)})"
    wrapped = _wrapped(backend, width)
    assert squeezed(wrapped) == squeezed(backend)
    assert max(map(len, wrapped.splitlines())) <= max(width, 30)


figures = st.none() | st.floats(0) | st.just(float("nan"))
rows = st.builds(
    Trial, backend=st.text(max_size=80), verdict=st.sampled_from(Verdict), reason=st.text(max_size=300),
    error=figures, error_bound=figures, speedup=figures, latency_ms=figures, build_seconds=figures,
    precision=st.none() | st.just("float32"),
)  # fmt: skip


@given(st.lists(rows, max_size=4), st.integers(72, 200))
def test_any_trials_can_be_drawn_at_any_width(trials, width):
    from rich.cells import cell_len

    result = TuneResult({"m": ModuleResult("m", "Linear", (GraphResult("graph0", trials=tuple(trials)),))})
    text = as_text(result, width)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    for trial in trials:
        assert str(trial.verdict) in text
