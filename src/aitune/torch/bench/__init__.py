"""The bench: runs trials of one graph, from recipe to verdict, and owns the engines meanwhile."""

from aitune.torch.bench.bench import Bench, Path, Tools
from aitune.torch.bench.rules import Rules
from aitune.torch.bench.suitability import untaken, unusable

__all__ = ["Bench", "Path", "Rules", "Tools", "untaken", "unusable"]
