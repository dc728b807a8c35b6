"""What is no product: each kind raises before anything is launched, and leaves y as it was.

The texts of single rules are in test_check and test_adopt; here whole calls are made, on host and
on device arrays.
"""

from __future__ import annotations

import datetime
import decimal
import sys
import threading
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
from helpers.arrays import LIBRARIES
from helpers.exporters import Export, Exporter, Interface

import gemv
from gemv.calls import memory_check
from gemv.core.geometry import MemoryRange
from gemv.engines import backend
from gemv.engines.backend import HOME

pytestmark = pytest.mark.skipif(
    gemv.backend() == "host", reason="no GPU and no simulator to launch on"
)

as_strided = np.lib.stride_tricks.as_strided
HUGE = 10**5000  # Python itself refuses to write it


class Fails:
    """An object whose every promise is broken."""

    def __init__(self, *methods):
        self.__class__ = type("Fails", (Fails,), {name: Fails.fail for name in methods})

    def fail(self, *arguments, **keywords):
        raise KeyError("no such thing")


class Becomes:
    """An object that has an array to offer, as those of data frames have."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


def objects(*elements):
    """An array of objects, each of them as it is."""
    array = np.empty(len(elements), object)
    for place, element in enumerate(elements):
        array[place] = element
    return array


class Broken:
    """An array whose description cannot even be asked for."""

    def __init__(self, name):
        self.__class__ = type("Broken", (Broken,), {name: property(Broken.fail)})

    def fail(self):
        raise OSError("the connection is gone")


def number(function):
    """The same on host and device: a change that involves no array."""
    return {"where": ("host", "device"), "change": lambda make: function}


def both(name, value):
    return {"where": ("host", "device"), "change": lambda make: {name: value}}


def host(name, value):
    return {"where": ("host",), "change": lambda make: {name: value}}


def made(name, shape, **rest):
    """An array of another shape, where the call's arrays are."""
    return {
        "where": ("host", "device"),
        "change": lambda make: {name: make(np.ones(shape)), **rest},
    }


def device(change):
    return {"where": ("device",), "change": change}


def exported(name, without=None, **changes):
    """A device array that says something wrong about itself, or leaves an entry out."""

    def change(make):
        good = {"a": np.ones((2, 3)), "x": np.ones(3), "y": np.ones(2)}[name]
        good.setflags(write=True)
        interface = {"shape": good.shape, "strides": good.strides, "typestr": "<f8"}
        array = Exporter(**{**interface, "data": (4096, False), **changes})
        array.__cuda_array_interface__.pop(without, None)
        return {name: array}

    return device(change)


def interface_is(value):
    """Something else in the place of an interface."""

    def change(make):
        array = Exporter()
        array.__cuda_array_interface__ = value
        return {"x": array}

    return device(change)


def misshapen(**changes):
    """An x by DLPack whose description is wrong."""

    class Misshapen(Export):
        def __dlpack__(self, **options):
            capsule = super().__dlpack__(**options)
            for name, value in changes.items():
                setattr(self.keep[0].tensor, name, value)
            return capsule

    return device(lambda make: {"x": Misshapen(np.ones(3))})


def overlapping(where):
    """y lies in the memory of x or of A."""

    def change(make):
        memory = make(np.ones(12))
        if where == "x":
            return {"x": memory[:3], "y": memory[2:4]}
        if where == "a":
            return {"a": memory[:6].reshape(2, 3), "y": memory[5:7]}
        return {"x": memory, "incx": 4, "y": memory, "offy": 3, "incy": -5}

    return {"where": ("host", "device"), "change": change}


def read_only(make):
    y = np.ones(2)
    y.setflags(write=False)
    return {"y": y}


def address(array):
    """Where a device array of Numba lies; in the simulator, in host memory."""
    if gemv.backend() == "simulator":
        return array._ary.ctypes.data
    return array.__cuda_array_interface__["data"][0]


def part(array, **changes):
    """Some of the memory of a device array, with a description of its own."""
    view = Exporter(**{"typestr": "<f8", "data": (address(array), False), **changes})
    view.memory = array
    return view


def stride_zero(make):
    return {"y": part(make(np.ones(1)), shape=(2,), strides=(0,))}


def alpha_in_y(make):
    y = make(np.ones(2))
    return {"y": y, "alpha": part(y, shape=(), data=(address(y) + 8, False))}


def deleted_by_jax(make):
    class Array:
        shape, dtype = (3,), np.dtype("d")

        def devices(self):
            return [SimpleNamespace(platform="gpu", local_hardware_id=0)]

        def unsafe_buffer_pointer(self):
            raise RuntimeError("Array has been deleted.")

    return {"x": Array(), "jax": Array}


