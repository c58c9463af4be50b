"""Run benchmarks by name."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import benchmarks.cpu.run
from benchmarks import dispatch, imports, shapes
from benchmarks.record import Record

BENCHMARKS: dict[str, Callable[[bool], Record]] = {
    "dispatch": dispatch.measure,
    "imports": imports.measure,
    "shapes": shapes.measure,
}


def main() -> None:
    if sys.argv[1:2] == ["cpu"]:  # takes most of an hour and options of its own, so it is not among "all"
        sys.exit(min(benchmarks.cpu.run.main(sys.argv[2:]), 1))
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "name", nargs="?", default="all", choices=["all", "cpu", *BENCHMARKS], help="cpu has options: cpu --help"
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
