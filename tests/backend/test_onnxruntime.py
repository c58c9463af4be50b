"""What is particular to ONNX Runtime: providers, options, dtypes that numpy lacks, threads."""

import pytest
import torch
from torch import nn

from aitune.exceptions import AITuneUserInputError, BackendBuildError, BackendUnsupportedError
from aitune.torch.backend import ONNXRuntimeBackend, ONNXRuntimeBackendConfig
from aitune.torch.backend.onnxruntime import _spinning

pytest.importorskip("onnxruntime")


def traced(**options):
    """A backend whose export is quick."""
    return ONNXRuntimeBackend(ONNXRuntimeBackendConfig(use_dynamo=False, **options))


@pytest.fixture
def sessions(monkeypatch):
    """The session options that were really used."""
    import onnxruntime

    seen = []
    original = onnxruntime.InferenceSession

    def session(path, options, **kwargs):
        seen.append((options, kwargs["providers"]))
        return original(path, options, **kwargs)

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    return seen


def test_threads_follow_torch_and_stop_spinning_after_a_call(linear_job, built, sessions):
    built(traced(), linear_job)
    options, providers = sessions[0]

    assert options.intra_op_num_threads == torch.get_num_threads()
    assert options.inter_op_num_threads == 1
    assert options.get_session_config_entry("session.intra_op.spin_duration_us") == "200"
    assert providers == [("CPUExecutionProvider", {})]


@pytest.mark.parametrize(("version", "known"), [("1.22.0", False), ("1.26.1", False), ("1.27.0", True), ("2.0", True)])
def test_old_versions_stop_with_each_call(version, known):
    assert ("session.intra_op.spin_duration_us" in _spinning(version)) is known


def test_session_options_are_passed_on(linear_job, built, sessions, capfd):
    import onnxruntime

    given = {
        "intra_op_num_threads": 1,
        "graph_optimization_level": "ORT_DISABLE_ALL",
        "session.force_spinning_stop": "0",
        "session.set_denormal_as_zero": "1",
    }
    built(traced(session_options=given), linear_job)
    options, _ = sessions[0]

    assert options.intra_op_num_threads == 1
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert options.get_session_config_entry("session.force_spinning_stop") == "0"
    assert options.get_session_config_entry("session.set_denormal_as_zero") == "1"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "options",
    [
        {"intra_op_threads": 2},
        {"intra_op_num_threads": "two"},
        {"graph_optimization_level": "ORT_ENABLE_SOME"},
        {"add_initializer": 1},
    ],
    ids=str,
)
def test_a_session_option_that_the_library_refuses_is_named(linear_job, built, options):
    with pytest.raises(AITuneUserInputError, match=next(iter(options))):
        built(traced(session_options=options), linear_job)


def test_provider_options_are_passed_on(linear_job, built, sessions):
    built(traced(execution_provider="CPU", provider_options={"arena_extend_strategy": "kSameAsRequested"}), linear_job)

    assert sessions[0][1] == [("CPUExecutionProvider", {"arena_extend_strategy": "kSameAsRequested"})]


def test_a_provider_that_the_installed_library_lacks_is_unsupported(linear_job, built):
    import onnxruntime

    if "OpenVINOExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has the OpenVINO provider")
    with pytest.raises(BackendUnsupportedError, match=r"no OpenVINOExecutionProvider, only .*CPUExecutionProvider"):
        built(traced(execution_provider="OPENVINO"), linear_job)


@pytest.mark.parametrize("use_dynamo", [True, False])
def test_the_opset_version_is_the_one_asked_for(linear_job, built, use_dynamo):
    import onnx

    config = ONNXRuntimeBackendConfig(use_dynamo=use_dynamo, opset_version=19)
    engine = built(ONNXRuntimeBackend(config), linear_job)
    model = onnx.load(str(linear_job.folder / "model.onnx"))

    assert {entry.version for entry in model.opset_import if entry.domain == ""} == {19}
    assert engine.run(torch.zeros(2, 4)).shape == (2, 3)


class Moves(nn.Module):
    """Operators that ONNX Runtime has in bfloat16 as well."""

    def forward(self, x, y):
        return torch.cat([x, y], 1).transpose(0, 1), x


def test_bfloat16_passes_where_numpy_has_none(job_of, built, assert_same):
    x, y = torch.randn(3, 4).bfloat16(), torch.randn(3, 2).bfloat16()
    job = job_of(Moves(), (1, (x[:1], y[:1]), {}), (3, (x, y), {}))
    engine = built(traced(), job)

    assert engine.precision == "bfloat16"
    assert_same(engine.run(x, y), job.module(x, y), 0.0)
    assert_same(engine.run(x.t().contiguous().t(), y), job.module(x, y), 0.0)


def test_operators_that_bfloat16_lacks_are_unsupported(job_of, built):
    job = job_of(nn.Linear(4, 3).bfloat16(), (1, (torch.randn(1, 4).bfloat16(),), {}))

    with pytest.raises((BackendUnsupportedError, BackendBuildError), match="ONNX Runtime refuses the model"):
        built(traced(), job)


def test_half_precision_is_declared(job_of, built, assert_same):
    x = torch.randn(3, 4).half()
    job = job_of(nn.Linear(4, 3).half(), (1, (x[:1],), {}), (3, (x,), {}))
    engine = built(traced(), job)

    assert engine.precision == "float16"
    assert_same(engine.run(x), job.module(x).detach(), 1e-2)


def test_complex_numbers_are_unsuitable(job_of):
    job = job_of(nn.Identity(), (1, (torch.zeros(1, 2, dtype=torch.complex64),), {}))

    assert "no complex numbers: input" in ONNXRuntimeBackend().unsuitable(job)


def test_sizes_and_dtypes_beyond_the_usual(job_of, built, assert_same):
    class Mixed(nn.Module):
        def forward(self, a, b, c, d):
            return a + 1, b * 2, c.logical_not(), d.double() * 3, a.sum(), (b, c)

    def call(n):
        ints = torch.arange(n * 2, dtype=torch.int32).reshape(n, 2)
        return n, (ints, torch.tensor(3.0), torch.ones(n, dtype=torch.bool), torch.arange(n, dtype=torch.uint8)), {}

    job = job_of(Mixed(), call(1), call(4))
    engine = built(traced(), job)

    assert_same(engine.run(*call(3)[1]), job.module(*call(3)[1]))


def test_a_negated_view_is_read_right(linear_job, built, assert_same):
    engine = built(traced(), linear_job)
    x = torch.randn(2, 4, dtype=torch.complex64).conj().imag  # negated lazily
    assert x.is_neg()
    assert_same(engine.run(x), linear_job.module(x).detach())


def test_changed_weights_do_not_reach_a_built_engine(job_of, built):
    module = nn.Linear(4, 3).eval()
    x = torch.randn(2, 4)
    engine = built(traced(), job_of(module, (1, (x[:1],), {}), (2, (x,), {})))
    before = engine.run(x)
    with torch.no_grad():
        module.weight.zero_()

    assert torch.equal(engine.run(x), before)
    assert not engine.live_weights