T, V = TypeError, ValueError

#: Kind: what is wrong, the error, and what its text says after the name of the routine.
BAD = {
    # A
    "a is None": (both("a", None), T, "a must be an array, got None"),
    "a is a number": (both("a", 2.0), (V, T), "a "),
    "a is a vector": (made("a", 3), V, r"a must have two dimensions, got shape \(3,\)"),
    # gemv takes that for a batch, in which matrices have one column.
    "a has three dimensions": (made("a", (2, 3, 1)), V, r"a must have two dim|x has|y of shape"),
    "a is a string": (both("a", "abc"), T, "a must be an array, got str 'abc'"),
    "a is bytes": (both("a", b"abc"), T, "a must be an array, got bytes"),
    "a is a dict": (both("a", {1: 2}), T, "a must be an array, got dict"),
    "a is a set": (both("a", {1, 2}), T, "a must be an array, got set"),
    "a is a generator": (host("a", (i for i in range(6))), T, "a must hold numbers.*object"),
    "a is ragged": (host("a", [[1, 2, 3], [4]]), T, "a cannot be read as an array of numbers"),
    "a holds objects": (host("a", np.full((2, 3), print)), T, "a must hold numbers.*that holds"),
    "a holds strings": (host("a", [["1"] * 3] * 2), T, "a must hold numbers.*<U1"),
    "a holds records": (host("a", np.zeros((2, 3), "f4,f4")), T, "a must hold numbers"),
    "a is masked": (host("a", np.ma.masked_equal([[1, 2, 3]] * 2, 2)), T, "a is a masked array"),
    "a is sparse": (host("a", scipy.sparse.eye_array(2, 3)), T, r"a is a sparse .* a\.toarray\(\)"),
    "a is a function": (host("a", print), T, "a must hold numbers"),
    "a is a long double": (host("a", np.ones((2, 3), "g")), T, "a has dtype .* precise"),
    "a raises as an array": (host("a", Fails("__array__")), T, "a cannot be read as an array"),
    "a raises as it is asked for its kind": (
        host("a", Broken("__cuda_array_interface__")),
        T,
        "a cannot be read.*connection is gone",
    ),
    "a leaves its memory": (
        host("a", as_strided(np.ones(6), (2, 3), (32, 8))),
        V,
        r"a of shape \(2, 3\) .* reaches",
    ),
    "a starts before its memory": (
        host("a", as_strided(np.ones(6), (2, 3), (-24, 8))),
        V,
        "a of shape .* reaches b",
    ),
    "a view of a leaves its memory": (
        host("a", as_strided(np.ones(6), (4, 3), (24, 8))[::2]),
        V,
        "a of shape .* reaches beyond",
    ),
    # x
    "x is None": (both("x", None), T, "x must be an array, got None"),
    "x is a number": (host("x", 5.0), V, r"x is too short: .* = 3 elements .*len.x. = 1"),
    "x is a matrix": (made("x", (3, 2)), V, r"x must have one dimension.*\(3, 2\)"),
    "x is short": (made("x", 2), V, "x is too short: .* = 3 elements are needed, len.x. = 2"),
    "x is empty": (made("x", 0), V, "x is too short: .* = 3 elements"),
    "x is short for trans": (made("x", 1, trans=1, y=None), V, "x is too short: .* = 2 elements"),
    "x is no number": (host("x", [object()] * 3), T, "x must hold numbers"),
    "x holds None": (host("x", [1.0, None, 2.0]), T, "x must hold numbers"),
    "x holds a signal": (host("x", [decimal.Decimal("sNaN")] * 3), T, "x must hold numbers.*sNaN"),
    "x is beyond every float": (host("x", [HUGE, 1, 2]), V, "x does not fit float64: too large"),
    "x is a fraction beyond every float": (host("x", [Fraction(HUGE)] * 3), V, "x does not fit fl"),
    "x holds text": (host("x", np.array(["1", 2, 3], object)), T, "x must hold numbers.*str '1'"),
    "x holds vectors": (host("x", objects(np.ones(2), 2, 3)), T, "x must hold numbers.*ndarray"),
    "x holds a date of NumPy's": (
        host("x", objects(np.datetime64(1, "s"), 2, 3)),
        T,
        "x must hold numbers.*datetime64",
    ),
    "objects leave their memory": (
        host("x", as_strided(np.ones(2, object), (3,), (8,))),
        V,
        "x of shape .* reaches beyond",
    ),
    "x holds dates": (host("x", np.ones(3, "M8[s]")), T, "x must hold numbers.*datetime64"),
    "x holds durations": (host("x", np.ones(3, "m8[s]")), T, "x must hold numbers.*timedelta64"),
    "x holds date objects": (host("x", [datetime.date(2020, 1, 1)] * 3), T, "x must hold numbers"),
    "x holds byte strings": (host("x", np.array([b"1"] * 3)), T, "x must hold numbers"),
    "x is masked": (host("x", np.ma.masked_less([0.0, 1, 2], 1)), T, "x is a masked array with 1"),
    "x leaves its memory": (
        host("x", as_strided(np.ones(3), (3,), (16,))),
        V,
        "x of shape .* reaches beyond",
    ),
    "x is a list with a masked element": (
        host("x", [1.0, np.ma.masked, 2.0]),
        T,
        "x is a masked array with 1",
    ),
    "a is a list of masked rows": (
        host("a", [[1.0, 2.0, 3.0], np.ma.masked_less([1.0, 2.0, 3.0], 2)]),
        T,
        "a is a masked array with 1",
    ),
    "a becomes a masked array": (
        host("a", Becomes(np.ma.masked_equal([[1, 2, 3]] * 2, 2))),
        T,
        "a is a masked array with 2",
    ),
    # y
    "y is a number": (host("y", 5.0), V, "y is too short: .* = 2 elements"),
    "y is a matrix": (made("y", (2, 2)), V, "y must have one dimension"),
    "y is short": (made("y", 1), V, "y is too short: .* = 2 elements are needed, len.y. = 1"),
    "y is empty": (made("y", 0), V, "y is too short"),
    "y holds objects": (host("y", np.array([1, None])), T, "y must hold numbers.*holds None"),
    "y is masked": (host("y", np.ma.masked_less([0.0, 1], 1)), T, "y is a masked array"),
    "y is read-only": ({"where": ("host",), "change": read_only}, V, "y is read-only"),
    "y overlaps x": (overlapping("x"), V, "y overlaps x in memory"),
    "y overlaps a": (overlapping("a"), V, "y overlaps a in memory"),
    "y interleaves with x and meets it": (overlapping("both"), V, "y overlaps x in memory"),
    "y would have no element": (
        made("a", (0, 3), y=None),
        V,
        "y must be passed when rows = 0",
    ),
    "y would be too large": (number({"y": None, "incy": 2**62}), V, "y made .* would be too large"),
    # offsets and increments
    "offx is a float": (number({"offx": 0.0}), T, "offx must be an integer, got float 0.0"),
    "offx is None": (number({"offx": None}), T, "offx must be an integer, got None"),
    "offx is a string": (number({"offx": "0"}), T, "offx must be an integer, got str '0'"),
    "offx is negative": (number({"offx": -1}), V, "offx must not be negative, got offx = -1"),
    "offx is past the end": (number({"offx": 1}), V, "x is too short"),
    "offx is huge": (number({"offx": 2**63}), V, "x is too short"),
    "offx is past the end of an x of which nothing is used": (
        made("a", (2, 0), offx=3),
        V,
        "offx must be smaller than len.x.",
    ),
    "offy is a float": (number({"offy": 1.5}), T, "offy must be an integer"),
    "offy is negative": (number({"offy": -2}), V, "offy must not be negative"),
    "offy is past the end": (number({"offy": 1}), V, "y is too short"),
    "incx is zero": (number({"incx": 0}), V, "incx must not be zero"),
    "incx is a float": (number({"incx": 1.0}), T, "incx must be an integer, got float 1.0"),
    "incx is NaN": (number({"incx": float("nan")}), T, "incx must be an integer, got float nan"),
    "incx is infinite": (number({"incx": float("inf")}), T, "incx must be an integer"),
    "incx is None": (number({"incx": None}), T, "incx must be an integer, got None"),
    "incx is complex": (number({"incx": 1j}), T, "incx must be an integer"),
    "incx is several": (number({"incx": np.array([1, 2])}), T, "incx must be an integer"),
    "incx raises": (number({"incx": Fails("__index__")}), T, "incx must be an integer"),
    "incx leaves x": (number({"incx": 2}), V, "x is too short: .* = 5 elements"),
    "incx leaves x backwards": (number({"incx": -2}), V, "x is too short: .* = 5 elements"),
    "incx overflows 32 bits": (number({"incx": 2**31}), V, "x is too short: .* = 4294967297 el"),
    "incx overflows 64 bits": (number({"incx": -(2**63)}), V, "x is too short"),
    "incx is beyond what Python writes": (number({"incx": HUGE}), V, "x is too short.*16611 bits"),
    "incy is zero": (number({"incy": 0}), V, "incy must not be zero"),
    "incy is NaN": (number({"incy": np.float64("nan")}), T, "incy must be an integer"),
    "incy leaves y": (number({"incy": -3}), V, "y is too short: .* = 4 elements"),
    "incy overflows 64 bits": (number({"incy": 2**62, "offy": 2**62}), V, "y is too short"),
    # trans and overwrite_y
    "trans is 3": (number({"trans": 3}), V, "trans must be .*got 3 "),
    "trans is negative": (number({"trans": -1}), V, "trans must be .*got -1 "),
    "trans is huge": (number({"trans": HUGE}), V, "trans must be .*got a number of 16610 bits"),
    "trans is another letter": (number({"trans": "H"}), V, "trans must be .*got 'H'"),
    "trans is no letter": (number({"trans": ""}), V, "trans must be .*got ''"),
    "trans is bytes": (number({"trans": b"T"}), T, "trans must be an integer"),
    "trans is a float": (number({"trans": 0.0}), T, "trans must be an integer, got float 0.0"),
    "trans is None": (number({"trans": None}), T, "trans must be an integer, got None"),
    "overwrite_y is None": (number({"overwrite_y": None}), T, "overwrite_y must be an integer"),
    "overwrite_y is a string": (number({"overwrite_y": "no"}), T, "overwrite_y must be an int"),
    # alpha and beta
    "alpha is None": (number({"alpha": None}), T, "alpha must be a number, got None"),
    "alpha is a string": (number({"alpha": "2"}), T, "alpha must be a number, got str '2'"),
    "alpha is several": (number({"alpha": np.ones(2)}), T, r"alpha must be one number.*\(2,\)"),
    "alpha is masked": (number({"alpha": np.ma.masked}), T, "alpha must be a number"),
    "alpha is a date": (number({"alpha": np.datetime64(1, "s")}), T, "alpha must be a number"),
    "alpha raises": (number({"alpha": Fails("__float__")}), T, "alpha must be a number"),
    "alpha raises as it is written": (
        number({"alpha": Fails("__repr__")}),
        T,
        "alpha must be a number, got .*Fails",
    ),
    "alpha is a fraction beyond every float": (
        number({"alpha": Fraction(HUGE)}),
        V,
        "alpha does not fit float64: too large",
    ),
    "alpha is an object": (number({"alpha": np.array(None)}), T, "alpha must be a number, got No"),
    "alpha is beyond every float": (number({"alpha": HUGE}), V, "alpha does not fit float64"),
    "beta is None": (number({"beta": None}), T, "beta must be a number, got None"),
    "beta is a list": (number({"beta": [1]}), T, r"beta must be a number, got list \[1\]"),
    "beta is an object": (number({"beta": object()}), T, "beta must be a number, got object"),
    # what is not of BLAS
    "kernel is unknown": (number({"kernel": "magic"}), V, "no kernel 'magic'; known kernels: ser"),
    "kernel is no name": (number({"kernel": ["serial"]}), V, r"no kernel \['serial'\]"),
    "stream for host arrays": (host("stream", 0), V, "stream only applies to device arrays"),
    "coefficients is unknown": (
        number({"coefficients": "gold"}),
        V,
        "no coefficients='gold'; known: arguments",
    ),
    "coefficients is no name": (number({"coefficients": 3}), T, "coefficients must be one of"),
    "coefficients on the device that are numbers": (
        number({"coefficients": "pointer"}),
        V,
        "coefficients='pointer' needs alpha and beta as",
    ),
    # device arrays
    "a on the host": (device(lambda make: {"a": np.ones((2, 3))}), T, "a is in host.* but x is"),
    "x on the host": (device(lambda make: {"x": np.ones(3)}), T, "but x is in host memory"),
    "y on the host": (device(lambda make: {"y": np.ones(2)}), T, "but y is in host memory"),
    "alpha on the device, a on the host": (
        {"where": ("host",), "change": lambda make: {"alpha": to_device(np.array(1.0))}},
        T,
        "a is in host memory but alpha is on",
    ),
    "alpha is a device vector": (
        device(lambda make: {"alpha": make(np.ones(1))}),
        V,
        "alpha must have no dimension",
    ),
    "beta of another dtype": (
        device(lambda make: {"beta": make(np.array(1, "f"))}),
        T,
        "beta has dtype float32",
    ),
    "y overlaps alpha": (device(alpha_in_y), V, "y overlaps alpha in memory"),
    "x of another dtype": (device(lambda make: {"x": make(np.ones(3, "f"))}), T, "x has dtype flo"),
    "x of integers": (device(lambda make: {"x": make(np.ones(3, "i"))}), T, "x has dtype int32"),
    "y of stride zero": (device(stride_zero), V, "elements are apart in memory, got one of stride"),
    "x on another device": (
        device(
            lambda make: {
                "a": Export(np.ones((2, 3))),
                "x": Export(np.ones(3), device=1),
                "y": Export(np.ones(2)),
            }
        ),
        T,
        "a is on cuda:0 .* but x is on cuda:1",
    ),
    "x on no CUDA device": (
        device(lambda make: {"x": Export(np.ones(3), device_type=10)}),
        T,
        "DLPack's type 10",
    ),
    "x of a type that NumPy lacks": (
        device(lambda make: {"x": Export(np.ones(3), code=9)}),
        T,
        "x has dtype of DLPack's type 9",
    ),
    "x exports no capsule": (
        device(lambda make: {"x": Fails("__dlpack__", "__dlpack_device__")}),
        T,
        "x cannot be read",
    ),
    "x was deleted": (device(deleted_by_jax), T, "x cannot be read .*Array has been deleted"),
    "x was freed": (exported("x", data=(0, False)), V, r"x of shape \(3,\) has no memory: it"),
    "a was freed": (exported("a", data=(None, False)), V, r"a of shape \(2, 3\) has no memory"),
    "x is not aligned": (exported("x", data=(4100, False)), T, "0x1004, which is not aligned"),
    "x has odd strides": (exported("x", strides=(12,)), T, "not multiples of the 8 bytes"),
    "x has too many strides": (exported("x", strides=(8, 8)), V, "x says that it has shape"),
    "x has a negative length": (exported("x", shape=(-3,)), V, r"shape \(-3,\) .* no array has"),
    "x has half a length": (
        exported("x", shape=(3.5,)),
        T,
        r"shape is tuple \(3.5,\), not a tuple",
    ),
    "x has no shape": (exported("x", shape=None), T, "x .* shape is None.*, not a tuple of integ"),
    "x leaves its shape out": (exported("x", "shape"), T, "x has a CUDA .* without 'shape'"),
    "x has one number as its shape": (exported("x", shape=3), T, "shape is int 3, not a tuple"),
    "x has a string as its shape": (exported("x", shape="3"), T, "shape is str '3', not a tuple"),
    "x has a bool as a length": (exported("x", shape=(True,)), T, r"shape is tuple \(True,\), not"),
    "x has a length beyond Python's": (exported("x", shape=(HUGE,)), T, "shape is tuple, .*64 bi"),
    "x has one number as its strides": (exported("x", strides=8), T, "strides is int 8, not a tu"),
    "x has half a stride": (
        exported("x", strides=(8.5,)),
        T,
        r"strides is tuple \(8.5,\), not a t",
    ),
    "x has too few strides": (
        exported("x", strides=()),
        V,
        r"x says .* strides \(\), which no arr",
    ),
    "x is larger than memory": (exported("x", shape=(2**62,)), V, "x .* is larger than any"),
    "a is larger than memory": (exported("a", strides=(2**63, 8)), V, "a .* larger than any"),
    "x is big-endian": (exported("x", typestr=">f8"), T, "x has dtype >f8"),
    "x is of an unknown type": (exported("x", typestr="<q9"), T, "'<q9', not a dtype that NumPy"),
    "x is of no type": (exported("x", typestr=None), T, "x .* typestr is None.*, not a string"),
    "x leaves its type out": (exported("x", "typestr"), T, "x has a CUDA .* without 'typestr'"),
    "x is of a type of Python": (exported("x", typestr=float), T, "typestr is type .*, not a stri"),
    "x is of a type in bytes": (exported("x", typestr=b"<f8"), T, "typestr is bytes .*, not a str"),
    "x holds pairs": (exported("x", typestr="f8,f8", strides=None), T, "x has dtype .*'f0'"),
    "x is before all memory": (exported("x", data=(-8, False)), V, "starts at address -0x8, where"),
    "a is before all memory": (exported("a", data=(-(2**47), False)), V, "a says .* -0x80000000"),
    "y is before all memory": (exported("y", data=(-16, False)), V, "y says .* address -0x10, whe"),
    "x is negative without a sign": (
        exported("x", data=(2**64 - 4096, False)),
        V,
        "x says that it starts at address 0xfffffffffffff000, where no memory can be",
    ),
    "x is behind all memory": (exported("x", data=(2**64, False)), V, "x says .* no memory can be"),
    "x is at an address that Python does not write": (
        exported("x", data=(HUGE, False)),
        V,
        "x says that it starts at address a number of 16610 bits, where no memory can be",
    ),
    "an empty x is before all memory": (
        device(
            lambda make: {
                "a": make(np.ones((2, 0))),
                **exported("x", shape=(0,), data=(-8, False))["change"](make),
            }
        ),
        V,
        "x says that it starts at address -0x8, where no memory can be",
    ),
    "x runs past address 0": (
        exported("x", strides=(-8,), data=(8, False)),
        V,
        r"x of shape \(3,\) and byte strides \(-8,\), .* reaches from -0x8 to 0x10",
    ),
    "x runs past the last address": (
        exported("x", data=(2**63 - 16, False)),
        V,
        "x .* starts at address 0x7ffffffffffffff0, reaches from 0x7ffffffffffffff0 to 0x80000000",
    ),
    "x is at a string": (exported("x", data=("4096", False)), T, "address is str '4096', not an i"),
    "x is at a float": (exported("x", data=(4096.0, False)), T, "address is float 4096.0, not an "),
    "x is at a bool": (exported("x", data=(True, False)), T, "address is bool True, not an intege"),
    "x is at a bool of NumPy": (
        exported("x", data=(np.True_, False)),
        T,
        "address is numpy.bool.*, not an integer",
    ),
    "x is at many addresses": (
        exported("x", data=([4096], False)),
        T,
        r"address is list \[4096\], not an integer",
    ),
    "x has an address alone": (exported("x", data=4096), T, "data is int 4096, not an address and"),
    "x has no data": (exported("x", data=None), T, "data is None.*, not an address and whether"),
    "x has data of three": (
        exported("x", data=(4096, False, 1)),
        T,
        "data is tuple .*, not an add",
    ),
    "x leaves its data out": (exported("x", "data"), T, "x has a CUDA array .* without 'data'"),
    "x is read-only in a word": (
        exported("x", data=(4096, "no")),
        T,
        "read-only flag is str 'no', not True or False",
    ),
    "x leaves its version out": (exported("x", "version"), T, "x has a CUDA .* without 'version'"),
    "x has no version": (exported("x", version=None), T, "version is None.*, not an integer"),
    "x has a version in words": (exported("x", version="3"), T, "version is str '3', not an integ"),
    "x has a fraction as version": (
        exported("x", version=3.0),
        T,
        "version is float 3.0, not an i",
    ),
    "x has a bool as version": (exported("x", version=True), T, "version is bool True, not an int"),
    "x has a version that Python does not write": (
        exported("x", version=-HUGE),
        T,
        "of version a number of 16610 bits, not 2 or 3",
    ),
    "x names a stream in words": (exported("x", stream="x"), T, "stream is str 'x', not an integ"),
    "x names a negative stream": (exported("x", stream=-1), T, "stream is int -1, not the handle"),
    "x names a huge stream": (exported("x", stream=2**64), T, "stream is int .*, not the handle"),
    "x has no interface": (interface_is(None), T, "x has a CUDA array interface that is no dict"),
    "x has a list as interface": (interface_is([1]), T, r"that is no dict but list \[1\]"),
    "x has dimensions without a shape": (
        misshapen(shape=None),
        T,
        "x cannot be read .*DLPack tensor of 1 dimensions without a shape",
    ),
    "x has fewer dimensions than none": (
        misshapen(ndim=-1),
        T,
        "x cannot be read as .*a DLPack tensor of -1 dimensions",
    ),
    "x has more dimensions than memory": (
        misshapen(ndim=2**31 - 1),
        T,
        "x cannot be read as .* DLPack tensor of 2147483647 dimens",
    ),
    "x has an offset and no memory": (misshapen(data=None), V, r"x of shape \(3,\) has no memory"),
    "x runs past the last address by its offset": (
        misshapen(byte_offset=2**64 - 64),
        V,
        "x says that it starts at address .*no memory can be",
    ),
    "x is of a number of one byte": (misshapen(bits=8), T, "x has dtype of DLPack's type 2:8x1"),
    "x is of a number of half a byte": (misshapen(bits=4), T, "has dtype of DLPack's type 2:4x1"),
    "x is of a number of 68 bits": (misshapen(bits=68), T, "x has dtype of DLPack's type 2:68x1"),
    "x has a mask": (exported("x", mask=Exporter()), T, "x is a masked device array"),
    "x speaks an old version": (exported("x", version=1), T, "interface of version 1"),
    "y may not be written": (exported("y", data=(4096, True)), V, "y is read-only"),
}


