"""Importing this module turns just-in-time tuning on."""

from __future__ import annotations

from aitune.torch.jit.patcher import enable_jit_tuning

__all__: list[str] = []

enable_jit_tuning()
