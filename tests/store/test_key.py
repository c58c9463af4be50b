"""A key is the same in every process, and another one for whatever could change an engine."""

from __future__ import annotations

import copy
import functools
import pickle
import subprocess
import sys
import types
from collections import namedtuple
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import numpy as np
import pytest
import torch
import wrapt
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from aitune.testing.modules import ConvNet, Mlp
from aitune.torch.backend import ONNXRuntimeBackend, ONNXRuntimeBackendConfig, OpenVINOBackend
from aitune.torch.check.check import Check
from aitune.torch.jit.patcher import disable_jit_tuning, enable_jit_tuning
from aitune.torch.store import NoKeyError, describe_subject, entry_key, tune_key
from aitune.torch.store.subject import canonical_digest, module_digests
from aitune.torch.tune_strategy import FirstWinsStrategy, MaxThroughputStrategy

CPU = torch.device("cpu")


class Configured(nn.Module):
    """A module whose forward depends on whatever it was given."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.linear = nn.Linear(8, 4)

    def forward(self, x):
        return self.linear(x) * self.config["scale"]


def structure_of(config):
    torch.manual_seed(0)
    return module_digests(Configured(config))[0]


PLAIN = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | st.binary(max_size=5)
)
CONSTANTS = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.frozensets(PLAIN, max_size=3)
    ),
    max_leaves=6,
)


def told_apart(first, second):
    """Whether two plain values differ in type, order or value anywhere: what ``==`` forgives counts here."""
    if type(first) is not type(second):
        return True
    if isinstance(first, dict):
        return told_apart(list(first.items()), list(second.items()))
    if isinstance(first, (list, tuple)):
        return len(first) != len(second) or any(map(told_apart, first, second))
    if isinstance(first, frozenset):
        return sorted(map(repr, first)) != sorted(map(repr, second))
    return first.hex() != second.hex() if isinstance(first, float) else first != second


@given(CONSTANTS, CONSTANTS)
def test_different_constants_never_share_a_key_and_equal_ones_always_do(first, second):
    assert (structure_of(first) != structure_of(second)) == told_apart(first, second)
    assert structure_of(first) == structure_of(copy.deepcopy(first))


@dataclass
class Config:
    width: int = 4
    names: list[str] = field(default_factory=list)


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


class Colour(Enum):
    red = 1
    blue = 2


class Words(list):
    pass


Point = namedtuple("Point", "x y")


def made(body):
    """A function in which one constant differs."""
    scope = {"__name__": "__main__"}
    exec(f"def f(x):\n    return {body}", scope)
    return scope["f"]


def closure_over(value):
    return lambda x: x * value


PAIRS = {
    "dataclass": (Config(4), Config(5)),
    "list in a dataclass": (Config(4, ["a"]), Config(4, ["b"])),
    "slots": (Slotted(1), Slotted(2)),
    "enum": (Colour.red, Colour.blue),
    "int and float": (1, 1.0),
    "int and bool": (1, True),
    "zero and minus zero": (0.0, -0.0),
    "text and bytes": ("a", b"a"),
    "named tuple and tuple": (Point(1, 2), (1, 2)),
    "order of a list": ([1, 2], [2, 1]),
    "order of a dict": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "subclass of a list": (Words([1]), [1]),
    "content of a subclass of a list": (Words([1]), Words([2])),
    "one object twice": ([x := [1], x], [[1], [1]]),
    "function": (made("x * 2"), made("x * 3")),
    "function by operator": (made("x + 2"), made("x - 2")),
    "closure": (closure_over(1), closure_over(2)),
    "partial": (functools.partial(max, 1), functools.partial(max, 2)),
    "class": (Words, Config),
    "dtype": (torch.float16, torch.float32),
    "tensor": (torch.zeros(2), torch.ones(2)),
    "shape of a tensor": (torch.zeros(2, 3), torch.zeros(3, 2)),
    "range": (range(3), range(4)),
    "dtype with fields": (np.dtype([("a", "f4"), ("b", "i4")]), np.dtype([("b", "f4"), ("a", "i4")])),
    "array with fields": (np.zeros(1, [("a", "f4"), ("b", "i4")]), np.zeros(1, [("b", "f4"), ("a", "i4")])),
    "namespace": (types.SimpleNamespace(a=1), types.SimpleNamespace(a=2)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_values_that_differ_give_different_digests(name):
    first, second = PAIRS[name]
    assert canonical_digest(first) != canonical_digest(second)
    assert canonical_digest(first) == canonical_digest(first)


def test_values_that_are_equal_give_one_digest():
    assert canonical_digest({1, 2, 3}) == canonical_digest({3, 2, 1})
    assert canonical_digest(Config(4, ["a"])) == canonical_digest(Config(4, ["a"]))
    assert canonical_digest(made("x * 2")) == canonical_digest(made("x * 2"))
    cycle: list = [1]
    cycle.append(cycle)
    assert canonical_digest(cycle) == canonical_digest(cycle)


class Adds(nn.Module):
    def forward(self, x):
        return x + 1


class Subtracts(nn.Module):
    def forward(self, x):
        return x - 1


def halved(module, *_):
    return None


def variants():
    """Name to a change of a small network that changes, or may change, what it computes."""

    def forward_of_the_instance(net):
        net.layers[1].forward = lambda x: x * 3

    def replaced_method(net):
        net.layers[1].__class__ = type("GELU", (nn.GELU,), {"forward": lambda self, x: x})

    return {
        "weight": lambda net: net.layers[0].weight.data[3, 3].add_(1e-6),
        "buffer": lambda net: net.layers.register_buffer("b", torch.ones(1)),
        "another child": lambda net: net.layers.append(nn.ReLU()),
        "children exchanged": lambda net: net.layers.__setitem__(1, nn.ReLU()),
        "constant of a child": lambda net: setattr(net.layers[1], "approximate", "tanh"),
        "training flag below": lambda net: net.layers[0].train(),
        "hook": lambda net: net.layers[0].register_forward_hook(halved),
        "forward of an instance": forward_of_the_instance,
        "method of a class": replaced_method,
        "dtype": lambda net: net.double(),
        "strides": lambda net: setattr(net.layers[0].weight, "data", net.layers[0].weight.data.t().contiguous().t()),
        "tied": lambda net: setattr(net.layers[0], "bias", nn.Parameter(net.layers[0].bias.detach().clone() * 0)),
    }


@pytest.mark.parametrize("name", variants())
def test_whatever_changes_a_module_changes_its_key(name, module, key_of):
    before = key_of(module).text
    assert key_of(copy.deepcopy(module)).text == before
    variants()[name](module)
    assert key_of(module).text != before


def test_modules_of_one_name_with_other_code_have_other_keys():
    other = type("Adds", (nn.Module,), {"forward": Subtracts.forward, "__module__": __name__})
    other.__qualname__ = "Adds"
    assert module_digests(Adds()) != module_digests(other())
    assert module_digests(Adds()) == module_digests(Adds())


SCALE = 2.0
helper = types.ModuleType("helper_of_the_user")
exec("factor = 2.0\ndef scaled(x):\n    return x * factor", helper.__dict__)


class UsesGlobals(nn.Module):
    def forward(self, x):
        return helper.scaled(x) * SCALE


def test_globals_that_a_users_code_names_count(monkeypatch):
    before = module_digests(UsesGlobals())
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    changed = module_digests(UsesGlobals())
    assert changed != before
    monkeypatch.undo()
    assert module_digests(UsesGlobals()) == before
    monkeypatch.setattr(helper, "factor", 4.0)
    assert module_digests(UsesGlobals()) != before


def test_functions_of_torch_that_somebody_replaced_count(monkeypatch, module):
    before = module_digests(module)
    monkeypatch.setattr(torch.nn.functional, "gelu", made("x * 2"))
    assert module_digests(module) != before


def test_methods_of_torch_that_somebody_replaced_count(monkeypatch, module):
    before = module_digests(module)
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: x)
    assert module_digests(module) != before


@pytest.mark.slow
def test_functions_that_somebody_put_into_a_librarys_files_count(monkeypatch):
    transformers = pytest.importorskip("transformers")
    from transformers.models.bert import modeling_bert

    size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8, "vocab_size": 9}
    bert = transformers.BertModel(transformers.BertConfig(**size))
    before = module_digests(bert)
    monkeypatch.setattr(modeling_bert, "eager_attention_forward", made("x * 2"))
    patched = module_digests(bert)
    monkeypatch.setattr(modeling_bert, "eager_attention_forward", made("x * 3"))
    assert len({before, patched, module_digests(bert)}) == 3
    monkeypatch.undo()
    assert module_digests(bert) == before
    transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS.register("mine", made("x * 4"))
    try:
        assert module_digests(bert) != before
    finally:
        del type(transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS)._global_mapping["mine"]


def begun():
    generator = (i for i in range(3))
    next(generator)
    return generator


OPAQUE = {
    "Python module as a value": lambda: helper,
    "open file": lambda: Path(__file__).open("rb"),  # noqa: SIM115
    "iterator": lambda: iter([1, 2]),
    "generator that was begun": begun,
    "random generator": torch.Generator,
    "TorchScript module": lambda: torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)),
    "tensor on meta": lambda: torch.empty(3, device="meta"),
    "proxy with arguments": lambda: wrapt.PartialCallableObjectProxy(max, 1),
    "proxy that may answer for itself": lambda: type("Proxy", (wrapt.ObjectProxy,), {})(1),
    "sparse tensor": lambda: torch.eye(3).to_sparse(),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", OPAQUE)
def test_what_cannot_be_told_apart_gives_no_key_but_a_reason(name, module, key_of):
    value = OPAQUE[name]()
    if isinstance(value, nn.Module):
        module.layers.append(value)
    else:
        module.config = {"inner": [value]}
    with pytest.raises(NoKeyError, match=r"layers|config"):
        key_of(module)
    getattr(value, "close", lambda: None)()


def test_backend_configuration_graph_and_check_count(module, key_of, graph_of):
    keys = [
        key_of(module),
        key_of(module, OpenVINOBackend()),
        key_of(module, ONNXRuntimeBackend(ONNXRuntimeBackendConfig(opset_version=18))),
        key_of(module, ONNXRuntimeBackend(ONNXRuntimeBackendConfig(session_options={"a.b": "1"}))),
        key_of(module, check=Check(max_error=1e-3)),
        key_of(module, check=Check(metric=made("1"), budget=0.1)),
        key_of(module, check=Check(metric=made("2"), budget=0.1)),
        entry_key(describe_subject(module, graph_of(module, largest=8), CPU), ONNXRuntimeBackend()),
    ]
    assert len({key.text for key in keys}) == len(keys)


def test_a_tune_is_told_apart_by_its_strategy_and_candidates(module, graph_of):
    subject = describe_subject(module, graph_of(module), CPU)
    keys = [
        tune_key(subject, MaxThroughputStrategy(), [ONNXRuntimeBackend()]),
        tune_key(subject, MaxThroughputStrategy(), [ONNXRuntimeBackend(), OpenVINOBackend()]),
        tune_key(subject, MaxThroughputStrategy(min_speedup_ratio=0.1), [ONNXRuntimeBackend()]),
        tune_key(subject, FirstWinsStrategy(), [ONNXRuntimeBackend()]),
        tune_key(subject, MaxThroughputStrategy().enable_performance_validation(False), [ONNXRuntimeBackend()]),
    ]
    assert len({key.text for key in keys}) == len(keys)
    assert tune_key(subject, MaxThroughputStrategy(), [ONNXRuntimeBackend()]).text == keys[0].text


def test_threads_and_settings_of_torch_count(module, key_of):
    before = key_of(module).text
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    assert key_of(module).text != before
    torch.set_num_threads(threads)
    assert key_of(module).text == before


PRINT_KEYS = """
import sys, torch
sys.path[:0] = {paths!r}
torch.manual_seed(0)
from aitune.testing.modules import ConvNet, Mlp
from aitune.torch.store.subject import module_digests, canonical_digest
from aitune.torch.tune_strategy import MaxThroughputStrategy
class Own(torch.nn.Module):
    names = {{"a", "b", "c", "d"}}
    def __init__(self):
        super().__init__()
        self.words = frozenset("abcdef")
        self.table = dict.fromkeys("xyz", {{1, 2, "three"}})
    def forward(self, x):
        return x + len(self.names & {{"a", "e"}})
