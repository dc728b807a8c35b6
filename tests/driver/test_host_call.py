"""A call on NumPy's arrays in machine code: what it makes itself, and what it hands on."""

from __future__ import annotations

import ctypes
import gc
import itertools
import sys

import numpy as np
import pytest
from helpers import processes

from gemv.core.dtypes import DTYPES
from gemv.driver import host_call, host_words, image, native
from gemv.engines import leading
from gemv.measure.inputs import random_array

#: What the further function answers.
FURTHER = object()
ROUTINES = {f"{k}gemv": leading.address_of(DTYPES[k].char) for k in host_words.LETTERS}


class Made:
    """A call, and the arguments that it handed on."""

    def __init__(self, most=2**40):
        self.handed_on, self.traces = [], np.zeros(1, np.int64)

        def further(*arguments):
            self.handed_on.append(arguments)
            return FURTHER

        self.function = host_call.make(host_call.Call(further, ROUTINES, DTYPES, self.traces, most))

    def __call__(self, routine, alpha, a, x, beta=0, y=None, trans=0, overwrite_y=0, **changes):
        given = {
            "routine": sys.intern(routine), "alpha": alpha, "a": a, "x": x, "beta": beta, "y": y,
            "offx": 0, "incx": 1, "offy": 0, "incy": 1, "trans": trans,
            "overwrite_y": overwrite_y, "kernel": None, "stream": None, "coefficients": None,
        }  # fmt: skip
        return self.function(*(given | changes).values())


@pytest.fixture
def made():
    return Made()


def views(a):
    """The same numbers as they may lie, each line without gaps between its numbers."""
    m, n = a.shape
    wide, tall = np.full((m, n + 3), np.nan, a.dtype), np.full((m + 3, n), np.nan, a.dtype, "F")
    wide[:, 2 : 2 + n], tall[1 : 1 + m] = a, a
    return np.ascontiguousarray(a), np.asfortranarray(a), wide[:, 2 : 2 + n], tall[1 : 1 + m]


@pytest.mark.parametrize("letter", host_words.LETTERS)
def test_plain_calls_are_made_here(letter, made):
    """With the bits of BLAS's function for the same numbers, whatever their memory."""
    dtype, rng = DTYPES[letter], np.random.default_rng(3)
    conjugated = letter in "cz"
    for m, n in ((5, 7), (7, 5), (1, 6), (6, 1), (1, 1), (40, 33)):
        values = np.round(8 * random_array(rng, (m, n), dtype))
        for a, trans in itertools.product(views(values), host_words.TRANS):
            kind = {"N": 0, "T": 1, "C": 2}.get(str(trans).upper(), trans)
            op = (values, values.T, values.conj().T)[kind]
            x = np.round(8 * random_array(rng, op.shape[1:], dtype))
            y = np.round(8 * random_array(rng, op.shape[:1], dtype))
            # BLAS conjugates no matrix that it does not transpose
            beyond = kind == 2 and conjugated and a.strides[0] != dtype.itemsize
            factors = [(1.0, 0.0), (2, 0), (-2.0, 1.0), (1, -3), (np.float64(0.5), np.float64(2))]
            if conjugated:
                factors += [(2j, 0.0), (1 - 2j, 3 + 1j), (np.complex128(1j), 1)]
            for (alpha, beta), name in itertools.product(factors, (f"{letter}gemv", "gemv")):
                expected = dtype.type(alpha) * (op @ x) + dtype.type(beta) * y
                before = y.copy()
                found = made(name, alpha, a, x, beta, y, trans)
                if beyond:
                    assert found is FURTHER
                    continue
                assert np.array_equal(found, expected) and np.array_equal(y, before)
                assert found.dtype is dtype and found.flags.owndata
                kept = made(name, alpha, a, x, beta, y, trans, overwrite_y=False)
                assert np.array_equal(kept, expected) and np.array_equal(y, before)
                target = y.copy()
                assert made(name, alpha, a, x, beta, target, trans, overwrite_y=True) is target
                assert np.array_equal(target, expected)
                if beta == 0:
                    assert np.array_equal(made(name, alpha, a, x, beta, None, trans), expected)
            assert beyond or not made.handed_on
            made.handed_on.clear()


