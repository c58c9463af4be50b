"""Whatever a library says, it can neither colour, move the cursor nor fill the screen."""

from hypothesis import given
from hypothesis import strategies as st

from aitune.torch.report.foreign import one_line, printable


def test_escape_sequences_are_left_out():
    assert printable("\x1b[31mred\x1b[0m \x1b]0;title\x07text\x1b[2K") == "red text"


def test_control_characters_are_made_visible_and_lines_stay():
    assert printable("a\x00b\r\nc\rd\te") == "a\N{REPLACEMENT CHARACTER}b\nc\nd\te"


def test_a_text_becomes_one_line():
    assert one_line("  one\n\n two\tthree ") == "one two three"


def test_a_long_text_keeps_its_beginning_and_its_end():
    line = one_line("start " + "x" * 1000 + " end", 60)
    assert line.startswith("start x")
    assert line.endswith("x end")
    assert " ... " in line
    assert len(line) <= 60


@given(st.text(st.characters()), st.integers(1, 50))
def test_any_text_becomes_one_printable_line_within_its_limit(text, limit):
    line = one_line(text, limit)
    assert len(line) <= limit
    assert "\n" not in line
    assert "\x1b" not in line
    line.encode("utf-8")
