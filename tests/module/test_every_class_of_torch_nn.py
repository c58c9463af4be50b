"""Every class of torch.nn that constructs with small arguments is wrapped, tuned, called, copied and pickled."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest
import torch
from torch import nn

from aitune.torch.backend import OpenVINOBackend, TorchEagerBackend

V = torch.randn(2, 8)  # vectors
S = torch.randn(2, 4, 8)  # sequences, or signals of 4 channels
I = torch.randn(2, 4, 6, 6)  # noqa: E741 - images
C = torch.randn(2, 4, 4, 4, 4)  # volumes
T = torch.randn(2, 8)  # targets
P = torch.rand(2, 8)  # probabilities
IDS = torch.tensor([1, 0])


# Class: arguments of the constructor, and of a call.
CASES = {
    **dict.fromkeys(
        [
            "CELU",
            "ELU",
            "GELU",
            "GLU",
            "Hardshrink",
            "Hardsigmoid",
            "Hardswish",
            "Hardtanh",
            "Identity",
            "LeakyReLU",
            "LogSigmoid",
            "Mish",
            "PReLU",
            "ReLU",
            "ReLU6",
            "RReLU",
            "SELU",
            "SiLU",
            "Sigmoid",
            "Softplus",
            "Softshrink",
            "Softsign",
            "Tanh",
            "Tanhshrink",
            "Dropout",
            "FeatureAlphaDropout",
            "AlphaDropout",
            "Flatten",
        ],
        ((), (V,)),
    ),
    **dict.fromkeys(["Softmax", "LogSoftmax", "Softmin"], ((-1,), (V,))),
    **dict.fromkeys(["Dropout1d"], ((), (S,))),
    **dict.fromkeys(["Dropout2d", "Softmax2d"], ((), (I,))),
    "Dropout3d": ((), (C,)),
    "Threshold": ((0.1, 2.0), (V,)),
    "Linear": ((8, 3), (V,)),
    "LazyLinear": ((3,), (V,)),
    "Bilinear": ((8, 8, 3), (V, T)),
    "Embedding": ((5, 3), (IDS,)),
    "EmbeddingBag": ((5, 3), (torch.tensor([[1, 0], [2, 4]]),)),
    **{
        f"{lazy}{kind}{n}d": (
            (*(() if lazy else (4,)), 3, 2),
            (x,),
        )
        for n, x in ((1, S), (2, I), (3, C))
        for kind in ("Conv", "ConvTranspose")
        for lazy in ("", "Lazy")
    },
    **{f"{kind}Pool{n}d": ((2,), (x,)) for n, x in ((1, S), (2, I), (3, C)) for kind in ("Max", "Avg")},
    **{f"Adaptive{kind}Pool{n}d": ((2,), (x,)) for n, x in ((1, S), (2, I), (3, C)) for kind in ("Max", "Avg")},
    **{f"LPPool{n}d": ((2, 2), (x,)) for n, x in ((1, S), (2, I), (3, C))},
    "FractionalMaxPool2d": ((2, 3), (I,)),
    "FractionalMaxPool3d": ((2, 2), (C,)),
    "MaxUnpool1d": ((2,), nn.MaxPool1d(2, return_indices=True)(S)),
    "MaxUnpool2d": ((2,), nn.MaxPool2d(2, return_indices=True)(I)),
    "MaxUnpool3d": ((2,), nn.MaxPool3d(2, return_indices=True)(C)),
    **{
        f"{lazy}{kind}Norm{n}d": ((() if lazy else (4,)), (x,))
        for n, x in ((1, S), (2, I), (3, C))
        for kind in ("Batch", "Instance")
        for lazy in ("", "Lazy")
    },
    "GroupNorm": ((2, 4), (I,)),
    "LayerNorm": ((8,), (V,)),
    "RMSNorm": ((8,), (V,)),
    "LocalResponseNorm": ((2,), (I,)),
    "CrossMapLRN2d": ((2,), (I,)),
    "SyncBatchNorm": ((4,), (S,)),
    **{
        f"{kind}Pad{n}d": (((1, 1.5) if kind == "Constant" else (1,)), (x,))
        for n, x in ((1, S), (2, I), (3, C))
        for kind in ("Reflection", "Replication", "Zero", "Constant", "Circular")
    },
    "ChannelShuffle": ((2,), (I,)),
    "PixelShuffle": ((2,), (I,)),
    "PixelUnshuffle": ((2,), (I,)),
    "Upsample": ((None, 2.0), (I,)),
    "UpsamplingNearest2d": ((None, 2.0), (I,)),
    "UpsamplingBilinear2d": ((None, 2.0), (I,)),
    "Fold": (((4, 4), 2), (torch.randn(2, 8, 9),)),
    "Unfold": ((2,), (I,)),
    "Unflatten": ((1, (2, 4)), (V,)),
    "CosineSimilarity": ((), (V, T)),
    "PairwiseDistance": ((), (V, T)),
    "RNN": ((8, 3), (S,)),
    "LSTM": ((8, 3), (S,)),
    "GRU": ((8, 3), (S,)),
    "RNNCell": ((8, 3), (V,)),
    "LSTMCell": ((8, 3), (V,)),
    "GRUCell": ((8, 3), (V,)),
    "MultiheadAttention": ((8, 2), (S, S, S)),
    "TransformerEncoderLayer": ((8, 2, 16), (S,)),
    "TransformerDecoderLayer": ((8, 2, 16), (S, S)),
    "TransformerEncoder": ((lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1), (S,)),
    "TransformerDecoder": ((lambda: nn.TransformerDecoderLayer(8, 2, 16), 1), (S, S)),
    "Transformer": ((8, 2, 1, 1, 16), (S, S)),
    "Sequential": ((lambda: nn.Linear(8, 3), nn.ReLU), (V,)),
    "AdaptiveLogSoftmaxWithLoss": ((8, 6, [2]), (V, IDS)),
    **dict.fromkeys(
        ["L1Loss", "MSELoss", "HuberLoss", "SmoothL1Loss", "SoftMarginLoss", "BCEWithLogitsLoss", "PoissonNLLLoss"],
        ((), (V, P)),
    ),
    "BCELoss": ((), (P, T.sigmoid())),
    "KLDivLoss": (((None, None, "batchmean")), (V.log_softmax(-1), P.softmax(-1))),
    "CrossEntropyLoss": ((), (V, IDS)),
    "NLLLoss": ((), (V.log_softmax(-1), IDS)),
    "MultiMarginLoss": ((), (V, IDS)),
    "MultiLabelMarginLoss": ((), (V, torch.tensor([[1, 0, -1, 0, 0, 0, 0, 0]] * 2))),
    "MultiLabelSoftMarginLoss": ((), (V, (P > 0.5).float())),
    "GaussianNLLLoss": ((), (V, T, P)),
    "CTCLoss": (
        (),
        (
            torch.randn(6, 2, 4).log_softmax(-1),
            torch.ones(2, 2, dtype=torch.long),
            torch.tensor([6, 6]),
            torch.tensor([2, 2]),
        ),
    ),
    "MarginRankingLoss": ((), (V, T, torch.ones(2, 8))),
    "HingeEmbeddingLoss": ((), (V, torch.ones(2, 8))),
    "CosineEmbeddingLoss": ((), (V, T, torch.ones(2))),
    "TripletMarginLoss": ((), (V, T, P)),
    "TripletMarginWithDistanceLoss": ((), (V, T, P)),
    "LinearCrossEntropyLoss": ((8, 3), (V, IDS)),
}

NOT_CALLED = {
    "Module": "has no forward",
    "Container": "has no forward",
    "ModuleList": "has no forward",
    "ModuleDict": "has no forward",
    "ParameterList": "has no forward",
    "ParameterDict": "has no forward",
    "DataParallel": "is a way to call another module; tests of transparency have it",
    "RNNBase": "is the base of RNN, LSTM and GRU",
    "RNNCellBase": "is the base of RNNCell, LSTMCell and GRUCell",
    "NLLLoss2d": "is NLLLoss, with a warning that it is deprecated",
    "Parameter": "is no module",
    "Buffer": "is no module",
    "UninitializedParameter": "is no module",
    "UninitializedBuffer": "is no module",
}
SAMPLE = ("LazyLinear", "Conv2d", "LSTM", "MultiheadAttention", "BatchNorm1d", "CrossEntropyLoss")
COMPILED = [
    "Linear",
    "Hardswish",
    "Embedding",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose2d",
    "BatchNorm2d",
    "GroupNorm",
    "LayerNorm",
    "GELU",
    "SiLU",
    "Softmax",
    "MaxPool2d",
    "AvgPool2d",
    "AdaptiveAvgPool2d",
    "Upsample",
    "ReflectionPad2d",
    "PixelShuffle",
    "GRUCell",
]


def make(name):
    """Return a module of a class in eval mode, and the arguments of a call."""
    arguments, call = CASES[name]
    built = [argument() if callable(argument) else argument for argument in arguments]
    return getattr(nn, name)(*built).eval(), call


def classes():
    return sorted(
        name
        for name, value in vars(nn).items()
        if inspect.isclass(value) and issubclass(value, (nn.Module, torch.Tensor))
    )


def test_every_class_has_a_case_or_a_reason():
    assert [name for name in classes() if name not in CASES and name not in NOT_CALLED] == []
    assert [name for name in CASES if not hasattr(nn, name) and name != "LinearCrossEntropyLoss"] == []


def forms(module, call):
    """Return the call positionally, by keyword, and mixed."""
    names = list(inspect.signature(module.forward).parameters)[: len(call)]
    if any(
        p.kind in (p.VAR_POSITIONAL, p.POSITIONAL_ONLY) for p in inspect.signature(module.forward).parameters.values()
    ):
        return [(call, {})] * 3
    named = dict(zip(names, call, strict=True))
    return [(call, {}), ((), named), (call[:1], dict(list(named.items())[1:]))]


def same(one, other):
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)


def goes_through_everything(name, tune, backend, correct):
    module, call = make(name)
    handle = tune(module, backend, call, correct=correct)
    with torch.no_grad():
        for args, kwargs in forms(module, call):
            torch.manual_seed(0)
            answer = module(*args, **kwargs)
            torch.manual_seed(0)
            same(answer, module._call_impl(*args, **kwargs))
        calls = dict(handle.stats.engine_calls)
        for twin in (copy.copy(module), copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            assert type(twin) is type(module)
            torch.manual_seed(0)
            answer = twin(*call)
            torch.manual_seed(0)
            same(answer, module._call_impl(*call))
    assert dict(handle.stats.engine_calls) == calls, "a copy ran an engine of the original"
    assert sum(calls.values()) == 3, handle.stats
    assert b"aitune" not in pickle.dumps(module)


@pytest.mark.parametrize(
    "name", [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
@pytest.mark.filterwarnings("ignore:size_average:UserWarning", "ignore:.*dropout option:UserWarning")
@pytest.mark.filterwarnings("ignore:enable_nested_tensor:UserWarning", "ignore:.*Lazy:UserWarning")
def test_tuned_with_eager_it_is_what_it_was(name, tune):
    if not hasattr(nn, name):
        pytest.skip(f"this torch has no {name}")
    goes_through_everything(name, tune, TorchEagerBackend(), correct=True)


@pytest.mark.parametrize("name", COMPILED)
def test_tuned_with_a_compiler_it_is_what_it_was(name, serve):
    module, call = make(name)
    handle = serve(module, OpenVINOBackend(), call)
    with torch.no_grad():
        for args, kwargs in forms(module, call):
            torch.testing.assert_close(
                module(*args, **kwargs), module._call_impl(*args, **kwargs), rtol=1e-3, atol=1e-4
            )
        assert sum(handle.stats.engine_calls.values()) == 3
        for twin in (copy.copy(module), copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            same(twin(*call), module._call_impl(*call))
    assert sum(handle.stats.engine_calls.values()) == 3


def test_there_are_twenty_with_a_compiler():
    assert len(COMPILED) == 20