def to_device(array):
    from numba import cuda

    return cuda.to_device(np.asarray(array))


CASES = [(kind, where) for kind, (bad, _, _) in BAD.items() for where in bad["where"]]


def test_there_are_as_many_kinds_as_are_promised():
    assert len(BAD) >= 60


@pytest.mark.parametrize(
    ("kind", "where", "routine"),
    [
        (*case, routine)
        for case in CASES
        for routine in ("dgemv", "gemv")
        # dgemv converts host arrays to its dtype
        if (case[0], routine) != ("a is a long double", "dgemv")
    ],
    ids=lambda value: value.replace(" ", "_"),
)
def test_bad_input(kind, where, routine, monkeypatch):
    bad, error, text = BAD[kind]
    make = np.asarray if where == "host" else to_device
    y = make(np.array([1.0, np.nan]))
    arguments = dict(alpha=1.0, a=make(np.ones((2, 3))), x=make(np.ones(3)), beta=1.0, y=y)
    arguments["overwrite_y"] = 1
    change = bad["change"](make)
    if "jax" in change:
        stand_in = SimpleNamespace(Array=change.pop("jax"), core=None)
        monkeypatch.setitem(sys.modules, "jax", stand_in)
    arguments.update(change)
    given = arguments["y"]
    before = contents(given)

    def launch(*arguments, **keywords):
        raise AssertionError("something was launched")

    monkeypatch.setattr(type(backend.engine()), "run", launch)
    with pytest.raises(error, match=f"^{routine}: (.*{text})"):
        getattr(gemv, routine)(**arguments)
    assert contents(y) == contents(make(np.array([1.0, np.nan])))
    assert contents(given) == before


