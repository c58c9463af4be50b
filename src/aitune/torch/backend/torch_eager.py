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
from aitune.torch.backend.cuda_graphs import CudaGraphs
from aitune.torch.backend.function_engine import EngineFacts, FunctionEngine
from aitune.torch.backend.precision import lowest, module_precision, precision_of
from aitune.torch.backend.validation import check_autocast, check_bool
from aitune.torch.export.flat import flat_call
from aitune.torch.export.preserved import preserved
from aitune.torch.graph.accessor import (
    compile_call,
    compile_forward,
    compile_output,
    compile_output_accessor,
)
from aitune.torch.graph.graph import GraphSpec
from aitune.torch.graph.job import Job

__all__ = ["TorchEagerBackend", "TorchEagerBackendConfig"]

Execute = Callable[[tuple[torch.Tensor, ...]], Any]

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
            BackendUnsupportedError: If channels last or CUDA graphs are asked for and cannot be had.
        """
        require(self, job)
        config, device = self.config, job.device.type
        changed = config.channels_last or config.autocast_enabled
        if not changed and not config.use_cuda_graphs:
            facts = EngineFacts(precision=module_precision(job), keeps_module=True, live_weights=True, own_errors=True)
            return FunctionEngine(job.forward, facts)
        dtype = config.autocast_dtype or torch.get_autocast_dtype(device)
        precision = lowest((module_precision(job), *([precision_of(dtype)] if config.autocast_enabled else [])))
        owner = self._channels_last_copy(job.module) if config.channels_last else job.module
        facts = EngineFacts(precision=precision, keeps_module=owner is job.module, live_weights=owner is job.module)
        if changed:
            autocast = functools.partial(torch.autocast, device, dtype=dtype, enabled=config.autocast_enabled)
            execute = _converting(job.graph, owner.forward, autocast, channels_last=config.channels_last)
        else:
            execute = _as_it_is(job.graph, job.forward)
        if config.use_cuda_graphs:
            return self._as_graphs(job, execute, owner, facts)
        run = compile_call(job.graph, execute)
        # Without gradients where the weights are those of a copy: they would go to the copy.
        return FunctionEngine(run if owner is job.module else torch.no_grad()(run), facts)

    def _as_graphs(self, job: Job, execute: Execute, owner: torch.nn.Module, facts: EngineFacts) -> Engine:
        graphs = CudaGraphs(execute, job.graph, owner)
        with preserved(owner), torch.no_grad():
            problem = graphs.prepare([flat_call(job, sample) for sample in job.samples])
        if problem is not None:
            graphs.close()
            raise BackendUnsupportedError(self.name, problem)
        return FunctionEngine(compile_call(job.graph, graphs), facts, on_close=graphs.close)

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


def _as_it_is(graph: GraphSpec, forward: Callable[..., Any]) -> Execute:
    call = compile_forward(graph, forward)
    return lambda tensors: call(*tensors)


def _converting(
    graph: GraphSpec, forward: Callable[..., Any], autocast: Callable[[], Any], channels_last: bool
) -> Execute:
    """Return a forward of the graph's tensors that converts them on the way in and back out, and runs in a context."""
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

    return execute


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    layout = _FORMATS.get(tensor.dim())
    if layout is None or not tensor.is_floating_point():
        return tensor
    return tensor.contiguous(memory_format=layout)
