"""The backends as a user would pick them by hand: each library's own API, and nothing of aitune.

What can be written to a file is built in a process of its own (``python -m benchmarks.cpu.by_hand``) and loaded where
it is measured: builds leave threads, memory and caches behind, and may crash.
"""

from __future__ import annotations

import argparse
import copy
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from benchmarks.cpu.models import MODELS

__all__ = ["PICKS", "Built", "Pick", "pick"]

BUILD_SECONDS = 240
Inputs = tuple[torch.Tensor, ...]
Call = Callable[..., Any]


@dataclass(frozen=True)
class Material:
    """What a pick is made of: a model, the inputs of one call, and the file that is built or loaded."""

    model: nn.Module
    inputs: Inputs
    path: Path


@dataclass(frozen=True)
class Pick:
    """A way to run a model.

    Attributes:
        load: Makes the call.
        build: Writes the file; None: there is none.
    """

    load: Callable[[Material], Call]
    build: Callable[[Material], None] | None = None


@dataclass(frozen=True)
class Built:
    """A pick, ready to be called.

    Attributes:
        call: Takes the inputs.
        seconds: How long it took to build, load and call it once.
        error: Relative L2 error of its outputs against eager.
    """

    call: Call
    seconds: float
    error: float


def build_onnx(of: Material) -> None:
    torch.onnx.export(of.model, of.inputs, of.path, dynamo=True, verbose=False)


def load_onnxruntime(of: Material) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(of.path), options, providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_inputs()]

    def call(*tensors: torch.Tensor) -> list[torch.Tensor]:
        feeds = {name: tensor.numpy() for name, tensor in zip(names, tensors, strict=True)}
        return [torch.from_numpy(array) for array in session.run(None, feeds)]

    return call


def build_openvino(of: Material) -> None:
    import openvino

    converted = openvino.convert_model(torch.export.export(of.model, of.inputs))
    openvino.save_model(converted, str(of.path), compress_to_fp16=False)


def load_openvino(of: Material) -> Call:
    import openvino

    # Left alone it computes in bfloat16 where the processor can: another model, which is not what is compared.
    options = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    compiled = openvino.Core().compile_model(str(of.path), "CPU", options)

    def call(*tensors: torch.Tensor) -> list[torch.Tensor]:
        results = compiled([tensor.numpy() for tensor in tensors])
        return [torch.from_numpy(array) for array in results.values()]

    return call


def build_aot_frozen(of: Material) -> None:
    import torch._inductor

    program = torch.export.export(of.model, of.inputs)
    torch._inductor.aoti_compile_and_package(program, package_path=str(of.path), inductor_configs={"freezing": True})


def load_aot(of: Material) -> Call:
    import torch._inductor

    return torch._inductor.aoti_load_package(str(of.path))


def own_code(model: nn.Module) -> Call:
    """Wrap a model in a function with a code object of its own, by which torch.compile tells what it has compiled."""
    scope: dict[str, Any] = {"model": model}
    # Source of its own: closures of one function would share the code object.
    exec("def call(*inputs):\n    return model(*inputs)\n", scope)
    return scope["call"]


def load_compile(of: Material) -> Call:
    return torch.compile(own_code(of.model))


def load_compile_frozen(of: Material) -> Call:
    import torch._inductor.config

    compiled = torch.compile(own_code(of.model))
    with torch._inductor.config.patch(freezing=True):
        compiled(*of.inputs)
    return compiled


def load_channels_last(of: Material) -> Call:
    if not any(parameter.dim() == 4 for parameter in of.model.parameters()):
        raise ValueError("no weights of images")
    owner = copy.deepcopy(of.model).to(memory_format=torch.channels_last)

    def call(*tensors: torch.Tensor) -> Any:
        laid_out = [t.to(memory_format=torch.channels_last) if t.dim() == 4 else t for t in tensors]
        return owner(*laid_out)

    return call


PICKS = {
    "channels_last": Pick(load_channels_last),
    "onnxruntime": Pick(load_onnxruntime, build_onnx),
    "openvino": Pick(load_openvino, build_openvino),
    "aot_frozen": Pick(load_aot, build_aot_frozen),
    "compile": Pick(load_compile),
    "compile_frozen": Pick(load_compile_frozen),
}
SUFFIXES = {"onnxruntime": ".onnx", "openvino": ".xml", "aot_frozen": ".pt2"}


def pick(name: str, model_name: str, model: nn.Module, inputs: Inputs, folder: Path) -> Built:
    """Build a pick (in a process of its own where it has a file), load it here, and compare its outputs with eager's.

    Raises:
        Exception: Whatever goes wrong.
    """
    start = time.perf_counter()
    of = Material(model, inputs, folder / f"{name}{SUFFIXES.get(name, '')}")
    if PICKS[name].build is not None:
        command = [sys.executable, "-m", "benchmarks.cpu.by_hand", name, model_name, str(len(inputs[0])), str(of.path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
            raise RuntimeError(f"the build ended with {done.returncode}: {lines[-1][:300]}")
    with torch.no_grad():
        call = PICKS[name].load(of)
        answer = call(*inputs)
        seconds = time.perf_counter() - start
        return Built(call, seconds, relative_error(answer, model(*inputs)))


def relative_error(answer: Any, truth: Any) -> float:
    """Return the largest relative L2 error of the tensors of two outputs, taken in order."""
    ours, theirs = tensors_of(answer), tensors_of(truth)
    if len(ours) != len(theirs) or any(a.shape != b.shape for a, b in zip(ours, theirs, strict=True)):
        return float("inf")
    pairs = zip(ours, theirs, strict=True)
    return max(float((a - b).double().norm() / b.double().norm().clamp_min(1e-300)) for a, b in pairs)


def tensors_of(output: Any) -> list[torch.Tensor]:
    if hasattr(output, "to_tuple"):  # the output classes of transformers and diffusers
        output = output.to_tuple()
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]


def main() -> None:
    """Build one file; the entry point of the process for it."""
    parser = argparse.ArgumentParser()
    for name, kind in {"name": str, "model": str, "batch": int, "path": Path}.items():
        parser.add_argument(name, type=kind)
    arguments = parser.parse_args()
    reference = MODELS[arguments.model]
    build = PICKS[arguments.name].build
    assert build is not None
    with torch.no_grad():
        build(Material(reference.model(), reference.inputs(arguments.batch), arguments.path))


if __name__ == "__main__":
    main()
