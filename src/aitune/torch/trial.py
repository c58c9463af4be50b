"""A trial: one attempt to serve one graph with one backend, with its verdict and its evidence."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal, get_args

__all__ = ["ORIGINAL", "PRECISIONS", "Precision", "Trial", "Verdict"]

Precision = Literal["float64", "float32", "tf32", "float16", "bfloat16", "int8", "float8", "int4", "float4"]
PRECISIONS: tuple[str, ...] = get_args(Precision)

ORIGINAL = "original"
"""What stands in the place of a backend where a graph was left alone."""


class Verdict(enum.Enum):
    """What came of a trial; the values are the words that reports and records use."""

    accepted = "accepted"
    wrong = "wrong"
    slower = "slower"
    undecided = "undecided"
    random = "random"
    build_failed = "build_failed"
    crashed = "crashed"
    timed_out = "timed_out"
    out_of_memory = "out_of_memory"
    unsupported = "unsupported"
    not_installed = "not_installed"
    skipped = "skipped"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The record of one attempt; plain data, so it pickles, prints and goes into a report as it is.

    Attributes:
        backend: Description of the configured backend, such as ``OpenVINOBackend(precision='float32')``.
        verdict: What came of it.
        reason: Why, in one sentence; empty for a plain acceptance.
        precision: The precision that the engine declares to compute in; None when none was built.
        error: Largest relative L2 error against the reference, None when not compared.
        error_bound: What ``error`` was held against.
        speedup: Time of the original over time of the candidate, from paired blocks; None when not measured.
        speedup_low: Lower end of the speedup's confidence interval.
        speedup_high: Upper end of the speedup's confidence interval.
        latency_ms: Median time of one call of the candidate, milliseconds.
        throughput: Samples (batch entries) a second of the candidate.
        batch_size: Batch size at which it was measured; None for a graph without a batch axis.
        build_seconds: Time to build (or load) the engine, seconds.
        memory_bytes: Growth of resident memory by building the engine, bytes; None when unknown.
        log_path: Where the builder's own output is, None when it wrote none.
        evidence: Further facts for reports, such as notes of the check or a busy machine.
    """

    backend: str
    verdict: Verdict
    reason: str = ""
    precision: Precision | None = None
    error: float | None = None
    error_bound: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    latency_ms: float | None = None
    throughput: float | None = None
    batch_size: int | None = None
    build_seconds: float | None = None
    memory_bytes: int | None = None
    log_path: str | None = None
    evidence: tuple[str, ...] = ()

    @property
    def accepted(self) -> bool:
        """Whether the candidate may serve calls."""
        return self.verdict is Verdict.accepted
