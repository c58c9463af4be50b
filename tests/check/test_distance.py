"""How far one tensor is from another."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aitune.torch.check.bits import digest, same_bits
from aitune.torch.check.blocks import blocks, position
from aitune.torch.check.bounds import Bounds
from aitune.torch.check.distance import distance
from aitune.torch.check.value import compare_numbers
from aitune.torch.check.yardstick import level, yardstick


def measured(out: torch.Tensor, reference: torch.Tensor):
    return distance(out, reference, reference, yardstick(reference, reference))


def accepts(out: torch.Tensor, reference: torch.Tensor, precision: str = "float32") -> bool:
    yard = yardstick(reference, reference)
    return compare_numbers(out, reference, reference, yard, Bounds.of(precision)).mismatch is None


def test_the_error_is_the_relative_l2_norm() -> None:
    reference, out = torch.randn(50, 7, 3), torch.randn(50, 7, 3)
    expected = (out.double() - reference.double()).norm() / reference.double().norm()
    assert measured(out, reference).error == pytest.approx(float(expected))


def test_slices_are_measured_against_the_scale_of_the_whole_or_their_own() -> None:
    reference = torch.ones(100, 16)
    reference[0] *= 1000
    out = reference.clone()
    out[0] *= 1.001
    out[1] += 50
    slices = measured(out, reference).slices
    assert float(slices[0]) == pytest.approx(0.001, rel=1e-3)
    assert float(slices[1]) == pytest.approx(50 / 125, rel=1e-3)  # an eighth of the largest slice
    assert float(slices[2:].max()) == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_every_dtype_is_measured(dtype) -> None:
    reference = torch.randn(20, 6).to(dtype)
    out = reference.clone()
    out[3, 2] += 1
    found = measured(out, reference)
    assert found.worst == (3, 2)
    exact, other = reference.to(torch.complex128), out.to(torch.complex128)
    expected = (other - exact).norm() / exact.norm()
    assert found.error == pytest.approx(float(expected), rel=1e-5)


@settings(max_examples=60, deadline=None)
@given(exponent=st.integers(-300, 300), seed=st.integers(0, 1000))
def test_the_error_does_not_depend_on_the_scale(exponent, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    reference = torch.randn(5, 9, generator=generator, dtype=torch.float64)
    out = reference + 1e-3 * torch.randn(5, 9, generator=generator, dtype=torch.float64)
    factor = 10.0**exponent
    plain, scaled = measured(out, reference), measured(out * factor, reference * factor)
    assert scaled.error == pytest.approx(plain.error, rel=1e-6)
    assert scaled.element == pytest.approx(plain.element, rel=1e-6)
    assert torch.allclose(scaled.slices, plain.slices, rtol=1e-6, atol=0)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(0, 5), max_size=4),
    seed=st.integers(0, 1000),
    transposed=st.booleans(),
)
def test_equal_tensors_have_no_distance_and_blocks_cover_everything(shape, seed, transposed) -> None:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    tensor = tensor.transpose(0, -1) if transposed and tensor.dim() > 1 else tensor
    found = measured(tensor.clone(), tensor)
    assert (found.error, found.element) == (0, 0)
    numbers = torch.cat([block.values[0].flatten() for block in blocks((tensor,))] or [torch.empty(0)])
    assert torch.equal(numbers, tensor.flatten())
    for i in range(tensor.numel()):
        assert tensor[position(tensor, i)] == tensor.flatten()[i]


def test_large_tensors_are_cut_along_rows_and_within_rows() -> None:
    for shape in ((3, 50_000), (50_000, 3), (150_000,), (1, 150_000)):
        reference = torch.randn(shape)
        out = reference.clone()
        out.view(-1)[77_777] += 40
        found = measured(out, reference)
        assert found.worst == position(reference, 77_777)
        expected = (out.double() - reference.double()).norm() / reference.double().norm()
        assert found.error == pytest.approx(float(expected))


def test_one_wrong_row_of_4096_does_not_hide_in_the_norm() -> None:
    reference = torch.randn(4096, 32)
    out = reference.clone()
    out[99] = -out[99]
    assert measured(out, reference).error < Bounds.of("int8").floor
    assert not accepts(out, reference, "int8")


def test_one_wrong_element_of_a_million_does_not_hide_either() -> None:
    reference = torch.randn(1, 1_000_000)
    out = reference.clone()
    out[0, 123_456] += 0.09
    assert measured(out, reference).error < Bounds.of("float32").floor
    assert not accepts(out, reference)
    assert accepts(reference + 5e-5 * torch.randn(1, 1_000_000), reference)


def test_nothing_is_relative_to_an_output_of_zeros() -> None:
    zeros = torch.zeros(3)
    assert measured(zeros, zeros).error == 0
    assert math.isinf(measured(zeros + 1e-30, zeros).error)


def test_mask_fills_do_not_swamp_the_others() -> None:
    reference = torch.randn(64, 10)
    reference[:, ::3] = torch.finfo(torch.float32).min
    out = reference.clone()
    out[5, 1] += 1
    assert measured(out, reference).error > 0.03
    wrong_fill = reference.clone()
    wrong_fill[:, 0] /= 2
    assert measured(wrong_fill, reference).error == pytest.approx(0.5)
    assert yardstick(torch.randn(1000) * 1e6, torch.randn(1000) * 1e6).fill is None


def test_the_places_of_nan_and_infinity_are_eagers() -> None:
    inf, nan = float("inf"), float("nan")
    eager = torch.tensor([1.0, inf, nan, 2.0, inf])
    reference = torch.tensor([1.0, 3e39, nan, nan, 5.0], dtype=torch.float64)
    yard = yardstick(eager, reference)

    def misplaced(*values: float):
        return distance(torch.tensor(values), reference, eager, yard).misplaced

    assert misplaced(1.0, inf, nan, 2.0, inf) is None
    assert misplaced(1.0, inf, nan, 2.0, 5.0) is None  # eager overflowed on the way, the truth is finite
    assert misplaced(1.0, 3e38, nan, 2.0, inf) == (1,)
    assert misplaced(1.0, -inf, nan, 2.0, inf) == (1,)
    assert misplaced(1.0, inf, 0.0, 2.0, inf) == (2,)
    assert misplaced(1.0, inf, nan, nan, inf) == (3,)


def test_the_error_of_eager_widens_the_bound() -> None:
    reference = torch.randn(100, dtype=torch.float64)
    eager = (reference * 1.01).float()
    yard = yardstick(eager, reference.float(), 1e-9)
    limits = Bounds.of("float32").limits(yard, torch.float32)
    assert limits.whole == pytest.approx(0.04, rel=1e-3)
    assert limits.slices == pytest.approx(0.16, rel=1e-3)


def test_yardsticks_of_one_number_are_evened_out() -> None:
    values = [torch.tensor([value]) for value in (3.0, -2.0, 1e-4)]
    yards = level([yardstick(value, value) for value in values], [1, 1, 1])
    assert [yard.rms for yard in yards] == pytest.approx([3.0, 2.0, 0.2])
    large = [torch.full((20,), value) for value in (3.0, 2.0, 1e-4)]
    assert level([yardstick(value, value) for value in large], [20] * 3)[2].rms == pytest.approx(1e-4)


def test_bits_and_digests() -> None:
    nan = torch.tensor([float("nan"), 0.0])
    assert same_bits(nan, nan.clone())
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not same_bits(torch.tensor([0.0]), torch.tensor([0.0], dtype=torch.float64))
    assert same_bits(torch.arange(6).view(2, 3).t(), torch.arange(6).view(2, 3).t().contiguous())
    for dtype in (torch.bool, torch.uint8, torch.float16, torch.bfloat16, torch.complex128, torch.float8_e4m3fn):
        tensor = torch.randn(40_000).abs().add(1).to(dtype)
        other = tensor.clone()
        assert same_bits(tensor, other)
        assert digest(tensor) == digest(other)
        other[39_999] = 0
        assert not same_bits(tensor, other)
        assert digest(tensor) != digest(other)
