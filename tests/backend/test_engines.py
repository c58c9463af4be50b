"""What every working backend promises, on one module with everything in it. Each engine is built once."""

import gc
import pickle
import threading
import weakref

import pytest
import torch

from aitune.exceptions import BackendBuildError
from aitune.torch.backend import (
    ONNXRuntimeBackend,
    ONNXRuntimeBackendConfig,
    OpenVINOBackend,
    TorchEagerBackend,
    TorchEagerBackendConfig,
    TorchInductorAotBackend,
    TorchInductorJitBackend,
)
from aitune.torch.trial import PRECISIONS

BACKENDS = [
    TorchEagerBackend(),
    TorchEagerBackend(TorchEagerBackendConfig(autocast_enabled=True)),
    ONNXRuntimeBackend(),
    ONNXRuntimeBackend(ONNXRuntimeBackendConfig(use_dynamo=False)),
    OpenVINOBackend(),
    pytest.param(TorchInductorAotBackend(), marks=pytest.mark.slow),
    pytest.param(TorchInductorJitBackend(), marks=pytest.mark.slow),
]
KEPT = [ONNXRuntimeBackend(), ONNXRuntimeBackend(ONNXRuntimeBackendConfig(use_dynamo=False)), OpenVINOBackend()]
KEPT_IN_A_MINUTE = [*KEPT, pytest.param(TorchInductorAotBackend(), marks=pytest.mark.slow)]
BOUND = {"float32": 1e-5, "bfloat16": 3e-2}


@pytest.fixture(scope="session")
def engines(everything, built):
    """The engine of a backend for the module with everything; built at the first call."""
    known = {}

    def engine_of(backend):
        if backend not in known:
            known[backend] = built(backend, everything)
        return known[backend]

    yield engine_of
    for engine in known.values():
        engine.close()


@pytest.fixture(params=BACKENDS, ids=str)
def backend(request):
    return request.param


@pytest.fixture
def engine(engines, backend):
    return engines(backend)


@pytest.fixture
def compare(everything, assert_same, engine):
    """Run a call on the engine and on the module, and compare."""

    def run(args, kwargs):
        with torch.no_grad():
            found, wanted = engine.run(*args, **kwargs), everything.module(*args, **kwargs)
        assert_same(found, wanted, BOUND[engine.precision])
        return found

    return run


@pytest.mark.parametrize(("size", "length"), [(1, 2), (4, 6), (3, 5), (2, 2), (1, 4), (4, 2)])
def test_values_structure_and_types_are_the_modules_at_every_size(compare, make_call, size, length):
    _, args, kwargs = make_call(size, length)

    compare(args, kwargs)


def test_every_form_of_the_call_is_taken(compare, make_call):
    _, (batch, options, pair), more = make_call(2, 3)

    compare((batch, options, pair), {"scale": 2.0, "reverse": False, **more})
    compare((batch, options), {"pair": pair, **more})


def test_strides_of_inputs_do_not_matter(compare, make_call):
    _, (batch, options, pair), more = make_call(3, 4)
    batch.x = torch.randn(4, 3).t()
    options = {"ids": torch.randint(0, 11, (4, 3)).t(), "mask": torch.rand(3, 8)[:, ::2] > 0.4}
    more = {"shift": torch.randn(3, 1, 3).expand(3, 4, 3)}

    compare((batch, options, pair), more)


def test_outputs_share_no_memory_with_later_ones(engine, make_call, assert_same):
    (_, args, kwargs), (_, others, other_kwargs) = make_call(2, 3), make_call(2, 3)
    with torch.no_grad():
        first = engine.run(*args, **kwargs)
        kept = {"y": first["y"].clone(), "z": first["z"][0].clone(), "pair": first["pair"].left.clone()}
        engine.run(*others, **other_kwargs)
        assert_same({"y": first["y"], "z": first["z"][0], "pair": first["pair"].left}, kept, 0.0)
        first["y"].fill_(7)
        again = engine.run(*args, **kwargs)
    assert_same(again["y"], kept["y"], 1e-6)


def test_inputs_stay_as_they_are(engine, make_call):
    _, (batch, options, pair), more = make_call(4, 4)
    tensors = [batch.x, *options.values(), *pair, *more.values()]
    before = [tensor.clone() for tensor in tensors]
    with torch.no_grad():
        engine.run(batch, options, pair, **more)

    assert all(torch.equal(tensor, copy) for tensor, copy in zip(tensors, before, strict=True))


