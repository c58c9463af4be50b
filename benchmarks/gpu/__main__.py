"""Make the rows that are missing, until time is up; rows that are there are not made again.

python -m benchmarks.gpu --rows rows.json --seconds 550     again and again, until every row is there
python -m benchmarks.gpu --rows rows.json --report          the page of the rows, beside them
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from benchmarks.gpu.candidates import BOTH, candidates
from benchmarks.gpu.models import MODELS
from benchmarks.gpu.report import write
from benchmarks.gpu.row import LEFT_OUT
from benchmarks.gpu.run import Run
from benchmarks.gpu.suites import SUITES

RESULTS = Path(__file__).parents[1] / "results"
PARTS = ("tests", "candidates", "strategies", "second-start")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, default=RESULTS / "gpu.json")
    parser.add_argument("--seconds", type=float, default=550)
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--subjects", nargs="*", metavar="CANDIDATE", default=list(candidates()))
    parser.add_argument("--suites", nargs="*", default=list(SUITES), help="test files and classes, by their start")
    parser.add_argument("--together", type=int, default=2, help="models whose candidates are built at once")
    parser.add_argument("--without", nargs="*", default=[], help="backends that strategies are not to try")
    parser.add_argument("--report", action="store_true", help="write the page of the rows")
    arguments = parser.parse_args()
    if arguments.report:
        print(write(arguments.rows))
        return
    os.environ[LEFT_OUT] = " ".join(arguments.without)
    run = Run(arguments.rows, arguments.seconds)
    if "tests" in arguments.parts:
        wanted = tuple(arguments.suites)
        run.tests([suite for suite in SUITES if suite.startswith(wanted)])
    if "candidates" in arguments.parts:
        for i in range(0, len(arguments.models), arguments.together):
            run.rows_of(arguments.models[i : i + arguments.together], arguments.subjects)
    if "strategies" in arguments.parts:
        run.rows_of(arguments.models, [BOTH])
    if "second-start" in arguments.parts:
        run.second_starts(arguments.models)


if __name__ == "__main__":
    main()