def test_views_of_one_array_that_do_not_overlap_are_overwritten(made):
    """Each begins where another one ends."""
    memory = np.arange(24.0)
    for a_first, x_first, y_first in ((0, 12, 15), (3, 0, 15), (7, 4, 0), (4, 16, 0), (0, 16, 12)):
        a, x = memory[a_first:][:12].reshape(4, 3), memory[x_first:][:3]
        y, kept = memory[y_first:][:4], memory.copy()
        expected = a @ x + 2 * y
        assert made("dgemv", 1.0, a, x, 2.0, y, overwrite_y=1) is y
        assert np.array_equal(y, expected)
        kept[y_first:][:4] = expected
        assert np.array_equal(memory, kept)
        memory[:] = np.arange(24.0)
    assert not made.handed_on


def test_bits_are_those_of_scipy():
    from scipy.linalg import blas

    made, rng = Made(), np.random.default_rng(4)
    for letter, trans in itertools.product(host_words.LETTERS, (0, 1, 2)):
        dtype, name = DTYPES[letter], f"{letter}gemv"
        a = np.asfortranarray(random_array(rng, (61, 61), dtype))
        x, y = random_array(rng, (61,), dtype), random_array(rng, (61,), dtype)
        expected = getattr(blas, name)(0.3, a, x, -0.7, y, trans=trans)
        assert made(name, 0.3, a, x, -0.7, y, trans).tobytes() == expected.tobytes()
    assert not made.handed_on


def unusual():
    """Changes of a call of dgemv, each of which has to be checked."""
    a, x, y = np.ones((4, 3)), np.ones(3), np.ones(4)
    read_only, shared = np.ones(4), np.ones(16)
    read_only.flags.writeable = False
    odd = np.zeros(33, np.uint8)[1:].view(np.float64)
    wide = np.ones((4, 6))
    beyond = np.lib.stride_tricks.as_strided(a, (4, 3), a.strides)
    for name in ("offx", "incx", "offy", "incy"):
        yield {name: 2}
    for name in ("kernel", "stream", "coefficients"):
        yield {name: 0}
    yield {"routine": "sgemv"}
    yield {"routine": "dgemv, wide"}
    for other in (a.astype(np.float32), a.astype(complex), a.astype(">f8"), a.astype(int)):
        yield {"a": other}
        yield {"x": other[0].copy()}
    yield {"a": a.view(np.matrix)}
    yield {"a": a.tolist()}
    yield {"a": a[0]}
    yield {"a": a[None]}
    yield {"a": np.ones((0, 3)), "y": None, "beta": 0}
    yield {"a": a[:0], "y": None, "beta": 0}  # this one has strides
    yield {"a": a[:, :0], "x": np.ones(0)}
    yield {"a": np.ones((3, 4))}
    yield {"a": np.ones((4, 5))}
    yield {"a": wide[:, ::2]}
    yield {"a": a[::-1]}
    yield {"a": np.lib.stride_tricks.as_strided(shared, (4, 3), (8, 24))[:]}
    yield {"a": np.ndarray((4, 3), float, bytearray(200), strides=(32, 8))}
    yield {"a": np.ndarray((4, 3), float, np.ones(20), strides=(16, 8))}  # rows overlap
    yield {"a": np.ndarray((4, 3), float, np.ones(20), strides=(8, 24))}  # and columns
    yield {"a": beyond}
    yield {"a": beyond[:]}
    yield {"a": np.zeros(97, np.uint8)[1:].view(float).reshape(4, 3)}
    yield {"x": np.ones(6)[::2]}
    yield {"x": np.ones(4)}
    yield {"x": np.ones((3, 1))}
    yield {"x": [1.0] * 3}
    yield {"x": odd[:3]}
    yield {"x": x.view(np.recarray)}
    yield {"x": np.lib.stride_tricks.as_strided(x, (3,), (8,))}
    for name in ("alpha", "beta"):
        for value in (1j, "1", True, None, 2**53, -(2**53), 10**400, np.array(2.0), np.float32(2)):
            yield {name: value}
    yield {"beta": 1.0, "y": None}
    yield {"alpha": 0, "beta": 1}
    yield {"trans": True}
    yield {"trans": 3}
    yield {"trans": "X"}
    yield {"trans": 1.0}
    yield {"overwrite_y": 2}
    yield {"overwrite_y": None}
    yield {"overwrite_y": None, "y": None, "beta": 0}
    for way in (0, 1):
        yield {"y": np.ones(5), "overwrite_y": way}
        yield {"y": np.ones(4, np.float32), "overwrite_y": way}
        yield {"y": np.ones((4, 1)), "overwrite_y": way}
        yield {"y": y.view(np.recarray), "overwrite_y": way}
        yield {"y": np.lib.stride_tricks.as_strided(y, (4,), (8,)), "overwrite_y": way}
    yield {"y": read_only, "overwrite_y": 1}
    yield {"y": np.ones(8)[::2], "overwrite_y": 1}
    yield {"y": odd, "overwrite_y": 1}
    # y begins and ends within A or x, or has them within itself
    for first in (1, 9, 13):
        yield {"y": shared[first : first + 4], "a": shared[2:14].reshape(4, 3), "overwrite_y": 1}
        shared = np.ones(18)
    gaps = shared[:18].reshape(3, 6)[:, :4].T
    yield {"y": shared[12:16], "a": gaps, "overwrite_y": 1}
    yield {"y": shared[2:6], "x": shared[:3], "overwrite_y": 1}
    yield {"y": shared[:4], "x": shared[3:6], "overwrite_y": 1}
    yield {"y": shared[:4], "x": shared[:3], "overwrite_y": 1}
    square = np.ones(4)
    yield {"y": square, "x": square, "a": np.ones((4, 4)), "overwrite_y": 1}


