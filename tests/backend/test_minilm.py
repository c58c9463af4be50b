"""A real transformer with its real weights, through the backends that a CPU has."""

import pytest
import torch

from aitune.torch.backend import (
    ONNXRuntimeBackend,
    ONNXRuntimeBackendConfig,
    OpenVINOBackend,
    TorchInductorAotBackend,
    TorchInductorJitBackend,
)

BACKENDS = [
    pytest.param(ONNXRuntimeBackend(), marks=pytest.mark.slow),
    ONNXRuntimeBackend(ONNXRuntimeBackendConfig(use_dynamo=False)),
    OpenVINOBackend(),
    pytest.param(TorchInductorAotBackend(), marks=pytest.mark.slow),
    pytest.param(TorchInductorJitBackend(), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_minilm_is_within_its_bound(minilm, built, assert_same, backend):
    engine = built(backend, minilm)
    ids = torch.randint(1000, 20000, (3, 8))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    calls = [
        ((), {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}),
        *((sample.args, sample.kwargs) for sample in minilm.samples),
    ]
    with torch.no_grad():
        for args, kwargs in calls:
            assert_same(engine.run(*args, **kwargs), minilm.module(*args, **kwargs), 1e-4)
    engine.close()
