"""Blocks as the driver gets them: a stand-in for its launch reads what lies at the addresses."""

from __future__ import annotations

import ctypes
import struct
import sys
import threading

import numpy as np
import pytest

from gemv.driver import block as driver_block
from gemv.driver import machine

LAUNCHED: list[tuple] = []
#: What the stand-in answers, launch by launch; then 0.
ANSWERS: list[int] = []
#: How to read each parameter of the functions below.
KINDS = {"alpha": "f", "beta": "f"}
ARGUMENTS = ("rows", "alpha", "a", "col_stride", "x", "beta", "y", "splits")
SIZES = {"rows": 5, "cols": 1 << 40, "col_stride": -7, "splits": 3}


def read(config, function, parameters, real="f", parts=1):
    grid_and_block = struct.unpack("=7I", ctypes.string_at(config, 28))
    stream, attributes, count = struct.unpack("=QQI", ctypes.string_at(config + 32, 20))
    values, place = [], 0
    for name in BY_HANDLE[function]:
        many = parts if name in ("alpha", "beta") else 1
        kind = real if name in ("alpha", "beta") else "q"
        for _ in range(many):
            address = ctypes.c_size_t.from_address(parameters + 8 * place).value
            size = struct.calcsize(kind)
            values.append(struct.unpack(f"={kind}", ctypes.string_at(address, size))[0])
            place += 1
    return grid_and_block, stream, attributes, count, values


BY_HANDLE = {
    11: ARGUMENTS,
    12: ("scratch", "beta", "counters", "y", "rows"),
}
FORM = {"real": "f", "parts": 1}


@ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
def launch(config, function, parameters, extra):
    LAUNCHED.append((function, *read(config, function, parameters, **FORM)))
    return ANSWERS.pop(0) if ANSWERS else 0


MACHINE = machine.machine(machine.Driver(ctypes.cast(launch, ctypes.c_void_p).value, 0, 0, 0, 0))
FIRST = driver_block.Function(11, (2, 3, 4), (32, 8, 1), ARGUMENTS)
SECOND = driver_block.Function(12, (9, 1, 1), (64, 1, 1), BY_HANDLE[12])


@pytest.fixture(autouse=True)
def clean():
    LAUNCHED.clear()
    ANSWERS.clear()
    FORM.update(real="f", parts=1)


def test_one_launch():
    block = driver_block.Block([FIRST], 4, 1, SIZES, 8, 16)
    assert MACHINE.enqueue(block.address, 0x55, 1 << 46, 1 << 45, 1 << 44, 2.5, -1) == 0
    (function, config, stream, _, attributes, values), *others = LAUNCHED
    assert (function, config, stream, attributes) == (11, (2, 3, 4, 32, 8, 1, 0), 0x55, 0)
    assert values == [5, 2.5, 1 << 46, -7, (1 << 45) + 8, -1.0, (1 << 44) + 16, 3]
    assert not others


def test_dynamic_shared_memory_is_asked_for():
    """By each launch for itself: it is the word behind grid and block."""
    block = driver_block.Block([FIRST._replace(shared=229_888), SECOND], 4, 1, SIZES, 0, 16)
    assert MACHINE.enqueue(block.address, 0x55, 1, 2, 3, 0.5, 0.25, 8, 16) == 0
    assert [each[1] for each in LAUNCHED] == [
        (2, 3, 4, 32, 8, 1, 229_888), (9, 1, 1, 64, 1, 1, 0),
    ]  # fmt: skip
    assert LAUNCHED[0][2] == 0x55 and LAUNCHED[0][-1] == [5, 0.5, 1, -7, 2, 0.25, 19, 3]


def test_two_launches_with_scratch_memory():
    block = driver_block.Block([FIRST, SECOND], 4, 1, SIZES, 0, 16)
    assert MACHINE.enqueue(block.address, 7, 1, 2, 3, 0.5, 0.25, 1 << 41, 1 << 42) == 0
    assert [each[0] for each in LAUNCHED] == [11, 12]
    assert LAUNCHED[0][-1] == [5, 0.5, 1, -7, 2, 0.25, 19, 3]
    assert LAUNCHED[1][1] == (9, 1, 1, 64, 1, 1, 0)
    assert LAUNCHED[1][-1] == [1 << 41, 0.25, 1 << 42, 19, 5]


