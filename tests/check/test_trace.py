"""Leaving no trace in module and process."""

from __future__ import annotations

import logging
import random
from collections import OrderedDict, deque
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from aitune.torch.check import judge, no_trace
from aitune.torch.check.ambient import Ambient
from aitune.torch.check.rng import RngState
from aitune.torch.check.state import REMOVED, take_snapshot
from aitune.torch.check.walk import walk
from aitune.torch.graph.sample import Sample


class Memory:
    def __init__(self) -> None:
        self.keys: list[torch.Tensor] = []
        self.filled = 0


class Busy(nn.Module):
    """Holds everything that a module can hold, and changes all of it in every call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("none", None)
        self.plain = torch.zeros(3)
        self.inside = torch.zeros(2)
        self.number, self.words = 0, ["a"]
        self.nested = {"a": {"b": [torch.zeros(1)]}}
        self.seen, self.recent = {1}, deque([1], maxlen=3)
        self.memory = Memory()
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.plain = self.plain + 1
        self.inside.add_(torch.rand(2, generator=self.generator))
        self.number += 1
        self.words.append("b")
        self.nested["a"]["b"][0] += 1
        self.nested["a"]["c"] = 3
        self.seen.add(2)
        self.recent.append(2)
        self.memory.keys.append(x.detach())
        self.memory.filled += 1
        self.later = "set late"
        torch.rand(1)
        random.random()
        np.random.rand()  # noqa: NPY002
        return self.norm(self.linear(x))


def snapshot_of_everything(module: nn.Module) -> list[Any]:
    """Values by path, by another way than the one that is tested."""
    found: list[Any] = []

    def look(path: str, value: Any, depth: int) -> None:
        if isinstance(value, torch.Tensor):
            grad = value.grad if value.is_leaf else None
            found.append((path, id(value), value.requires_grad, id(grad), value.detach().numpy().tobytes()))
        elif isinstance(value, torch.Generator):
            found.append((path, value.get_state().numpy().tobytes()))
        elif isinstance(value, nn.Module | Memory) and depth < 9:
            look(path, vars(value), depth + 1)
        elif isinstance(value, dict) and depth < 9:
            found.append((path, id(value) if path.count(".") != 0 else None, list(value)))
            for key, item in value.items():
                look(f"{path}.{key}", item, depth + 1)
        elif isinstance(value, list | tuple | deque | set) and depth < 9:
            found.append((path, id(value), len(value)))
            for i, item in enumerate(value):
                look(f"{path}[{i}]", item, depth + 1)
        else:
            found.append((path, repr(value)))

    look("", vars(module), 0)
    return found


def process() -> list[Any]:
    return [
        Ambient.capture(),
        torch.get_rng_state().numpy().tobytes(),
        random.getstate(),
        str(np.random.get_state()),  # noqa: NPY002
        torch.get_default_device(),
        logging.getLogger().handlers[:],
    ]


def test_everything_is_as_before() -> None:
    module = Busy()
    module(torch.randn(4, 4)).sum().backward()
    before, outside = snapshot_of_everything(module), process()
    with no_trace(module) as found:
        module(torch.randn(4, 4))
        module.eval()
        module.linear.weight.data.add_(1)
        module.linear.bias.requires_grad_(False)
        module.linear.bias.grad = None
        module.norm.running_mean.data = torch.ones(4)
        module.register_forward_hook(lambda *_: None)
        module.linear.register_full_backward_hook(lambda *_: None)
        module.add_module("extra", nn.ReLU())
        del module.words
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(3)
        torch.set_autocast_enabled("cpu", True)
        torch.set_float32_matmul_precision("medium")
        torch.manual_seed(3)
        assert snapshot_of_everything(module) != before
    assert snapshot_of_everything(module) == before
    assert process() == outside
    assert found.changes(deep=True) == {}


def test_everything_is_as_before_after_an_exception() -> None:
    module = Busy()
    before, outside = snapshot_of_everything(module), process()

    def interrupted() -> None:
        with no_trace(module):
            module(torch.randn(4, 4))
            torch.set_num_threads(3)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert snapshot_of_everything(module) == before
    assert process() == outside


def test_examining_and_judging_leave_no_trace_in_module_samples_and_process(make_subject) -> None:
    module = Busy()
    sample = Sample((torch.randn(4, 4),), {}, 4)
    module(sample.args[0])
    before, outside, inputs = snapshot_of_everything(module), process(), sample.args[0].clone()
    subject = make_subject(module, [sample])
    assert subject.stateful
    assert snapshot_of_everything(module) == before
    assert judge(module.forward, subject, precision="float32").accepted

    def destructive(x: torch.Tensor) -> torch.Tensor:
        x.zero_()
        module.linear.weight.data.zero_()
        module.norm.reset_running_stats()
        module.train(False)
        torch.set_default_dtype(torch.float64)
        return x

    assert not judge(destructive, subject, precision="float32").accepted
    assert snapshot_of_everything(module) == before
    assert process() == outside
    assert torch.equal(sample.args[0], inputs)


def test_changes_are_told_by_path() -> None:
    module = Busy()
    with no_trace(module) as found:
        module(torch.randn(4, 4))
        module.norm.weight.data.mul_(2)
        del module.words
        changes = found.changes(deep=True)
    assert {
        "calls",
        "plain",
        "inside",
        "number",
        "nested['a']['b'][0]",
        "nested['a']['c']",
        "seen[2]",
        "recent[1]",
        "memory.keys[0]",
        "memory.filled",
        "later",
        "norm.running_mean",
        "norm.num_batches_tracked",
        "norm.weight",
        "words",
    } <= changes.keys()
    assert changes["words"] is REMOVED
    assert not any(path.startswith("linear") for path in changes)


def test_an_equal_value_in_another_object_is_no_change() -> None:
    module = nn.Module()
    module.tensor, module.items, module.word = torch.ones(3), [1, torch.zeros(2)], "a" * 50
    found = take_snapshot(module)
    module.tensor, module.items, module.word = torch.ones(3), [1, torch.zeros(2)], "".join(["a"] * 50)
    assert found.changes(deep=True) == {}


def test_a_write_to_a_large_parameter_that_moved_no_version_is_seen_when_looked_for() -> None:
    module = nn.Linear(600, 600)
    found = take_snapshot(module)
    version = module.weight._version
    module.weight.data[3, 3] += 1
    assert module.weight._version == version
    assert found.changes() == {}
    assert list(found.changes(deep=True)) == ["weight"]
    assert found.restore() == []
    assert found.changes(deep=True) == {}


def test_what_was_too_large_to_copy_is_reported(monkeypatch, caplog) -> None:
    monkeypatch.setattr("aitune.torch.check.state._MOST_COPIED", 100)
    module = nn.Linear(600, 600)
    with no_trace(module):
        module.weight.data[3, 3] += 1
        module.bias.data[0] += 1
    assert "too large to have been copied: weight, bias" in caplog.text


def test_order_of_attributes_is_put_back() -> None:
    module = nn.Module()
    module.table = OrderedDict(a=1, b=2)
    with no_trace(module):
        module.table["a"] = module.table.pop("a")
    assert list(module.table) == ["a", "b"]


def test_inference_tensors_are_put_back() -> None:
    module = nn.Module()
    with torch.inference_mode():
        module.cache = torch.zeros(3)
    with no_trace(module), torch.inference_mode():
        module.cache.add_(1)
    assert torch.equal(module.cache, torch.zeros(3))


def test_random_states_are_captured_and_told_apart() -> None:
    state = RngState.capture()
    for draw in (lambda: torch.rand(1), random.random, lambda: np.random.rand()):  # noqa: NPY002
        draw()
        assert not state.same(RngState.capture())
        state.restore()
        assert state.same(RngState.capture())
    state.elsewhere()
    assert not state.same(RngState.capture())
    state.restore()


def test_a_walk_meets_every_object_once_and_enters_no_library() -> None:
    module = Busy()
    module.itself, module.logger = [module], logging.getLogger("x")
    paths = [node.path for node in walk(module)]
    values = [id(node.value) for node in walk(module)]
    assert len(values) == len(set(values))
    assert {"linear.weight", "norm.running_mean", "memory.keys", "plain", "generator"} <= set(paths)
    assert not any("logger." in path for path in paths)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_what_is_called_does_not_depend_on_the_mode_of_the_caller(mode) -> None:
    def current() -> tuple[bool, bool]:
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    with mode():
        before = current()
        with no_trace(nn.Linear(4, 4)):
            assert current() == (False, False)
            torch.set_grad_enabled(True)
        assert current() == before
