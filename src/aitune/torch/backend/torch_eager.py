"""The module itself, as it is or under another setting of PyTorch."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch

from aitune.exceptions import BackendUnsupportedError
from aitune.torch.backend.availability import require
from aitune.torch.backend.base import Backend, BackendConfig, Engine
from aitune.torch.backend.function_engine import EngineFacts, FunctionEngine
from aitune.torch.backend.precision import lowest, module_precision, precision_of
from aitune.torch.backend.validation import check_autocast, check_bool
from aitune.torch.graph.accessor import (
    compile_call,
    compile_forward,
    compile_output,
    compile_output_accessor,
)
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.job import Job

__all__ = ["TorchEagerBackend", "TorchEagerBackendConfig"]

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


@dataclass(frozen=True)
class TorchEagerBackendConfig(BackendConfig):
    """How PyTorch runs the module.

    Attributes:
        autocast_enabled: Whether forward runs under autocast; outputs keep the dtypes that they had without.
        autocast_dtype: Its dtype; None: torch's choice for the device.
        channels_last: Whether weights and images are laid out channels last, in a copy of the module.
        use_cuda_graphs: Whether calls are replayed as CUDA graphs.
    """

    autocast_enabled: bool = False
    autocast_dtype: torch.dtype | None = None
    channels_last: bool = False
    use_cuda_graphs: bool = False

    def __post_init__(self) -> None:
        check_autocast(self)
        check_bool(self, "channels_last", "use_cuda_graphs")


class TorchEagerBackend(Backend[TorchEagerBackendConfig]):
    """Runs the module in eager mode. With no option set its engine is the original forward itself."""

    config_class = TorchEagerBackendConfig
    devices = ("cpu", "cuda", "xpu", "mps")
    contained = False
    complexity = 0

    @property
    def safe_in_process(self) -> bool:
        """Always: nothing foreign runs."""
        return True

    def takes_varying(self, kinds: Collection[type]) -> bool:  # noqa: ARG002
        """Whether the engine is the forward itself, which takes anything."""
        return self.config == TorchEagerBackendConfig()

    def unsuitable(self, job: Job) -> str | None:
        """Return why the job cannot be served, None if it may be tried."""
        if self.config.use_cuda_graphs and job.device.type != "cuda":
            return f"use_cuda_graphs needs cuda, the module is on {job.device.type}"
        return super().unsuitable(job)

    def build(self, job: Job) -> Engine:
        """Build an engine; see :meth:`Backend.build`.

        Raises:
            BackendUnsupportedError: If channels last cannot be had, or CUDA graphs are asked for.
        """
        require(self, job)
        if self.config.use_cuda_graphs:
            raise BackendUnsupportedError(self.name, "use_cuda_graphs comes with the GPU backends")
        config, device = self.config, job.device.type
        if not config.channels_last and not config.autocast_enabled:
            facts = EngineFacts(precision=module_precision(job), keeps_module=True, live_weights=True, own_errors=True)
            return FunctionEngine(job.forward, facts)
        dtype = config.autocast_dtype or torch.get_autocast_dtype(device)
        autocast = functools.partial(torch.autocast, device, dtype=dtype, enabled=config.autocast_enabled)
        precision = lowest((module_precision(job), *([precision_of(dtype)] if config.autocast_enabled else [])))
        if not config.channels_last:
            run = _converting(job.graph, job.forward, autocast, channels_last=False)
            return FunctionEngine(run, EngineFacts(precision=precision, keeps_module=True, live_weights=True))
        owner = self._channels_last_copy(job.module)
        run = _converting(job.graph, owner.forward, autocast, channels_last=True)
        # Without gradients: they would go to the copy.
        return FunctionEngine(torch.no_grad()(run), EngineFacts(precision=precision))

    def _channels_last_copy(self, module: torch.nn.Module) -> torch.nn.Module:
        ranks = {parameter.dim() for parameter in module.parameters()}
        if not ranks & set(_FORMATS):
            raise BackendUnsupportedError(self.name, "channels_last: the module has no weights of images")
        if any("forward" in child.__dict__ for child in module.modules()):
            raise BackendUnsupportedError(self.name, "channels_last: a forward set on an instance cannot be copied")
        try:
            owner = copy.deepcopy(module)
        except Exception as error:
            raise BackendUnsupportedError(self.name, f"channels_last: the module cannot be copied: {error}") from error
        for rank in sorted(ranks & set(_FORMATS)):
            for parameter in owner.parameters():
                if parameter.dim() == rank:
                    parameter.data = parameter.data.contiguous(memory_format=_FORMATS[rank])
        return owner


def _converting(
    graph: GraphSpec, forward: Callable[..., Any], autocast: Callable[[], Any], channels_last: bool
) -> Callable[..., Any]:
    """Return a forward with tensors converted on the way in and back on the way out, run in a context."""
    output, output_tensors = compile_output(graph), compile_output_accessor(graph)
    call = compile_forward(graph, forward)
    dtypes = [spec.dtype for spec in graph.outputs.tensors]

    def execute(tensors: tuple[torch.Tensor, ...]) -> Any:
        if channels_last:
            tensors = tuple(_channels_last(tensor) for tensor in tensors)
        with autocast():
            result = call(*tensors)
        found = output_tensors(result)
        # Callers may rely on a layout; the original's outputs were contiguous more often than not.
        return output([tensor.to(kind).contiguous() for tensor, kind in zip(found, dtypes, strict=True)])

    return compile_call(graph, execute)


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    layout = _FORMATS.get(tensor.dim())
    if layout is None or not tensor.is_floating_point():
        return tensor
    return tensor.contiguous(memory_format=layout)
