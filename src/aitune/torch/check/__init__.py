"""Whether an engine computes what the module computes: a callable in, a judgement out.

``prepare`` makes the questions for one graph, ``judge`` puts them to one candidate, ``OutputWatch`` compares
the outputs made while it is measured, and ``Check`` holds what a user may set.
"""

from aitune.torch.check.bounds import Bounds
from aitune.torch.check.check import Check
from aitune.torch.check.compare import Comparison, compare
from aitune.torch.check.judge import judge
from aitune.torch.check.judgement import Judgement
from aitune.torch.check.prepare import Effort, prepare
from aitune.torch.check.reference import Reference, make_reference
from aitune.torch.check.subject import Subject
from aitune.torch.check.trace import no_trace
from aitune.torch.check.watch import OutputWatch, Quota, run_watch

__all__ = [
    "Bounds",
    "Check",
    "Comparison",
    "Effort",
    "Judgement",
    "OutputWatch",
    "Quota",
    "Reference",
    "Subject",
    "compare",
    "judge",
    "make_reference",
    "no_trace",
    "prepare",
    "run_watch",
]
