"""The policy as a table: what was seen and what is set on the left, what follows on the right."""

from __future__ import annotations

import pytest

from aitune.torch.jit.config import JITMode
from aitune.torch.jit.policy import Action, Rules, Seen, after_tune, decide
from aitune.torch.trial import Verdict

READY = {"kind": "Net", "parameters": 100, "samples": 1}

TABLE = [
    # what was seen, the rules, the action, a word of the reason
    ({}, {}, Action.TUNE, ""),
    ({"samples": 0}, {}, Action.WAIT, "0 of 1 samples"),
    ({"samples": 1}, {"min_samples": 2}, Action.WAIT, "1 of 2 samples"),
    ({"samples": 2}, {"min_samples": 2}, Action.TUNE, ""),
    ({}, {"mode": JITMode.INSPECT}, Action.WAIT, "inspected"),
    ({}, {"mode": JITMode.INSPECT, "skip_modules": ("Net",)}, Action.WAIT, "inspected"),
    ({}, {"mode": JITMode.TUNE_DEFERRED}, Action.WAIT, "deferred"),
    ({}, {"mode": JITMode.TUNE_DEFERRED, "released": True}, Action.TUNE, ""),
    ({"samples": 0}, {"mode": JITMode.TUNE_DEFERRED, "released": True}, Action.WAIT, "samples"),
    ({}, {"skip_modules": ("Net",)}, Action.SKIP, "skip_modules"),
    ({"samples": 0}, {"skip_modules": ("Net",)}, Action.SKIP, "skip_modules"),
    ({}, {"skip_modules": ("Other",)}, Action.TUNE, ""),
    ({}, {"min_parameters": 101}, Action.SKIP, "min_parameters"),
    ({}, {"min_parameters": 100}, Action.TUNE, ""),
    ({"parameters": 0}, {}, Action.TUNE, ""),
    ({"parameters": 0, "depth": 1}, {}, Action.LEAVE, "without parameters"),
    ({"depth": 1}, {}, Action.TUNE, ""),
    ({"depth": 2}, {}, Action.LEAVE, "max_depth_level"),
    ({"depth": 2}, {"max_depth_level": 2}, Action.TUNE, ""),
    ({"depth": 1}, {"max_depth_level": 0}, Action.LEAVE, "max_depth_level"),
    ({"depth": 0}, {"max_depth_level": 0}, Action.TUNE, ""),
    ({}, {"batch_axis_required": True}, Action.WAIT, "axis"),
    ({"batch_axis": True}, {"batch_axis_required": True}, Action.TUNE, ""),
    ({"samples": 8}, {"batch_axis_required": True}, Action.LEAVE, "batch_axis_required = False"),
    ({"samples": 15}, {"batch_axis_required": True, "min_samples": 2}, Action.WAIT, "axis"),
    ({"calm": 9}, {}, Action.WAIT, "trained"),
    ({"calm": 10}, {}, Action.TUNE, ""),
    ({"wasted": 1}, {}, Action.TUNE, ""),
    ({"wasted": 2, "samples": 19}, {}, Action.WAIT, "soon after"),
    ({"wasted": 2, "samples": 20}, {}, Action.TUNE, ""),
    ({"wasted": 3, "samples": 79}, {}, Action.WAIT, "soon after"),
    ({"wasted": 3, "samples": 80}, {}, Action.TUNE, ""),
    ({"wasted": 99, "samples": 1279}, {}, Action.WAIT, "soon after"),
    ({"wasted": 99, "samples": 1280}, {}, Action.TUNE, ""),
    ({"obstacle": "hooks"}, {}, Action.DESCEND, "hooks"),
    ({"obstacle": "hooks", "samples": 0}, {}, Action.WAIT, "samples"),
    ({"device": "cpu"}, {"device": "cuda"}, Action.LEAVE, "jit_config.device is cuda"),
    ({"device": "cuda:1"}, {"device": "cuda"}, Action.TUNE, ""),
    ({"device": "cuda:1"}, {"device": "cuda:0"}, Action.LEAVE, "cuda:0"),
    ({}, {"detect_graph_breaks": True}, Action.CHECK, ""),
    ({"breaks": False}, {"detect_graph_breaks": True}, Action.TUNE, ""),
    ({"breaks": True}, {"detect_graph_breaks": True}, Action.DESCEND, "graph breaks"),
    ({"breaks": True}, {}, Action.TUNE, ""),
    ({}, {"dry_run": True}, Action.PLAN, ""),
    ({"breaks": True}, {"dry_run": True, "detect_graph_breaks": True}, Action.DESCEND, "graph breaks"),
]


@pytest.mark.parametrize(("seen", "rules", "action", "word"), TABLE)
def test_what_was_seen_and_the_rules_decide(seen, rules, action, word):
    decision = decide(Seen(**{**READY, **seen}), Rules(**rules))
    assert decision.action is action
    assert word in decision.reason


@pytest.mark.parametrize(
    ("serves", "failure", "verdicts", "action"),
    [
        (True, "", (Verdict.accepted,), Action.DONE),
        (False, "OutOfLuck: no", (), Action.DESCEND),
        (False, "", (Verdict.build_failed, Verdict.wrong), Action.DESCEND),
        (False, "", (), Action.DESCEND),
        (False, "", (Verdict.build_failed, Verdict.slower), Action.LEAVE),
        (False, "", (Verdict.undecided,), Action.LEAVE),
    ],
)
def test_a_tune_is_followed_by_the_children_only_where_no_backend_was_right(serves, failure, verdicts, action):
    decision = after_tune(serves, failure, verdicts, tuple("because" for _ in verdicts))
    assert decision.action is action
