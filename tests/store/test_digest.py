"""Digests of tensors and files: every value counts, wherever it lies and however large the whole is."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aitune.torch.store.digest import CHUNK, _mixed, file_digest, tensor_digests


def digest(tensor):
    return tensor_digests([tensor])[0]


@pytest.mark.parametrize("place", [0, 1, CHUNK - 1, CHUNK, 2 * CHUNK - 1, 2 * CHUNK + 2])
def test_one_bit_anywhere_changes_the_digest(place):
    data = torch.zeros(2 * CHUNK + 3, dtype=torch.uint8)
    before = digest(data)
    data[place] = 128
    assert digest(data) != before


def test_layout_of_memory_does_not_change_the_digest_of_values():
    values = torch.randn(6, 5, dtype=torch.float64)
    turned = values.t().contiguous().t()
    assert turned.stride() != values.stride()
    assert digest(turned) == digest(values)
    assert digest(torch.randn(1).expand(4)) != digest(values)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.bfloat16, torch.float16, torch.complex64])
def test_tensors_of_any_dtype_and_size_have_a_digest(dtype):
    ones = torch.ones(3).to(dtype).conj()
    digests = tensor_digests([torch.zeros(()).to(dtype), torch.zeros(0).to(dtype), ones, ones.resolve_conj()])
    assert digests[0] != digests[1] != digests[2]
    assert digests[2] == digests[3]


def test_zeros_of_different_lengths_have_different_digests():
    assert len({digest(torch.zeros(n, dtype=torch.uint8)) for n in (0, 1, 7, 8, 9, CHUNK, CHUNK + 1)}) == 7


@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 63))
def test_mixing_tells_any_two_changed_words_from_the_original(first, second, bit):
    """The digest of other devices: a flip of the same bit in two words, such as two signs, must not cancel out."""
    words = torch.zeros(5001, dtype=torch.int64)
    before = _mixed(words.view(torch.uint8))
    flip = torch.tensor(1, dtype=torch.int64) << bit
    words[first] ^= flip
    words[second] ^= flip
    assert (_mixed(words.view(torch.uint8)) == before) == (first == second)


def test_mixing_sees_the_order_of_words_and_the_bytes_behind_the_last_one():
    words = torch.arange(2000, dtype=torch.int64)
    assert _mixed(words.view(torch.uint8)) != _mixed(words.flip(0).view(torch.uint8))
    data = torch.zeros(19, dtype=torch.uint8)
    before = _mixed(data)
    data[18] = 1
    assert _mixed(data) != before
    assert _mixed(data[3:]) != before  # starts at an odd address


def test_a_file_is_digested_by_its_content(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(bytes(CHUNK + 1))
    before = file_digest(file)
    assert file_digest(file, CHUNK + 1) == before
    assert file_digest(file, CHUNK) == ""
    file.write_bytes(bytes(CHUNK) + b"\1")
    assert file_digest(file) != before


@pytest.mark.gpu
def test_a_tensor_on_the_device_is_digested_there():
    values = torch.randn(1000, 1000, device="cuda")
    before = digest(values)
    assert before == digest(values.clone())
    values[999, 999] += 1
    assert digest(values) != before