for module in (ConvNet(), Mlp(), Own(), torch.nn.TransformerEncoderLayer(8, 2), *{more}):
    print(*module_digests(module))
print(canonical_digest(MaxThroughputStrategy()))
"""
LIBRARIES = """[
    __import__("transformers").GPT2LMHeadModel(__import__("transformers").GPT2Config(n_embd=8, n_layer=1, n_head=2)),
    __import__("diffusers").AutoencoderKL(norm_num_groups=8, block_out_channels=(16,)),
]"""


def keys_in_process(seed, more="()"):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PRINT_KEYS.format(paths=sys.path, more=more)],
        env={"PYTHONHASHSEED": seed, "HF_HUB_OFFLINE": "1", "HOME": "/nowhere", "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_keys_are_the_same_in_every_process():
    assert keys_in_process("1") == keys_in_process("2")


@pytest.mark.slow
def test_keys_of_library_models_are_the_same_in_every_process():
    first = keys_in_process("1", LIBRARIES)
    assert len(first.splitlines()) == 7
    assert first == keys_in_process("2", LIBRARIES)


def test_a_key_does_not_change_by_compiling_or_calling_the_module(module, key_of):
    before = key_of(module).text
    compiled = torch.compile(module, backend="eager")
    compiled(torch.randn(3, 8))
    module(torch.randn(3, 8))
    assert key_of(module).text == before
    assert key_of(copy.deepcopy(module)).text == before


def test_a_key_does_not_change_by_just_in_time_tuning(module, key_of):
    before = key_of(module).text
    enable_jit_tuning()
    try:
        while_on = key_of(module).text
    finally:
        disable_jit_tuning()
    assert while_on == key_of(module).text == before


class Unpickled(ONNXRuntimeBackend):
    """A backend whose class nobody has pickled an instance of yet: that leaves a note on the class."""


def test_a_key_does_not_change_by_copying_and_pickling(module, key_of):
    backend = Unpickled()
    before = key_of(module, backend).text
    pickle.dumps((module, backend))
    copy.deepcopy((module, backend))
    assert "__slotnames__" in vars(Unpickled)
    assert key_of(module, backend).text == before


def test_digesting_changes_nothing(module, unchanged_torch_state):
    net = ConvNet()
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with unchanged_torch_state():
        module_digests(net)
    assert all(torch.equal(tensor, state[name]) for name, tensor in net.state_dict().items())
    assert isinstance(module, Mlp)


def module_of(source, **names):
    """A module of a user's program, made from its source."""
    scope = {"__name__": "program", "nn": nn, "torch": torch, **names}
    exec(source, scope)
    return scope["M"]()


