"""The module itself: as it is, under autocast, and channels last."""

import types

import pytest
import torch
from torch import nn

from aitune.exceptions import BackendUnsupportedError
from aitune.torch.backend import TorchEagerBackend, TorchEagerBackendConfig


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.head = nn.Linear(8, 2)

    def forward(self, x, shift):
        y = torch.relu(self.conv(x))
        return y, self.head(y.mean((2, 3))) + shift


@pytest.fixture(scope="module")
def images(job_of):
    calls = [(size, (torch.randn(size, 3, 8, 8), torch.randn(2)), {}) for size in (1, 3)]
    return job_of(Images().eval(), *calls)


CHANNELS_LAST = TorchEagerBackend(TorchEagerBackendConfig(channels_last=True))
AUTOCAST = TorchEagerBackend(TorchEagerBackendConfig(autocast_enabled=True, autocast_dtype=torch.bfloat16))


def test_without_options_run_is_the_original_forward(linear_job):
    engine = TorchEagerBackend().build(linear_job)

    assert engine.run == linear_job.module.forward
    assert engine.run.__self__ is linear_job.module
    assert (engine.precision, engine.reentrant, engine.keeps_module) == ("float32", True, True)
    assert engine.live_weights
    assert engine.own_errors


def test_a_forward_set_on_the_instance_is_the_original(job_of):
    module = nn.Linear(2, 2)
    module.forward = types.MethodType(lambda self, x: x + 1, module)
    job = job_of(module, (1, (torch.zeros(1, 2),), {}))

    assert torch.equal(TorchEagerBackend().build(job).run(torch.zeros(1, 2)), torch.ones(1, 2))
    with pytest.raises(BackendUnsupportedError, match="no weights of images"):
        CHANNELS_LAST.build(job)


def test_gradients_flow_through_a_plain_engine(linear_job):
    x = torch.randn(2, 4, requires_grad=True)
    TorchEagerBackend().build(linear_job).run(x).sum().backward()

    assert x.grad is not None


def test_channels_last_answers_the_same_from_a_copy(images, assert_same):
    module = images.module
    engine = CHANNELS_LAST.build(images)
    x, shift = torch.randn(2, 3, 8, 8), torch.randn(2)
    found, wanted = engine.run(x, shift=shift), module(x, shift)

    assert_same(found, tuple(tensor.detach() for tensor in wanted), 1e-5)
    assert found[0].is_contiguous()
    assert not found[0].requires_grad
    assert module.conv.weight.is_contiguous()
    assert not engine.live_weights
    assert not engine.keeps_module


def test_channels_last_needs_weights_of_images(linear_job):
    with pytest.raises(BackendUnsupportedError, match="no weights of images"):
        CHANNELS_LAST.build(linear_job)


def test_a_module_that_cannot_be_copied_is_unsupported(job_of):
    class Single(Images):
        def __deepcopy__(self, memo):
            raise TypeError("there can be only one")

    job = job_of(Single(), (1, (torch.randn(1, 3, 4, 4), torch.randn(2)), {}))
    with pytest.raises(BackendUnsupportedError, match="there can be only one"):
        CHANNELS_LAST.build(job)


def test_autocast_declares_its_precision_and_keeps_dtypes(images):
    engine = AUTOCAST.build(images)
    x, shift = torch.randn(2, 3, 8, 8), torch.randn(2)
    with torch.no_grad():
        found, wanted = engine.run(x, shift), images.module(x, shift)

    assert engine.precision == "bfloat16"
    assert engine.live_weights
    assert [tensor.dtype for tensor in found] == [torch.float32] * 2
    assert 1e-5 < (found[0] - wanted[0]).norm() / wanted[0].norm() < 3e-2
    assert not torch.is_autocast_enabled("cpu")


def test_autocast_follows_changed_weights(images):
    engine = AUTOCAST.build(images)
    x, shift = torch.randn(1, 3, 8, 8), torch.zeros(2)
    weight = images.module.head.weight
    with torch.no_grad():
        kept = weight.clone()
        weight.zero_()
        found = engine.run(x, shift)[1]
        weight.copy_(kept)

    assert torch.allclose(found, images.module.head.bias.expand(1, 2), atol=1e-2)


def test_double_and_half_modules_declare_their_own_precision(job_of):
    for dtype, precision in ((torch.float64, "float64"), (torch.bfloat16, "bfloat16")):
        job = job_of(nn.Linear(2, 2).to(dtype), (1, (torch.zeros(1, 2, dtype=dtype),), {}))
        assert TorchEagerBackend().build(job).precision == precision
