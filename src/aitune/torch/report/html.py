"""A result as HTML that needs nothing beside itself: a fragment for notebooks, a page for files."""

from __future__ import annotations

from importlib import resources

from aitune.torch.report import numbers
from aitune.torch.report.foreign import printable
from aitune.torch.report.outcome import Outcome
from aitune.torch.report.row import chosen_line, rows
from aitune.torch.report.table import STATE_WORDS, end_to_end_line, headline

__all__ = ["fragment", "page"]


def fragment(result: Outcome) -> str:
    """Return a ``div`` with its own style, which styles nothing outside it."""
    return _render(result, whole_page=False)


def page(result: Outcome) -> str:
    """Return a whole document."""
    return _render(result, whole_page=True)


def _render(result: Outcome, whole_page: bool) -> str:
    import jinja2

    # Text of users and libraries goes into the page: everything is escaped, and a misspelt name is an error.
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalized,
    )
    source = resources.files(__package__).joinpath("templates/result.html.j2").read_text(encoding="utf-8")
    return environment.from_string(source).render(
        result=result,
        whole_page=whole_page,
        headline=headline(result),
        end_to_end_line=end_to_end_line,
        state_words=STATE_WORDS,
        rows=rows,
        chosen_line=chosen_line,
        seconds=numbers.seconds,
    )


def _finalized(value: object) -> object:
    """Take control characters out of what a template prints; they have no place in HTML, escaped or not."""
    return printable(value) if type(value) is str else value