@pytest.mark.parametrize("real", ["f", "d"])
def test_complex_numbers_are_two_parameters(real):
    FORM.update(real=real, parts=2)
    block = driver_block.Block([FIRST, SECOND], struct.calcsize(real), 2, SIZES, 0, 0)
    alpha, beta = 1.5 - 2j, np.complex64(0.5 + 4j)
    parts = (alpha.real, alpha.imag, beta.real, beta.imag)
    assert MACHINE.enqueue_complex(block.address, 7, 1, 2, 3, *parts, 40, 41) == 0
    assert LAUNCHED[0][-1] == [5, 1.5, -2.0, 1, -7, 2, 0.5, 4.0, 3, 3]
    assert LAUNCHED[1][-1] == [40, 0.5, 4.0, 41, 3, 5]


def test_attributes_are_handed_over():
    attributes = (ctypes.c_char * 72 * 1)()
    block = driver_block.Block([FIRST._replace(attributes=attributes)], 4, 1, SIZES, 0, 0)
    MACHINE.enqueue(block.address, 7, 1, 2, 3, 1.0, 0.0)
    assert LAUNCHED[0][3:5] == (ctypes.addressof(attributes), 1)


def test_an_error_of_the_driver_comes_back_and_ends_the_call():
    block = driver_block.Block([FIRST, SECOND], 4, 1, SIZES, 0, 0)
    ANSWERS.append(201)
    assert MACHINE.enqueue(block.address, 7, 1, 2, 3, 1.0, 0.0, 0, 0) == 201
    assert len(LAUNCHED) == 1


@pytest.mark.parametrize(
    "number", [1e39, -1e39, 10**400, None, "1", 1j], ids=lambda number: repr(number)[:9]
)
def test_numbers_that_do_not_fit(number):
    block = driver_block.Block([FIRST], 4, 1, SIZES, 0, 0)
    for numbers in ((number, 0.0), (0.0, number)):
        assert MACHINE.enqueue(block.address, 7, 1, 2, 3, *numbers) == driver_block.UNUSUAL
    assert not LAUNCHED
    assert sys.exc_info() == (None, None, None)


@pytest.mark.parametrize("number", [np.inf, -np.inf, -1.0, -0.0, 3.4e38, 1e-46, np.float32(2), 7])
def test_numbers_that_fit(number):
    block = driver_block.Block([FIRST], 4, 1, SIZES, 0, 0)
    assert MACHINE.enqueue(block.address, 7, 1, 2, 3, number, np.float64(number)) == 0
    wanted = np.float32(number)
    got = np.array([LAUNCHED[0][-1][1], LAUNCHED[0][-1][5]], np.float32)
    assert (got.view(np.uint32) == wanted.view(np.uint32)).all()


def test_not_a_number():
    block = driver_block.Block([FIRST], 4, 1, SIZES, 0, 0)
    assert MACHINE.enqueue(block.address, 7, 1, 2, 3, np.nan, 0.0) == 0
    assert np.isnan(LAUNCHED[0][-1][1])


def test_doubles_are_not_shortened():
    FORM.update(real="d")
    block = driver_block.Block([FIRST], 8, 1, SIZES, 0, 0)
    assert MACHINE.enqueue(block.address, 7, 1, 2, 3, 1e300, 0.1) == 0
    assert LAUNCHED[0][-1][1] == 1e300 and LAUNCHED[0][-1][5] == 0.1


def test_too_many_parameters():
    names = tuple(f"s{k}" for k in range(driver_block.MAX_PARAMETERS + 1))
    with pytest.raises(RuntimeError, match="41 parameters"):
        driver_block.Block([FIRST._replace(arguments=names)], 4, 1, dict.fromkeys(names, 0), 0, 0)


def test_threads_share_a_block():
    """The interpreter's lock is free during a launch: no thread may see another one's values."""
    block = driver_block.Block([FIRST], 4, 1, SIZES, 0, 0)
    barrier = threading.Barrier(4)

    def work(number):
        barrier.wait()
        for k in range(500):
            MACHINE.enqueue(block.address, number, k, k, k, float(number), float(k))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(LAUNCHED) == 2000
    for _, _, stream, _, _, values in LAUNCHED:
        _, alpha, a, _, x, beta, y, _ = values
        assert alpha == stream and a == x == y == beta
