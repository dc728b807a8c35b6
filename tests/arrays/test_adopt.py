"""Arrays as operands: what is taken, what is refused, and what is never copied."""

from __future__ import annotations

import array
import collections
import datetime
import decimal
import fractions
import types

import numpy as np
import pytest
from helpers.exporters import Exporter
from helpers.problems import transposed

import gemv
from gemv.arrays import adopt as arrays_adopt
from gemv.arrays import host as arrays_host
from gemv.arrays.adopt import adopt, rank_of
from gemv.core import operand as core_operand
from gemv.engines.backend import HOME

F32, F64, C64 = np.dtype("f"), np.dtype("d"), np.dtype("F")


def cuda():
    from numba import cuda

    return cuda


needs_device_arrays = pytest.mark.skipif(
    gemv.backend() == "host", reason="no GPU and no simulator to hold device arrays"
)


# Host memory ---------------------------------------------------------------------------------


def test_host_operand():
    a = np.zeros((2, 3), np.float32)
    operand = adopt("sgemv", "a", a, F32, HOME)
    assert operand.kind == "numpy" and operand.on_host
    assert operand.owner is a
    assert (operand.shape, operand.strides, operand.dtype) == ((2, 3), (3, 1), F32)
    assert operand.pointer == a.ctypes.data
    assert operand.readonly is False and operand.stream is None