@pytest.mark.parametrize("number", range(len(list(unusual()))))
def test_what_is_unusual_is_handed_on(number, made):
    """With all arguments as they were, and untouched."""
    y = np.arange(4.0)
    given = {"routine": "dgemv", "alpha": 1.0, "a": np.ones((4, 3)), "x": np.ones(3)}
    given |= {"beta": 1.0, "y": y, "trans": 0, "overwrite_y": 0}
    assert np.array_equal(made(**given), y + 3) and not made.handed_on
    changes = list(unusual())[number]
    assert made(**(given | changes)) is FURTHER
    (arguments,) = made.handed_on
    named = dict(zip(host_words.ARGUMENTS, arguments, strict=True))
    assert all(named[name] is value for name, value in changes.items() if name != "routine")
    assert y.tolist() == [0, 1, 2, 3]


def test_calls_with_other_arguments_are_handed_on(made):
    assert made.function() is FURTHER
    assert made.function(1, 2) is FURTHER
    assert made.handed_on == [(), (1, 2)]
    plain = ("gemv", 1.0, np.eye(2), np.ones(2), 0, None, 0, 1, 0, 1, 0, 0, None, None, None)
    assert made.function(*plain).tolist() == [1, 1] and len(made.handed_on) == 2
    assert made.function(*plain, None) is FURTHER
    assert made.function(*plain[:-1]) is FURTHER


def test_rows_that_begin_within_an_element_are_handed_on(made):
    a = np.ndarray((4, 3), np.complex64, np.zeros(30, np.complex64), strides=(28, 8))
    assert a.flags.aligned and type(a.base) is np.ndarray
    assert made("cgemv", 1.0, a, np.ones(3, np.complex64)) is FURTHER


def test_a_matrix_larger_than_the_host_computes_is_handed_on():
    made = Made(most=100 * 8)
    assert made("dgemv", 1.0, np.eye(10), np.ones(10)).tolist() == [1] * 10
    assert made("dgemv", 1.0, np.ones((101, 1)), np.ones(1)) is FURTHER


def test_calls_are_handed_on_while_they_are_traced(made):
    made.traces[0] = 1
    assert made("dgemv", 1.0, np.eye(2), np.ones(2)) is FURTHER
    made.traces[0] = 0
    assert made("dgemv", 1.0, np.eye(2), np.ones(2)).tolist() == [1, 1]


def test_zero_of_beta_reads_no_y_and_zero_of_alpha_no_a(made):
    nan, ones = np.full((3, 3), np.nan), np.ones(3)
    assert made("dgemv", 1.0, np.eye(3), ones, 0.0, nan[0].copy()).tolist() == [1, 1, 1]
    assert made("dgemv", 0.0, nan, nan[0].copy(), 2.0, ones).tolist() == [2, 2, 2]
    assert not made.handed_on


def test_no_reference_is_lost_or_kept(made):
    a, x, y, dtype = np.eye(3), np.ones(3), np.ones(3), np.dtype(float)
    things = (a, x, y, dtype, None, FURTHER)

    def calls(count):
        for _ in range(count):
            made("dgemv", 1.0, a, x)
            made("dgemv", 1.0, a, x, 2.0, y)
            made("dgemv", 1.0, a, x, 0.0, y, overwrite_y=1)
            made("dgemv", 10**400, a, x)
            made("dgemv", 1.0, a, x, 1.0, y.reshape(3, 1))
            made.handed_on.clear()

    calls(3)
    gc.collect()
    before = [sys.getrefcount(thing) for thing in things]
    calls(1000)
    gc.collect()
    after = [sys.getrefcount(thing) for thing in things]
    # others of the process hold some of these, too
    assert all(abs(new - old) < 100 for new, old in zip(after, before, strict=True)), (
        before,
        after,
    )


