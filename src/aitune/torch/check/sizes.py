"""Which sizes of a graph's dimensions are worth a question."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from aitune.torch.graph.dims import BatchDim, DynamicDim

__all__ = ["further_sizes", "wanted_sizes"]

_MOST = 16


def wanted_sizes(dims: Mapping[str, DynamicDim], seen: Sequence[Mapping[str, int]]) -> list[dict[str, int]]:
    """Choose sizes at the ends of every dimension and in between that no sample has.

    Batch dimensions vary together, in proportion to their ranges, and so do those of one unit; others vary alone as
    well. In between is,
    of the sizes that no sample had, the one nearest to the middle, odd ones preferred: engines are most often
    wrong where a size is no multiple of a vector's.

    Args:
        dims: Every dimension by name.
        seen: The sizes of each sample, at least one.

    Returns:
        At most 16 sets of sizes, the ends of the whole range first, none of them in ``seen``.
    """
    units = _units(dims, seen)
    base = dict(seen[0])
    wanted: list[dict[str, int]] = []

    def add(*choices: Mapping[str, int]) -> None:
        sizes = dict(base)
        for choice in choices:
            sizes |= choice
        if sizes not in wanted and sizes not in [dict(known) for known in seen] and len(wanted) < _MOST:
            wanted.append(sizes)

    for place in range(3):
        add(*(unit[place] for unit in units))
    for unit in units:
        for choice in unit:
            add(choice)
    return wanted


def further_sizes(
    dims: Mapping[str, DynamicDim], seen: Sequence[Mapping[str, int]], wanted: Sequence[Mapping[str, int]]
) -> list[dict[str, int]]:
    """Choose a small and a large size in between, all dimensions together, that neither a sample nor ``wanted`` has."""
    further: list[dict[str, int]] = []
    for share in (0.125, 0.75):
        sizes = dict(seen[0])
        for group in _groups(dims):
            sizes |= _between(group, [*seen, *wanted, *further], share)
        if sizes not in [dict(known) for known in (*seen, *wanted, *further)]:
            further.append(sizes)
    return further


def _units(
    dims: Mapping[str, DynamicDim], seen: Sequence[Mapping[str, int]]
) -> list[tuple[dict[str, int], dict[str, int], dict[str, int]]]:
    """Return largest, smallest and in-between sizes of every group of dimensions that vary together."""
    return [
        ({d.name: d.max for d in group}, {d.name: d.min for d in group}, _between(group, seen))
        for group in _groups(dims)
    ]


def _groups(dims: Mapping[str, DynamicDim]) -> list[list[DynamicDim]]:
    batch: list[DynamicDim] = [dim for dim in dims.values() if isinstance(dim, BatchDim)]
    others: dict[str, list[DynamicDim]] = {}
    for name, dim in dims.items():
        if not isinstance(dim, BatchDim):
            others.setdefault(dim.unit or name, []).append(dim)
    return ([batch] if batch else []) + list(others.values())


def _between(group: Sequence[DynamicDim], seen: Sequence[Mapping[str, int]], share: float = 0.5) -> dict[str, int]:
    """Return sizes in between, empty where the range has none that no sample had."""
    lead = group[0]
    had = {sizes[lead.name] for sizes in seen}
    for size in _near(lead.min, lead.max, share):
        sizes = {dim.name: size * dim.max / lead.max for dim in group}
        if size not in had and all(
            value == int(value) and d.min <= value <= d.max for value, d in zip(sizes.values(), group, strict=True)
        ):
            return {name: int(value) for name, value in sizes.items()}
    return {}


def _near(low: int, high: int, share: float) -> Iterator[int]:
    inner = range(low + 1, high)
    centre, place = low + share * (high - low), int(share * len(inner))
    nearest = sorted(inner[max(0, place - 512) : place + 512], key=lambda size: abs(size - centre))
    yield from (size for size in nearest if size % 2)
    yield from (size for size in nearest if not size % 2)
