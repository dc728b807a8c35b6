"""Call frames of XLA with a ticket for alpha and beta, made by hand, without JAX."""

from __future__ import annotations

import contextlib
from ctypes import addressof

import numpy as np
import pytest
from helpers.xla_frames import STREAM, HandMade, call

import gemv
from gemv.calls import jax_batches, jax_ticketed
from gemv.core import memo
from gemv.core.dtypes import DTYPES, Precision
from gemv.core.narrow import cast
from gemv.driver import known_frames, tickets
from gemv.engines import backend

#: Tickets live as long as the process, as JAX's do.
TICKETS = [np.array(number, np.int32) for number in range(4)]
LINES = [tickets.line_of(ticket.ctypes.data) for ticket in TICKETS]


@pytest.fixture(autouse=True)
def free_lines():
    for line in LINES:
        tickets.leave(line)
    yield
    assert not any(map(tickets.is_taken, LINES))


def arrays(letter, a_shape, x_shape, y_shape):
    """Small whole numbers."""
    dtype, rng = DTYPES[letter], np.random.default_rng(len(a_shape))
    made = []
    for shape in (a_shape, x_shape, y_shape):
        values = rng.integers(-3, 4, shape).astype(np.float32)
        if dtype.kind == "c":
            values = values + 1j * rng.integers(-3, 4, shape)
        made.append(cast(values, dtype) if dtype.itemsize == 2 else values.astype(dtype))
    return made


def write(letter, alpha, beta, which=0):
    tickets.writer(Precision.of(DTYPES[letter]).factors)(LINES[which], alpha, beta)


def frame(a, x, y, routine="gemv", trans=0, old=True, which=0, accumulate="plain"):
    text = jax_ticketed.written(routine, trans, accumulate, a.shape, x.shape)
    given = [a, x, TICKETS[which], *([y] if old else [])]
    return HandMade(given, [y], {"call": text})


def plain(array):
    return cast(array, np.dtype(np.float32)) if array.dtype.itemsize == 2 else array


def expected(routine, trans, alpha, a, x, beta, y):
    a, x, y = (plain(each).astype("D") for each in (a, x, y))
    x = x.conj() if routine == "vecmat" else x
    form = "...ij,...i->...j" if trans else "...ij,...j->...i"
    return alpha * np.einsum(form, a.conj() if trans == 2 else a, x) + beta * y


CASES = {
    "one": ("gemv", 0, (5, 4), (4,), (5,)),
    "one transposed": ("gemv", 1, (5, 4), (5,), (4,)),
    "conjugate": ("gemv", 2, (5, 4), (5,), (4,)),
    "a batch": ("gemv", 0, (3, 5, 4), (3, 4), (3, 5)),
    "matvec": ("matvec", 0, (3, 5, 4), (4,), (3, 5)),
    "broadcast": ("matvec", 0, (2, 1, 5, 4), (3, 4), (2, 3, 5)),
    "vecmat": ("vecmat", 1, (5, 4), (6, 5), (6, 4)),
    "one vecmat": ("vecmat", 1, (5, 4), (5,), (4,)),
}


@pytest.mark.parametrize("handle", [jax_ticketed.on_host, jax_ticketed.on_gpu])
@pytest.mark.parametrize("letter", [*"sdcz", "b"])
@pytest.mark.parametrize("case", CASES)
def test_products_with_a_ticket(handle, letter, case):
    if handle is jax_ticketed.on_gpu and gemv.backend() != "simulator":
        pytest.skip("frames made by hand lie in host memory")
    routine, trans, *shapes = CASES[case]
    a, x, y = arrays(letter, *shapes)
    numbers = [(2, -1), (0.5, 0), (-3, 2)]
    if DTYPES[letter].kind == "c":
        numbers.append((1 - 2j, 0.5j))
    first = y.copy()
    for alpha, beta in numbers:
        beta = 0 if routine != "gemv" else beta
        y[...] = first
        write(letter, alpha, beta)
        made = frame(a, x, y, routine, trans, old=routine == "gemv")
        assert call(handle, made.frame) is None, made.errors
        found = expected(routine, trans, alpha, a, x, beta, first)
        assert np.array_equal(plain(y), found if y.dtype.kind == "c" else found.real)
        assert not tickets.is_taken(LINES[0])


