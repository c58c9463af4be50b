"""Collation keeps the structure of the samples and says where they do not fit together."""

import enum
from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aitune.exceptions import AITuneUserInputError
from aitune.torch.dataloader import collate

Point = namedtuple("Point", "x label")


class Mode(enum.Enum):
    FAST = 1
    SLOW = 2


@dataclass(frozen=True)
class Inputs:
    x: torch.Tensor
    name: str = "a"


@dataclass
class Settings:
    model: str = "small"
    sizes: list = field(default_factory=lambda: [1, 2])


def test_tensors_are_stacked_into_new_memory_and_keep_their_dtype():
    samples = [torch.tensor([1, 2], dtype=torch.int16), torch.tensor([3, 4], dtype=torch.int16)]
    batch = collate(samples)
    assert batch.tolist() == [[1, 2], [3, 4]]
    assert batch.dtype == torch.int16
    batch.zero_()
    assert samples[0].tolist() == [1, 2]


def test_a_batch_of_one_shares_no_memory_with_its_sample():
    sample = {"x": torch.ones(2), "a": np.ones(2)}
    batch = collate([sample])
    batch["x"].zero_()
    batch["a"].zero_()
    assert sample["x"].sum() == 2
    assert sample["a"].sum() == 2


def test_samples_that_require_gradients_make_a_batch_that_does_not():
    assert not collate([torch.ones(2, requires_grad=True)] * 2).requires_grad


@pytest.mark.parametrize("dtype", ["float16", "float32", ">f4", "int64", "uint8", "bool", "complex64"])
def test_arrays_become_tensors_of_their_dtype(dtype):
    array = np.ones((2, 3), dtype)
    array.flags.writeable = False
    batch = collate([array, array])
    assert batch.shape == (2, 2, 3)
    assert batch.numpy().dtype == np.dtype(dtype).newbyteorder("=")


def test_an_array_seen_backwards_is_stacked():
    assert collate([np.arange(3)[::-1]]).tolist() == [[2, 1, 0]]


def test_strings_become_lists_even_when_equal():
    assert collate(["a", "a"]) == ["a", "a"]
    assert collate([b"a"]) == [b"a"]


@pytest.mark.parametrize("value", [True, 3, 0.5, 2j, np.float32(0.5), float("inf"), Mode.FAST])
def test_equal_scalars_stay_a_scalar(value):
    batch = collate([value, value])
    assert batch == value
    assert type(batch) is type(value)


def test_nan_is_equal_to_nan():
    assert np.isnan(collate([float("nan"), float("nan")]))


def test_an_integer_and_an_equal_float_stay_a_float():
    assert isinstance(collate([1, 1.0]), float)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, 2], torch.int64),
        ([0.5, 1], torch.float32),
        ([True, False], torch.bool),
        ([1j, 2], torch.complex64),
        ([np.float64(1), np.float64(2)], torch.float64),
        ([np.int8(1), np.int8(2)], torch.int8),
    ],
)
def test_differing_scalars_become_a_tensor(values, dtype):
    batch = collate(values)
    assert batch.tolist() == values
    assert batch.dtype == dtype


def test_none_stays_none_where_all_are():
    assert collate([{"mask": None}, {"mask": None}]) == {"mask": None}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: (x, 1),
        lambda x: [x, 1],
        lambda x: {"x": x},
        lambda x: OrderedDict(x=x),
        lambda x: UserDict(x=x),
        lambda x: MappingProxyType({"x": x}),
        lambda x: Point(x, 1),
        Inputs,
    ],
)
def test_containers_keep_their_type(wrap):
    sample = wrap(torch.ones(2))
    batch = collate([sample, wrap(torch.zeros(2))])
    assert type(batch) is type(sample)
    inner = batch.x if hasattr(batch, "x") else batch["x" if hasattr(batch, "keys") else 0]
    assert inner.tolist() == [[1, 1], [0, 0]]


def test_a_defaultdict_keeps_its_factory():
    batch = collate([defaultdict(int, x=torch.ones(2))])
    assert batch.default_factory is int


def test_the_order_of_keys_does_not_matter():
    batch = collate([{"a": 1, "b": 2}, {"b": 2, "a": 1}])
    assert batch == {"a": 1, "b": 2}


def test_a_model_output_keeps_its_type():
    outputs = pytest.importorskip("transformers.modeling_outputs")
    batch = collate([outputs.BaseModelOutput(last_hidden_state=torch.ones(2))] * 2)
    assert type(batch) is outputs.BaseModelOutput
    assert batch.last_hidden_state.shape == (2, 2)


def test_a_container_that_pytree_knows_is_collated():
    batch = collate([deque([torch.ones(2)]), deque([torch.zeros(2)])])
    assert isinstance(batch, deque)
    assert batch[0].shape == (2, 2)


def test_the_same_object_in_every_sample_is_passed_on():
    config = object()
    assert collate([{"config": config}] * 3)["config"] is config


def test_a_dataclass_without_tensors_is_passed_on_where_it_is_the_same():
    shared = Settings()
    assert collate([shared, shared]) is shared
    assert collate([shared, Settings()]) is shared
    assert collate([shared, Settings(model="large")]).model == ["small", "large"]


