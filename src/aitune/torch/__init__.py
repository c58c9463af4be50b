"""The public face of aitune for PyTorch, by custom imported as ``ait``."""

from aitune.torch.bench import Bench
from aitune.torch.check.check import Check
from aitune.torch.checkpoint import LocalTorchStorage, load, save
from aitune.torch.config import aitune_cache_dir, config
from aitune.torch.dataloader import DataLoaderFactory
from aitune.torch.doctor import Diagnosis, doctor
from aitune.torch.graph.dims import BatchDim, DynamicDim
from aitune.torch.jit.config import jit_config
from aitune.torch.jit.patched_module import PatchedModule
from aitune.torch.jit.patcher import patch_for_jit_tuning
from aitune.torch.measure import ProfilingConfig
from aitune.torch.module import Module, ModuleState, handle
from aitune.torch.report import TuneResult
from aitune.torch.trial import Trial, Verdict
from aitune.torch.tune_strategy import (
    FirstWinsStrategy,
    LatencyBudgetStrategy,
    MaxThroughputStrategy,
    MinLatencyStrategy,
    OneBackendStrategy,
    TuneStrategy,
)
from aitune.torch.tuning import tune

__all__ = [
    "BatchDim",
    "Bench",
    "Check",
    "DataLoaderFactory",
    "Diagnosis",
    "DynamicDim",
    "FirstWinsStrategy",
    "LatencyBudgetStrategy",
    "LocalTorchStorage",
    "MaxThroughputStrategy",
    "MinLatencyStrategy",
    "Module",
    "ModuleState",
    "OneBackendStrategy",
    "PatchedModule",
    "ProfilingConfig",
    "Trial",
    "TuneResult",
    "TuneStrategy",
    "Verdict",
    "aitune_cache_dir",
    "config",
    "doctor",
    "handle",
    "jit_config",
    "load",
    "patch_for_jit_tuning",
    "save",
    "tune",
]
