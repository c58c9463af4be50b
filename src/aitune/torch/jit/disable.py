"""Importing this module turns just-in-time tuning off; ``disable_jit_tuning()`` does it again."""

from __future__ import annotations

from aitune.torch.jit.patcher import disable_jit_tuning

__all__: list[str] = []

disable_jit_tuning()
