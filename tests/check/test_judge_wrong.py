"""Candidates that are each wrong in another way: every one is found out, with the right verdict and reason."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from aitune.torch.check import judge
from aitune.torch.graph.sample import Sample
from aitune.torch.trial import Verdict

Run = Callable[..., Any]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


class Of(nn.Module):
    """A module of one function, with a parameter so that it has a precision, and a buffer."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(()))
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x * self.weight)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.scale = nn.Parameter(torch.ones(16))
        self.times, self.cache = 0, []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.times += 1
        self.cache.append(x.sum(1))
        return x * self.scale + self.calls


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return x * scale


class Masking(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x[:, 0] = 0.0
        return x.cumsum(1)


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@dataclass
class Answer:
    logits: torch.Tensor
    label: Any = "a"
    hidden: Any = None


def rows(*sizes: int, width: int = 16) -> Callable[[], list[Sample]]:
    return lambda: [Sample((torch.randn(size, width),), {}, size) for size in sizes]


def masked(fill: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x.masked_fill(torch.arange(x.shape[1]) % 3 == 0, fill)


BATCHES = rows(1, 4, 8)
CASES: list[Any] = []
LEFT: list[Any] = []
"""Modes that were entered and not left: torch leaves one when it goes, so that they stay as long as the process."""


def wrong(
    reason: str, module: Callable[[], nn.Module] = Net, samples: Callable[[], list[Sample]] = BATCHES
) -> Callable[[Callable[[nn.Module], Run]], None]:
    """Register a maker of a wrong candidate, and a part of the reason for which it must be rejected."""

    def register(make: Callable[[nn.Module], Run]) -> None:
        CASES.append(pytest.param(make, module, samples, reason, id=make.__name__))

    return register


# ------------------------------------------------------------------------------------------------ values


@wrong("relative error")
def random_numbers_of_the_right_shape(m):
    return lambda x: torch.randn(m(x).shape, generator=torch.Generator().manual_seed(int(x.sum())))


@wrong("relative error of 1,")
def all_zeros(m):
    return lambda x: torch.zeros_like(m(x))


@wrong("relative error of 1,", lambda: Of(lambda x: x * 1e-21))
def zeros_where_all_outputs_are_tiny(m):
    return lambda x: torch.zeros_like(x)


@wrong("worst at [1234, ", samples=rows(4096))
def one_row_of_4096(m):
    def run(x):
        out = m(x)
        out[1234] = out[1234].flip(0) * 0.98
        return out

    return run


@wrong("worst at [17, 512]", lambda: Of(lambda x: x.tanh()), rows(1024, width=1024))
def one_element_of_a_million(m):
    def run(x):
        out = m(x)
        out[17, 512] += 0.05
        return out

    return run


@wrong("relative error of 0.001")
def a_factor_slightly_off(m):
    return lambda x: m(x) * 1.001


@wrong("relative error")
def an_offset(m):
    return lambda x: m(x) + 0.01


@wrong("relative error")
def one_channel_of_another_sign(m):
    return lambda x: m(x) * torch.tensor([1.0] * 7 + [-1.0])


@wrong("relative error", samples=rows(4, 8))
def batch_entries_in_another_order(m):
    return lambda x: m(x).roll(1, 0)


@wrong("relative error", lambda: Of(lambda x: x.softmax(1)), rows(4, 6))
def softmax_along_the_wrong_axis(m):
    return lambda x: x.softmax(0)


@wrong("relative error")
def bfloat16_declared_as_float32(m):
    return lambda x: _in(torch.bfloat16, m, x)


@wrong("relative error")
def float16_declared_as_float32(m):
    return lambda x: _in(torch.float16, m, x)


@wrong("relative error")
def inputs_rounded_to_tf32(m):
    return lambda x: m(torch.from_numpy((x.numpy().view(np.int32) & ~0x1FFF).view(np.float32).copy()))


@wrong("differs in 1 of", lambda: Of(lambda x: (x * 10).int()))
def an_integer_off_by_one(m):
    def run(x):
        out = m(x)
        out[-1, -1] += 1
        return out

    return run


@wrong("differs in 1 of", lambda: Of(lambda x: x > 0))
def one_bool_flipped(m):
    def run(x):
        out = m(x)
        out[0, 3] = ~out[0, 3]
        return out

    return run


@wrong("differs in", lambda: Of(lambda x: x.argmax(1)))
def argmax_of_the_absolute_values(m):
    return lambda x: x.abs().argmax(1)


@wrong("relative error", lambda: Of(lambda x: torch.fft.fft(x)))
def complex_conjugate(m):
    return lambda x: m(x).conj().resolve_conj()


@wrong("relative error", lambda: Of(lambda x: {"total": float(x.sum()), "x": x.clone()}))
def another_python_number(m):
    return lambda x: {"total": float(x.sum()) * 1.01, "x": x.clone()}


@wrong("relative error of 1", lambda: Of(masked(-1e9)), rows(4, 8))
def garbage_beside_finite_mask_values(m):
    return lambda x: torch.where(m(x) < -1e8, m(x), m(x).flip(1).clamp(min=-5))


# --------------------------------------------------------------------------------------- NaN and infinity


@wrong("where the module's is nan", lambda: Of(masked(float("nan"))))
def nan_elsewhere(m):
    return lambda x: x.masked_fill(torch.arange(16) % 3 == 1, float("nan"))


@wrong("is 0 at", lambda: Of(masked(float("nan"))))
def nan_replaced_by_zero(m):
    return lambda x: m(x).nan_to_num(0.0)


@wrong("is -3.403e+38 at", lambda: Of(masked(float("-inf"))))
def the_lowest_number_for_minus_infinity(m):
    return lambda x: m(x).clamp(min=torch.finfo(torch.float32).min)


@wrong("is inf at", lambda: Of(masked(float("-inf"))))
def infinity_of_the_other_sign(m):
    return lambda x: m(x).abs()


@wrong("is nan at", lambda: Of(lambda x: x.log_softmax(1)))
def nan_in_the_last_row(m):
    def run(x):
        out = m(x)
        out[-1] = float("nan")
        return out

    return run


# ------------------------------------------------------------------------------------------------- sizes


@wrong("relative error")
def wrong_for_batches_above_one(m):
    return lambda x: m(x[:1]).expand(len(x), -1).contiguous()


@wrong("batch0=5")
def wrong_at_a_size_in_between(m):
    return lambda x: m(x) * (2 if len(x) == 5 else 1)


@wrong("batch0=5")
def raises_at_a_size_in_between(m):
    def run(x):
        if len(x) % 4 and len(x) > 1:
            raise RuntimeError("no kernel for this size")
        return m(x)

    return run


@wrong("batch0=", samples=rows(2, 7))
def wrong_where_a_size_is_odd_and_unseen(m):
    return lambda x: m(x) if len(x) in (2, 7) else m(x).flip(1)


@wrong("has shape [1, 8, 1]")
def another_shape(m):
    return lambda x: m(x).unsqueeze(-1)


@wrong("has shape", lambda: Of(lambda x: x[x > 0]))
def padded_where_the_shape_depends_on_data(m):
    return lambda x: torch.relu(x).flatten()


# ------------------------------------------------------------------------------------- types and structure


@wrong("has dtype float64")
def float64_for_float32(m):
    return lambda x: m(x).double()


@wrong("has dtype float16")
def float16_for_float32(m):
    return lambda x: m(x).half()


@wrong("is a tuple, the module returns a list", lambda: Of(lambda x: [x + 1, x + 2]))
def tuple_for_list(m):
    return lambda x: tuple(m(x))


@wrong("is a tuple, the module returns a Pair", lambda: Of(lambda x: Pair(x + 1, x + 2)))
def tuple_for_named_tuple(m):
    return lambda x: tuple(m(x))


@wrong("is a dict, the module returns a Answer", lambda: Of(lambda x: Answer(x + 1)))
def dict_for_dataclass(m):
    return lambda x: dict(vars(m(x)))


@wrong("is a single value, the module returns a tuple", lambda: Of(lambda x: (x + 1,)))
def tensor_for_tuple_of_one(m):
    return lambda x: m(x)[0]


@wrong("in the order ['b', 'a']", lambda: Of(lambda x: {"a": x + 1, "b": x + 2}))
def keys_in_another_order(m):
    return lambda x: dict(reversed(m(x).items()))


@wrong("lacks ['b']", lambda: Of(lambda x: {"a": x + 1, "b": x + 2}))
def a_missing_key(m):
    return lambda x: {"a": m(x)["a"]}


@wrong("output['hidden'] is a Tensor, the module's is a NoneType", lambda: Of(lambda x: Answer(x + 1)))
def a_tensor_for_none(m):
    return lambda x: Answer(m(x).logits, "a", torch.zeros(1))


@wrong("output['label'] is str 'b'", lambda: Of(lambda x: Answer(x + 1)))
def another_string(m):
    return lambda x: Answer(m(x).logits, "b")


@wrong("output['label'] is a int, the module's is a bool", lambda: Of(lambda x: Answer(x + 1, True)))
def one_for_true(m):
    return lambda x: Answer(m(x).logits, 1)


@wrong("relative error", lambda: Of(lambda x: (x + 1, x * 2)))
def outputs_exchanged(m):
    return lambda x: tuple(reversed(m(x)))


@wrong("requires grad")
def an_output_that_requires_grad(m):
    return torch.enable_grad()(m.forward)


@wrong("is an inference tensor")
def an_inference_tensor(m):
    return torch.inference_mode()(m.forward)


@wrong("is not contiguous", samples=rows(4, 8))
def another_memory_layout_of_the_output(m):
    return lambda x: m(x).t().contiguous().t()


# ---------------------------------------------------------------------------------------- memory and calls


@wrong("call 2")
def the_second_call(m):
    counter = itertools.count()
    return lambda x: m(x) + next(counter)


@wrong("earlier call")
def a_view_of_an_internal_buffer(m):
    buffer = torch.zeros(8, 8)

    def run(x):
        buffer[: len(x)] = m(x)
        return buffer[: len(x)]

    return run


@wrong("earlier call")
def two_internal_buffers_in_turn(m):
    buffers = itertools.cycle([torch.zeros(8, 8), torch.zeros(8, 8)])

    def run(x):
        buffer = next(buffers)
        buffer[: len(x)] = m(x)
        return buffer[: len(x)]

    return run


@wrong("lies in the memory of output of an earlier call", samples=rows(4))
def an_answer_handed_out_again(m):
    memory: dict[bytes, torch.Tensor] = {}
    return lambda x: memory.setdefault(x.numpy().tobytes(), m(x))


@wrong("relative error", samples=rows(4))
def an_answer_copied_from_what_the_caller_may_overwrite(m):
    memory: dict[bytes, torch.Tensor] = {}

    def run(x):
        key = x.numpy().tobytes()
        if key in memory:
            return memory[key].clone()
        return memory.setdefault(key, m(x))

    return run


@wrong("other contents", samples=rows(4))
def folded_to_the_first_answer_of_a_size(m):
    memory: dict[int, torch.Tensor] = {}
    return lambda x: memory.setdefault(len(x), m(x)).clone()


@wrong("relative error", Scaled, lambda: [Sample((torch.randn(4, 3), torch.tensor(0.5)))])
def a_stale_scalar(m):
    seen: list[torch.Tensor] = []

    def run(x, scale):
        seen.append(scale)
        return m(x, seen[0])

    return run


@wrong("share memory", lambda: Of(lambda x: (x + 1, x + 1)))
def two_outputs_in_one_memory(m):
    return lambda x: (m(x)[0],) * 2


@wrong("output and the input x share memory", lambda: Of(lambda x: x.clone()))
def the_input_handed_back(m):
    return lambda x: x


@wrong("share memory", lambda: Of(lambda x: x.sum() * 0 + torch.zeros(3)), rows(4))
def the_modules_own_buffer_handed_out(m):
    return lambda x: m.mean


@wrong("another memory layout", lambda: Of(lambda x: x.cumsum(1)), rows(4, 8))
def strides_of_the_input_ignored(m):
    return lambda x: torch.as_strided(x, x.shape, (x.shape[1], 1)).cumsum(1)


# ----------------------------------------------------------------------------------- the manner of calling


@wrong("with gradients enabled")
def wrong_where_gradients_are_enabled(m):
    return lambda x: m(x).detach() * (2 if torch.is_grad_enabled() else 1)


@wrong("in inference mode")
def wrong_in_inference_mode(m):
    return lambda x: m(x) * (2 if torch.is_inference_mode_enabled() else 1)


@wrong("in inference mode")
def raises_at_a_tensor_without_a_version(m):
    return lambda x: m(x) if x._version >= 0 else None


@wrong("sample 1 by keyword")
def wrong_for_keywords(m):
    return lambda *args, **kwargs: m(*args, **kwargs) * (2 if kwargs else 1)


@wrong("relative error", samples=lambda: [Sample((), {"x": torch.randn(4, 16)}, 4)])
def wrong_for_positions(m):
    return lambda *args, **kwargs: m(*args, **kwargs) * (2 if args else 1)


@wrong("begin within larger ones")
def the_offset_of_the_input_ignored(m):
    return lambda x: m(torch.as_strided(x, x.shape, x.stride(), 0))


@wrong("every second row")
def the_step_between_rows_ignored(m):
    known = lambda x: x.is_contiguous() or x.t().is_contiguous() or x.stride(1) > 1  # noqa: E731
    return lambda x: m(torch.as_strided(x, x.shape, x.stride() if known(x) else (16, 1), x.storage_offset()))


@wrong("every second column")
def the_step_between_columns_ignored(m):
    known = lambda x: x.stride(1) == 1 or x.stride(0) == 1  # noqa: E731
    return lambda x: m(torch.as_strided(x, x.shape, x.stride() if known(x) else (32, 1), x.storage_offset()))


@wrong("held other contents")
def an_answer_kept_by_the_input_object(m):
    memory: dict[int, Any] = {}
    return lambda x: memory.setdefault(id(x), (x, m(x)))[1].clone()


@wrong("held other contents")
def an_answer_kept_by_object_and_version(m):
    memory: dict[Any, Any] = {}

    def run(x):
        key = None if x.is_inference() else (id(x), x._version)
        return m(x) if key is None else memory.setdefault(key, (x, m(x)))[1].clone()

    return run


@wrong("held other contents")
def an_answer_kept_by_the_input_address(m):
    memory: dict[int, Any] = {}
    return lambda x: memory.setdefault(x.data_ptr(), (x, m(x)))[1].clone()


@wrong("in another thread")
def wrong_in_another_thread(m):
    home = threading.get_ident()
    return lambda x: m(x) * (1 if threading.get_ident() == home else 2)


@wrong("the grad mode of the process is left changed")
def gradients_left_off(m):
    def run(x):
        out = m(x)
        torch.set_grad_enabled(False)
        return out.detach()

    return run


@wrong("inference mode of the process is left changed")
def inference_mode_left_on(m):
    def run(x):
        out = m(x)
        LEFT.append(torch.inference_mode())
        LEFT[-1].__enter__()
        return out

    return run


@wrong("the number of threads of the process is left changed")
def threads_left_changed(m):
    def run(x):
        torch.set_num_threads(2)
        return m(x)

    return run


@wrong("has its conjugate or negative bit set", lambda: Of(torch.fft.fft))
def an_output_to_be_conjugated_later(m):
    return lambda x: m(x).conj().resolve_conj().conj()


@wrong("has its conjugate or negative bit set", lambda: Of(lambda x: x + 1))
def an_output_to_be_negated_later(m):
    return lambda x: torch._neg_view(-m(x))


@wrong("batch0=3", samples=rows(1, 16))
def wrong_at_small_sizes(m):
    return lambda x: m(x) * (2 if 1 < len(x) < 8 else 1)


@wrong("batch0=13", samples=rows(1, 16))
def wrong_at_large_sizes(m):
    return lambda x: m(x) * (2 if 11 < len(x) < 16 else 1)


# ------------------------------------------------------------------------------------------------ effects


@wrong("the input x is changed by the call")
def a_mutated_input(m):
    return lambda x: m(x.mul_(1.0).add_(0.5).sub_(0.5).clamp_(-2, 2))


@wrong("the input x is not changed by the call", Masking)
def an_input_not_mutated_as_the_module_does(m):
    return lambda x: m(x.clone())


@wrong("calls", Counting)
def a_lost_buffer_update(m):
    def run(x):
        out = m(x)
        m.calls.sub_(1)
        return out

    return run


@wrong("calls", Counting)
def a_buffer_updated_twice(m):
    def run(x):
        out = m(x)
        m.calls.add_(1)
        return out

    return run


@wrong("times", Counting)
def a_lost_python_counter(m):
    def run(x):
        out = m(x)
        m.times = 0
        return out

    return run


@wrong("cache[0] is not changed", Counting)
def a_lost_cache_entry(m):
    def run(x):
        out = m(x)
        m.cache.clear()
        return out

    return run


@wrong("calls is not changed", Counting)
def state_kept_in_the_engine_and_not_in_the_module(m):
    calls = itertools.count(1)
    return lambda x: x * m.scale + next(calls)


@wrong("the module's mean is changed", lambda: Of(lambda x: x + 1))
def a_buffer_that_the_module_leaves_alone(m):
    def run(x):
        m.mean.data.add_(1)
        return x * m.weight + 1

    return run


@wrong("the module's first.weight is changed")
def weights_written_through_data(m):
    def run(x):
        out = m(x)
        m.first.weight.data[0, 0] += 1e-7
        return out

    return run


@wrong("training")
def the_training_flag_left_on(m):
    def run(x):
        m.train()
        return m(x)

    return run


@wrong("_forward_hooks")
def a_hook_left_behind(m):
    def run(x):
        m.second.register_forward_hook(lambda *_: None)
        return m.forward(x)

    return run


@wrong("first.bias is changed")
def requires_grad_switched_off(m):
    def run(x):
        m.first.bias.requires_grad_(False)
        return m(x)

    return run


@wrong("grad mode of the process is left changed")
def grad_mode_left_on(m):
    def run(x):
        out = m(x)
        torch.set_grad_enabled(True)
        return out

    return run


@wrong("default dtype of the process is left changed")
def the_default_dtype_left_changed(m):
    def run(x):
        out = m(x)
        torch.set_default_dtype(torch.float64)
        return out

    return run


@wrong("random number generators are moved")
def the_random_numbers_reseeded(m):
    def run(x):
        torch.manual_seed(0)
        return m(x)

    return run


@wrong("random number generators are moved")
def pythons_random_numbers_drawn(m):
    return lambda x: m(x) + 0 * random.random()


@wrong("raised ValueError: no")
def an_exception(m):
    def run(x):
        raise ValueError("no")

    return run


def _in(dtype: torch.dtype, module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    low = Net().to(dtype)
    low.load_state_dict(module.state_dict())
    return low(x.to(dtype)).float()


@pytest.mark.parametrize(("make", "module", "samples", "reason"), CASES)
def test_is_wrong(make, module, samples, reason, make_subject) -> None:
    module = module().eval()
    subject = make_subject(module, samples())
    right = judge(module.forward, subject, precision="float32")
    assert right.accepted, right.reason

    found = judge(make(module), subject, precision="float32")
    assert found.verdict is Verdict.wrong
    assert reason in found.reason
    assert judge(module.forward, subject, precision="float32").accepted  # nothing of the wrong one is left


def test_there_are_many_ways_to_be_wrong() -> None:
    assert len(CASES) >= 60
