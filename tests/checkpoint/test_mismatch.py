"""A checkpoint of another model, machine or version: refused with the difference, built anew where that was asked."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

import aitune.torch as ait
from aitune.exceptions import CheckpointError, CheckpointMismatchError
from aitune.testing.modules import Mlp


def facts_of(archive):
    return archive.manifest["modules"][0]["identity"]["facts"]


def test_scenario_37_other_weights_are_refused_and_named(file, fresh):
    module = fresh()
    with torch.no_grad():
        module.layers[2].weight[1, 1] += 1e-6
    with pytest.raises(CheckpointMismatchError, match=r"other values has layers\.2\.weight\. .*retune=True") as raised:
        ait.load(module, file)
    assert raised.value.differences == ("the module itself: other values has layers.2.weight",)


def test_scenario_37_with_retune_engines_are_built_for_what_is_here(file, fresh, caplog, assert_attached):
    module = fresh(8)
    with caplog.at_level(logging.WARNING):
        ait.load(module, file, retune=True)
    assert "built again now" in caplog.text
    assert_attached(module, fresh(8))
    assert file.exists()


def test_a_checkpoint_that_did_not_fit_is_removed_where_that_was_asked(tuned, fresh, tmp_path):
    path = ait.save(tuned(fresh(), tmp_path), tmp_path / "net.ait")
    storage = ait.LocalTorchStorage(remove_checkpoint_after_tune=True)
    ait.load(fresh(), path, storage, retune=True)
    assert path.exists(), "it did fit"
    ait.load(fresh(8), path, storage, retune=True)
    assert sorted(one.name for one in tmp_path.iterdir() if "net" in one.name) == []


class Other(Mlp):
    pass


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Other().eval(), "saved for a aitune.testing.modules.Mlp, this is a"),
        (lambda: Mlp(17).eval(), "another shape or dtype has layers.0.weight"),
        (lambda: nn.Linear(8, 4), "this is a torch.nn.modules.linear.Linear"),
        (lambda: "text", "has no module"),
        (lambda: [nn.Linear(8, 4)], "has no module"),
    ],
)
def test_another_model_is_refused(make, message, file):
    with pytest.raises(CheckpointMismatchError, match=message):
        ait.load(make(), file)


def test_other_constants_are_refused_where_the_surroundings_are_the_same(file, fresh):
    module = fresh()
    module.layers[1].approximate = "tanh"
    with pytest.raises(CheckpointMismatchError, match="code, structure or constants"):
        ait.load(module, file)


def test_a_portable_engine_runs_elsewhere_once_its_values_were_checked(archive, file, fresh, assert_attached):
    facts_of(archive).update(torch="1.0", processor="other")
    module = fresh()
    ait.load(module, archive.pack(file))
    assert_attached(module, fresh())


def test_elsewhere_other_constants_show_in_the_values(archive, file, fresh):
    facts_of(archive).update(torch="1.0")
    module = fresh()
    module.layers[1] = nn.Sigmoid()
    with pytest.raises(CheckpointMismatchError, match="does not compute what the module computes"):
        ait.load(module, archive.pack(file))


def test_an_engine_bound_to_its_machine_is_refused_elsewhere_with_the_difference(archive, file, fresh):
    facts_of(archive).update({"device name": "Other GPU", "torch": "1.0"})
    archive.graph["recipe"] = {"name": "TorchInductorAotBackend", "config": {}}
    with pytest.raises(
        CheckpointMismatchError, match=r"device name was Other GPU, here it is none; torch was 1\.0.*retune"
    ):
        ait.load(fresh(), archive.pack(file), allow_native=True)


def test_facts_that_do_not_matter_do_not_matter(archive, file, fresh, assert_attached):
    facts_of(archive).update(threads="99", python="3.99")
    module = fresh()
    ait.load(module, archive.pack(file))
    assert_attached(module, fresh())


def test_another_signature_of_forward_is_refused(file, fresh):
    module = fresh()
    module.forward = lambda x, more=None: x
    with pytest.raises(CheckpointError, match=r"code, structure|parameters"):
        ait.load(module, file)


def test_a_failed_load_leaves_a_tuned_model_tuned(file, fresh, assert_attached):
    module = fresh()
    ait.load(module, file)
    with torch.no_grad():
        module.layers[0].bias += 1
    with pytest.raises(CheckpointMismatchError):
        ait.load(module, file)
    with torch.no_grad():
        module.layers[0].bias -= 1
    assert ait.handle(module).state is ait.ModuleState.TUNED


class Louder(Mlp):
    """A network with a tensor that is neither parameter nor buffer, and counts for batches of more than two alone."""

    def __init__(self, factor, also=None):
        super().__init__()
        self.factor = torch.tensor(float(factor))
        self.also = also

    def forward(self, x):
        y = super().forward(x)
        return torch.where(torch.ones_like(y).sum(0, keepdim=True) > 2, y * self.factor, y)


def louder(*values):
    torch.manual_seed(3)
    return Louder(*values).eval()


def test_another_tensor_that_is_neither_parameter_nor_buffer_is_refused(tuned, tmp_path):
    path = ait.save(tuned(louder(2), tmp_path), tmp_path / "net.ait")
    with pytest.raises(CheckpointMismatchError, match="constants of the module are not those"):
        ait.load(louder(3), path)
    ait.load(louder(2), path)


def test_where_code_cannot_be_compared_values_are_checked_in_full(tuned, tmp_path):
    path = ait.save(tuned(louder(2, torch.Generator()), tmp_path), tmp_path / "net.ait")
    with pytest.raises(CheckpointMismatchError, match="does not compute what the module computes"):
        ait.load(louder(3, torch.Generator()), path)
    ait.load(louder(2, torch.Generator()), path)


def test_a_module_that_can_no_longer_be_read_is_refused_with_the_reason(tuned, tmp_path):
    path = ait.save(tuned(louder(2), tmp_path), tmp_path / "net.ait")
    with pytest.raises(CheckpointMismatchError, match=r"also is a torch.*Generator"):
        ait.load(louder(2, torch.Generator()), path)
