"""Calls on JAX's arrays that were made before: what is entered, compiled and handed to XLA again.

Arrays are in host memory here. Machine code gets real frames of XLA's, with a stand-in for the
driver behind it.
"""

from __future__ import annotations

import ctypes
import sys

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp  # noqa: E402
from helpers.xla_frames import STREAM  # noqa: E402

import gemv  # noqa: E402
from gemv.calls import (  # noqa: E402
    jax_again,
    jax_calls,
    jax_frames,
    jax_handlers,
    remembered,
)
from gemv.core import memo  # noqa: E402
from gemv.driver import block, known_frames, machine  # noqa: E402
from gemv.engines import backend  # noqa: E402
from gemv.jax import matvec  # noqa: E402

pytestmark = pytest.mark.usefixtures("without_gpu")


@pytest.fixture
def traced(monkeypatch):
    """How often JAX traces a product."""
    counted, right = [], jax_calls._call

    def counting(*arguments):
        counted.append(arguments)
        return right(*arguments)

    monkeypatch.setattr(jax_calls, "_call", counting)
    jax_calls.compiled_call.cache_clear()
    yield counted
    jax_calls.compiled_call.cache_clear()


def entered(call):
    """The functions of the module ``jax_calls`` that a call enters."""
    names = []

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename == jax_calls.__file__:
            names.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return names


@pytest.mark.parametrize("form", ["float", "numpy", "array", "y", "beta", "both"])
def test_a_repeated_call_with_numbers_enters_two_functions(operands, traced, form):
    a, x, y = operands
    further = () if form in ("float", "numpy", "array") else (y,)
    options = {
        "float": {"alpha": 2.5}, "numpy": {"alpha": np.float32(2.5)},
        "array": {"alpha": jnp.float32(2.5)}, "y": {}, "beta": {"beta": 2.5},
        "both": {"alpha": 0.5, "beta": jnp.float32(2.5)},
    }[form]  # fmt: skip
    first, again = matvec(a, x, *further, **options), []
    entries = entered(lambda: again.append(matvec(a, x + 0, *further, **options)))
    assert entries == ["matvec", "_kinds"]
    assert jnp.array_equal(first, again[0]) and len(traced) == 1
    expected = options.get("alpha", 1) * (a @ x) + (options.get("beta", 1) * y if further else 0)
    np.testing.assert_allclose(first, expected, rtol=1e-4, atol=1e-5)


def test_numbers_of_other_kinds_are_looked_at(operands):
    a, x, y = operands
    for alpha in (2.0, jnp.float32(2.0), 1, 0.0, -3, np.float64(4)):
        for beta in (0.5, 1, 0, jnp.float32(2.0)):
            for _ in range(2):
                found = matvec(a, x, y, alpha=alpha, beta=beta)
                np.testing.assert_allclose(found, alpha * (a @ x) + beta * y, rtol=1e-4, atol=1e-5)
    for _ in range(2):
        assert matvec(a, x * jnp.nan, alpha=0.0).tolist() == [0.0] * 40
        assert jnp.array_equal(
            matvec(a, x, y * jnp.nan, alpha=2.0, beta=0.0), matvec(a, x, alpha=2.0)
        )
    for factor in (1j, jnp.asarray(1j), y, "2"):
        with pytest.raises(TypeError, match="alpha must be"):
            matvec(a, x, alpha=factor)
        with pytest.raises(TypeError, match="beta must be"):
            matvec(a, x, y, beta=factor)


@pytest.mark.parametrize(
    "options", [{}, {"trans": "T"}, {"trans": 2}, {"accumulate": "wide"}], ids=str
)
def test_a_repeated_call_enters_one_function(operands, traced, options):
    a, x, y = operands
    x = y if options.get("trans") else x
    first = matvec(a, x, **options)
    again = []
    assert entered(lambda: again.append(matvec(a, x + 0, **options))) == ["matvec"]
    assert jnp.array_equal(first, again[0]) and len(traced) == 1


