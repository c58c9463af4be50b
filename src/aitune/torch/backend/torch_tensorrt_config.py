"""Options that both Torch-TensorRT backends share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from aitune.torch.backend.validation import check_bool, check_int, check_options

__all__ = ["TorchTensorRTConfig"]


@dataclass(frozen=True)
class TorchTensorRTConfig:
    """Compilation settings of Torch-TensorRT, under the names of its ``CompilationSettings``.

    Attributes:
        workspace_size: Bytes that TensorRT may use while it builds; 0 leaves it to the library.
        min_block_size: Operators in a row that make a block worth giving to TensorRT.
        optimization_level: 0 to 5, higher looks longer for quicker kernels; None leaves it to the library.
        require_full_compilation: Whether an operator that TensorRT does not have is an error.
        truncate_double: Whether float64 may be computed in float32.
        disable_tf32: Whether float32 products keep all their bits.
        use_python_runtime: Whether engines run through Python instead of the C++ runtime; None: as available.
        options: Further settings by name, passed on as they are.
    """

    workspace_size: int = 0
    min_block_size: int = 5
    optimization_level: int | None = None
    require_full_compilation: bool = False
    truncate_double: bool = False
    disable_tf32: bool = False
    use_python_runtime: bool | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_int(self, "workspace_size", 0, optional=False)
        check_int(self, "min_block_size", 1, optional=False)
        check_int(self, "optimization_level", 0, 5)
        check_bool(self, "require_full_compilation", "truncate_double", "disable_tf32")
        check_bool(self, "use_python_runtime", optional=True)
        check_options(self, "options", optional=False)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings as Torch-TensorRT takes them; those left to the library are left out."""
        named: dict[str, Any] = {
            "workspace_size": self.workspace_size,
            "min_block_size": self.min_block_size,
            "optimization_level": self.optimization_level,
            "require_full_compilation": self.require_full_compilation,
            "truncate_double": self.truncate_double,
            "disable_tf32": self.disable_tf32,
            "use_python_runtime": self.use_python_runtime,
        }
        return {**{name: value for name, value in named.items() if value is not None}, **self.options}
