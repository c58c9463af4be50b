"""Which modules are seen, at which level, and which of them are tuned."""

from __future__ import annotations

import copy
import gc

import pytest
import torch

import aitune.torch as ait
from aitune.testing import FunctionBackend, FunctionBackendConfig
from aitune.torch.jit.config import JITMode
from aitune.torch.jit.tune import deferred


def call(module, *shape):
    with torch.no_grad():
        return module(torch.ones(*(shape or (2, 4))))


@pytest.fixture
def refuses(always):
    """A strategy whose backend builds nothing for the named classes."""

    def make(*names):
        def build(job):
            if type(job.module).__name__ in names:
                raise RuntimeError("no luck today")
            return lambda *args, **kwargs: job.forward(*args, **kwargs)

        return always(FunctionBackend(build, FunctionBackendConfig(label="choosy")))

    return make


class Coder(torch.nn.Module):
    """What is called is decode, not the module."""

    def __init__(self, block):
        super().__init__()
        self.encoder, self.decoder = block, copy.deepcopy(block)

    def forward(self, x):
        return self.decoder(self.encoder(x))

    def decode(self, z):
        return self.decoder(z) * 2


def test_with_another_entry_point_what_it_calls_are_the_heads(jit, net, seen):
    coder = Coder(net.blocks[0]).eval()
    with torch.no_grad():
        coder.decode(torch.ones(1, 4))
    assert seen() == [("Block", 0, "tuned"), ("Linear", 1, "detached")]


def test_a_generating_loop_has_its_module_tuned(jit, net, seen):
    class Generator(type(net)):
        def generate(self, x, steps):
            for _ in range(steps):
                x = torch.nn.functional.pad(self(x), (0, 1))
            return x

    generator = Generator().eval()
    with torch.no_grad():
        generator.generate(torch.ones(1, 4), 5)
    assert seen()[0] == ("Generator", 0, "tuned")
    assert sum(ait.handle(generator).stats.engine_calls.values()) == 4


def test_heads_come_in_order_of_execution(jit, net, seen):
    first, second = copy.deepcopy(net), net.blocks[0]
    call(second)
    call(first)
    assert [name for name, level, _ in seen() if level == 0] == ["Block", "Net"]


def test_containers_and_layers_without_weights_are_no_level(jit, net, seen):
    call(net)
    assert [(name, level) for name, level, _ in seen()] == [
        ("Net", 0), ("Block", 1), ("Linear", 2), ("Block", 1), ("Linear", 2), ("Linear", 1),
    ]  # fmt: skip


def test_a_container_that_the_program_calls_is_a_head(jit, net, seen):
    call(torch.nn.Sequential(net).eval())
    assert seen()[:2] == [("Sequential", 0, "tuned"), ("Net", 1, "detached")]


def test_where_the_parent_cannot_be_tuned_its_children_are(jit, net, seen, refuses):
    jit.strategy = refuses("Net")
    expected = call(copy.deepcopy(net))
    assert torch.equal(call(net), expected)
    assert seen() == [
        ("Net", 0, "eager"),
        ("Block", 1, "tuned"),
        ("Linear", 2, "detached"),
        ("Block", 1, "tuned"),
        ("Linear", 2, "detached"),
        ("Linear", 1, "tuned"),
    ]
    assert torch.equal(call(net), expected)


def test_levels_below_the_deepest_allowed_are_left(jit, net, seen, refuses):
    jit.strategy = refuses("Net", "Block")
    call(net)
    assert [state for _, level, state in seen() if level == 2] == ["eager", "eager"]


@pytest.mark.parametrize(("deepest", "tuned"), [(0, set()), (1, {"Linear"}), (2, {"Linear"})])
def test_the_deepest_level_is_set(jit, net, seen, refuses, deepest, tuned):
    jit.max_depth_level = deepest
    jit.strategy = refuses("Net", "Block")
    call(net)
    assert {name for name, _, state in seen() if state == "tuned"} == tuned
    assert all(state == "tuned" for _, level, state in seen() if level == 2) is (deepest == 2)


def test_a_child_that_lacked_samples_is_tuned_in_a_later_call(jit, net, seen, refuses):
    class Fork(type(net)):
        def forward(self, x):
            return self.blocks[1 if x.shape[0] > 2 else 0](x)

    jit.strategy = refuses("Fork")
    fork = Fork().eval()
    call(fork, 2, 4)
    assert ("Block", 1, "tuned") in seen()
    call(fork, 3, 4)
    assert [state for name, _, state in seen() if name == "Block"] == ["tuned", "tuned"]
    assert [level for name, level, _ in seen() if name == "Block"] == [1, 1]


def test_skipped_classes_are_left_with_all_below_them(jit, net, seen, refuses):
    jit.skip_modules = ["Block"]
    jit.strategy = refuses("Net")
    call(net)
    states = {(name, level): state for name, level, state in seen()}
    assert states["Block", 1] == states["Linear", 2] == "skipped"
    assert states["Linear", 1] == "tuned"


def test_a_skipped_head_is_called_at_no_cost(jit, net, seen):
    jit.skip_modules = ["Net"]
    call(net)
    assert {state for _, _, state in seen()} == {"skipped"}
    assert [part.__dict__["_compiled_call_impl"] for part in net.modules()] == [None] * len(list(net.modules()))


