"""The C functions of DLPack exporters, offered by a stand-in, and the comparison behind them."""

from __future__ import annotations

import ctypes

import pytest

from gemv.arrays import dlpack
from gemv.driver import block as driver_block
from gemv.driver import exchange as driver_exchange
from gemv.driver import machine

FLOAT, DOUBLE = 32, 64


class Tensor:
    """Nothing but metadata; the address is never followed."""

    def __init__(self, pointer, shape, strides, bits=FLOAT, device=0, offset=0):
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.strides = (ctypes.c_int64 * len(shape))(*strides)
        self.words = dlpack._DLTensor(
            pointer, 2, device, len(shape), 2, bits, 1,
            ctypes.cast(self.shape, ctypes.POINTER(ctypes.c_int64)),
            ctypes.cast(self.strides, ctypes.POINTER(ctypes.c_int64)), offset,
        )  # fmt: skip


def describe(tensor, target):
    if not isinstance(tensor, Tensor):
        return -1
    ctypes.memmove(target, ctypes.addressof(tensor.words), ctypes.sizeof(tensor.words))
    return 0


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_size_t))
def current_stream(kind, device, target):
    if kind != 2:
        return -1
    target[0] = STREAM + device
    return 0


LAUNCHED: list[tuple] = []


@ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
def launch(config, function, parameters, extra):
    """The driver's function: notes the stream and the addresses of a, x and y."""
    stream = ctypes.c_size_t.from_address(config + 32).value
    places = (ctypes.c_void_p * 3).from_address(parameters)
    LAUNCHED.append((stream, *(ctypes.c_size_t.from_address(place).value for place in places)))
    return 0


STREAM = 0x700
CALLBACK = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(describe)
TABLE = (ctypes.c_size_t * 7)(1)
TABLE[5] = ctypes.cast(CALLBACK, ctypes.c_void_p).value
TABLE[6] = ctypes.cast(current_stream, ctypes.c_void_p).value
Tensor.__dlpack_c_exchange_api__ = dlpack._capsule_new(
    ctypes.addressof(TABLE), b"dlpack_exchange_api", None
)


class Known:
    """A call of an (8, 4) float32 matrix, contiguous: bytes that y, x and A span."""

    spans = (0, 32, 0, 16, 0, 128)
    block = driver_block.Block(
        [driver_block.Function(1, (1, 1, 1), (32, 1, 1), ("a", "x", "y", "alpha", "beta"))],
        4, 1, {}, 0, 0,
    )  # fmt: skip


MACHINE = machine.machine(machine.Driver(ctypes.cast(launch, ctypes.c_void_p).value, 0, 0, 0, 0))
A, X, Y = 0x10000, 0x20000, 0x30000


@pytest.fixture(scope="module")
def exchange():
    return driver_exchange.Exchange(Tensor, MACHINE)


@pytest.fixture
def expected(exchange):
    return exchange.expect(Known, *operands())


def operands(**changes):
    plain = {"a": (A, (8, 4), (4, 1)), "x": (X, (4,), (1,)), "y": (Y, (8,), (1,))}
    return [
        each if isinstance(each, Tensor) else Tensor(*each) for each in (plain | changes).values()
    ]


def enqueue(exchange, expected, tensors, stream=None, alpha=1.0):
    """The status, and what was launched."""
    LAUNCHED.clear()
    status = exchange.enqueue(expected.address, *tensors, stream, alpha, 0.0)
    return status, list(LAUNCHED)


def test_the_same_again(exchange, expected):
    assert enqueue(exchange, expected, operands()) == (0, [(STREAM, A, X, Y)])


def test_a_named_stream(exchange, expected):
    assert enqueue(exchange, expected, operands(), 0x55) == (0, [(0x55, A, X, Y)])


def test_other_memory_of_the_same_form(exchange, expected):
    moved = operands(x=(X + 0x1000, (4,), (1,)), y=Tensor(Y, (8,), (1,), offset=64))
    assert enqueue(exchange, expected, moved) == (0, [(STREAM, A, X + 0x1000, Y + 64)])


def test_the_stream_is_that_of_the_device(exchange):
    places = {"a": (A, (8, 4), (4, 1)), "x": (X, (4,), (1,)), "y": (Y, (8,), (1,))}
    on_three = [Tensor(*place, FLOAT, 3) for place in places.values()]
    expected = exchange.expect(Known, *on_three)
    assert enqueue(exchange, expected, on_three) == (0, [(STREAM + 3, A, X, Y)])


def test_an_exporter_without_a_stream(exchange):
    elsewhere = operands()
    for tensor in elsewhere:
        tensor.words.device_type = 7
    expected = exchange.expect(Known, *elsewhere)
    assert enqueue(exchange, expected, elsewhere) == (driver_block.UNUSUAL, [])
    assert enqueue(exchange, expected, elsewhere, 0x55) == (0, [(0x55, A, X, Y)])


@pytest.mark.parametrize(
    "alpha", [1e300, 10**400, None, "1"], ids=["too large", "huge", "None", "text"]
)
def test_numbers_that_go_the_long_way(exchange, expected, alpha):
    assert enqueue(exchange, expected, operands(), None, alpha) == (driver_block.UNUSUAL, [])


