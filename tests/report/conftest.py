"""A result as a tune would return it, and a terminal that remembers what is on its screen."""

import io
import re

import pytest

from aitune.torch.report import EndToEnd, GraphResult, ModuleResult, TuneResult
from aitune.torch.trial import Trial, Verdict

LONG_REASON = (
    "output last_hidden_state differs from the reference: relative L2 error 0.21 over all entries, 1.9 in"
    " slice 17 of 64 along the leading axis, at the in-between size batch0=5, dim0=37 that no sample had"
)

TRIALS = (
    Trial(backend="TensorRTBackend()", verdict=Verdict.unsupported, reason="needs cuda, the module is on cpu"),
    Trial(
        backend="TorchInductorAotBackend(freezing=True, use_cuda_graphs=False)",
        verdict=Verdict.slower,
        reason="0.97x is below the 1.01x that is asked for",
        precision="float32",
        error=8.8e-07,
        error_bound=1e-4,
        speedup=0.97,
        speedup_low=0.95,
        speedup_high=0.99,
        latency_ms=17.0,
        batch_size=8,
        build_seconds=18.9,
    ),
    Trial(
        backend="ONNXRuntimeBackend()",
        verdict=Verdict.accepted,
        precision="float32",
        error=3.2e-06,
        error_bound=1e-4,
        speedup=1.35,
        speedup_low=1.31,
        speedup_high=1.38,
        latency_ms=12.34,
        throughput=648.0,
        batch_size=8,
        build_seconds=4.12,
        memory_bytes=129_000_000,
        evidence=("the reference is float64",),
    ),
    Trial(
        backend="OpenVINOBackend(precision='bfloat16')",
        verdict=Verdict.wrong,
        reason=LONG_REASON,
        precision="bfloat16",
        error=0.21,
        error_bound=3e-2,
        build_seconds=2.4,
    ),
    Trial(
        backend="TorchAOBackend(quantization='int8wo')",
        verdict=Verdict.not_installed,
        reason="torchao is not installed: pip install 'aitune[torchao]'",
    ),
    Trial(
        backend="TorchInductorJitBackend()",
        verdict=Verdict.build_failed,
        reason="CppCompileError: C++ compile error\n\nCommand:\ng++ -shared foo.cpp",
        build_seconds=12.0,
        log_path="/logs/encoder/build.log",
    ),
    Trial(backend="TorchEagerBackend()", verdict=Verdict.skipped, reason="it is the original itself"),
)

INPUTS = ("input_ids: int64[batch0=1..8, dim0=8..64]", "return_dict = True")


@pytest.fixture
def trials():
    return TRIALS


@pytest.fixture
def result():
    encoder = GraphResult(
        "graph0", INPUTS, ("float32[batch0=1..8, 384]",), "ONNXRuntimeBackend()", TRIALS, ("graph note",)
    )
    single = GraphResult("graph1", ("x: int64[1, 12]",), ("float32[1, 384]",))
    return TuneResult(
        modules={
            "encoder": ModuleResult("encoder", "BertModel", (encoder, single)),
            "head": ModuleResult("head", "Linear", failure="the exporter does not know aten::foo"),
        },
        end_to_end=EndToEnd(0.0412, 0.0321, 1.28, 1.25, 1.31),
        seconds=43.2,
        environment={"torch": "2.13.0", "cpu": "Some CPU"},
        notes=("head is in training mode",),
    )


class Terminal(io.StringIO):
    """A stream that claims to be a terminal and knows what its screen shows, for the codes of a region."""

    encoding = "utf-8"

    def isatty(self):
        return True

    def screen(self):
        lines, row, column = [""], 0, 0
        for code, letter, character in re.findall(r"\x1b\[([\d;?]*)([A-Za-z])|([\s\S])", self.getvalue()):
            line = lines[row]
            if letter == "A":
                row -= int(code or 1)
            elif letter == "J":
                lines[row:] = [line[:column]]
            elif letter == "K":
                assert code == "2"
                lines[row] = ""
            elif letter:
                assert letter == "m", f"unexpected code {code}{letter}"
            elif character == "\r":
                column = 0
            elif character == "\n":
                row, column = row + 1, 0
                lines += [""] * (row + 1 - len(lines))
            else:
                lines[row] = line.ljust(column)[:column] + character + line[column + 1 :]
                column += 1
        return [line.rstrip() for line in lines]


@pytest.fixture
def terminal():
    return Terminal()


class Clock:
    """A clock that a test moves."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()
