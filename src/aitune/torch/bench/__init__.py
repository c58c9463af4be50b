"""The bench: runs trials of one graph, from recipe to verdict, and owns the engines meanwhile."""

from aitune.torch.bench.bench import Bench
from aitune.torch.bench.rules import Rules
from aitune.torch.bench.shelf import Shelf
from aitune.torch.bench.suitability import untaken, unusable
from aitune.torch.bench.tools import Path, Tools

__all__ = ["Bench", "Path", "Rules", "Shelf", "Tools", "untaken", "unusable"]