def test_numbers_and_a_y_are_compiled_once(operands, traced):
    a, x, y = operands
    for alpha, beta in ((2.0, 0.5), (3.0, -1.0), (2.0, 0.5)):
        found = matvec(a, x, y, alpha=alpha, beta=beta)
        np.testing.assert_allclose(found, alpha * (a @ x) + beta * y, rtol=1e-4, atol=1e-5)
    assert len(traced) == 1
    np.testing.assert_allclose(matvec(a, x, alpha=2.0), 2 * (a @ x), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(matvec(a, x, y), a @ x + y, rtol=1e-4, atol=1e-5)
    assert len(traced) == 3


def test_what_differs_is_not_taken_for_what_was_compiled(operands):
    a, x, y = operands
    matvec(a, x)
    for arguments, options, error, words in (
        ((a, y), {}, ValueError, "x must have 30 elements"),
        ((a, x.astype("float64")), {}, TypeError, "x must have the dtype of a"),
        ((a, x), {"trans": 3}, ValueError, "trans must be"),
        ((a, x), {"trans": []}, TypeError, "trans must be"),
        ((a, x), {"accumulate": []}, TypeError, "accumulate must be"),
        ((a, x), {"kernel": "none"}, ValueError, "kernel"),
        ((a, x), {"alpha": 1j}, TypeError, "alpha must be real"),
        ((a, [1.0]), {}, TypeError, "x must be an array"),
    ):
        with pytest.raises(error, match=words):
            matvec(*arguments, **options)
    deleted = x + 0
    matvec(a, deleted)
    deleted.delete()
    with pytest.raises(TypeError, match="x cannot be read: the array has been deleted"):
        matvec(a, deleted)
    donated = x + 0
    jax.jit(lambda x: x + 1, donate_argnums=0)(donated)
    with pytest.raises(TypeError, match="x cannot be read: the array has been deleted"):
        matvec(a, donated)


def test_traced_arrays_are_traced(operands):
    a, x, _ = operands
    matvec(a, x)
    gradient = jax.grad(lambda x: matvec(a, x).sum())(x)
    np.testing.assert_allclose(gradient, a.sum(0), rtol=1e-4)
    assert "gemv_product" in str(jax.make_jaxpr(matvec)(a, x))
    assert jax.vmap(matvec, (None, 0))(a, jnp.stack([x, x])).shape == (2, 40)


TRANSFORMED = {
    "vmap": lambda a, x: jax.vmap(matvec)(jnp.stack([a, a]), jnp.stack([x, x])),
    "vmap of a": lambda a, x: jax.vmap(matvec, (0, None))(jnp.stack([a, a]), x),
    "alpha": lambda a, x: jax.vmap(lambda a, x: matvec(a, x, alpha=2.5), (None, 0))(
        a, jnp.stack([x, x])
    ),
    "grad": lambda a, x: jax.grad(lambda a, x: matvec(a, x).sum(), (0, 1))(a, x),
    "vjp": lambda a, x: jax.vjp(matvec, a, x)[1](matvec(a, x)),
    "jvp": lambda a, x: jax.jvp(matvec, (a, x), (a, x)),
    "linearize": lambda a, x: jax.linearize(matvec, a, x)[1](a, x),
    "alpha of vmap": lambda a, x: jax.vmap(lambda z: matvec(a, x, alpha=z))(jnp.arange(3.0)),
    "the drop-in": lambda a, x: jax.vmap(lambda x: gemv.gemv(2.0, a, x))(jnp.stack([x, x])),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMED)
def test_what_is_transformed_again_is_not_traced_again(operands, traced, name):
    """Outside of jit each grad and each vmap traces its function, but not the product in it."""
    a, x, _ = operands
    first, count = TRANSFORMED[name](a, x), len(traced)
    assert count
    again = TRANSFORMED[name](a, x + 0)
    assert len(traced) == count
    for one, other in zip(*map(jax.tree.leaves, (first, again)), strict=True):
        assert jnp.array_equal(one, other)


def test_numbers_that_are_equal_are_looked_at_where_they_are_traced(operands):
    """A complex one is equal to 1 and an error for a real matrix, whatever was traced before."""
    a, x, y = operands
    mapped = lambda **options: jax.vmap(lambda x: matvec(a, x, **options))(x[None])  # noqa: E731
    for _ in range(2):
        for alpha in (1, True, 1.0, np.float32(1)):
            assert jnp.array_equal(mapped(alpha=alpha)[0], matvec(a, x))
        for options, error, words in (
            ({"alpha": 1 + 0j}, TypeError, "alpha must be real"),
            ({"alpha": [1]}, TypeError, "alpha must be a number"),
            ({"alpha": None}, TypeError, "alpha must be a number"),
            ({"alpha": y}, TypeError, "alpha must be a number"),
            ({"trans": 1.0}, TypeError, "trans must be"), ({"trans": []}, TypeError, "trans must"),
            ({"kernel": "none"}, ValueError, "no kernel"),
            ({"kernel": []}, ValueError, "no kernel"),
            ({"out_dtype": []}, TypeError, "out_dtype must be a dtype"),
            ({"accumulate": []}, TypeError, "accumulate must be"),
        ):  # fmt: skip
            with pytest.raises(error, match=words):
                mapped(**options)
    deleted = a + 0
    deleted.delete()
    with pytest.raises(TypeError, match="a cannot be read: the array has been deleted"):
        jax.vmap(lambda x: matvec(deleted, x))(x[None])
    assert jnp.array_equal(jax.vmap(lambda x: matvec(np.asarray(a), x))(x[None])[0], matvec(a, x))


def test_a_setting_that_changes_is_followed(operands):
    a, x, _ = operands
    matvec(a, x)
    memo.forget()
    assert "at_once" in entered(lambda: matvec(a, x))
    assert entered(lambda: matvec(a, x)) == ["matvec"]


def test_arrays_of_one_aval_on_host_and_gpu(operands, monkeypatch):
    """Where the host backend has to tell them apart, none is taken for another one."""
    a, x, _ = operands
    monkeypatch.setattr(jax_calls, "backends", lambda: {"cpu": None, "cuda": None})
    with backend.using("host"):
        matvec(a, x)
        monkeypatch.setattr(jax_calls, "_platforms", lambda array: {"gpu"})
        with pytest.raises(TypeError, match="a is on a GPU, but the backend is host"):
            matvec(a, x)


# The drop-in ------------------------------------------------------------------------------------


def test_the_second_call_of_the_drop_in_is_one_of_xla(operands, short_way):
    a, x, y = operands
    ahead = short_way("gemv", None, a, x, None)
    assert type(ahead) is remembered.LongWay and ahead.key is None
    ahead.expect(None, y)
    for alpha, beta in ((1, 0), (1.0, 0.0)):
        found = short_way("gemv", alpha, a, x, beta)
        assert jnp.array_equal(found, matvec(a, x))
    found = short_way("gemv", 1, a, y, trans="T")
    found.expect(None, x)
    assert jnp.array_equal(short_way("gemv", 1, a, y, trans="T"), matvec(a, y, trans=1))
    wide = short_way("gemv, wide", 1, a, x)
    wide.expect(None, y)
    assert jnp.array_equal(short_way("gemv, wide", 1, a, x), matvec(a, x, accumulate="wide"))


def test_what_the_drop_in_cannot_leave_to_xla(operands, short_way):
    a, x, y = operands
    short_way("gemv", 1, a, x).expect(None, y)
    assert not isinstance(short_way("gemv", 1, a, x), remembered.LongWay)
    for arguments, options in (
        ((0.0, a, x), {}), ((True, a, x), {}), ((1j, a, x), {}), ((1, a, x, 1.0), {}),
        ((2.0, a, x, 1.0), {}), ((10**400, a, x), {}), ((y, a, x), {}), ((1, a, x, False), {}),
        ((1, a, x, 0.5, np.asarray(y)), {}), ((jnp.float64(2), a, x), {}),
        ((1, a, np.asarray(x)), {}), ((1, a, x), {"offx": 1}), ((1, a, x), {"incy": -1}),
        ((1, a, x), {"kernel": "serial"}), ((1, a, x), {"stream": 0}), ((1, a, x), {"trans": True}),
        ((1, a, x), {"coefficients": "constant"}), ((1, a, x), {"overwrite_y": "yes"}),
    ):  # fmt: skip
        assert short_way("gemv", *arguments, **options) is remembered.UNUSUAL
    with gemv.trace():
        assert short_way("gemv", 1, a, x) is remembered.UNUSUAL
    longer = jnp.concatenate([x, x])
    asked = short_way("gemv", 1, a, longer)
    asked.expect(None, y)  # which uses a part of x
    assert short_way("gemv", 1, a, longer).expect is not None, "nothing was kept"
    elsewhere = jax.device_put(x, jax.devices()[1])
    assert isinstance(short_way("gemv", 1, a, elsewhere), remembered.LongWay)
    memo.forget()
    assert isinstance(short_way("gemv", 1, a, x), remembered.LongWay)
    short_way("gemv", 1, a, x).expect(None, y)
    x.delete()
    assert short_way("gemv", 1, a, x) is remembered.UNUSUAL


def test_the_drop_in_inside_of_what_is_traced(operands, short_way):
    """Its operands have values, so its result has them as well."""
    a, x, y = operands
    short_way("gemv", 1, a, x).expect(None, y)
    seen = []
    short_way("gemv", 1, a, x, 1, y).expect(None, y)
    calls = (1, a, x), (2.0, a, x), (2.0, a, x), (2.0, a, x, 0.5, y)
    jax.jit(lambda z: (seen.extend(short_way("gemv", *each) for each in calls), z)[1])(y)
    assert seen == [remembered.UNUSUAL] * 4

    def loss(z):
        for each in calls:
            short_way("gemv", *each)
        return (z * z).sum()

    for differentiated in (jax.grad(jax.jit(loss)), jax.jit(jax.grad(loss))):
        assert jnp.array_equal(differentiated(y), 2 * y)
    assert jax.vmap(jax.jit(loss))(jnp.stack([y, y])).shape == (2,)
    np.testing.assert_allclose(short_way("gemv", 2.0, a, x), 2 * (a @ x), rtol=1e-4, atol=1e-5)


# XLA's own frames -------------------------------------------------------------------------------

LAUNCHED: list[int] = []
#: Which stream has the handle STREAM.
IDENTITY = 1234


@ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
def launch(config, function, parameters, extra):
    """Multiplies as a kernel would."""
    LAUNCHED.append(ctypes.c_size_t.from_address(config + 32).value)
    places = (ctypes.c_void_p * 4).from_address(parameters)
    a, x, y = (ctypes.c_size_t.from_address(place).value for place in places[:3])
    alpha = ctypes.c_float.from_address(places[3]).value
    matrix, vector, result = (
        np.ctypeslib.as_array(ctypes.cast(at, ctypes.POINTER(ctypes.c_float)), shape)
        for at, shape in ((a, (40, 30)), (x, (30,)), (y, (40,)))
    )
    result[:] = alpha * (matrix @ vector)
    return 0


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))
def current_device(into):
    into[0] = 0
    return 0


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64))
def stream_id(stream, into):
    assert stream == STREAM
    into[0] = IDENTITY
    return 0


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
def is_capturing(stream, into):
    into[0] = 0
    return 0


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
def stream_get(address):
    jax_frames.StreamGet.from_address(address).stream = STREAM
    return None


