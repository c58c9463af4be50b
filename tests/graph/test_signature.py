"""Every legal form of a call is one set of arguments."""

from __future__ import annotations

import functools
import pickle

import pytest

from aitune.torch.graph.signature import CallForm, CallSignature, Omitted


def forward(x, /, y, z=3, *rest, flag=False, **extra):
    return x, y, z, rest, flag, extra


def test_positional_keyword_and_default_forms_bind_alike():
    signature = CallSignature.of(forward)
    forms = [((1, 2), {}), ((1,), {"y": 2}), ((1, 2, 3), {}), ((1,), {"y": 2, "z": 3, "flag": False})]
    bound = [signature.bind(args, kwargs) for args, kwargs in forms]
    assert all(arguments == bound[0] for arguments in bound)


def test_the_canonical_call_means_the_same():
    signature = CallSignature.of(forward)
    arguments = signature.bind((1, 2, 3, 4, 5), {"flag": True, "more": 6})
    args, kwargs = signature.call(arguments)
    assert forward(*args, **kwargs) == forward(1, 2, 3, 4, 5, flag=True, more=6)


def test_a_call_that_does_not_fit_raises_type_error():
    with pytest.raises(TypeError):
        CallSignature.of(forward).bind((), {})


def test_a_signature_pickles():
    signature = CallSignature.of(forward)
    assert pickle.loads(pickle.dumps(signature)) == signature


def test_what_has_no_signature_takes_anything():
    signature = CallSignature.of(dict.fromkeys)
    assert signature.call(signature.bind((1, 2), {})) == ((1, 2), {})


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((1, 2), {}),
        ((1,), {"y": 2}),
        ((1, 2, 3, 4, 5), {"flag": True, "more": 6}),
        ((1,), {"more": 6, "y": 2}),
    ],
)
def test_a_call_is_written_again_in_its_own_form(args, kwargs):
    signature = CallSignature.of(forward)
    arguments = signature.bind(args, kwargs)
    assert signature.call(arguments, CallForm(len(args), tuple(kwargs))) == (args, kwargs)


def test_what_a_decorated_forward_was_not_given_is_not_written():
    @functools.wraps(forward)
    def decorated(*args, **kwargs):
        return forward(*args, **kwargs)

    signature = CallSignature.of(decorated)
    assert signature.call(signature.bind((1, 2), {"flag": False})) == ((1, 2), {"flag": False})
    assert signature.bind((1, 2), {})["z"] is Omitted.OMITTED
    assert signature.bind((1, 2, 3), {})["z"] == 3