def test_calls_that_differ_are_remembered_apart():
    """Options and lengths of one kind of memory; each is selected once, and then known."""
    if gemv.backend() != "simulator":
        pytest.skip("frames made by hand lie in host memory")
    memo.forget()
    cases = [
        ("gemv", 0, (8, 8), (8,), (8,)), ("gemv", 1, (8, 8), (8,), (8,)),
        ("matvec", 0, (2, 8, 8), (2, 8), (2, 8)), ("vecmat", 1, (2, 8, 8), (2, 8), (2, 8)),
        ("matvec", 0, (2, 8, 8), (8,), (2, 8)),
    ]  # fmt: skip
    for repeat in range(2):
        for number, (routine, trans, *shapes) in enumerate(cases, 1):
            a, x, y = (np.ones(1000, "f")[: np.prod(shape)].reshape(shape) for shape in shapes)
            a[...] = arrays("s", *shapes)[0]
            write("s", 2.0, 0.0)
            made = frame(a, x, y, routine, trans, old=False)
            assert call(jax_ticketed.on_gpu, made.frame) is None, made.errors
            assert np.array_equal(y, expected(routine, trans, 2.0, a, x, 0, y).real)
            assert len(jax_batches._remembered) == (len(cases) if repeat else number)


def test_a_nan_in_a_y_that_is_not_read():
    a, x, y = arrays("d", (5, 4), (4,), (5,))
    y[:] = np.nan
    write("d", 2.0, 0.0)
    made = frame(a, x, y)
    assert call(jax_ticketed.on_host, made.frame) is None, made.errors
    assert np.array_equal(y, 2 * a @ x)


def test_an_error_leaves_the_ticket():
    a, x, y = arrays("d", (5, 4), (4,), (5,))
    write("d", 1.0, 0.0)
    made = frame(a, x, y, accumulate="wide")
    assert call(jax_ticketed.on_host, made.frame) == 1
    assert "accumulate='wide' in float64 needs a GPU" in made.errors[0][1]
    write("d", 1.0, 0.0)
    with backend.using("host"):
        made = frame(a, x, y)
        assert call(jax_ticketed.on_gpu, made.frame) == 1
    assert "the backend is host" in made.errors[0][1]


# Machine code -------------------------------------------------------------------------------------


def numbers_of(launched, letter):
    """alpha and beta as the kernel gets them."""
    factors = Precision.of(DTYPES[letter]).factors
    parts = 2 if factors.kind == "c" else 1
    real = f"f{factors.itemsize // parts}"
    values = [np.frombuffer(each, real)[0] for each in launched[4 : 4 + 2 * parts]]
    return [complex(*values[:2]), complex(*values[2:])] if parts == 2 else values


@pytest.mark.parametrize("letter", [*"sdcz", "h", "b"])
@pytest.mark.parametrize(
    "case", [*(name for name in CASES if name != "broadcast"), "with scratch memory"]
)
def test_the_second_call_enters_no_python(launches, letter, case):
    """It has the numbers of its own, and its ticket is free once it has been launched."""
    routine, trans, *shapes = CASES.get(case, ("gemv", 0, (2, 1 << 16), (1 << 16,), (2,)))
    a, x, y = (np.zeros(shape, DTYPES[letter]) for shape in shapes)
    old, turn = routine == "gemv", 1j if DTYPES[letter].kind == "c" else 0
    for step in range(4):
        which, alpha = step % 3, step + 1.5 + turn
        beta = step - turn if old else 0
        write(letter, alpha, beta, which)
        made = frame(a, x, y, routine, trans, old, which)
        assert launches.function(addressof(made.frame)) is None, made.errors
        launched = launches.engine.launched[-1]
        assert launched[0] == STREAM
        places = [int.from_bytes(each, "little") for each in launched[1:4]]
        assert places == [each.ctypes.data for each in (a, x, y)]
        assert numbers_of(launched, letter) == [alpha, beta]
        assert not tickets.is_taken(LINES[which])
        assert len(launches.pythonic) == 1 and len(launches.engine.launched) == step + 1


def test_frames_that_are_not_alike(launches):
    """Lengths of a batch, how it is broadcast, options, the old y: each is another call."""
    shapes = [
        ("matvec", (2, 3, 4, 8), (8,), (2, 3, 4)), ("matvec", (2, 3, 4, 8), (2, 3, 8), (2, 3, 4)),
        ("matvec", (4, 8), (2, 3, 8), (2, 3, 4)), ("matvec", (6, 4, 8), (6, 8), (6, 4)),
        ("gemv", (6, 4, 8), (6, 8), (6, 4)), ("vecmat", (6, 8, 4), (6, 8), (6, 4)),
    ]  # fmt: skip
    for repeat in range(2):
        for number, (routine, *of_arrays) in enumerate(shapes, 1):
            a, x, y = (np.zeros(shape, "f") for shape in of_arrays)
            write("s", 2.0, 0.0)
            made = frame(a, x, y, routine, int(routine == "vecmat"), old=False)
            assert launches.function(addressof(made.frame)) is None, made.errors
            aligned = {each.ctypes.data % 16 for each in (a, x, y)}
            assert aligned == {0}, "NumPy's memory begins at multiples of 16"
            assert len(launches.pythonic) == (len(shapes) if repeat else number)