def scaled(factor):
    @wrapt.decorator
    def scale(wrapped, instance, args, kwargs):
        return wrapped(*args, **kwargs) * factor

    return scale


class Scales:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x, **kwargs):
        return x * self.factor


FORWARD = "class M(nn.Module):\n    {0}\n    def forward(self, x):\n        {1}"
HIDDEN = {
    "decorator of wrapt": lambda k: module_of(FORWARD.format("@deco", "return x"), deco=scaled(k)),
    "metaclass": lambda k: module_of(
        "class Meta(type):\n    scale = property(lambda kind: FACTOR)\n"
        "class M(nn.Module, metaclass=Meta):\n    def forward(self, x):\n        return x * type(self).scale",
        FACTOR=k,
    ),
    **{
        f"code made as {name}": lambda k, name=name: module_of(
            FORWARD.format("", "return x * FACTOR"), __name__=name, FACTOR=k
        )
        for name in ("numpy", "torch.made_here", "aitune.made_here")
    },
}


@pytest.mark.parametrize("name", HIDDEN)
def test_a_constant_that_is_used_in_a_roundabout_way_counts(name):
    make = HIDDEN[name]
    assert module_digests(make(2.0)) != module_digests(make(3.0))
    assert module_digests(make(2.0)) == module_digests(make(2.0))


