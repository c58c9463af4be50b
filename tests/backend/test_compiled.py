"""What stands around torch.compile: one form of inputs, and functions that it takes for real ones."""

import gc
import inspect

import pytest
import torch

from aitune.torch.backend.compiled import _dense, _with_source
from aitune.torch.graph.accessor import Names, compiled


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(12).as_strided((1, 6), (12, 1)),
        torch.ones(12).as_strided((1, 1, 4), (7, 9, 1)),
        torch.arange(6.0).view(1, 2, 3).transpose(0, 1),
        torch.arange(6.0).view(2, 3).t(),
        torch.ones(4)[::2][:1],
        torch.ones(4, 4)[2:, 3].as_strided((1, 1), (8, 4), 3),
        torch.zeros(0, 3),
        torch.tensor(2.0),
    ],
    ids=lambda tensor: f"{tuple(tensor.shape)} {tensor.stride()}",
)
def test_inputs_have_the_strides_of_new_tensors(tensor):
    dense = _dense(tensor)
    assert dense.stride() == torch.empty(tensor.shape).stride()
    assert torch.equal(dense, tensor)


def test_a_tensor_that_is_dense_already_is_passed_as_it_is():
    tensor = torch.zeros(1, 3)
    assert _dense(tensor) is tensor


def test_a_generated_function_has_a_source_file_as_long_as_it_lives():
    function = _with_source(compiled("call", "x", ["return x"], Names()))
    name = inspect.getsourcefile(function)
    assert name is not None
    twin = compiled("call", "x", ["return x"], Names())
    assert inspect.getsourcefile(twin) is None
    del function
    gc.collect()
    assert inspect.getsourcefile(compiled("call", "x", ["return x"], Names())) is None