def test_machine_code_reads_the_frames_of_xla(operands, monkeypatch):
    """XLA's CPU calls handlers as its GPUs do, but for the stream, which it has none of."""
    stand_ins = launch, is_capturing, current_device, stream_id
    at = [ctypes.cast(each, ctypes.c_void_p).value for each in stand_ins]
    functions = machine.machine(machine.Driver(at[0], 0, 0, at[1], at[2], stream_id=at[3]))
    handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(functions.handler)
    in_python, apis = [], []

    def note(frame):
        in_python.append(frame)
        jax_handlers.on_host(frame)

    pythonic = jax_frames.handler(note, jax_frames.version_in(jax.ffi.include_dir()))

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
    def with_a_stream(address):
        frame = jax_frames.CallFrame.from_address(address)
        if not frame.extension_start:
            api = jax_frames.Api.from_buffer_copy(jax_frames.Api.from_address(frame.api))
            api.stream_get = stream_get
            apis.append(api)
            frame.api = ctypes.addressof(api)
        return handler(address)

    before = int(known_frames.STATE[known_frames.PYTHON])
    known_frames.STATE[known_frames.PYTHON] = ctypes.cast(pythonic, ctypes.c_void_p).value
    monkeypatch.setattr(known_frames, "_entries", [])
    keep = pythonic, with_a_stream
    try:
        name = "gemv_test_of_frames"
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(with_a_stream), platform="cpu")
        test_machine_code_reads_the_frames_of_xla.keep = keep  # XLA has the address
        text = jax_handlers.written(2.5, 0.0, 0, "plain", "")
        a, x, _ = operands
        shape = jax.ShapeDtypeStruct((40,), np.float32)
        step = jax.jit(lambda a, x: jax.ffi.ffi_call(name, shape)(a, x, call=text))
        LAUNCHED.clear()
        expected = np.asarray(step(a, x))
        assert len(in_python) == 1 and not LAUNCHED
        (frame,) = in_python
        places = [each.address & 15 for each in (*frame.arguments, *frame.results)]
        key = known_frames.Key(0, 40, 30, 11, 11, tuple(places), text.encode())
        packed = block.Function(1, (1, 1, 1), (32, 1, 1), ("a", "x", "y", "alpha"))
        values = np.zeros(6, np.int64)
        values[:1].view(np.float32)[0] = 2.5
        remember = known_frames.remember
        publish, one = functions.publish, block.Block([packed], 4, 1, {}, 0, 0)
        assert remember(key, memo.generation(), publish, one, IDENTITY, values, None)
        for _ in range(3):
            np.testing.assert_allclose(step(a, x), expected, rtol=1e-5)
        assert LAUNCHED == [STREAM] * 3 and len(in_python) == 1
        with gemv.trace() as calls:
            step(a, x).block_until_ready()
        assert len(LAUNCHED) == 3 and [call.backend for call in calls] == ["host"]
    finally:
        memo.forget()
        known_frames.STATE[known_frames.PYTHON] = before


def test_an_executable_finds_the_handler_of_its_platform(operands):
    """It is told to XLA as a product is compiled for it, and not for what only traces."""
    jax_operators = sys.modules["gemv.calls.jax_operators"]
    a, x, _ = operands
    jax.jit(lambda a, x: matvec(a, x))(a, x)
    assert jax_operators._register.cache_info().currsize == 1
    assert jax_again.handler(print) is print
