"""The choice between accepted candidates: the fastest, or a more convenient one within noise of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aitune.torch.measure.paired_timing import PairedTiming

__all__ = ["TIE_MARGIN", "Contender", "HeadToHead", "preferred", "rivals"]

TIE_MARGIN = 0.02
"""Difference, as a ratio, below which two contenders count as equally fast.

What is promised is a choice at most so far behind the best one. Less would make choices unstable: where threads and
memory happen to lie moves the ratio of two good engines by a percent from one process to the next.
"""

HeadToHead = Mapping[tuple[str, str], PairedTiming]
"""Direct comparisons: the key (a, b) holds a timing with a as the candidate and b as the baseline."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """An accepted candidate, with what decides between it and others.

    Attributes:
        name: Tells it from the others.
        timing: Its paired figures against the original.
        storable: Whether its engine can be kept in the store.
        error_class: 0 computes in the module's own precision; larger numbers stand for coarser declared
            precisions.
        complexity: 0 is the simplest; larger numbers stand for more machinery.
        position: Place in the user's list of candidates.
    """

    name: str
    timing: PairedTiming
    storable: bool
    error_class: int
    complexity: int
    position: int


def preferred(
    contenders: Sequence[Contender],
    head_to_head: HeadToHead | None = None,
    *,
    margin: float = TIE_MARGIN,
) -> Contender:
    """Choose one contender; the order of the sequence does not matter.

    Those that are slower than another one beyond noise, by ``margin`` or more, drop out. Between the others
    the first difference decides: kept in the store before not, exact before less so, simple before complex,
    listed early before late.

    Args:
        contenders: At least one, with different names.
        head_to_head: Direct comparisons, for any of the pairs, in either direction; they count more than the
            detour over the original.
        margin: Difference, as a ratio, below which two contenders count as equally fast.

    Raises:
        ValueError: If there is no contender, or two have the same name.
    """
    return min(_unbeaten(contenders, head_to_head or {}, margin), key=_convenience)


def rivals(
    contenders: Sequence[Contender],
    head_to_head: HeadToHead | None = None,
    *,
    margin: float = TIE_MARGIN,
) -> tuple[Contender, ...]:
    """Contenders that noise alone keeps apart, the quickest-looking first: ``preferred`` is one of them.

    Two intervals against the original overlap easily, so a contender that is some percent slower may be among
    them. Where their ``timing.speedup`` differ by more than what one is ready to give away, compare the first
    with the others head to head.

    Args and errors are those of ``preferred``.
    """
    unbeaten = _unbeaten(contenders, head_to_head or {}, margin)
    return tuple(sorted(unbeaten, key=lambda contender: (-contender.timing.speedup, _convenience(contender))))


def _unbeaten(contenders: Sequence[Contender], head_to_head: HeadToHead, margin: float) -> list[Contender]:
    if not contenders:
        raise ValueError("there is no contender to choose from")
    if len({contender.name for contender in contenders}) < len(contenders):
        raise ValueError("two contenders have the same name")
    unbeaten = [
        one
        for one in contenders
        if not any(_beats(other, one, head_to_head, 1 + margin) for other in contenders if other is not one)
    ]
    # Noise can send direct comparisons round in a circle; then none of them is evidence against one
    # contender.
    return unbeaten or list(contenders)


def _beats(one: Contender, other: Contender, head_to_head: HeadToHead, threshold: float) -> bool:
    """Whether ``one`` is faster than ``other`` by the threshold with the confidence of the intervals."""
    direct = head_to_head.get((one.name, other.name))
    if direct is not None:
        return direct.low >= threshold
    reverse = head_to_head.get((other.name, one.name))
    if reverse is not None:
        return reverse.high * threshold <= 1
    return one.timing.low >= other.timing.high * threshold


def _convenience(contender: Contender) -> tuple[bool, int, int, int, str]:
    return (
        not contender.storable,
        contender.error_class,
        contender.complexity,
        contender.position,
        contender.name,
    )