def test_a_batch_of_several_launches_is_launched_by_python(launches):
    """Machine code knows calls of one launch."""
    routine, trans, *shapes = CASES["broadcast"]
    a, x, y = (np.zeros(shape, "f") for shape in shapes)
    for count in (1, 2, 3):
        write("s", count + 1.0, 0.0)
        made = frame(a, x, y, routine, trans, old=False)
        assert launches.function(addressof(made.frame)) is None, made.errors
        assert len(launches.pythonic) == count and len(launches.engine.launched) == 2 * count
    alphas = [numbers_of(each, "s")[0] for each in launches.engine.launched]
    assert alphas == [2, 2, 3, 3, 4, 4]
    starts = [
        int.from_bytes(each[3], "little") - y.ctypes.data for each in launches.engine.launched
    ]
    assert starts == [0, y[0].nbytes] * 3


def test_an_old_y_in_another_place_is_refused(launches):
    a, x, y = arrays("s", (5, 4), (4,), (5,))
    errors = []
    for old, status in ((y, None), (y, None), (y.copy(), 1), (y, None)):
        write("s", 2.0, 1.0)
        made = HandMade([a, x, TICKETS[0], old], [y], {"call": jax_ticketed.written(
            "gemv", 0, "plain", a.shape, x.shape)})  # fmt: skip
        assert launches.function(addressof(made.frame)) == status
        errors += made.errors
    assert len(launches.engine.launched) == 3
    assert errors == [(13, "RuntimeError: XLA has the result in another place than the old y")]


def test_an_array_that_is_no_ticket_goes_to_python(launches):
    """Machine code finds no line for it, and Python no number."""
    a, x, y = arrays("s", (5, 4), (4,), (5,))
    for ticket, status in ((TICKETS[0], None), (TICKETS[0], None), (np.array(3, np.int32), 1)):
        write("s", 2.0, 1.0)
        text = jax_ticketed.written("gemv", 0, "plain", a.shape, x.shape)
        made = HandMade([a, x, ticket], [y], {"call": text})
        assert launches.function(addressof(made.frame)) == status
    assert len(launches.engine.launched) == 2
    tickets.leave(LINES[0])


def test_a_launch_that_fails_is_tried_again_with_the_same_numbers(launches, monkeypatch):
    """Until a launch has succeeded its numbers stay: Python reads them once more."""
    a, x, y = arrays("s", (5, 4), (4,), (5,))
    write("s", 2.0, 0.0)
    made = frame(a, x, y)
    assert launches.function(addressof(made.frame)) is None
    seen = []

    def run(engine, device, stream, launch, operands, alpha, beta):
        seen.append((alpha, beta, tickets.is_taken(LINES[0])))

    monkeypatch.setattr(jax_batches, "run", run)
    monkeypatch.setattr(launches.engine, "status", 700)
    write("s", 5.0, 3.0)
    assert launches.function(addressof(frame(a, x, y).frame)) is None
    assert seen == [(5.0, 3.0, True)]


def test_an_open_trace_goes_to_python(launches):
    a, x, y = arrays("s", (5, 4), (4,), (5,))
    for count in (1, 1, 2):
        write("s", 2.0, 0.0)
        with gemv.trace() if count == 2 else contextlib.nullcontext():
            assert launches.function(addressof(frame(a, x, y).frame)) is None
        assert len(launches.pythonic) == count


def test_what_machine_code_reads():
    assert known_frames.STATE[known_frames.TICKETS] == tickets.TABLE.ctypes.data
    assert tickets.TABLE[0] == len(tickets._lines)
    lines = [tickets.TABLE[line] for line in LINES]
    assert lines == [ticket.ctypes.data for ticket in TICKETS]
    assert tickets.MOST * tickets.LINE + tickets.LINE == len(tickets.TABLE)


@pytest.mark.parametrize("letter", "sdcz")
def test_numbers_are_rounded_once(letter):
    factors = DTYPES[letter]
    given = [0.1, np.float64(1 / 3), np.float32(0.7), 3, 1e300]
    given += [0.1 - 1e300j, np.complex64(0.3 + 1j)] if factors.kind == "c" else []
    for alpha in given:
        write(letter, alpha, alpha)
        with np.errstate(over="ignore"):
            assert tickets.read(LINES[0], factors) == (factors.type(alpha),) * 2
    tickets.leave(LINES[0])
    with pytest.raises(ValueError):
        write(letter, 10**400, 1)
    assert not tickets.is_taken(LINES[0])


def test_settings_that_change_are_followed(launches):
    a, x, y = arrays("s", (3, 5, 4), (3, 4), (3, 5))
    for count in (1, 1, 2):
        if count == 2:
            memo.forget()
        write("s", 2.0, 0.0)
        assert launches.function(addressof(frame(a, x, y).frame)) is None
        assert len(launches.pythonic) == count