def test_a_call_leaves_the_process_and_the_module_alone(engine, everything, make_call, capfd, unchanged_torch_state):
    _, args, kwargs = make_call(2, 5)
    module = everything.module
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    attributes = {name: set(child.__dict__) for name, child in module.named_modules()}
    with unchanged_torch_state(), torch.no_grad():
        for _ in range(3):
            engine.run(*args, **kwargs)

    assert capfd.readouterr() == ("", "")
    assert all(torch.equal(tensor, state[name]) for name, tensor in module.state_dict().items())
    assert attributes == {name: set(child.__dict__) for name, child in module.named_modules()}
    assert not any(child.training for child in module.modules())


def test_gradient_modes_do_not_change_the_answer(engine, everything, make_call, assert_same):
    _, (batch, options, pair), more = make_call(2, 3)
    with torch.no_grad():
        wanted = everything.module(batch, options, pair, **more)
        batch.x.requires_grad_()
        assert_same(engine.run(batch, options, pair, **more), wanted, BOUND[engine.precision])
        batch.x.requires_grad_(False)
    with torch.inference_mode():
        assert_same(engine.run(batch, options, pair, **more), wanted, BOUND[engine.precision])
    enabled = engine.run(batch, options, pair, **more)
    assert_same(torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, enabled["z"]), wanted["z"], 3e-2)


def test_threads_do_not_disturb_each_other(engine, everything, make_call, assert_same):
    calls = [make_call(size, length) for size, length in ((1, 2), (2, 6), (3, 4), (4, 3))]
    with torch.no_grad():
        wanted = [everything.module(*args, **kwargs) for _, args, kwargs in calls]
    failures = []

    def work(index):
        try:
            with torch.no_grad():
                for _ in range(10):
                    assert_same(engine.run(*calls[index][1], **calls[index][2]), wanted[index], 3e-2)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert engine.reentrant
    assert not failures


def test_facts_are_of_the_declared_kinds(engine, backend):
    assert engine.precision in PRECISIONS
    assert {type(getattr(engine, n)) for n in ("reentrant", "keeps_module", "live_weights", "own_errors")} == {bool}
    assert pickle.loads(pickle.dumps(backend)) == backend


@pytest.mark.parametrize("backend", KEPT_IN_A_MINUTE, ids=str)
def test_a_saved_engine_loads_and_answers_the_same(engines, everything, backend, make_call, assert_same, tmp_path):
    engine = engines(backend)
    _, args, kwargs = make_call(3, 5)
    engine.save(tmp_path / "kept")
    loaded = backend.load(everything, tmp_path / "kept")

    assert loaded.precision == engine.precision
    assert_same(loaded.run(*args, **kwargs), engine.run(*args, **kwargs), 1e-6)
    assert {path.suffix for path in (tmp_path / "kept").iterdir()} <= {
        ".json",
        ".onnx",
        ".data",
        ".xml",
        ".bin",
        ".blob",
        ".pt2",
    }
    loaded.save(tmp_path / "again")
    loaded.close()
    again = backend.load(everything, tmp_path / "again")
    assert_same(again.run(*args, **kwargs), engine.run(*args, **kwargs), 1e-6)
    again.close()


@pytest.mark.parametrize("backend", KEPT[1:], ids=str)
@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "engine.json").unlink(),
        lambda folder: (folder / "engine.json").write_text("[]"),
        lambda folder: (folder / "engine.json").write_text('{"format": 2}'),
        lambda folder: _edit(folder, '"format": 2', '"format": 99'),
        lambda folder: _edit(folder, '"backend": "', '"backend": "Other'),
        lambda folder: _edit(folder, '"model', '"../model'),
        lambda folder: [path.write_bytes(b"no model") for path in folder.iterdir() if path.suffix in (".onnx", ".xml")],
    ],
    ids=["no note", "no dict", "no fields", "other version", "other backend", "outside", "no model"],
)
def test_damaged_files_are_an_error_of_ours(engines, everything, backend, damage, tmp_path):
    engines(backend).save(tmp_path)
    damage(tmp_path)

    with pytest.raises(BackendBuildError):
        backend.load(everything, tmp_path)


def _edit(folder, old, new):
    note = folder / "engine.json"
    note.write_text(note.read_text().replace(old, new))


@pytest.mark.parametrize("backend", KEPT[1:], ids=str)
def test_closing_frees_at_once_and_twice_is_allowed(engines, everything, backend, tmp_path):
    engines(backend).save(tmp_path)
    engine = backend.load(everything, tmp_path)
    held = weakref.ref(engine.run)
    gc.disable()
    try:
        engine.close()
        engine.close()
        assert held() is None
    finally:
        gc.enable()
    with pytest.raises(RuntimeError, match="closed"):
        engine.run()


def test_an_eager_engine_cannot_be_kept(engines, tmp_path):
    with pytest.raises(NotImplementedError):
        engines(TorchEagerBackend()).save(tmp_path)