def contents(array):
    if hasattr(array, "copy_to_host"):
        return array.copy_to_host().tobytes()
    return array.tobytes() if isinstance(array, np.ndarray) else repr(array)


@pytest.mark.parametrize("routine", ["sgemv", "dgemv"])
@pytest.mark.parametrize("name", ["alpha", "a", "x", "beta", "y"])
@pytest.mark.parametrize("where", ["host", "device"])
def test_what_is_complex_is_not_made_real(routine, name, where):
    dtype = np.float32 if routine == "sgemv" else np.float64
    make = np.asarray if where == "host" else to_device
    arguments = {"a": np.ones((2, 3), dtype), "x": np.ones(3, dtype), "y": np.ones(2, dtype)}
    if name in arguments:
        arguments[name] = arguments[name] * 1j
    arguments = {key: make(value) for key, value in arguments.items()}
    arguments |= {"alpha": 1, "beta": 1}
    if name in ("alpha", "beta"):
        arguments[name] = 1j
    before = contents(arguments["y"])
    text = "has dtype complex" if where == "device" and name in "axy" else "imaginary part"
    with pytest.raises(TypeError, match=f"^{routine}: {name} .*{text}"):
        getattr(gemv, routine)(overwrite_y=1, **arguments)
    assert contents(arguments["y"]) == before


