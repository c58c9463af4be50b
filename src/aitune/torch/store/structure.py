"""A module tree as canonical bytes: classes, children, constants, hooks, and where its tensors are."""

from __future__ import annotations

from typing import Any

import torch

from aitune.torch.store.canonical import Canonical, UndigestibleError
from aitune.torch.store.code import visit_code

__all__ = ["VISITS", "write_module"]

_REGISTRIES = ("_parameters", "_buffers", "_modules")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
# Nothing that a forward computes follows from these.
_LEFT_OUT = frozenset(
    {
        *_REGISTRIES, *_HOOKS,
        "_backward_hooks", "_backward_pre_hooks", "_is_full_backward_hook", "_state_dict_hooks",
        "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
        "_forward_hooks_always_called", "_compiled_call_impl", "_is_torch_compile",
    }
)  # fmt: skip
# Names of the arguments that a config of diffusers took by default, as a list in the order of a set.
_ORDERED_BY_CHANCE = "_use_default_values"
_BY_CHANCE = "_original_object_hash"  # of transformers: the hash of a text, another one in every process
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def visit_torch(out: Canonical, value: Any, path: str) -> bool:
    """Write a module, tensor or operator; see :data:`~aitune.torch.store.canonical.Visit`."""
    if isinstance(value, torch.nn.Module):
        _write_part(out, value, path)
    elif isinstance(value, torch.Tensor):
        _write_tensor(out, value, path)
    elif _is_diffusers_config(type(value)):
        out.mark("config")
        out.items(((key, item) for key, item in dict.items(value) if key != _ORDERED_BY_CHANCE), path)
    elif _BY_CHANCE in getattr(value, "__dict__", ()) and type(value).__module__.startswith("transformers."):
        out.mark("object")
        out.write(type(value), path)
        out.attributes(((name, item) for name, item in vars(value).items() if name != _BY_CHANCE), path)
    elif isinstance(value, (torch._ops.OperatorBase, torch._ops.OpOverloadPacket)):
        out.mark("operator", str(value).encode())
    else:
        return False
    return True


VISITS = (visit_torch, visit_code)
"""What is known of values beyond plain Python."""


def write_module(out: Canonical, module: torch.nn.Module) -> None:
    """Write a module with everything below it, the values of tensors left to ``out.tensors``.

    Raises:
        UndigestibleError: If some of it cannot be read.
    """
    out.write(module, "")


def _is_diffusers_config(kind: type) -> bool:
    """Whether it is the class of diffusers that holds a config, found without importing the library."""
    return kind.__name__ == "FrozenDict" and kind.__module__.startswith("diffusers.")


def _is_left_out(name: str) -> bool:
    return name in _LEFT_OUT or name.startswith("___")  # a mark of torch._dynamo


def _write_part(out: Canonical, module: torch.nn.Module, path: str) -> None:
    if isinstance(module, torch.jit.ScriptModule):
        raise UndigestibleError(path or "the module", "a TorchScript module, whose code is not Python's")
    out.mark("module")
    out.write(type(module), path)
    attributes = {name: value for name, value in vars(module).items() if not _is_left_out(name)}
    out.attributes(attributes.items(), path)
    for registry in _REGISTRIES:
        entries = vars(module).get(registry, {})
        out.mark(registry, b"%d" % len(entries))
        for name, value in entries.items():  # in order: a container runs its children in it
            out.mark("name", name.encode())
            out.write(value, f"{path}.{name}" if path else name)
    for registry in _HOOKS:
        hooks = vars(module).get(registry) or {}
        out.mark(registry, b"%d" % len(hooks))
        for identity, hook in hooks.items():
            with_kwargs = vars(module).get(f"{registry}_with_kwargs") or {}
            out.mark("with keywords", b"%d" % (identity in with_kwargs))
            out.write(hook, f"{path}.{registry}" if path else registry)


def _write_tensor(out: Canonical, tensor: torch.Tensor, path: str) -> None:
    name = f"{type(tensor).__module__}.{type(tensor).__qualname__}"
    if type(tensor) not in _PLAIN or type(tensor.data) is not torch.Tensor:
        _write_composite(out, tensor, path, name)
        return
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        kind = "on meta" if tensor.device.type == "meta" else "quantized" if tensor.is_quantized else str(tensor.layout)
        raise UndigestibleError(path, f"a tensor that is {kind}, whose values cannot be read")
    facts = (str(tensor.dtype), tuple(tensor.shape), tensor.stride(), tensor.device.type, tensor.requires_grad)
    out.mark("tensor", f"{name}{facts}".encode())
    out.tensors.append(tensor)
    extra = {key: value for key, value in vars(tensor).items() if not key.startswith(("__", "_dynamo"))}
    out.attributes(extra.items(), path)


def _write_composite(out: Canonical, tensor: torch.Tensor, path: str, name: str) -> None:
    """Write a tensor that is made of others, such as a quantized weight, by its parts."""
    if not hasattr(tensor, "__tensor_flatten__"):
        raise UndigestibleError(path, f"a tensor of class {name}, whose parts are not known")
    parts, context = tensor.__tensor_flatten__()
    out.mark("composite", f"{name}{tuple(tensor.shape)}".encode())
    out.write(type(tensor), path)
    out.write(context, f"{path} (context)")
    for part in parts:
        out.mark("name", part.encode())
        out.write(getattr(tensor, part), f"{path}.{part}")
