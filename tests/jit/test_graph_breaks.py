"""A graph break is told from an error, and compiled code of the process stays."""

from __future__ import annotations

import pytest
import torch

from aitune.torch.graph.signature import CallSignature
from aitune.torch.jit.graph_breaks import find_graph_breaks
from aitune.torch.module.recording import Recording
from aitune.torch.module.slot import Slot


class DynamicModule(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.child_a = torch.nn.Linear(10, 20)
        self.child_b = torch.nn.Linear(10, 20)

    def forward(self, x):
        if x.sum() > 0:
            return self.child_a(x)
        return self.child_b(x)


class Fails(torch.nn.Module):
    """Fails under dynamo alone, and not by a break."""

    def forward(self, x):
        if torch.compiler.is_compiling():
            return x @ torch.ones(7, 7)
        return x


def recorded(module, x):
    recording = Recording(CallSignature.of(module.forward))
    with torch.no_grad():
        recording.call(Slot(module, None), x)
    return recording


@pytest.mark.parametrize(
    ("module", "breaks"), [(DynamicModule(), True), (torch.nn.Linear(10, 20), False), (Fails(), False)]
)
def test_a_branch_on_data_is_a_break_and_an_error_is_not(module, breaks):
    found = find_graph_breaks(module, recorded(module, torch.ones(2, 10)))
    assert found.breaks is breaks


def test_what_was_found_is_told_in_the_words_of_the_guide():
    linear, fails = torch.nn.Linear(10, 20), Fails()
    assert (
        find_graph_breaks(linear, recorded(linear, torch.ones(2, 10))).sentence("X 📊1") == "No graph breaks in X 📊1"
    )
    told = find_graph_breaks(fails, recorded(fails, torch.ones(2, 10))).sentence("X 📊1")
    assert told.startswith("Graph breaks of X 📊1 cannot be told: ")


def test_functions_that_the_program_compiled_are_not_compiled_again():
    compiles = []

    def backend(graph, _):
        compiles.append(graph)
        return graph.forward

    mine = torch.compile(lambda x: x * 2 + 1, backend=backend)
    mine(torch.ones(3))
    module = DynamicModule()
    find_graph_breaks(module, recorded(module, torch.ones(2, 10)))
    mine(torch.ones(3))
    assert len(compiles) == 1


def test_a_module_with_a_break_is_left_and_its_children_are_tuned(jit, seen):
    jit.detect_graph_breaks = True
    module = DynamicModule().eval()
    with torch.no_grad():
        for x in (torch.ones(2, 10), -torch.ones(2, 10), torch.ones(2, 10)):
            branch = module.child_a if x.sum() > 0 else module.child_b
            assert torch.equal(module(x), torch.nn.functional.linear(x, branch.weight, branch.bias))
    assert seen() == [("DynamicModule", 0, "eager"), ("Linear", 1, "tuned"), ("Linear", 1, "tuned")]