@pytest.mark.parametrize("call", [gemv.explain, gemv.precompile], ids=lambda call: call.__name__)
@pytest.mark.parametrize("kind", ["x is short", "incx is NaN", "trans is 3", "kernel is unknown"])
def test_those_that_only_look_say_the_same(call, kind):
    bad, error, text = BAD[kind]
    arguments = dict(alpha=1.0, a=np.ones((2, 3)), x=np.ones(3))
    arguments.update(bad["change"](np.asarray))
    with pytest.raises(error, match=text):
        call(**arguments)


# GEMV_CHECK=full -----------------------------------------------------------------------------


def test_the_variable_is_read_as_it_is_written():
    assert memory_check.asked_for(" FULL ") and not memory_check.asked_for("")
    assert not memory_check.asked_for(None)
    with pytest.raises(ValueError, match="GEMV_CHECK must be 'full' or not set, got 'yes'"):
        memory_check.asked_for("yes")


PIECES = [
    MemoryRange(0x1000, 0x2000, 0),
    MemoryRange(0x2000, 0x3000, 0),
    MemoryRange(0x5000, 0x6000, 1),
    MemoryRange(0x7000, 0x8000, None),
]


def listed(address):
    return next((piece for piece in PIECES if piece.first <= address < piece.end), None)


