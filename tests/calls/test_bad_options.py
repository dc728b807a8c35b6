"""Options that are words, numbers or dtypes: what is none of these is refused in plain words.

An array is compared element by element, an int may be too long to write, and an object's own
methods may fail. None of these may be what the caller reads.
"""

from __future__ import annotations

import numpy as np
import pytest
from helpers.refusals import contents

import gemv
from gemv.calls import short
from gemv.core.dtypes import PLAIN
from gemv.core.values import is_integer, shown, typed

pytestmark = pytest.mark.skipif(
    gemv.backend() == "host", reason="no GPU and no simulator to launch on"
)


class NoText:
    """An object that cannot be written, and has no attributes to ask for."""

    def __getattr__(self, name):
        raise OSError(f"the connection is gone: {name}")

    def __repr__(self):
        raise KeyError("no text")


class NotCompared:
    """An object that refuses to be compared."""

    __hash__ = None

    def __eq__(self, other):
        raise RuntimeError("no comparison")


VALUES = {
    "an array": np.ones(3),
    "an array of one": np.array([1.5]),
    "an array of objects": np.array([None, 1], object),
    "a structure": np.zeros(1, "V3")[0],
    "a duration": np.timedelta64(1, "s"),
    "a huge int": 10**5000,
    "minus a huge int": -(10**5000),
    "a long text": "z" * 10_000,
    "an object without a text": NoText(),
    "an object that is not compared": NotCompared(),
    "a list": [1, 2],
    "a float": 0.5,
}
A, X, Y = np.arange(6.0).reshape(2, 3), np.ones(3), np.array([10.0, 20.0])
STACK, XS, YS = np.arange(12.0).reshape(2, 2, 3), np.ones((2, 3)), np.full((2, 2), 7.0)


def one(**options):
    return gemv.gemv(1.0, A, X, 1.0, Y, overwrite_y=1, **options)


def stacked(**options):
    return gemv.gemv(1.0, STACK, XS, 1.0, YS, overwrite_y=1, **options)


def explained(**options):
    return gemv.explain(1.0, A, X, 1.0, Y, overwrite_y=1, **options)


def spread(**options):
    return gemv.Matrix(A, **{"devices": [0, 0], **options})


#: What is called, the routine that the error names, and its options.
CALLS = {
    "gemv": (one, "gemv", ("kernel", "accumulate", "out_dtype", "coefficients", "peer")),
    "gemv_limit": (one, "gemv", ("device_memory_limit",)),
    "dgemv": (
        lambda **options: gemv.dgemv(1.0, A, X, 1.0, Y, overwrite_y=1, **options),
        "dgemv",
        ("kernel", "accumulate", "peer"),
    ),
    "stacked": (stacked, "gemv", ("kernel", "accumulate", "out_dtype", "peer")),
    "matvec": (
        lambda **options: gemv.matvec(STACK, XS, YS, **options),
        "matvec",
        ("accumulate", "out_dtype"),
    ),
    "vecmat": (
        lambda **options: gemv.vecmat(YS.copy(), STACK, **options),
        "vecmat",
        ("accumulate", "out_dtype"),
    ),
    "list": (
        lambda **options: gemv.gemv_batched(1, [A], [X], 1, [Y], overwrite_y=1, **options),
        "gemv_batched",
        ("accumulate", "out_dtype", "beta", "alpha"),
    ),
    "Batch": (lambda **options: gemv.Batch([A], **options), "Batch", ("accumulate", "out_dtype")),
    "explain": (explained, "gemv", ("routine", "kernel", "accumulate", "out_dtype")),
    "explain_matvec": (
        lambda **options: gemv.explain(1.0, A, X, routine="matvec", **options),
        "matvec",
        ("offx", "incx", "offy", "incy", "trans", "peer"),
    ),
    "Matrix": (
        lambda **options: gemv.Matrix(A, **options),
        "Matrix",
        ("dtype", "kernel", "gather"),
    ),
    "spread": (spread, "Matrix", ("devices", "split", "gather", "dtype", "kernel")),
    "use_backend": (gemv.use_backend, "use_backend", ("name",)),
    "use_alignment": (gemv.use_alignment, "use_alignment", ("yes",)),
}
#: Names that are arguments of no call of theirs, or values that are meant.
IN_WORDS = {"name": "backend"}
MEANT = {
    ("peer", "a huge int"), ("peer", "minus a huge int"), ("device_memory_limit", "a huge int"),
    ("alpha", "a float"), ("beta", "a float"),
    ("alpha", "an array of one"), ("beta", "an array of one"),
}  # fmt: skip


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(
    ("called", "option"), [(name, each) for name, (*_, all_) in CALLS.items() for each in all_]
)
def test_what_is_no_option_is_refused(called, option, value):
    call, routine, _ = CALLS[called]
    if called == "list" and option in ("alpha", "beta"):
        call = _of_list
    before = [contents(array) for array in (A, X, Y, STACK, XS, YS)]
    try:
        call(**{option: VALUES[value]})
    except (TypeError, ValueError) as error:
        text = str(error)
        assert text.startswith(f"{routine}: "), text
        assert IN_WORDS.get(option, option) in text
        assert len(text) < 450
        assert " at 0x" not in text
    else:
        assert (option, value) in MEANT
        Y[:] = 10.0, 20.0
    assert [contents(array) for array in (A, X, Y, STACK, XS, YS)] == before


def _of_list(**factor):
    return gemv.gemv_batched(factor.pop("alpha", 1), [A], [X], ys=[Y], overwrite_y=1, **factor)


def test_sharded_names_itself():
    from numba import cuda

    parts = [cuda.to_device(A)]
    for option, value in (("gather", "some"), ("axis", np.ones(3)), ("axis", VALUES["a duration"])):
        with pytest.raises(ValueError, match=f"^sharded: {option} must be"):
            gemv.sharded(parts, **{option: value})


def test_a_word_may_be_put_together():
    plain = "".join(["pl", "ain"])
    assert plain is not PLAIN
    assert gemv.gemv(1.0, A, X, accumulate=plain).tolist() == [3.0, 12.0]
    assert gemv.matvec(STACK, X, accumulate=plain).tolist() == [[3.0, 12.0], [21.0, 30.0]]
    assert short.with_options("gemv", A, plain, False)[0] == "gemv"


def test_out_and_beta_are_told_by_what_they_are():
    with pytest.raises(ValueError, match=r"got beta = an array of shape \(2,\) \(failed"):
        gemv.matvec(STACK, XS, beta=np.zeros(2))
    with pytest.raises(TypeError, match=r"out must be an array, .* got tuple"):
        gemv.matvec(STACK, XS, out=(YS,))


def test_one_is_told_in_the_singular():
    told = str(gemv.explain(1, A, X, routine="matvec"))
    assert "for 1 item in one launch, as 1 block of" in told
    assert "as 1 block of" in str(gemv.explain(1, A, X))
    assert "for 2 items in" in str(gemv.explain(1, STACK, XS, routine="matvec"))


def test_values_as_they_are_told():
    assert [shown(each) for each in ("one", 2, "z" * 50, object())] == [
        "'one'",
        "2",
        "str",
        "object",
    ]
    assert [typed(each) for each in (None, 2, NoText(), [1] * 50)] == [
        "None", "int 2", f"{__name__}.NoText", "list",
    ]  # fmt: skip
    integers = 1, np.int8(1), True, np.timedelta64(1, "s"), 1.0, np.ones(1, int)
    assert [is_integer(each) for each in integers] == [True, True, False, False, False, False]
