"""``tune()``: record, find graphs, run strategies, install dispatchers, check the whole."""

from aitune.torch.tuning.tune import tune

__all__ = ["tune"]