MATRICES = {
    "c": (lambda a: a, (3, 1)),
    "f": (np.asfortranarray, (1, 2)),
    "transposed": (lambda a: np.ascontiguousarray(a.T).T, (1, 2)),
    "rows_padded": (lambda a: np.pad(a, ((0, 0), (0, 4)))[:, :3], (3, 1)),
    "columns_padded": (lambda a: np.asfortranarray(np.pad(a, ((0, 4), (0, 0))))[:2], (1, 2)),
    "reversed": (lambda a: a[::-1, ::-1].copy()[::-1, ::-1], (3, 1)),
    "reversed_f": (lambda a: a[::-1, ::-1].copy("F")[::-1, ::-1], (1, 2)),
    "every_other": (lambda a: np.repeat(np.repeat(a, 2, 0), 2, 1)[::2, ::2], (3, 1)),
    "readonly": (lambda a: np.broadcast_to(a, a.shape), (3, 1)),
    "swapped": (lambda a: a.astype(a.dtype.newbyteorder()), (3, 1)),
    "unaligned": (
        lambda a: np.frombuffer(b"x" + a.tobytes(), a.dtype, offset=1).reshape(2, 3),
        (3, 1),
    ),
    "field": (lambda a: np.rec.fromarrays([a.astype("i1"), a])["f1"], (3, 1)),
    "list": (lambda a: a.tolist(), (3, 1)),
    "tuples": (lambda a: tuple(map(tuple, a.tolist())), (3, 1)),
    "matrix": (lambda a: a.view(np.matrix), (3, 1)),
    "unmasked": (lambda a: np.ma.array(a), (3, 1)),
    "int": (lambda a: a.astype(int), (3, 1)),
    "half": (lambda a: a.astype("e"), (3, 1)),
    "longdouble": (lambda a: a.astype("g"), (3, 1)),
    "uint8": (lambda a: a.astype("u1"), (3, 1)),
    "complex": (lambda a: a.astype("F"), (3, 1)),
}


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("dtype", [F32, C64], ids=str)
def test_host_matrix(name, dtype):
    make, strides = MATRICES[name]
    values = np.arange(6.0).reshape(2, 3).astype(dtype if name == "swapped" else "d")
    given = make(values)
    if name == "complex" and dtype.kind != "c":
        with pytest.raises(TypeError, match="imaginary part"):
            adopt("sgemv", "a", given, dtype, HOME)
        return
    operand = adopt("sgemv", "a", given, dtype, HOME)
    assert operand.strides == strides
    copy = arrays_host.host_copy(operand, dtype)
    assert copy.dtype == dtype and copy.flags.aligned and type(copy) is np.ndarray
    assert tuple(s // copy.itemsize for s in copy.strides) == strides
    np.testing.assert_array_equal(copy, values)


def test_host_copy_is_no_copy_when_it_need_not_be():
    for a in (np.ones((2, 3), "f"), np.ones((3, 2), "f").T):
        assert np.shares_memory(arrays_host.host_copy(adopt("sgemv", "a", a, F32, HOME), F32), a)
    x = np.ones(3, "f")
    assert np.shares_memory(arrays_host.host_copy(adopt("sgemv", "x", x, F32, HOME), F32), x)


VECTORS = {
    "plain": np.arange(3.0),
    "list": [0, 1, 2],
    "range": range(3),
    "array": array.array("d", [0, 1, 2]),
    "memoryview": memoryview(np.arange(3.0)),
    "deque": collections.deque([0, 1, 2]),
    "reversed": np.arange(3.0)[::-1].copy()[::-1],
    "strided": np.arange(6.0)[::2] / 2,
    "column": np.arange(3.0)[:, None],
    "row": np.arange(3.0)[None, :],
    "column_of_matrix": np.repeat(np.arange(3.0)[:, None], 4, 1)[:, 1:2],
    "bool_list": [False, 1, 2.0],
    "byte_strides": np.rec.fromarrays([np.zeros(3, "i1"), np.arange(3.0)])["f1"],
}


@pytest.mark.parametrize("name", VECTORS)
def test_host_vector(name):
    operand = adopt("dgemv", "x", VECTORS[name], F64, HOME)
    assert (operand.shape, operand.strides) == ((3,), (1,))
    copy = arrays_host.host_copy(operand, F64)
    assert copy.flags.c_contiguous
    np.testing.assert_array_equal(copy, [0, 1, 2])


def test_host_zero_strides():
    operand = adopt("dgemv", "a", np.broadcast_to(np.arange(3.0), (2, 3)), F64, HOME)
    np.testing.assert_array_equal(arrays_host.host_copy(operand, F64), [[0, 1, 2]] * 2)


def test_generic_routine_takes_the_dtype_as_it_is():
    assert adopt("gemv", "x", [1, 2], None, HOME).dtype.kind == "i"
    assert adopt("gemv", "x", [1j, 2], None, HOME).dtype == np.complex128


WRONG_KIND = {
    "none": None,
    "str": "abc",
    "bytes": b"abc",
    "set": {1.0, 2.0},
    "dict": {1: 2},
    "object": object(),
    "objects": np.array([1.0, None], object),
    "signals": [decimal.Decimal("sNaN"), 1],
    "text_inside": np.array([1, "2"], object),
    "strings": ["1", "2"],
    "byte_strings": np.array([b"1"]),
    "dates": np.array([1, 2], "M8[s]"),
    "date_objects": [datetime.date(2020, 1, 1)],
    "durations": np.array([1, 2], "m8[s]"),
    "ragged": [1, [2, 3]],
    "records": np.zeros(3, "f4,f4"),
    "masked": np.ma.array([1.0, 2.0], mask=[0, 1]),
    "none_inside": [1.0, None],
}


@pytest.mark.parametrize("kind", WRONG_KIND)
@pytest.mark.parametrize(("name", "place"), [("x", "3rd argument x"), ("y", "2nd keyword y")])
@pytest.mark.parametrize("dtype", [F32, None], ids=str)
def test_host_wrong_kind(kind, name, place, dtype):
    with pytest.raises(TypeError) as caught:
        adopt("sgemv", name, WRONG_KIND[kind], dtype, HOME)
    text = str(caught.value)
    assert text.startswith(f"sgemv: {name} ") and text.endswith(f"(failed for {place})")


def test_host_objects_are_numbers():
    fraction, long = fractions.Fraction(1, 3), 2**70
    for order in "CF":
        given = np.array([[fraction, decimal.Decimal("0.1"), True], [long, 2, 3.5]], order=order)
        assert given.dtype == object
        operand = adopt("gemv", "a", given, None, HOME)
        assert operand.dtype == F64 and operand.strides == ((3, 1) if order == "C" else (1, 2))
        expected = [[1 / 3, 0.1, 1], [2.0**70, 2, 3.5]]
        np.testing.assert_array_equal(arrays_host.host_copy(operand, F64), expected)
        single = arrays_host.host_copy(adopt("sgemv", "a", given, F32, HOME), F32)
        np.testing.assert_array_equal(single, np.asarray(given, F32))
    mixed = np.array([1j, fraction, np.complex64(2)], object)
    operand = adopt("gemv", "x", mixed, None, HOME)
    assert operand.dtype == np.complex128
    np.testing.assert_array_equal(operand.owner, [1j, 1 / 3, 2])
    with pytest.raises(TypeError, match="would lose its imaginary part"):
        adopt("dgemv", "x", mixed, F64, HOME)
    precise = np.array([np.longdouble(1), 2**70], object)
    assert adopt("gemv", "x", precise, None, HOME).dtype == np.longdouble, "which gemv.gemv refuses"
    assert adopt("gemv", "x", np.array([], object), None, HOME).dtype == F64


def test_host_number_is_a_vector_of_one():
    for given in (2, 2.0, np.float32(2), np.array(2), np.array(2, object), fractions.Fraction(2)):
        operand = adopt("dgemv", "x", given, F64, HOME)
        assert (operand.shape, operand.strides) == ((1,), (1,))
        assert arrays_host.host_copy(operand, F64).tolist() == [2.0]


def test_host_masked_text_counts():
    with pytest.raises(TypeError, match="sgemv: a is a masked array with 2 masked elements"):
        adopt("sgemv", "a", np.ma.array(np.ones((2, 2)), mask=[[0, 1], [1, 0]]), F32, HOME)


@pytest.mark.parametrize("given", [[1j, 2], np.ones(2, "F"), np.ones(2, "D")], ids=repr)
def test_host_complex_is_not_cut_to_real(given):
    with pytest.raises(TypeError) as caught:
        adopt("sgemv", "x", given, F32, HOME)
    assert "would lose its imaginary part: sgemv computes in float32" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "given", "text"),
    [
        ("a", np.ones((2, 2, 2)), r"a must have two dimensions, got shape \(2, 2, 2\) \(failed"),
        ("a", np.ones((2, 3, 1)), r"a must have two dimensions, got shape \(2, 3, 1\) \(failed"),
        ("a", np.ones(3), r"got shape \(3,\); write a\[:, None\] for one column"),
        ("a", 2.0, r"a must have two dimensions, got shape \(\)"),
        ("x", np.ones((2, 2)), r"x must have one dimension .*, got shape \(2, 2\)"),
        ("x", np.ones((2, 1, 1)), r"x must have one dimension .*, got shape \(2, 1, 1\)"),
        ("y", np.ones((0, 2)), r"y must have one dimension .*, got shape \(0, 2\)"),
    ],
)
def test_host_wrong_rank(name, given, text):
    with pytest.raises(ValueError, match="sgemv: .*" + text):
        adopt("sgemv", name, given, F32, HOME)


