"""Turning it on and off, for everything or for some modules, as often as one likes."""

from __future__ import annotations

import copy
import io

import pytest
import torch

import aitune.torch as ait
from aitune.torch.jit.patcher import (
    disable_jit_tuning,
    enable_inspection,
    enable_jit_tuning,
    patch_for_jit_tuning,
    prepare_for_jit_tuning,
)

SLOT = "_compiled_call_impl"


def call(module, rows=2):
    with torch.no_grad():
        return module(torch.ones(rows, 4))


def entries(module):
    return [name for name, part in module.named_modules() if SLOT in part.__dict__]


def test_a_module_that_was_made_before_is_tuned(net, jit, seen):
    expected = call(copy.deepcopy(net))
    assert torch.equal(call(net), expected)
    assert ("Net", 0, "tuned") in seen()
    assert torch.equal(call(net), expected)
    assert ait.handle(net).stats.engine_calls


def test_copied_and_unpickled_modules_are_seen(net, jit, seen):
    call(net)
    buffer = io.BytesIO()
    torch.save(net, buffer)
    buffer.seek(0)
    copies = [copy.deepcopy(net), copy.copy(net), torch.load(buffer, weights_only=False)]
    for one in copies:
        assert SLOT not in one.__dict__
        call(one)
    assert [name for name, level, _ in seen() if level == 0] == ["Net"] * 4


def test_disabling_gives_everything_back_and_may_be_repeated(net, settings):
    expected = call(copy.deepcopy(net))
    for _ in range(3):
        enable_jit_tuning()
        enable_jit_tuning()
        call(net)
        assert ait.handle(net).serves
        disable_jit_tuning()
        disable_jit_tuning()
        assert torch.nn.Module._compiled_call_impl is None
        assert entries(net) == []
        assert ait.PatchedModule.hierarchy() == ()
        assert torch.equal(call(net), expected)


def test_importing_the_package_turns_nothing_on():
    import aitune.torch.jit.config
    import aitune.torch.jit.patcher  # noqa: F401

    assert torch.nn.Module._compiled_call_impl is None


def test_modules_made_in_the_block_are_tuned_after_it_and_others_are_not(net, settings, seen):
    constructor = torch.nn.Module.__init__
    with prepare_for_jit_tuning():
        inside = type(net)().eval()
    assert torch.nn.Module.__init__ is constructor
    assert torch.nn.Module._compiled_call_impl is None
    call(net)
    call(inside)
    assert seen()[0] == ("Net", 0, "tuned")
    assert {state for _, _, state in seen()[1:]} == {"detached"}
    assert len([1 for _, level, _ in seen() if level == 0]) == 1
    assert entries(net) == []


def test_blocks_may_end_in_any_order(settings):
    constructor = torch.nn.Module.__init__
    first, second = prepare_for_jit_tuning(), prepare_for_jit_tuning()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert entries(torch.nn.Identity()) == [""]
    second.__exit__(None, None, None)
    assert torch.nn.Module.__init__ is constructor
    assert entries(torch.nn.Identity()) == []


def test_blocks_nest_and_an_exception_leaves_them(settings):
    constructor = torch.nn.Module.__init__
    with pytest.raises(RuntimeError, match="mine"), prepare_for_jit_tuning(), prepare_for_jit_tuning():
        raise RuntimeError("mine")
    assert torch.nn.Module.__init__ is constructor


def test_a_decorated_function_has_what_it_makes_and_returns_tuned(net, settings, seen):
    class Pipeline:
        def __init__(self, model):
            self.parts = {"model": model}

    @patch_for_jit_tuning
    def load():
        """Load it."""
        return Pipeline(net)

    assert (load.__name__, load.__doc__) == ("load", "Load it.")
    pipeline = load()
    call(pipeline.parts["model"])
    assert seen()[0] == ("Net", 0, "tuned")


def test_what_a_decorated_function_runs_is_tuned_as_well(net, settings, seen):
    @patch_for_jit_tuning
    def main():
        model = type(net)().eval()
        call(model)
        assert ait.handle(model).serves

    main()


def test_modules_seen_one_by_one_are_given_back_too(settings):
    with prepare_for_jit_tuning():
        block = torch.nn.Linear(4, 4)
    assert entries(block) == [""]
    disable_jit_tuning()
    assert entries(block) == []


def test_inspection_looks_and_tunes_nothing(net, settings, seen, tmp_path):
    enable_inspection()
    for rows in (1, 2, 3):
        call(net, rows)
    assert {state for _, _, state in seen()} == {"recording"}
    from aitune.torch.jit.inspection_page import page
    from aitune.torch.jit.patched_module import forest

    (head,) = forest.heads()
    (form,) = head.inspection.forms
    assert form.calls == 3
    assert form.inputs == ("x: float32[dim0=1..3, 4]",)
    assert form.outputs == ("output: float32[dim0=1..3, 3]",) or form.outputs[0].endswith("float32[dim0=1..3, 3]")
    text = page("<my> model", [head])
    assert "&lt;my&gt; model" in text
    assert "float32[dim0=1..3, 4]" in text
    assert "src=" not in text
    assert "href=" not in text
