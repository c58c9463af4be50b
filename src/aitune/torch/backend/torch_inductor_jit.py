"""torch.compile with Inductor, in a function of its own for each engine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch

from aitune.exceptions import AITuneUserInputError, BackendUnsupportedError
from aitune.torch.backend.availability import require
from aitune.torch.backend.base import Backend, BackendConfig, Engine
from aitune.torch.backend.compiled import compiled_forward, warmed_up
from aitune.torch.backend.function_engine import EngineFacts, FunctionEngine
from aitune.torch.backend.precision import lowest, module_precision, precision_of
from aitune.torch.backend.validation import check_autocast, check_bool, check_choice, check_options
from aitune.torch.export.narrowing import Narrowing
from aitune.torch.graph.accessor import compile_call, compile_output, compile_output_accessor
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.job import Job

__all__ = ["TorchInductorJitBackend", "TorchInductorJitBackendConfig"]

_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_CUDA_GRAPH_MODES = ("reduce-overhead", "max-autotune")  # outputs live in memory that the next call writes to


@dataclass(frozen=True)
class TorchInductorJitBackendConfig(BackendConfig):
    """Options of ``torch.compile``.

    Attributes:
        mode: As in ``torch.compile``.
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
    complexity = 3

    @property
    def safe_in_process(self) -> bool:
        """Unless frozen: a frozen engine never leaves the process that made it."""
        return not self.config.freezing

    def build(self, job: Job) -> Engine:
        """Build an engine; see :meth:`Backend.build`.

        Raises:
            BackendUnsupportedError: If nothing of the module was compiled, or results would be overwritten.
            BackendBuildError: If torch.compile fails.
        """
        require(self, job)
        if job.device.type == "cuda" and self.config.mode in _CUDA_GRAPH_MODES:
            raise BackendUnsupportedError(self.name, f"mode {self.config.mode!r} comes with the GPU backends")
        compiled = _compiled(job, self.config)
        with self._freezing():
            execute, narrowing = warmed_up(job, compiled, job.module, dynamic=self.config.dynamic, backend=self.name)
        return FunctionEngine(compile_call(job.graph, execute), _facts(job, self.config, narrowing))

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


def _compiled(job: Job, config: TorchInductorJitBackendConfig) -> Callable[..., Any]:
    """Return a function of the graph's tensors that compiles when it is called."""
    compiled = compiled_forward(
        job,
        job.forward,
        fullgraph=config.fullgraph,
        dynamic=config.dynamic,
        mode=config.mode,
        options=config.options,
    )
    if config.autocast_enabled:
        compiled = _under_autocast(compiled, job.graph, job.device.type, config.autocast_dtype)
    return compiled


def _facts(job: Job, config: TorchInductorJitBackendConfig, narrowing: Narrowing) -> EngineFacts:
    precision = module_precision(job)
    if config.autocast_enabled:
        dtype = config.autocast_dtype or torch.get_autocast_dtype(job.device.type)
        precision = lowest((precision, precision_of(dtype)))
    return EngineFacts(precision=precision, keeps_module=True, live_weights=not config.freezing, narrowing=narrowing)


def _under_autocast(
    compiled: Callable[..., Any], graph: GraphSpec, device: str, dtype: torch.dtype | None
) -> Callable[..., Any]:
    output, output_tensors = compile_output(graph), compile_output_accessor(graph)
    dtypes = [spec.dtype for spec in graph.outputs.tensors]

    def call(*operands: Any) -> Any:
        with torch.autocast(device, dtype=dtype):
            result = compiled(*operands)
        found = output_tensors(result)
        return output([tensor.to(kind) for tensor, kind in zip(found, dtypes, strict=True)])

    return call
