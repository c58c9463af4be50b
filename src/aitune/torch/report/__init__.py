"""What a person or a file gets to see of a tune: the result, its table and page, and live progress.

Importing this package imports neither rich nor jinja2; what draws with them imports them when it draws.
"""

from aitune.torch.report.environment import environment
from aitune.torch.report.frozen_map import FrozenMap
from aitune.torch.report.graphs import graph_table
from aitune.torch.report.plan import Candidate, GraphPlan, plan_text
from aitune.torch.report.progress import LiveProgress, PlainProgress, progress_listener
from aitune.torch.report.record import write_record
from aitune.torch.report.result import ORIGINAL, EndToEnd, GraphResult, ModuleResult, TuneResult
from aitune.torch.report.sections import Section, sections_text

__all__ = [
    "ORIGINAL",
    "Candidate",
    "EndToEnd",
    "FrozenMap",
    "GraphPlan",
    "GraphResult",
    "LiveProgress",
    "ModuleResult",
    "PlainProgress",
    "Section",
    "TuneResult",
    "environment",
    "graph_table",
    "plan_text",
    "progress_listener",
    "sections_text",
    "write_record",
]
