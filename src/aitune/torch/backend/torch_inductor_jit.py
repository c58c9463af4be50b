"""torch.compile with Inductor, in a function of its own for each engine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch

from aitune.exceptions import AITuneUserInputError
from aitune.torch.backend.availability import require
from aitune.torch.backend.base import Backend, BackendConfig, Engine
from aitune.torch.backend.compiled import WITHOUT_GRAPHS, compiled_forward, engine_of, under_autocast, warmed_up
from aitune.torch.backend.function_engine import EngineFacts
from aitune.torch.backend.precision import lowest, module_precision, precision_of
from aitune.torch.backend.validation import check_autocast, check_bool, check_choice, check_options
from aitune.torch.export.narrowing import Narrowing
from aitune.torch.graph.job import Job

__all__ = ["TorchInductorJitBackend", "TorchInductorJitBackendConfig"]

_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_GRAPHS_OPTION = "triton.cudagraphs"


@dataclass(frozen=True)
class TorchInductorJitBackendConfig(BackendConfig):
    """Options of ``torch.compile``.

    Attributes:
        mode: As in ``torch.compile``; where it asks for CUDA graphs, outputs may be kept all the same.
        fullgraph: Whether a graph break is an error.
        dynamic: As in ``torch.compile``; None makes the graph's dimensions dynamic from the start.
        options: Inductor's options by name; not together with ``mode``.
        autocast_enabled: Whether forward runs under autocast.
        autocast_dtype: Its dtype; None: torch's choice for the device.
        freezing: Whether weights become constants that are laid out for the processor.
    """

    mode: str | None = None
    fullgraph: bool = False
    dynamic: bool | None = None
    options: dict[str, Any] | None = None
    autocast_enabled: bool = False
    autocast_dtype: torch.dtype | None = None
    freezing: bool = False

    def __post_init__(self) -> None:
        check_choice(self, "mode", (*_MODES, None))
        check_bool(self, "fullgraph", "freezing")
        check_bool(self, "dynamic", optional=True)
        check_options(self, "options")
        check_autocast(self)
        if self.mode is not None and self.options is not None:
            raise AITuneUserInputError(f"{type(self).__name__}: give mode or options, not both")


class TorchInductorJitBackend(Backend[TorchInductorJitBackendConfig]):
    """Compiles the module's forward with ``torch.compile``, at the sizes that matter, while building."""

    config_class = TorchInductorJitBackendConfig
    devices = ("cpu", "cuda", "xpu", "mps")
    complexity = 2

    @property
    def safe_in_process(self) -> bool:
        """Unless frozen: a frozen engine never leaves the process that made it."""
        return not self.config.freezing

    def build(self, job: Job) -> Engine:
        """Build an engine; see :meth:`Backend.build`.

        Raises:
            BackendUnsupportedError: If nothing of the module was compiled.
            BackendBuildError: If torch.compile fails.
        """
        require(self, job)
        graphs = job.device.type == "cuda" and _wants_graphs(self.config)
        compiled = _compiled(job, self.config, graphs=graphs)
        with self._freezing():
            execute, narrowing = warmed_up(job, compiled, job.module, dynamic=self.config.dynamic, backend=self.name)
        return engine_of(job, execute, _facts(job, self.config, narrowing), job.module, cuda_graphs=graphs)

    def takes_varying(self, kinds: Collection[type]) -> bool:
        """Whether what changes are numbers, which torch.compile makes symbols of once two values were seen."""
        return not self.config.freezing and self.config.dynamic is not False and set(kinds) <= {int, float}

    def _freezing(self) -> contextlib.AbstractContextManager[Any]:
        if not self.config.freezing:
            return contextlib.nullcontext()
        import torch._inductor.config

        # As an option of torch.compile it freezes nothing in torch 2.13; around the first call it does.
        patch: contextlib.AbstractContextManager[Any] = torch._inductor.config.patch(freezing=True)
        return patch


def _wants_graphs(config: TorchInductorJitBackendConfig) -> bool:
    return config.mode in WITHOUT_GRAPHS or bool((config.options or {}).get(_GRAPHS_OPTION))


def _compiled(job: Job, config: TorchInductorJitBackendConfig, *, graphs: bool) -> Callable[..., Any]:
    """Return a function of the graph's tensors that compiles when it is called; without torch's own CUDA graphs."""
    mode, options = config.mode, config.options
    if graphs:
        mode = WITHOUT_GRAPHS.get(mode, mode)
        options = None if options is None else {**options, _GRAPHS_OPTION: False}
    compiled = compiled_forward(
        job,
        job.forward,
        fullgraph=config.fullgraph,
        dynamic=config.dynamic,
        mode=mode,
        options=options,
    )
    if config.autocast_enabled:
        compiled = under_autocast(compiled, job.graph, job.device.type, config.autocast_dtype)
    return compiled


def _facts(job: Job, config: TorchInductorJitBackendConfig, narrowing: Narrowing) -> EngineFacts:
    precision = module_precision(job)
    if config.autocast_enabled:
        dtype = config.autocast_dtype or torch.get_autocast_dtype(job.device.type)
        precision = lowest((precision, precision_of(dtype)))
    return EngineFacts(precision=precision, keeps_module=True, live_weights=not config.freezing, narrowing=narrowing)
