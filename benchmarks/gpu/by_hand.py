"""The ways in which a user would make a model quick by hand: calls of each library, and nothing of aitune.

Outputs may be overwritten by the next call, as they are for who replays a CUDA graph by hand.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

__all__ = ["LINES", "error_of"]

Call = Callable[..., Any]


def _as_graph(call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """Return a call that copies its inputs into place and replays a CUDA graph."""
    flat, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
    places = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in flat]
    positional, named = pytree.tree_unflatten(places, spec)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call(*positional, **named)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = call(*positional, **named)

    def replay(*args: Any, **kwargs: Any) -> Any:
        for place, leaf in zip(places, pytree.tree_leaves((args, kwargs)), strict=True):
            if isinstance(place, torch.Tensor):
                place.copy_(leaf)
        graph.replay()
        return output

    replay.captured = call  # type: ignore[attr-defined]  # the graph runs kernels that go with what was captured
    return replay


def _cuda_graph(module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], folder: Path) -> Call:
    del folder
    return _as_graph(module, args, kwargs)


def _compiled(module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], folder: Path) -> Call:
    del folder
    compiled: Call = torch.compile(module, mode="reduce-overhead")
    for _ in range(3):
        compiled(*args, **kwargs)
    return compiled


def _torch_tensorrt(module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], folder: Path) -> Call:
    del folder
    torch_tensorrt = importlib.import_module("torch_tensorrt")
    exported = torch.export.export(module, tuple(args), dict(kwargs))
    compiled = torch_tensorrt.dynamo.compile(exported, arg_inputs=list(args), kwarg_inputs=dict(kwargs))
    return _as_graph(compiled, args, kwargs)


def _tensorrt(module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], folder: Path) -> Call:
    """Return a call of a TensorRT engine, by way of ONNX; its outputs are a flat list."""
    try:
        trt = importlib.import_module("tensorrt_rtx")
    except ImportError:
        trt = importlib.import_module("tensorrt")
    model = folder / "by_hand.onnx"
    torch.onnx.export(module, tuple(args), str(model), kwargs=dict(kwargs), dynamo=True, verbose=False)
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(model)):
        raise RuntimeError(str(parser.get_error(0).desc()))
    plan = builder.build_serialized_network(network, builder.create_builder_config())
    engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
    context = engine.create_execution_context()
    names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
    into = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
    kinds = {
        trt.DataType.FLOAT: torch.float32,
        trt.DataType.HALF: torch.float16,
        trt.DataType.INT32: torch.int32,
        trt.DataType.INT64: torch.int64,
    }
    outputs = [
        torch.empty(tuple(context.get_tensor_shape(name)), dtype=kinds[engine.get_tensor_dtype(name)], device="cuda")
        for name in names
        if name not in into
    ]
    for name, place in zip([name for name in names if name not in into], outputs, strict=True):
        context.set_tensor_address(name, place.data_ptr())

    def call(*args: Any, **kwargs: Any) -> list[torch.Tensor]:
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        for name, tensor in zip(into, tensors, strict=True):
            context.set_tensor_address(name, tensor.data_ptr())
        if not context.execute_async_v3(torch.cuda.current_stream().cuda_stream):
            raise RuntimeError("TensorRT refuses the call")
        return outputs

    return _as_graph(call, args, kwargs)


LINES: Mapping[str, Callable[[torch.nn.Module, Sequence[Any], Mapping[str, Any], Path], Call]] = {
    "torch.cuda.CUDAGraph": _cuda_graph,
    "torch.compile reduce-overhead": _compiled,
    "TensorRT in a CUDA graph": _tensorrt,
    "Torch-TensorRT in a CUDA graph": _torch_tensorrt,
}
"""Each line by its name: takes a module, the inputs of a call and a folder, and returns the call."""


def error_of(found: Any, wanted: Any) -> float:
    """Return the largest relative error among the outputs of a call; structures may differ, order may not."""
    pairs = zip(_tensors(found), _tensors(wanted), strict=True)
    errors = [float((one.double() - other.double()).norm() / other.double().norm()) for one, other in pairs]
    return max(errors)


def _tensors(output: Any) -> list[torch.Tensor]:
    values = list(output.values()) if isinstance(output, Mapping) else output
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