IMPORTS = ("import helper_of_b8 as h; return h.scaled(x)", "from helper_of_b8 import scaled as s; return s(x)")


@pytest.mark.parametrize("body", IMPORTS)
def test_a_module_that_a_forward_imports_counts(body, monkeypatch):
    module = module_of(FORWARD.format("", body))
    monkeypatch.setitem(sys.modules, "helper_of_b8", helper)
    before = module_digests(module)
    assert module_digests(module) == before
    monkeypatch.setattr(helper, "factor", 4.0)
    assert module_digests(module) != before


def test_a_module_that_a_forward_will_import_gives_no_key_and_one_that_is_not_there_does(tmp_path, monkeypatch):
    module = module_of(FORWARD.format("", "import helper_yet_to_come; return helper_yet_to_come.scaled(x)"))
    module_digests(module)
    (tmp_path / "helper_yet_to_come.py").write_text("def scaled(x): return x")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(NoKeyError, match="helper_yet_to_come"):
        module_digests(module)


def test_a_file_of_the_users_that_is_named_like_one_of_the_standard_library_counts(tmp_path, monkeypatch):
    shadow = types.ModuleType("pipes" if "pipes" in sys.stdlib_module_names else "sched")
    shadow.__file__ = str(tmp_path / f"{shadow.__name__}.py")
    monkeypatch.setitem(sys.modules, shadow.__name__, shadow)
    vars(shadow).update(nn=nn, FACTOR=2.0)
    exec(FORWARD.format("", "return x * FACTOR"), vars(shadow))
    before = module_digests(shadow.M())
    shadow.FACTOR = 3.0
    assert module_digests(shadow.M()) != before