def test_devices_and_dtypes_are_compared_by_value():
    assert collate([torch.device("cpu"), torch.device("cpu")]) == torch.device("cpu")
    with pytest.raises(AITuneUserInputError, match=r"torch.float32.*torch.int8"):
        collate([torch.float32, torch.int8])


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (
            [torch.ones(3), torch.ones(4)],
            r"sample is Tensor of shape \(3,\).*in sample 0 but .*\(4,\).*in sample 1",
        ),
        ([{"ids": torch.ones(3)}, {"ids": torch.ones(4)}], r"sample\['ids'\] is .*\(3,\).*\(4,\)"),
        ([(1, [torch.ones(3)]), (1, [torch.ones(4)])], r"sample\[1\]\[0\] is .*\(3,\).*\(4,\)"),
        ([Inputs(torch.ones(3)), Inputs(torch.ones(4))], r"sample\.x is .*\(3,\).*\(4,\)"),
        ([torch.ones(3), torch.ones(3, dtype=torch.int64)], r"float32.*int64"),
        ([torch.ones(3), torch.ones(3, device="meta")], r"on cpu.*on meta"),
        ([{"m": None}, {"m": torch.ones(3)}], r"sample\['m'\] is None in sample 0 but Tensor"),
        ([{"a": 1}, {"a": 1, "b": 2}], r"dict with the keys 'a' in .*dict with the keys 'a', 'b'"),
        ([[1, 2], [1, 2, 3]], r"list of 2 items.*list of 3 items"),
        ([(1,), [1]], r"tuple of 1 item in .*list of 1 item "),
        ([Mode.FAST, Mode.SLOW], r"Mode\.FAST.*Mode\.SLOW"),
        ([object(), object()], r"sample is object, which cannot be collated"),
        ([{"a": {1}}, {"a": {2}}], r"sample\['a'\] is set, which cannot be collated"),
        ([np.array(["a"]), np.array(["b"])], r"sample is ndarray .*torch has no such dtype"),
        ([2**70, 1], r"sample is int, which cannot be collated"),
    ],
)
def test_samples_that_do_not_fit_together_are_an_error_with_path_reason_and_remedy(samples, words):
    with pytest.raises(AITuneUserInputError, match=words) as caught:
        collate(samples)
    assert "DataLoaderFactory(dataset, collate_fn=...)" in str(caught.value)
    assert "batch_sizes=[1]" in str(caught.value)


def test_errors_name_the_places_in_the_dataset():
    with pytest.raises(AITuneUserInputError, match=r"in sample 17 but .* in sample 40"):
        collate([torch.ones(3), torch.ones(4)], [17, 40])


def test_no_samples_are_an_error():
    with pytest.raises(AITuneUserInputError, match="at least one"):
        collate([])


def leaves():
    """Structures of nested samples: a tensor's shape, a number or a string, in containers."""
    plain = st.one_of(
        st.lists(st.integers(0, 3), max_size=2).map(tuple).map(lambda shape: ("tensor", shape)),
        st.just(("number", None)),
        st.just(("text", None)),
        st.just(("none", None)),
    )
    return st.recursive(
        plain,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3).map(lambda items: ("list", items)),
            st.lists(inner, max_size=3).map(lambda items: ("tuple", items)),
            st.tuples(inner, inner).map(lambda items: ("point", list(items))),
            st.dictionaries(st.sampled_from("abc"), inner, max_size=3).map(lambda items: ("dict", items)),
        ),
        max_leaves=6,
    )


def sample_of(structure, number):
    kind, inner = structure
    if kind == "tensor":
        return torch.full(inner, number)
    if kind in ("number", "text", "none"):
        return {"number": number, "text": str(number), "none": None}[kind]
    if kind == "dict":
        return {key: sample_of(value, number) for key, value in inner.items()}
    items = [sample_of(value, number) for value in inner]
    return Point(*items) if kind == "point" else {"list": list, "tuple": tuple}[kind](items)


def row_of(batch, structure, i):
    kind, inner = structure
    if kind == "none":
        return batch
    if kind == "number":
        return batch[i].item() if isinstance(batch, torch.Tensor) else batch
    if kind in ("tensor", "text"):
        return batch[i]
    if kind == "dict":
        return {key: row_of(batch[key], value, i) for key, value in inner.items()}
    items = [row_of(value, part, i) for value, part in zip(batch, inner, strict=True)]
    return type(batch)(*items) if kind == "point" else type(batch)(items)


@given(leaves(), st.lists(st.integers(-5, 5), min_size=1, max_size=4))
def test_the_ith_row_of_a_batch_is_the_ith_sample(structure, numbers):
    samples = [sample_of(structure, number) for number in numbers]
    batch = collate(samples)
    for i, sample in enumerate(samples):
        torch.testing.assert_close(listed(row_of(batch, structure, i)), listed(sample), rtol=0, atol=0)


def listed(value):
    """Return the leaves with their paths, strings and None as text, in a form that assert_close takes."""
    if isinstance(value, dict):
        return {key: listed(inner) for key, inner in value.items()}
    if isinstance(value, (tuple, list)):
        return [torch.tensor([ord(letter) for letter in type(value).__name__])] + [listed(inner) for inner in value]
    if isinstance(value, torch.Tensor):
        return value
    return torch.tensor([ord(letter) for letter in repr(value)])
