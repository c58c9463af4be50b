"""A forward with tensors in and out: any nesting, the module untouched."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from aitune.torch.export.flat import FlatForward, OutputRoutes, flat_inputs


@dataclass
class Batch:
    x: Any
    flag: bool = True


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, batch, *rest, scale=1.0, **more):
        y = self.linear(batch.x) * scale
        return Batch({"y": y, "more": [more["m"], None]}, batch.flag), y, rest[0]


def test_tensors_go_in_and_come_out(job_of):
    module = Nested().train()
    x, r, m = torch.randn(2, 3), torch.randn(2), torch.randn(2, 1)
    job = job_of(module, ((Batch(x), r), {"m": m, "scale": 2.0}))
    flat = FlatForward(job)
    tensors = job.graph.input_tensors((Batch(x), r), {"m": m, "scale": 2.0})

    (y,) = flat(*tensors)

    assert torch.equal(y, module.linear(x) * 2.0)
    assert flat.training
    assert module.training
    assert [tensor is m for tensor in tensors] == [False, False, True]
    assert flat.routes.sources == (("computed", 0), ("input", 2), ("computed", 0), ("input", 1))
    assert {name.removeprefix("module.") for name, _ in flat.named_parameters()} == set(dict(module.named_parameters()))


def test_a_model_output_is_flattened(job_of):
    outputs = pytest.importorskip("transformers.modeling_outputs")

    class Model(nn.Module):
        def forward(self, x):
            return outputs.BaseModelOutput(last_hidden_state=x + 1, hidden_states=(x, x * 2))

    job = job_of(Model(), ((torch.zeros(1, 2),), {}))
    computed = FlatForward(job)(torch.zeros(1, 2))

    assert [tensor.sum().item() for tensor in computed] == [2.0, 0.0]


def test_routes_put_outputs_in_their_places():
    routes = OutputRoutes((("input", 1), ("computed", 0), ("computed", 0), ("computed", 1)))

    assert routes.computed == 2
    assert not routes.direct
    assert routes.outputs(["a", "b"], ["x", "y"]) == ["y", "a", "a", "b"]
    assert OutputRoutes((("computed", 0), ("computed", 1))).direct


@pytest.mark.parametrize("sizes", [(1,), (1, 3), (2, 5), (1, 2, 8)], ids=str)
def test_inputs_to_export_with_have_two_entries_along_dynamic_axes(job_of, sizes):
    class Both(nn.Module):
        def forward(self, x, y):
            return x.repeat_interleave(3, 0) + y

    calls = [((torch.randn(n, 4), torch.randn(3 * n, 4)), {}) for n in sizes]
    job = job_of(Both(), *calls)
    x, y = flat_inputs(job)

    assert len(y) == 3 * len(x)
    assert len(x) == sizes[0] if len(sizes) == 1 else min(size for size in sizes if size > 1)
    assert all(x.data_ptr() != sample.args[0].data_ptr() for sample in job.samples)


def test_inputs_are_contiguous_and_need_no_gradients(job_of):
    x = torch.randn(4, 3, requires_grad=True)
    job = job_of(nn.Linear(4, 2), ((x.detach().t(),), {}))
    (copy,) = flat_inputs(job)

    assert copy.is_contiguous()
    assert not copy.requires_grad
