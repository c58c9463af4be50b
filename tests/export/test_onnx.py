"""ONNX files of a graph, exported in both ways."""

import numpy as np
import pytest
import torch
from torch import nn

from aitune.exceptions import BackendUnsupportedError
from aitune.torch.export.onnx import _gather, export_onnx
from aitune.torch.worker.quiet import process_state_kept

onnx = pytest.importorskip("onnx")


@pytest.fixture(params=[True, False], ids=["dynamo", "trace"])
def export(request, tmp_path):
    """Export, and return the routes and a function that runs the file."""

    def write(job, opset=None):
        path = tmp_path / "sub" / "model.onnx"
        with process_state_kept(job.log):
            routes = export_onnx(job, path, use_dynamo=request.param, opset=opset, backend="B").routes
        runtime = pytest.importorskip("onnxruntime")
        session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

        def run(*tensors):
            feeds = {f"input{i}": tensor.numpy() for i, tensor in enumerate(tensors)}
            names = {item.name for item in session.get_inputs()}
            return session.run(None, {name: array for name, array in feeds.items() if name in names})

        return routes, run

    write.dynamo = request.param
    return write


class Odd(nn.Module):
    """Unused inputs, outputs that are inputs, constants, doubles of each other, and no tensors at all."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("table", torch.arange(3.0))

    def forward(self, x, unused, n, flags=None):
        y = self.linear(x)
        return {"y": y, "again": y, "x": x, "table": self.table, "n": n + 1, "any": flags.any(), "none": None}


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


def test_odd_inputs_and_outputs_are_put_in_their_places(job_of, export):
    def call(size):
        x, flags = torch.randn(size, 4), torch.rand(size) > 0.5
        return (x, torch.zeros(size, 2), torch.tensor(3), flags), {}

    job = job_of(Odd().eval(), call(1), call(4))
    routes, run = export(job)
    args, _ = call(3)
    x = args[0]
    with torch.no_grad():
        wanted = job.graph.output_tensors(job.module(*args))

    found = routes.outputs([torch.from_numpy(np.asarray(array)) for array in run(*args)], args)

    assert routes.computed == 4
    assert found[2] is x
    for one, two in zip(found, wanted, strict=True):
        assert one.dtype == two.dtype
        assert torch.allclose(one.float(), two.float(), atol=1e-6)


def test_transformer_layers_export_operator_by_operator(job_of, export):
    job = job_of(Attention().eval(), ((torch.randn(1, 5, 8),), {}), ((torch.randn(3, 5, 8),), {}))
    enabled = torch.backends.mha.get_fastpath_enabled()
    _, run = export(job)
    x = torch.randn(2, 5, 8)

    assert torch.backends.mha.get_fastpath_enabled() == enabled
    assert np.allclose(run(x)[0], job.module(x).detach().numpy(), atol=1e-5)


def test_what_an_engine_could_not_do_is_refused(job_of, export):
    class Writes(nn.Module):
        def forward(self, x):
            return x.add_(1) * 2

    norm = nn.BatchNorm1d(4)
    state = {name: tensor.clone() for name, tensor in norm.state_dict().items()}
    calls = [((torch.randn(size, 4),), {}) for size in (2, 8)]
    with pytest.raises(BackendUnsupportedError, match="changes its inputs in place"):
        export(job_of(Writes(), *calls))
    job = job_of(norm, *calls)
    state = {name: tensor.clone() for name, tensor in norm.state_dict().items()}
    with pytest.raises(BackendUnsupportedError, match="changes its state at each call"):
        export(job)
    assert all(torch.equal(tensor, state[name]) for name, tensor in norm.state_dict().items())
    with pytest.raises(BackendUnsupportedError, match="computes nothing"):
        export(job_of(nn.Identity(), *calls))


def test_an_operator_that_onnx_lacks_is_unsupported(job_of, export):
    class Special(nn.Module):
        def forward(self, x):
            return torch.special.airy_ai(x) + torch.linalg.matrix_exp(x @ x.t())[0, 0]

    with pytest.raises(BackendUnsupportedError, match="B: the module has no form in ONNX"):
        export(job_of(Special(), ((torch.randn(3, 4),), {})))


def test_weights_lie_beside_the_model(job_of, export, tmp_path):
    export(job_of(nn.Linear(512, 64), ((torch.randn(1, 512),), {}), ((torch.randn(2, 512),), {})))

    names = {path.name for path in (tmp_path / "sub").iterdir()}
    assert names <= {"model.onnx", "model.onnx.data"}
    assert sum(path.stat().st_size for path in (tmp_path / "sub").iterdir()) > 512 * 64 * 4


def test_weights_in_many_files_become_one(tmp_path):
    part, path = tmp_path / "traced", tmp_path / "model.onnx"
    part.mkdir()
    random = np.random.default_rng(0)
    arrays = [random.random((40, 40), dtype=np.float32) for _ in range(3)]
    weights = [onnx.numpy_helper.from_array(array, f"w{i}") for i, array in enumerate(arrays)]
    nodes = [onnx.helper.make_node("MatMul", ["x" if i == 0 else f"h{i}", f"w{i}"], [f"h{i + 1}"]) for i in range(3)]
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 40]) for name in ("x", "h3")]
    graph = onnx.helper.make_graph(nodes, "g", values[:1], values[1:], weights)
    onnx.save_model(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9),
        str(part / path.name),
        save_as_external_data=True,
        all_tensors_to_one_file=False,
        size_threshold=0,
    )
    assert len(list(part.iterdir())) == 4
    _gather(part, path)

    assert {file.name for file in tmp_path.iterdir()} == {"model.onnx", "model.onnx.data", "traced"}
    session = pytest.importorskip("onnxruntime").InferenceSession(str(path), providers=["CPUExecutionProvider"])
    x = random.random((1, 40), dtype=np.float32)
    assert np.allclose(session.run(None, {"x": x})[0], x @ arrays[0] @ arrays[1] @ arrays[2], rtol=1e-4)