@pytest.mark.parametrize(
    "changes",
    [
        {"a": (0, (8, 4), (4, 1))},  # memory that was freed
        {"x": (0, (4,), (1,))},
        {"y": (0, (8,), (1,))},
        {"a": (A, (8, 5), (5, 1))},
        {"a": (A, (8, 4), (1, 8))},
        {"a": (A, (8,), (1,))},
        {"x": (X, (5,), (1,))},
        {"x": (X, (4,), (2,))},
        {"x": (X + 4, (4,), (1,))},
        {"a": (A + 8, (8, 4), (4, 1))},
        {"x": (X + 8, (4,), (1,))},
        {"x": (X, (4,), (1,), DOUBLE)},
        {"y": (Y, (8,), (1,), FLOAT, 1)},
        {"y": (Y, (8,), (-1,))},
        {"y": (X, (8,), (1,))},
        {"y": (X - 16, (8,), (1,))},
        {"y": (A + 112, (8,), (1,))},
        {"y": (A - 16, (8,), (1,))},
    ],
    ids=str,
)
def test_whatever_differs_goes_the_long_way(exchange, expected, changes):
    assert enqueue(exchange, expected, operands(**changes)) == (driver_block.UNUSUAL, [])


@pytest.mark.parametrize("place", range(3))
def test_a_tensor_that_cannot_be_described(exchange, expected, place):
    tensors = operands()
    tensors[place] = object()
    assert enqueue(exchange, expected, tensors) == (driver_block.UNUSUAL, [])
    assert exchange.expect(Known, *tensors) is None


def test_neighbours_do_not_overlap(exchange, expected):
    beside = operands(y=(A + 128, (8,), (1,)))
    assert enqueue(exchange, expected, beside) == (0, [(STREAM, A, X, A + 128)])


@pytest.fixture
def with_old_y(expected):
    """The same with a block for an old y, whose function gets that and y."""
    one = driver_block.Function(2, (1, 1, 1), (32, 1, 1), ("old", "x", "y", "a", "alpha", "beta"))
    expected.expect_old_y(driver_block.Block([one], 4, 1, {}, 0, 0))
    return expected


OLD = 0x40000


def test_the_block_for_an_old_y_stays_what_it_was(exchange, with_old_y):
    """Two threads may make one at a time, and a third one may be launching the first of them."""
    first = with_old_y.with_old_y
    other = driver_block.Function(3, (1, 1, 1), (32, 1, 1), ("old", "x", "y", "a", "alpha", "beta"))
    with_old_y.expect_old_y(driver_block.Block([other], 4, 1, {}, 0, 0))
    assert with_old_y.with_old_y is first
    assert with_old_y.words[driver_block.WITH_OLD_Y] == first.address


@pytest.mark.parametrize("at", [OLD, OLD + 4, OLD + 12, A, X], ids=hex)
def test_an_old_y_beside_the_new_one(exchange, with_old_y, at):
    old = Tensor(at, (8,), (1,))
    LAUNCHED.clear()
    assert exchange.enqueue(with_old_y.address, *operands(), None, 1.0, 0.5, old) == 0
    assert LAUNCHED == [(STREAM, at, X, Y)]
    assert enqueue(exchange, with_old_y, operands()) == (0, [(STREAM, A, X, Y)])


@pytest.mark.parametrize(
    "old",
    [
        (0, (8,), (1,)), (OLD, (7,), (1,)), (OLD, (8,), (2,)), (OLD, (8, 1), (1, 1)),
        (OLD + 1, (8,), (1,)), (OLD + 2, (8,), (1,)),
        (OLD, (8,), (1,), DOUBLE), (OLD, (8,), (1,), FLOAT, 1),
    ],
    ids=str,
)  # fmt: skip
def test_an_old_y_that_differs_goes_the_long_way(exchange, with_old_y, old):
    LAUNCHED.clear()
    for each in (Tensor(*old), None):
        status = exchange.enqueue(with_old_y.address, *operands(), None, 1.0, 0.5, each)
        assert status == driver_block.UNUSUAL and not LAUNCHED


def test_an_old_y_without_a_block_for_it(exchange, expected):
    LAUNCHED.clear()
    old = Tensor(OLD, (8,), (1,))
    status = exchange.enqueue(expected.address, *operands(), None, 1.0, 0.5, old)
    assert status == driver_block.UNUSUAL and not LAUNCHED


def test_three_dimensions_are_not_expected(exchange):
    cube = Tensor(A, (2, 2, 2), (4, 2, 1))
    assert exchange.expect(Known, cube, *operands()[1:]) is None


def test_a_table_of_another_version():
    table = (ctypes.c_size_t * 7)(2)
    capsule = dlpack._capsule_new(ctypes.addressof(table), b"dlpack_exchange_api", None)
    other = type("Other", (), {"__dlpack_c_exchange_api__": capsule})
    with pytest.raises(RuntimeError, match="version 2, not 1"):
        driver_exchange.Exchange(other, MACHINE)