@pytest.mark.parametrize(
    ("first", "end", "device", "text"),
    [
        (0x1000, 0x2000, 0, None),
        (0x1800, 0x3000, 0, None),  # mapped in two pieces
        (0x1800, 0x1808, None, None),
        (0x1800, 0x3001, 0, "the driver knows of no memory at 0x3000"),
        (0x0FFF, 0x1800, 0, "the driver knows of no memory at 0xfff"),
        (0x4000, 0x4008, 0, "the driver knows of no memory at 0x4000"),
        (0x5000, 0x5008, 0, "the driver says that 0x5000 is on cuda:1, not cuda:0"),
        (0x7000, 0x7008, 1, None),
    ],
)
def test_what_the_driver_lists(first, end, device, text):
    assert memory_check.unreachable(first, end, device, listed) == text


@pytest.mark.skipif(gemv.backend() != "simulator", reason="with a stand-in for the driver")
def test_full_check_asks_for_every_operand(monkeypatch):
    memory = {name: np.ones(shape) for name, shape in {"a": (2, 3), "x": 3, "y": 2}.items()}
    arrays = {name: Interface(array) for name, array in memory.items()}
    lists = {name: (a.ctypes.data, a.ctypes.data + a.nbytes) for name, a in memory.items()}

    def memory_at(address):
        for low, high in lists.values():
            if low <= address < high:
                return MemoryRange(low, high, 0)
        return None

    engine = backend.engine()
    monkeypatch.setattr(memory_check, "FULL", True)
    monkeypatch.setattr(engine, "memory_at", memory_at, raising=False)
    monkeypatch.setattr(type(engine), "name", "cuda")
    monkeypatch.setattr(type(engine), "run", lambda *arguments, **keywords: ran.append(1))
    operands = [
        (name, gemv.arrays.adopt.adopt("gemv", name, arrays[name], None, HOME)) for name in arrays
    ]
    ran = []
    memory_check.check("gemv", operands, backend.engine().memory_at)
    for name in arrays:
        known = lists[name]
        for wrong in ((0, 0), (known[0], known[1] - 8)):
            lists[name] = wrong
            with pytest.raises(ValueError, match=f"gemv: {name} reaches from 0x.*no memory at 0x"):
                memory_check.check("gemv", operands, backend.engine().memory_at)
        lists[name] = known
    assert not ran


