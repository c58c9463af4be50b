"""The hook behind ``AUTOWRAPT_BOOTSTRAP=aitune_enable_jit_tuning``. Standard library only.

The interpreter imports this file as it starts, in every program of the shell, so it must not import anything that a
program without torch would have to wait for. The hook itself runs once torch was imported.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType

__all__ = ["enable_jit_tuning"]


def enable_jit_tuning(torch: ModuleType) -> None:  # noqa: ARG001 - what autowrapt passes
    """Turn just-in-time tuning on; where that fails the program runs as without aitune, and is told why."""
    try:
        from aitune.torch.jit.patcher import enable_jit_tuning as enable

        enable(summary=True)
    except Exception as error:
        if os.environ.get("AITUNE_JIT_RAISE_FAILURES", "0").lower() in ("1", "true", "yes", "on"):
            raise
        sys.stderr.write(f"aitune: just-in-time tuning is off: {type(error).__name__}: {error}\n")
