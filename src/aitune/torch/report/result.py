"""What a tune returns: an outcome that prints, shows itself in notebooks, and goes to JSON and HTML."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from aitune.exceptions import TuneFailedError
from aitune.torch.report.document import from_text, to_text
from aitune.torch.report.html import fragment, page
from aitune.torch.report.outcome import ORIGINAL, EndToEnd, GraphResult, ModuleResult, Outcome, State
from aitune.torch.report.table import ResultView, as_text
from aitune.torch.report.writing import write_text

__all__ = ["ORIGINAL", "EndToEnd", "GraphResult", "ModuleResult", "State", "TuneResult"]


@dataclass(frozen=True, repr=False)
class TuneResult(Outcome):
    """What a tune found and did. ``print`` shows it as a table, a notebook as HTML.

    Attributes:
        modules: One entry for each module whose turn came, by name, in the order in which they were tuned.
        end_to_end: Figures of the whole function, None if it was not timed.
        seconds: How long the tune took.
        environment: Versions and hardware by name.
        notes: What a reader should know beside the modules.
        dry_run: Whether nothing was changed.
        complete: False if it was interrupted or ran out of time.
    """

    @property
    def failures(self) -> dict[str, str]:
        """Why, for every module that could not be tuned, by name."""
        failed = {name: module for name, module in self.modules.items() if module.state == "failed"}
        return {name: module.failure_text for name, module in failed.items()}

    def raise_for_failures(self) -> None:
        """Raise if a module could not be tuned.

        Raises:
            BaseException: The exception that the one failed module carries, as it was.
            TuneFailedError: If several modules failed (the cause is the first exception that one carries), or
                if the one that failed carries no exception.
        """
        failures = self.failures
        errors = [error for name in failures if (error := self.modules[name].error) is not None]
        if len(failures) == 1 and errors:
            raise errors[0]
        if failures:
            raise TuneFailedError(failures) from (errors[0] if errors else None)

    def to_json(self) -> str:
        """Return the whole as a JSON object: the names of these classes, and ``schema_version``.

        NaN and infinity, for which JSON has no numbers, are the strings ``NaN``, ``Infinity``, ``-Infinity``.
        """
        return to_text(self)

    @classmethod
    def from_json(cls, text: str) -> TuneResult:
        """Read what :meth:`to_json` wrote. Exceptions come back as their text, in ``failure``.

        Raises:
            AITuneUserInputError: If the text is something else, or was written by a newer version.
        """
        return from_text(text, cls)

    def save_html(self, path: str | os.PathLike[str]) -> Path:
        """Write a page that needs nothing beside itself; an existing file is replaced as a whole.

        Raises:
            OSError: If the folder does not exist or cannot be written.
        """
        return write_text(path, page(self))

    def __str__(self) -> str:
        return as_text(self)

    def __repr__(self) -> str:
        tuned = sum(module.state == "tuned" for module in self.modules.values())
        return f"<TuneResult: {tuned} of {len(self.modules)} modules tuned; print it for the table>"

    def __rich__(self) -> object:
        return ResultView(self)

    def _repr_html_(self) -> str:
        return fragment(self)