@pytest.mark.gpu
@pytest.mark.parametrize("library", ["numba", "cupy", "torch"])
def test_full_check_on_the_gpu(library, monkeypatch):
    """Memory that was freed, and an array that claims more than there is."""
    from gemv.calls import short

    library = LIBRARIES[library]()
    monkeypatch.setattr(memory_check, "FULL", True)
    monkeypatch.setattr(short, "short_ways", {})
    monkeypatch.setattr(gemv.blas, "short_ways", {})
    a, x, y = (library.array(np.ones(shape, "f")) for shape in ((5, 4), 4, 5))
    for _ in range(3):
        with gemv.trace() as calls:
            gemv.gemv(1.0, a, x, 1.0, y, overwrite_y=1)
            gemv.gemv(1.0, a, x)
        assert len(calls) == 2
    assert library.host(y).tolist() == [13.0] * 5
    assert not short.short_ways, "the short way asks nobody"

    start = backend.engine().memory_at(gemv.arrays.adopt.adopt("gemv", "x", x, None, HOME).pointer)
    beyond = Exporter(shape=(4,), typestr="<f4", data=(start.end - 8, False))
    nowhere = Exporter(shape=(4,), typestr="<f4", data=(1 << 20, False))
    on_host = np.ones(4, "f")
    pageable = Exporter(shape=(4,), typestr="<f4", data=(on_host.ctypes.data, False))
    for wrong in (beyond, nowhere, pageable):
        follows = backend.engine().memory_at(start.end)
        if wrong is beyond and follows is not None:
            continue  # other memory happens to lie right behind
        with pytest.raises(ValueError, match="gemv: x reaches from .*knows of no memory at"):
            gemv.gemv(1.0, a, wrong, 1.0, y, overwrite_y=1)
    assert library.host(y).tolist() == [13.0] * 5


