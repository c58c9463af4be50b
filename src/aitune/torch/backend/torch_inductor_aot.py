"""A shared library compiled ahead of time by Inductor (AOTInductor). Options only in this version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aitune.exceptions import BackendUnsupportedError
from aitune.torch.backend.availability import require
from aitune.torch.backend.base import Backend, BackendConfig, Engine
from aitune.torch.backend.validation import check_bool, check_options
from aitune.torch.graph.job import Job

__all__ = ["TorchInductorAotBackend", "TorchInductorAotBackendConfig"]


@dataclass(frozen=True)
class TorchInductorAotBackendConfig(BackendConfig):
    """Options of AOTInductor.

    Attributes:
        inductor_configs: Settings of ``torch._inductor.config`` by name.
        freezing: Whether weights become constants that are laid out for the processor; None: on for cpu.
        use_cuda_graphs: Whether calls are replayed as CUDA graphs.
    """

    inductor_configs: dict[str, Any] | None = None
    freezing: bool | None = None
    use_cuda_graphs: bool = False

    def __post_init__(self) -> None:
        check_options(self, "inductor_configs")
        check_bool(self, "freezing", optional=True)
        check_bool(self, "use_cuda_graphs")


class TorchInductorAotBackend(Backend[TorchInductorAotBackendConfig]):
    """Compiles the exported graph to native code once; later processes load it."""

    config_class = TorchInductorAotBackendConfig
    devices = ("cpu", "cuda")
    complexity = 4

    def unsuitable(self, job: Job) -> str | None:
        """Return why the job cannot be served, None if it may be tried."""
        if self.config.use_cuda_graphs and job.device.type != "cuda":
            return f"use_cuda_graphs needs cuda, the module is on {job.device.type}"
        return super().unsuitable(job)

    def build(self, job: Job) -> Engine:
        """Refuse: engines of this backend are not built yet.

        Raises:
            BackendUnsupportedError: Always, with the reason.
        """
        require(self, job)
        raise BackendUnsupportedError(self.name, "not built yet in this version of aitune")
