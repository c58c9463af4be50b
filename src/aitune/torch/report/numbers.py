"""How a report writes numbers: digits and units. Plain ASCII; empty for what is not known."""

from __future__ import annotations

import math

__all__ = [
    "count",
    "error",
    "interval",
    "memory",
    "milliseconds",
    "ratio",
    "seconds",
    "speedup",
    "throughput",
]


def error(value: float | None) -> str:
    """Write a relative error, such as ``3.2e-05``, ``1e-04`` (one digit says it all) or ``0.21``."""
    if value is None:
        return ""
    if value == 0 or not math.isfinite(value) or 0.00995 <= abs(value) < 999.5:
        return f"{value:.2g}" if abs(value) < 99.5 else f"{value:.3g}"
    return f"{value:.1e}".replace(".0e", "e")


def ratio(value: float | None) -> str:
    """Write a speedup alone, such as ``1.28x``."""
    if value is None:
        return ""
    return f"{_fixed(value, _decimals(value))}x"


def interval(low: float | None, high: float | None, digits_of: float | None = None) -> str:
    """Write a confidence interval, such as ``[1.25, 1.31]``.

    Args:
        low: Lower end.
        high: Upper end.
        digits_of: The number that the interval is about, whose decimals it takes; ``high`` where it is None.
    """
    if low is None or high is None:
        return ""
    decimals = _decimals(high if digits_of is None else digits_of)
    return f"[{_fixed(low, decimals)}, {_fixed(high, decimals)}]"


def speedup(value: float | None, low: float | None, high: float | None) -> str:
    """Write a speedup with its interval, such as ``1.28x [1.25, 1.31]``."""
    return " ".join(part for part in (ratio(value), interval(low, high, value)) if part)


def milliseconds(value: float | None) -> str:
    """Write a latency given in milliseconds with three digits, such as ``12.3 ms`` or ``1.24 s``."""
    if value is None:
        return ""
    if value >= 999.5:
        return seconds(value / 1e3, digits=3)
    return f"{_digits(value, 3)} ms"


def seconds(value: float | None, digits: int = 2) -> str:
    """Write a duration given in seconds, such as ``0.35 s``, ``4.1 s``, ``2 min 5 s`` or ``1 h 3 min``."""
    if value is None:
        return ""
    if not 99.5 <= value < 1e7:
        return f"{_digits(value, digits)} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def memory(value: float | None) -> str:
    """Write an amount of memory given in bytes, such as ``129 MB``."""
    if value is None:
        return ""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= size:
            return f"{_digits(value / size, 3)} {unit}"
    return f"{value:.0f} B"


def throughput(value: float | None) -> str:
    """Write samples a second, such as ``812/s``."""
    return "" if value is None else f"{_digits(value, 3)}/s"


def count(number: int, noun: str) -> str:
    """Write a number of things, such as ``1 module`` or ``3 modules``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _decimals(value: float) -> int:
    if not math.isfinite(value) or abs(value) < 9.995:
        return 2
    return 1 if abs(value) < 99.95 else 0


def _fixed(value: float, decimals: int) -> str:
    return f"{value:.{decimals}f}" if not math.isfinite(value) or abs(value) < 1e6 else f"{value:.1e}"


def _digits(value: float, digits: int) -> str:
    """Write ``value`` with so many significant digits and all digits before the point."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if not 1e-5 <= abs(value) < 1e7:  # nobody counts so many zeros
        return f"{value:.1e}"
    rounded = float(f"{value:.{digits - 1}e}")
    before_point = math.floor(math.log10(abs(rounded))) + 1
    return f"{value:.{max(digits - before_point, 0)}f}"
