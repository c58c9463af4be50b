"""A session over torch's own memory: here in that of the host, where there are no streams; tests/gpu has a device."""

import threading

import pytest
import torch
from torch import nn

from aitune.torch.backend.onnxruntime_bound import BoundSession
from aitune.torch.export.onnx import export_onnx
from aitune.torch.graph.accessor import compile_call
from aitune.torch.worker.quiet import process_state_kept

onnxruntime = pytest.importorskip("onnxruntime")


@pytest.fixture
def bound():
    """Export a job and bind its session; returns the session behind the call form, and itself."""

    def make(job):
        path = job.folder / "bound.onnx"
        with process_state_kept(job.log):
            exported = export_onnx(job, path, use_dynamo=False, opset=None, backend="test")
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        found = BoundSession(session, job.graph, exported.routes, torch.device("cpu"))
        return compile_call(job.graph, found), found

    return make


def test_values_are_right_at_the_first_call_of_a_form_and_later(linear_job, bound, assert_same):
    call, _ = bound(linear_job)
    for batch in (1, 4, 3, 4, 1, 3):
        x = torch.randn(batch, 4)
        assert_same(call(x), linear_job.module(x).detach(), 1e-6)
        x = torch.randn(4, batch).t()
        assert_same(call(x), linear_job.module(x).detach(), 1e-6)


def test_outputs_are_the_callers_own(linear_job, bound):
    call, _ = bound(linear_job)
    inputs = [torch.randn(4, 4) for _ in range(4)]
    outputs = [call(x) for x in inputs]
    kept = [output.clone() for output in outputs]
    for output in outputs[:2]:
        output.fill_(7.0)
    assert all(torch.equal(output, copy) for output, copy in zip(outputs[2:], kept[2:], strict=True))
    assert len({output.data_ptr() for output in outputs}) == len(outputs)
    assert torch.equal(call(inputs[0]), kept[0])


class Kinds(nn.Module):
    """Outputs of many types, one of them twice, one of them an input as it is."""

    def forward(self, a, b, c):
        total = a + 1
        return total, b * 2, c.logical_not(), a.double() * 3, a.half(), total, b, a.sum()


def test_types_and_routes(job_of, bound, assert_same):
    a, b, c = torch.randn(3, 4), torch.arange(12).reshape(3, 4), torch.tensor([[True, False]] * 3)
    job = job_of(Kinds(), (1, (a[:1], b[:1], c[:1]), {}), (3, (a, b, c), {}))
    call, _ = bound(job)
    for _ in range(3):
        assert_same(call(a, b, c), job.module(a, b, c), 1e-3)


class Moves(nn.Module):
    def forward(self, x, y):
        return torch.cat([x, y], 1).transpose(0, 1)


def test_bfloat16_passes_where_numpy_has_none(job_of, bound, assert_same):
    x, y = torch.randn(3, 4).bfloat16(), torch.randn(3, 2).bfloat16()
    call, _ = bound(job_of(Moves(), (1, (x[:1], y[:1]), {}), (3, (x, y), {})))
    for _ in range(3):
        assert_same(call(x, y), Moves()(x, y), 0.0)


class Chosen(nn.Module):
    def forward(self, x):
        return x[x.sum(1) > 0]


def test_an_output_of_another_size_than_before_is_an_error_and_never_cut(job_of, bound):
    x = torch.ones(4, 3)
    call, _ = bound(job_of(Chosen(), (1, (x[:1],), {}), (4, (x,), {})))
    assert call(x).shape == (4, 3)
    x[2] = -1.0
    with pytest.raises(RuntimeError):
        call(x)


def test_threads_with_forms_of_their_own(linear_job, bound):
    call, _ = bound(linear_job)
    problems = []

    def work(batch):
        for i in range(100):
            x = torch.full((batch, 4), float(i))
            if not torch.allclose(call(x), linear_job.module(x).detach(), atol=1e-4):
                problems.append(batch)

    threads = [threading.Thread(target=work, args=(batch,)) for batch in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def test_a_closed_one_says_so(linear_job, bound):
    call, session = bound(linear_job)
    session.close()
    with pytest.raises(RuntimeError, match="closed"):
        call(torch.zeros(1, 4))