@pytest.mark.gpu
def test_memory_that_torch_freed_is_refused_each_time():
    torch = LIBRARIES["torch"]().torch
    a, y = torch.ones(5, 4, device="cuda"), torch.zeros(5, device="cuda")
    for how in ("gemv", "in place"):
        x = torch.ones(4, device="cuda")
        arguments = (1.0, a, x) if how == "gemv" else (1.0, a, x, 0.0, y)
        overwrite = {} if how == "gemv" else {"overwrite_y": 1}
        for _ in range(3):
            gemv.gemv(*arguments, **overwrite)
        x.untyped_storage().resize_(0)
        for _ in range(3):
            with pytest.raises(ValueError, match="gemv: x of shape .* has no memory"):
                gemv.gemv(*arguments, **overwrite)
    torch.cuda.synchronize()
    assert y.unique().tolist() == [4]


@pytest.mark.gpu
def test_an_array_that_jax_deleted_is_refused():
    library = LIBRARIES["jax"]()
    a, x = library.array(np.ones((5, 4))), library.array(np.ones(4))
    gemv.gemv(1.0, a, x)
    x.delete()
    with pytest.raises(TypeError, match="gemv: x cannot be read as .*Array has been deleted"):
        gemv.gemv(1.0, a, x)


def test_errors_in_many_threads_are_each_ones_own():
    """No text and no state of one call reaches another's."""
    said = {}

    def work(k):
        for _ in range(20):
            try:
                gemv.dgemv(1, np.ones((2, 3)), np.ones(3), incx=k + 2)
            except ValueError as error:
                said.setdefault(k, set()).add(str(error))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k in range(4):
        (text,) = said[k]
        assert f"= {1 + 2 * (k + 2)} elements are needed" in text