# Device memory -------------------------------------------------------------------------------


@needs_device_arrays
@pytest.mark.parametrize("order", "CF")
def test_device_operand(order):
    host = np.arange(6, dtype="f").reshape((2, 3), order=order)
    device = cuda().to_device(host)
    operand = adopt("sgemv", "a", device, F32, HOME)
    assert operand.kind == "numba" and not operand.on_host
    assert (operand.shape, operand.dtype) == ((2, 3), F32)
    assert operand.strides == ((3, 1) if order == "C" else (1, 2))
    assert operand.pointer and not operand.readonly
    if gemv.backend() == "simulator":
        assert operand.owner is device._ary
    else:
        assert operand.owner is device


@needs_device_arrays
def test_device_slices_are_not_copied():
    device = cuda().to_device(np.arange(20, dtype="f").reshape(4, 5))
    whole = adopt("sgemv", "a", device, F32, HOME)
    part = adopt("sgemv", "a", device[1:, 1::2], F32, HOME)
    assert (part.shape, part.strides) == ((3, 2), (5, 2))
    assert part.pointer == whole.pointer + 6 * 4
    assert adopt("sgemv", "a", transposed(device), F32, HOME).strides == (1, 5)


@needs_device_arrays
@pytest.mark.parametrize("dtype", ["d", "i", "F", "e"])
def test_device_other_dtype(dtype):
    device = cuda().to_device(np.ones(3, dtype))
    with pytest.raises(TypeError) as caught:
        adopt("sgemv", "x", device, F32, HOME)
    text = str(caught.value)
    assert f"x has dtype {np.dtype(dtype)} but sgemv computes in float32" in text
    assert text.endswith("(failed for 3rd argument x)")


