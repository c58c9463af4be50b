"""Importing this module has calls looked at and nothing tuned; :func:`save_report` writes what was seen."""

from __future__ import annotations

import os
from pathlib import Path

from aitune.torch.jit.inspection_page import page
from aitune.torch.jit.patched_module import forest
from aitune.torch.jit.patcher import enable_inspection
from aitune.torch.report.writing import write_text

__all__ = ["save_report"]


def save_report(path: str | os.PathLike[str], model_name: str = "model") -> Path:
    """Write a page that needs nothing beside itself; an existing file is replaced as a whole.

    Args:
        path: The file.
        model_name: What the page calls the model.

    Returns:
        The file that was written.

    Raises:
        OSError: If the folder does not exist or cannot be written.
    """
    return write_text(path, page(model_name, forest.heads()))


enable_inspection()