def test_other_threads_run_while_blas_reads_a_large_matrix(monkeypatch):
    """Of a small one, giving up the lock and coming back would take longer."""
    seen, python = [], native.python

    @ctypes.PYFUNCTYPE(ctypes.c_size_t)
    def save():
        seen.append("lock given up")
        return 7

    @ctypes.PYFUNCTYPE(None, ctypes.c_size_t)
    def restore(thread):
        seen.append(thread)

    spies = {"PyEval_SaveThread": save, "PyEval_RestoreThread": restore}
    of_spies = {name: ctypes.cast(spy, ctypes.c_void_p).value for name, spy in spies.items()}
    monkeypatch.setattr(native, "python", lambda name: of_spies.get(name) or python(name))
    made = Made()
    assert np.all(made("dgemv", 1.0, np.ones((181, 181)), np.ones(181)) == 181)
    assert seen == []
    assert np.all(made("dgemv", 1.0, np.ones((182, 182)), np.ones(182)) == 182)
    assert seen == ["lock given up", 7] and not made.handed_on


@pytest.mark.skipif(not image.is_possible(), reason="images are for Linux on x86-64")
def test_an_image_of_another_process_runs_without_llvm(tmp_path):
    code = (
        "import sys\nimport numpy as np\nfrom gemv.core.dtypes import DTYPES\n"
        "from gemv.driver import host_call\nfrom gemv.engines import leading\n"
        "file = sys.argv[1]\n"
        "def kept(compiled):\n"
        "    try:\n        return open(file, 'rb').read()\n"
        "    except FileNotFoundError:\n        open(file, 'wb').write(compiled())\n"
        "    return kept(compiled)\n"
        "of = {k + 'gemv': leading.address_of(DTYPES[k].char) for k in 'sdcz'}\n"
        "words = np.zeros(1, np.int64)\n"
        "call = host_call.make(host_call.Call(print, of, DTYPES, words, 2**40), kept)\n"
        "print(*call('gemv', 2.0, np.eye(2), np.ones(2), 0, None, 0, 1, 0, 1, 0, 0, *[None] * 3))\n"
        "print(*({'llvmlite', 'numba'} & set(sys.modules)))"
    )
    lines = []
    for _ in range(2):
        done = processes.run(
            [sys.executable, "-c", code, str(tmp_path / "image")],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        lines.append(done.stdout.splitlines())
    assert lines == [["2.0 2.0", "llvmlite"], ["2.0 2.0", ""]]


def test_it_runs_where_no_image_can_be_mapped(monkeypatch):
    monkeypatch.setattr(image, "is_possible", lambda: False)
    address_of = native.load(_module, native.compiled_now)
    monkeypatch.setattr(host_call, "_address", lambda kept: address_of("host_call"))
    made = Made()
    assert made("dgemv", 2.0, np.eye(2), np.ones(2)).tolist() == [2, 2] and not made.handed_on


def _module():
    from gemv.driver import host_call_ir

    return host_call_ir.module()


def test_a_numpy_without_its_table_is_refused(monkeypatch):
    from numpy._core import _multiarray_umath

    monkeypatch.delattr(_multiarray_umath, "_ARRAY_API")
    with pytest.raises(ImportError, match="table of C functions"):
        Made()


@pytest.mark.parametrize(
    "name", ["HEAD", "DATA", "RANK", "LENGTHS", "STRIDES", "BASE", "DTYPE", "FLAGS"]
)
def test_other_headers_of_arrays_are_noticed(name, monkeypatch):
    host_call.lies_as_expected.cache_clear()
    try:
        assert host_call.lies_as_expected()
        host_call.lies_as_expected.cache_clear()
        # each word that is asked for is another one, which can be read as well
        places = {"HEAD": host_words.HEAD + 8, "LENGTHS": 3, "STRIDES": 2}
        other = (getattr(host_words, name) + 3) % 7
        monkeypatch.setattr(host_call, name, places.get(name, other))
        assert not host_call.lies_as_expected()
        assert Made().function is None
    finally:
        monkeypatch.undo()
        host_call.lies_as_expected.cache_clear()