@needs_device_arrays
def test_device_wrong_rank():
    device = cuda().to_device(np.ones((3, 1), "f"))
    with pytest.raises(ValueError, match=r"x must have one dimension, got shape \(3, 1\)"):
        adopt("sgemv", "x", device, F32, HOME)
    with pytest.raises(ValueError, match=r"a must have two dimensions, got shape \(3,\)"):
        adopt("sgemv", "a", device[:, 0], F32, HOME)


Pretender = type("DeviceNDArray", (Exporter,), {"__module__": "numba.cuda.cudadrv.devicearray"})


def test_interface():
    operand = adopt("sgemv", "a", Pretender(), F32, HOME)
    assert (operand.shape, operand.strides, operand.pointer) == ((2, 3), (3, 1), 4096)
    assert (operand.dtype, operand.stream, operand.readonly) == (F32, None, False)


def test_interface_strides_readonly_stream():
    operand = adopt(
        "sgemv", "a", Pretender(strides=(-4, 40), data=(4096, True), stream=7), F32, HOME
    )
    assert (operand.strides, operand.readonly, operand.stream) == ((-1, 10), True, 7)


def test_interface_of_complex_numbers_that_are_aligned_like_their_real_part():
    complex64 = np.dtype(np.complex64)
    pretender = Pretender(typestr="<c8", strides=(48, 16), data=(4100, False))
    operand = adopt("cgemv", "a", pretender, complex64, HOME)
    assert (operand.strides, operand.pointer) == ((6, 2), 4100)


def test_interface_of_numba_hides_zero_strides():
    broadcast = Pretender()
    broadcast.strides = (0, 4)
    assert adopt("sgemv", "a", broadcast, F32, HOME).strides == (0, 1)


@needs_device_arrays
def test_device_broadcast():
    device = cuda().to_device(np.broadcast_to(np.arange(3, dtype="f"), (2, 3)))
    result = gemv.sgemv(1, device, cuda().to_device(np.ones(3, "f")))
    assert result.copy_to_host().tolist() == [3, 3]


class Raising:
    """An object each of whose attributes raises an error."""

    def __getattr__(self, name):
        raise RuntimeError(name)


WITHOUT_RANK = [None, 1.5, "text", Raising(), Exporter(shape=None), types.SimpleNamespace(shape=5)]


@pytest.mark.parametrize("given", WITHOUT_RANK, ids=lambda given: type(given).__name__)
def test_what_does_not_tell_its_rank_has_none(given):
    assert rank_of(given) == 0


def test_the_rank_of_arrays_without_ndim():
    assert rank_of(Exporter(shape=(2, 3, 4, 5))) == 4
    assert rank_of([[np.ones((2, 3))]]) == 4
    endless = []
    endless.append(endless)
    assert rank_of(endless) > 2


