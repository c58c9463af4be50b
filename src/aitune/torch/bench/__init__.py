"""The bench: runs trials of one graph, from recipe to verdict, and owns the engines meanwhile."""

from aitune.torch.bench.bench import Bench, Tools
from aitune.torch.bench.rules import Rules
from aitune.torch.bench.suitability import unusable

__all__ = ["Bench", "Rules", "Tools", "unusable"]