def test_small_modules_are_left(jit, net, seen):
    jit.min_parameters = 56
    call(net)
    assert seen()[0] == ("Net", 0, "skipped")


def test_excluded_classes_are_looked_through(jit, net, seen):
    jit.patch_exclude = (f"{type(net).__module__}.Net",)
    call(net)
    assert [name for name, level, _ in seen() if level == 0] == ["Sequential", "ReLU", "Linear"]


def test_parametrized_weights_are_part_of_what_reads_them(jit, net, seen):
    torch.nn.utils.parametrizations.weight_norm(net.head)
    net.eval()
    expected = call(net)  # the original's: it is tuned after it
    for _ in range(3):
        assert torch.allclose(call(net), expected)
    assert [(name, state) for name, level, state in seen() if level < 2] == [
        ("Net", "tuned"), ("Block", "detached"), ("Block", "detached"), ("ParametrizedLinear", "detached"),
    ]  # fmt: skip


def test_decided_modules_are_called_as_without_aitune(jit, net, refuses):
    jit.strategy = refuses("Net", "Block", "Linear")
    call(net)
    call(net)
    assert [part.__dict__["_compiled_call_impl"] for part in net.modules()] == [None] * len(list(net.modules()))


def test_settings_that_come_late_are_honoured(jit, net, seen):
    jit.min_samples = 3
    jit.batch_axis_required = False
    call(net)
    call(net)
    assert seen()[0][2] == "recording"
    jit.min_samples = 2
    call(net)
    assert seen()[0][2] == "tuned"


def test_deferred_tuning_waits_for_the_word(jit, net, seen):
    jit.mode = JITMode.TUNE_DEFERRED
    call(net)
    call(net)
    assert {state for _, _, state in seen()} == {"recording"}
    deferred()
    assert {state for _, _, state in seen()} == {"recording"}
    call(net)
    assert seen()[0][2] == "tuned"


def test_a_dry_run_changes_nothing_and_says_the_same_twice(jit, net, steps):
    jit.dry_run = True
    runs = []
    for one in (copy.deepcopy(net), net):
        before = len(steps())
        call(one)
        runs.append(steps()[before:])
        with pytest.raises(ValueError, match="not wrapped"):
            ait.handle(one)
    assert runs[0] == runs[1]
    plan = "Dry run: would tune Net 📊55 level=0🪜 with OneBackendStrategy: FunctionBackend(label='right')"
    assert runs[0][-1] == plan


def test_after_an_inspection_modules_may_be_tuned(jit, net, seen):
    jit.mode = JITMode.INSPECT
    call(net)
    jit.mode = JITMode.TUNE_EAGER
    call(net)
    assert seen()[0] == ("Net", 0, "tuned")


def test_a_part_that_was_left_in_training_mode_is_not_tuned(jit, net, seen, refuses):
    jit.strategy = refuses("Net")
    net.blocks[0].train()
    call(net)
    assert [state for name, _, state in seen() if name == "Block"] == ["eager", "tuned"]


def test_a_batch_axis_is_waited_for_where_it_is_required(jit, net, seen):
    jit.min_samples = 2
    for _ in range(3):
        call(net, 2, 4)
    assert seen()[0][2] == "recording"
    call(net, 3, 4)
    assert seen()[0][2] == "tuned"


def test_without_a_batch_axis_a_module_is_given_up_in_the_end(jit, net, seen):
    jit.min_samples = 2
    for _ in range(16):
        call(net, 2, 4)
    assert seen()[0][2] == "eager"


def test_a_device_that_the_module_is_not_on_leaves_it(jit, net, seen):
    jit.device = "meta"
    call(net)
    assert seen()[0][2] == "eager"


def test_modules_that_fill_a_dict_make_room_for_what_they_call(jit, net, seen):
    class Step(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, features):
            features["out"] = self.net(features["x"])
            return features

    step = Step().eval()
    jit.max_depth_level = 0
    for _ in range(2):
        with torch.no_grad():
            step({"x": torch.ones(1, 4)})
    assert seen()[:2] == [("Step", 0, "eager"), ("Net", 1, "tuned")]


def test_what_ait_module_wrapped_is_left_to_it(jit, net, seen):
    wrapped = ait.Module(net.blocks[0], "mine")
    call(net)
    assert ("Net", 0, "eager") in seen()
    assert ait.handle(net.blocks[0]).state is ait.ModuleState.INIT
    call(wrapped)
    assert ait.handle(net.blocks[0]).state is ait.ModuleState.INIT


@pytest.mark.parametrize("tuned", ["Net", "Block"])
def test_copies_that_go_at_once_are_not_tuned_one_after_another(jit, net, steps, refuses, tuned):
    jit.strategy = refuses() if tuned == "Net" else refuses("Net")
    for _ in range(5):
        shadow = copy.deepcopy(net)
        for _ in range(3):
            call(shadow, 2, 4)
        del shadow
        gc.collect()
    each = {"Net": 1, "Block": 2}[tuned]
    assert sum(step.startswith(f"Tuning {tuned}") for step in steps()) == 2 * each
    for _ in range(20):
        call(net, 2, 4)
    assert sum(step.startswith(f"Tuning {tuned}") for step in steps()) == 3 * each