EXCHANGED = {
    "one function of torch for another": (nn.functional, "gelu", nn.functional.silu),
    "one written in C": (nn.functional, "gelu", torch.tanh),
    "a partial": (nn.functional, "gelu", functools.partial(nn.functional.gelu, approximate="tanh")),
    "a decorated function": (nn.functional, "gelu", torch.no_grad()(made("x * 2"))),
    "a cached function": (nn.functional, "gelu", functools.lru_cache(made("x * 2"))),
    "an object": (nn.functional, "gelu", Scales(2)),
    "another object": (nn.functional, "gelu", Scales(3)),
    "an object for a method": (nn.GELU, "forward", Scales(2)),
    "another object for a method": (nn.GELU, "forward", Scales(3)),
    "a method of tensors": (torch.Tensor, "relu", made("x * 2")),
    "a function of torch.special": (torch.special, "erf", made("x * 2")),
}


def test_whatever_somebody_puts_into_torch_counts(module, monkeypatch):
    digests = [module_digests(module)]
    for place, name, value in EXCHANGED.values():
        with monkeypatch.context() as patch:
            patch.setattr(place, name, value)
            digests.append(module_digests(module))
            assert module_digests(module) == digests[-1]
    assert len({*digests}) == len(digests)
    assert module_digests(module) == digests[0]


def test_hooks_on_all_modules_count(module):
    before = module_digests(module)
    for register in (
        nn.modules.module.register_module_forward_hook,
        nn.modules.module.register_module_forward_pre_hook,
    ):
        handle = register(halved)
        try:
            assert module_digests(module) != before
        finally:
            handle.remove()
    assert module_digests(module) == before
