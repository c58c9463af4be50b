"""One trial in the words of a table, the same for text and HTML; the most interesting trials come first."""

from __future__ import annotations

import math
from dataclasses import dataclass

from aitune.torch.report import numbers
from aitune.torch.report.foreign import one_line, printable
from aitune.torch.report.outcome import ORIGINAL, GraphResult
from aitune.torch.trial import Trial, Verdict

__all__ = ["Row", "chosen_line", "rows"]

# What was tried and could be used, then what was tried and could not, then what was never built.
_ORDER = (
    Verdict.accepted, Verdict.undecided, Verdict.slower, Verdict.wrong, Verdict.random, Verdict.out_of_memory,
    Verdict.timed_out, Verdict.crashed, Verdict.build_failed, Verdict.unsupported, Verdict.not_installed,
    Verdict.skipped,
)  # fmt: skip
_NEVER_BUILT = ("unsupported", "not_installed", "skipped")
_WITH_LOG = (Verdict.build_failed, Verdict.crashed, Verdict.timed_out, Verdict.out_of_memory)


@dataclass(frozen=True)
class Row:
    """The cells of one trial; a cell is empty where nothing is known.

    Attributes:
        chosen: Whether this one serves the graph.
        verdict: The word of the verdict.
        backend: Description of the backend.
        precision: What it computes in.
        error: Its error.
        bound: What the error was held against.
        ratio: Its speedup.
        interval: The speedup's interval.
        latency: Time of one call.
        batch: Batch size at which it was timed.
        throughput: Samples a second.
        build: Time to build it.
        memory: Memory that it took.
        reason: Why the verdict is what it is.
        evidence: Further facts.
        log_path: Where its builder's output is, if the build failed.
    """

    chosen: bool
    verdict: str
    backend: str
    precision: str
    error: str
    bound: str
    ratio: str
    interval: str
    latency: str
    batch: str
    throughput: str
    build: str
    memory: str
    reason: str
    evidence: tuple[str, ...]
    log_path: str

    @property
    def measured(self) -> bool:
        """Whether there are figures to show; the seconds until a backend declined are none."""
        return self.verdict not in _NEVER_BUILT and any((self.error, self.ratio, self.latency, self.build))


def rows(graph: GraphResult) -> tuple[Row, ...]:
    """Return the trials of a graph: the chosen one, other accepted ones (fastest first), the rest by kind."""
    chosen = graph.chosen_trial

    def place(trial: Trial) -> tuple[bool, int, float]:
        speedup = trial.speedup or 0.0
        return trial is not chosen, _ORDER.index(trial.verdict), -speedup if math.isfinite(speedup) else 0.0

    return tuple(_row(trial, trial is chosen) for trial in sorted(graph.trials, key=place))


def chosen_line(graph: GraphResult, serves: bool = True) -> str:
    """Return what serves the graph and what that gives, in one line.

    Args:
        graph: Which graph.
        serves: Whether its module is served by what its graphs chose.
    """
    trial = graph.chosen_trial
    if graph.chosen == ORIGINAL:
        return "the original, as before"
    if not serves:
        return f"the original, as before; {chosen_line(graph)} was its best"
    if trial is None:
        return one_line(graph.chosen)
    parts = [one_line(trial.backend), numbers.speedup(trial.speedup, trial.speedup_low, trial.speedup_high)]
    if trial.error is not None:
        parts.append(f"error {numbers.error(trial.error)}")
    return ", ".join(part for part in parts if part)


def _row(trial: Trial, chosen: bool) -> Row:
    return Row(
        chosen=chosen,
        verdict=str(trial.verdict),
        backend=one_line(trial.backend),
        precision=trial.precision or "",
        error=numbers.error(trial.error),
        bound=numbers.error(trial.error_bound),
        ratio=numbers.ratio(trial.speedup),
        interval=numbers.interval(trial.speedup_low, trial.speedup_high, trial.speedup),
        latency=numbers.milliseconds(trial.latency_ms),
        batch="" if trial.batch_size is None else f"batch {trial.batch_size}",
        throughput=numbers.throughput(trial.throughput),
        build=numbers.seconds(trial.build_seconds),
        memory=numbers.memory(trial.memory_bytes),
        reason=printable(trial.reason).strip(),
        evidence=tuple(printable(fact).strip() for fact in trial.evidence),
        log_path=printable(trial.log_path or "") if trial.verdict in _WITH_LOG else "",
    )