def test_interface_with_numbers_of_numpy():
    """Some libraries compute what they say with NumPy; they mean the same."""
    numbers = dict(shape=[np.int64(2), 3], strides=[np.int32(12), 4], version=np.int8(3))
    data = np.uint64(4096), np.True_
    operand = adopt("sgemv", "a", Pretender(**numbers, data=data, stream=np.int64(7)), F32, HOME)
    assert (operand.shape, operand.strides, operand.stream) == ((2, 3), (3, 1), 7)
    assert operand.pointer == 4096 and type(operand.pointer) is int and operand.readonly is True


def test_interface_empty():
    operand = adopt("sgemv", "a", Pretender(shape=(0, 3), data=(None, False)), F32, HOME)
    assert (operand.pointer, operand.shape) == (0, (0, 3))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"version": 1}, "version 1"),
        ({"mask": Exporter()}, "masked device array"),
        ({"strides": (12, 6)}, r"byte strides \(12, 6\), not multiples of the 4 bytes"),
        ({"data": (4098, False)}, "0x1002, which is not aligned"),
        ({"typestr": ">f4"}, "dtype >f4"),
        ({"typestr": "|V2"}, "dtype"),
    ],
)
def test_interface_refused(changes, text):
    with pytest.raises(TypeError, match=text + ".*failed for 2nd argument a"):
        adopt("sgemv", "a", Pretender(**changes), F32, HOME)


def test_unknown_exporter():
    memory = np.arange(6, dtype="f").reshape(2, 3)
    exporter = Exporter(data=(memory.ctypes.data, False))
    operand = adopt("sgemv", "a", exporter, F32, HOME)
    assert (operand.kind, operand.origin) == ("cuda_array_interface", exporter)
    assert (operand.shape, operand.strides, operand.dtype) == ((2, 3), (3, 1), F32)


def test_known_prefix_is_a_package_and_not_just_a_beginning():
    other = type("Array", (Exporter,), {"__module__": "numbawumba"})
    memory = np.zeros(6, "f")
    operand = adopt("sgemv", "a", other(data=(memory.ctypes.data, False)), F32, HOME)
    assert operand.kind == "cuda_array_interface"


@pytest.mark.parametrize("given", [np.ones(2), [1.0], 2.0, None, types.SimpleNamespace()])
def test_is_device_array_no(given):
    assert not arrays_adopt.is_device_array(given)


# Overlap -------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["host", "device"])
def test_overlap_of_windows(place):
    memory = np.zeros(40, "f")

    def operand(name, view):
        if place == "host":
            return adopt("sgemv", name, view, F32, HOME)
        interface = Pretender(
            shape=view.shape, strides=view.strides, data=(view.ctypes.data, False)
        )
        return adopt("sgemv", name, interface, F32, HOME)

    def scale(op, inc):
        return inc if op.on_host else inc * op.strides[0]

    x, y = operand("x", memory[:20]), operand("y", memory[:20])
    even = core_operand.vector_view(x, 5, 0, scale(x, 2))
    odd = core_operand.vector_view(y, 5, 1, scale(y, 2))
    assert not core_operand.overlap(even, odd)
    assert core_operand.overlap(even, core_operand.vector_view(y, 3, 1, scale(y, 3)))
    assert not core_operand.overlap(even, core_operand.vector_view(y, 5, 9, 1))
    # A column beside the matrix, in the padding of its rows.
    a = operand("a", memory.reshape(8, 5)[:, :4])
    pad = operand("y", memory.reshape(8, 5)[:, 4])
    assert not core_operand.overlap(
        core_operand.matrix_view(a), core_operand.vector_view(pad, 8, 0, scale(pad, 1))
    )
    last = operand("y", memory.reshape(8, 5)[:, 3])
    assert core_operand.overlap(
        core_operand.matrix_view(a), core_operand.vector_view(last, 8, 0, scale(last, 1))
    )
