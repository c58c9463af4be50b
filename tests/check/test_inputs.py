"""Which inputs a candidate is asked about."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from aitune.torch.check.inputs import sample_probes, synthesised_probes, twin
from aitune.torch.check.sizes import wanted_sizes
from aitune.torch.graph.dims import BatchDim, DynamicDim
from aitune.torch.graph.sample import Sample


class Attending(nn.Module):
    def forward(self, ids: torch.Tensor, mask: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return ids * mask * scale


def call(batch: int, length: int) -> Sample:
    return Sample((torch.randint(5, 90, (batch, length)), torch.ones(batch, length), 2.0), {}, batch)


def test_ends_and_in_between_of_every_dimension(make_graph) -> None:
    samples = [call(1, 8), call(8, 128)]
    graph = make_graph(Attending(), samples)
    probes, notes = synthesised_probes(graph, samples)
    shapes = [tuple(probe.sample.args[0].shape) for probe in probes]
    assert {(8, 8), (1, 128)} <= set(shapes)
    assert any(1 < batch < 8 and 8 < length < 128 for batch, length in shapes)
    assert all(probe.sample.args[2] == 2.0 for probe in probes)
    assert all(int(probe.sample.args[0].min()) >= 5 and int(probe.sample.args[0].max()) < 90 for probe in probes)
    assert notes == []
    assert not any(probe.recorded for probe in probes)
    assert probes[0].label.startswith("batch0=")


def test_declared_ranges_are_asked_about_to_their_ends() -> None:
    dims = {"b": BatchDim("b", 1, 64), "s": DynamicDim("s", 16, 512, opt=128)}
    wanted = wanted_sizes(dims, [{"b": 4, "s": 32}])
    assert wanted[0] == {"b": 64, "s": 512}
    assert wanted[1] == {"b": 1, "s": 16}
    assert {"b": 33, "s": 265} not in wanted
    assert {"b": 4, "s": 512} in wanted
    assert {"b": 64, "s": 32} in wanted


def test_batch_dimensions_go_together() -> None:
    dims = {"b": BatchDim("b", 2, 8), "twice": BatchDim("twice", 4, 16)}
    wanted = wanted_sizes(dims, [{"b": 2, "twice": 4}])
    assert wanted == [{"b": 8, "twice": 16}, {"b": 5, "twice": 10}]


@given(
    ranges=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 60), st.booleans()), min_size=1, max_size=6),
    data=st.data(),
)
def test_sizes_are_new_legal_and_few(ranges, data) -> None:
    dims = {
        f"d{i}": (BatchDim if batch else DynamicDim)(f"d{i}", low, low + width)
        for i, (low, width, batch) in enumerate(ranges)
    }
    seen = [
        {name: data.draw(st.integers(dim.min, dim.max)) for name, dim in dims.items()}
        for _ in range(data.draw(st.integers(1, 3)))
    ]
    wanted = wanted_sizes(dims, seen)
    assert len(wanted) <= 16
    for sizes in wanted:
        assert sizes not in seen
        assert wanted.count(sizes) == 1
        assert all(dim.min <= sizes[name] <= dim.max for name, dim in dims.items())


def test_a_range_that_was_seen_whole_has_nothing_in_between() -> None:
    assert wanted_sizes({"b": BatchDim("b", 1, 2)}, [{"b": 1}, {"b": 2}]) == []
    assert wanted_sizes({"b": BatchDim("b", 1, 3)}, [{"b": 1}, {"b": 3}]) == [{"b": 2}]


def test_a_twin_has_the_same_sizes_and_other_contents(make_graph) -> None:
    sample = Sample((torch.tensor([[5, 6, 7]]), torch.ones(1, 3), 2.0))
    graph = make_graph(Attending(), [sample])
    other = twin(graph, sample)
    assert other.args[0].tolist() == [[7, 6, 5]]
    assert other.args[1].tolist() == [[0.5, 0.5, 0.5]]
    assert sample.args[0].tolist() == [[5, 6, 7]]


def test_memory_is_laid_out_in_another_way_where_that_is_possible(make_graph) -> None:
    samples = [call(2, 3)]
    graph = make_graph(Attending(), samples)
    strided = next(p for p in synthesised_probes(graph, samples)[0] if "layout" in p.label)
    assert torch.equal(strided.sample.args[0], samples[0].args[0])
    assert not strided.sample.args[0].is_contiguous()
    assert not strided.sample.fresh().args[0].is_contiguous()
    single = [call(1, 3)]
    assert not any("layout" in p.label for p in synthesised_probes(make_graph(Attending(), single), single)[0])


def test_inputs_that_would_not_fit_are_left_out_with_a_note(make_graph, monkeypatch) -> None:
    monkeypatch.setattr("aitune.torch.check.inputs.free_bytes", lambda _: 1000)
    samples = [call(1, 8), call(8, 128)]
    probes, notes = synthesised_probes(make_graph(Attending(), samples), samples)
    assert any("may not fit in memory" in note for note in notes)
    assert len(probes) < 8


def test_sizes_are_said_in_words(make_graph) -> None:
    samples = [call(1, 8)]
    probe = sample_probes(make_graph(Attending(), samples), samples)[0]
    assert probe.sizes == "ids[1, 8], mask[1, 8]"
    assert probe.label == "sample 0"
    assert probe.recorded
