"""A module that serves other threads goes on serving them while it is exported."""

from __future__ import annotations

import threading

import torch

from aitune.torch.export.program import export_program
from aitune.torch.export.twin import on_a_twin
from aitune.torch.worker.quiet import process_state_kept


def net():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU()).eval()


def test_calls_of_other_threads_are_right_during_an_export(job_of):
    module, x = net(), torch.randn(2, 4)
    right = module(x).detach()
    job = job_of(module, ((x,), {}), ((torch.randn(3, 4),), {}))
    wrong, calls, stop = [], [], threading.Event()

    def serve():
        while not stop.is_set():
            try:
                answer = module(x)
                calls.append(1)
                if type(answer) is not torch.Tensor or not torch.equal(answer, right):
                    wrong.append(answer)
            except Exception as error:
                wrong.append(error)

    server = threading.Thread(target=serve)
    server.start()
    try:
        with process_state_kept(job.log):
            export_program(job, "B")
    finally:
        stop.set()
        server.join()
    assert wrong == []
    assert calls


def test_a_twin_shares_every_tensor_and_no_module(job_of):
    module = net()
    module[1].tied = module[1].weight
    job = job_of(module, ((torch.randn(2, 4),), {}), ((torch.randn(3, 4),), {}))
    twin = on_a_twin(job).module
    assert twin is not module
    assert twin[1].tied is twin[1].weight is module[1].weight
    assert {id(t) for t in (*twin.parameters(), *twin.buffers())} == {
        id(t) for t in (*module.parameters(), *module.buffers())
    }


def test_without_a_twin_the_module_itself_is_exported(job_of):
    module = net()
    module[0].forward = module[0].forward  # bound to this very instance
    job = job_of(module, ((torch.randn(2, 4),), {}), ((torch.randn(3, 4),), {}))
    assert on_a_twin(job) is job
    module = net()
    module.lock = threading.Lock()
    job = job_of(module, ((torch.randn(2, 4),), {}), ((torch.randn(3, 4),), {}))
    assert on_a_twin(job) is job
