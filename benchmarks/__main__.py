"""Run benchmarks by name."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

import benchmarks.cpu.run
from benchmarks import dispatch, imports, second_start, shapes
from benchmarks.record import Record

BENCHMARKS: dict[str, Callable[[bool], Record]] = {
    "dispatch": dispatch.measure,
    "imports": imports.measure,
    "shapes": shapes.measure,
}

# These take long and options of their own, so they are not among "all".
WITH_OPTIONS: dict[str, Callable[[Sequence[str]], int]] = {
    "cpu": benchmarks.cpu.run.main,
    "second_start": second_start.main,
}


def main() -> None:
    own = WITH_OPTIONS.get(sys.argv[1] if len(sys.argv) > 1 else "")
    if own is not None:
        sys.exit(min(own(sys.argv[2:]), 1))
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "name",
        nargs="?",
        default="all",
        choices=["all", *WITH_OPTIONS, *BENCHMARKS],
        help=f"{' and '.join(WITH_OPTIONS)} have options of their own: cpu --help",
    )
    parser.add_argument("--quick", action="store_true", help="few repetitions, to try it out; writes no record")
    arguments = parser.parse_args()
    for name, measure in BENCHMARKS.items():
        if arguments.name not in ("all", name):
            continue
        record = measure(arguments.quick)
        print(record.table())
        if not arguments.quick:
            print(f"\nwritten to {record.write()}")
        print()


if __name__ == "__main__":
    main()
