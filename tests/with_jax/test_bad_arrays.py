"""``gemv.jax.matvec`` and ``gemv.gemv`` of JAX's arrays: what they refuse, and in which words."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from helpers.refusals import check

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp  # noqa: E402

import gemv  # noqa: E402
from gemv.jax import matvec  # noqa: E402

T, V = TypeError, ValueError
HUGE = 10**5000  # Python itself refuses to write it


@pytest.fixture(autouse=True)
def where_jax_puts_arrays():
    """The host backend takes no arrays on a GPU, and there JAX puts them where there is one."""
    gemv.use_backend("host" if jax.default_backend() == "cpu" else None)
    yield
    gemv.use_backend(None)


class Operands:
    """Arrays that go together, new ones for each case."""

    def __init__(self):
        self.a = jnp.arange(12, dtype=jnp.float32).reshape(4, 3)
        self.x, self.y = jnp.arange(3, dtype=jnp.float32), jnp.arange(4, dtype=jnp.float32)

    def product(self, a=None, x=None, y=None, **rest):
        a, x, y = (
            own if given is None else given
            for own, given in ((self.a, a), (self.x, x), (self.y, y))
        )
        return matvec(a, x, y, **rest)

    def traced(self, call):
        """The same as JAX compiles it."""
        return jax.jit(call)(self.a, self.x)


def deleted(array):
    other = array + 0
    other.delete()
    return other


def half(o, **rest):
    return matvec(o.a.astype(jnp.float16), o.x.astype(jnp.float16), **rest)


def of_numpy(shape, dtype):
    return np.ones(shape, dtype)


#: What is wrong: a function of the operands, the error, and its words.
BAD = {
    # a and x
    "a is None": (lambda o: matvec(None, o.x), T, "a must be an array of JAX's, got None"),
    "a is a list": (lambda o: o.product([[1.0]]), T, r"a must be an array of JAX's, got list \[\["),
    "a is a number": (lambda o: o.product(2.0), T, "a must be an array of JAX's, got float 2.0"),
    "a is text": (lambda o: o.product("a"), T, "a must be an array of JAX's, got str 'a'"),
    "a is a vector": (lambda o: o.product(o.x), V, r"a must have two dimensions, got shape \(3,\)"),
    "a is a batch": (lambda o: o.product(o.a[None]), V, r"a must have two dim.*\(1, 4, 3\)"),
    "a of integers": (lambda o: o.product(o.a.astype(int), o.x.astype(int)), T, "a has dtype int"),
    "a of booleans": (
        lambda o: o.product(o.a > 1, o.x > 1),
        T,
        "a has dtype bool, in which nothing",
    ),
    "a of a byte": (
        lambda o: o.product(o.a.astype(jnp.float8_e4m3fn)),
        T,
        "a has dtype float8_e4m3fn, in which",
    ),
    "a of random keys": (
        lambda o: o.product(jax.random.split(jax.random.key(0), 12).reshape(4, 3)),
        T,
        "a has dtype key<fry>, in which nothing is computed",
    ),
    "a of NumPy's objects": (
        lambda o: o.product(np.full((4, 3), print)),
        T,
        "a must be an array of .* dtype object, which",
    ),
    "a of text": (lambda o: o.product(np.full((4, 3), "1")), T, "a must be an array .*dtype <U1"),
    "a of dates": (lambda o: o.product(of_numpy((4, 3), "M8[s]")), T, "a must .*datetime64"),
    "a of records": (lambda o: o.product(np.zeros((4, 3), "f4,f4")), T, "a must be .*dtype .*'f0'"),
    "a is a long double": (
        lambda o: o.product(of_numpy((4, 3), "g")),
        T,
        "a must be an array of JAX",
    ),
    "a is masked": (
        lambda o: o.product(np.ma.masked_equal(of_numpy((4, 3), "f"), 1)),
        T,
        "a must be an array of JAX's, got one of NumPy with a mask and dtype float32",
    ),
    "a was deleted": (
        lambda o: o.product(deleted(o.a)),
        T,
        "a cannot be read: the array has been de",
    ),
    "x is None": (lambda o: matvec(o.a, None), T, "x must be an array of JAX's, got None"),
    "x is a list": (lambda o: o.product(x=[1.0, 2, 3]), T, "x must be an array of JAX's, got list"),
    "x has no dimension": (lambda o: o.product(x=jnp.float32(1)), V, r"x must have one .*\(\)"),
    "x is a column": (
        lambda o: o.product(x=o.x[:, None]),
        V,
        r"x must have one dimension.*\(3, 1\)",
    ),
    "x is short": (lambda o: o.product(x=o.x[:2]), V, r"x must have 3 elements .*\(4, 3\), got 2"),
    "x is empty": (lambda o: o.product(x=o.x[:0]), V, "x must have 3 elements for a .*got 0"),
    "x is short for the transpose": (
        lambda o: matvec(o.a, o.x, trans=1),
        V,
        "x must have 4 elements for a of shape .*got 3",
    ),
    "x of another dtype": (
        lambda o: o.product(x=o.x.astype(jnp.float16)),
        T,
        "x must have the dtype of a, .*float16",
    ),
    "x is complex": (
        lambda o: o.product(x=o.x * 1j),
        T,
        "x must have the dtype of a, float32, got complex",
    ),
    "x is masked": (
        lambda o: o.product(x=np.ma.masked_equal(of_numpy(3, "f"), 1)),
        T,
        "x must be .*with a mask",
    ),
    "x was deleted": (
        lambda o: o.product(x=deleted(o.x)),
        T,
        "x cannot be read: the array has been",
    ),
    # y
    "y is short": (lambda o: o.product(y=o.x), V, "y must have 4 elements for a of shape .*got 3"),
    "y is short and not read": (lambda o: o.product(y=o.x, beta=0), V, "y must have 4 elements"),
    "y is a list": (lambda o: o.product(y=[1.0]), T, r"y must be an array of JAX's, got list \[1"),
    "y is a number": (lambda o: o.product(y=2.0), T, "y must be an array of JAX's, got float 2.0"),
    "y is text": (lambda o: o.product(y="y"), T, "y must be an array of JAX's, got str 'y'"),
    "y is a matrix": (lambda o: o.product(y=o.a), V, r"y must have one dimension, got .*\(4, 3\)"),
    "y of float16": (
        lambda o: o.product(y=o.y.astype(jnp.float16)),
        T,
        "y must have one of the dty",
    ),
    "y of integers": (lambda o: o.product(y=o.y.astype(int)), T, "y has dtype int"),
    "y is complex": (
        lambda o: o.product(y=o.y * 1j),
        T,
        "y must have one of the dtypes float32, got",
    ),
    "y was deleted": (
        lambda o: o.product(y=deleted(o.y)),
        T,
        "y cannot be read: the array has been",
    ),
    # factors
    "alpha is None": (lambda o: o.product(alpha=None), T, "alpha must be a number .*got None"),
    "alpha is text": (lambda o: o.product(alpha="2"), T, "alpha must be a number .*got str '2'"),
    "alpha is a vector": (
        lambda o: o.product(alpha=o.x),
        T,
        "alpha must be a number or an array wi",
    ),
    "alpha is one of NumPy's vectors": (
        lambda o: o.product(alpha=np.ones(2)),
        T,
        "alpha must be a number or an array without",
    ),
    "alpha is a list": (lambda o: o.product(alpha=[1]), T, r"alpha must be .*got list \[1\]"),
    "alpha is a fraction": (
        lambda o: o.product(alpha=Fraction(1, 2)),
        T,
        "alpha must be .*Fraction",
    ),
    "alpha is an object": (
        lambda o: o.product(alpha=np.array(None)),
        T,
        "alpha must be .*got None",
    ),
    "alpha is complex": (
        lambda o: o.product(alpha=1j),
        T,
        "alpha must be real for a of dtype float32, got complex 1j",
    ),
    "alpha is a complex array": (
        lambda o: o.product(alpha=jnp.complex64(1j)),
        T,
        "alpha must be real for a of dtype float32",
    ),
    "alpha is beyond every float": (
        lambda o: o.product(alpha=HUGE),
        V,
        "alpha does not fit float32: too large",
    ),
    "beta is None": (lambda o: o.product(beta=None), T, "beta must be a number .*got None"),
    "beta is text": (lambda o: o.product(beta="1"), T, "beta must be a number .*got str '1'"),
    "beta is a vector": (
        lambda o: o.product(beta=o.y),
        T,
        "beta must be a number or an array without",
    ),
    "beta is complex": (
        lambda o: o.product(beta=1j),
        T,
        "beta must be real for a of dtype float32",
    ),
    "beta is beyond every float": (
        lambda o: o.product(beta=10**400),
        V,
        "beta does not fit float32",
    ),
    # options
    "trans is 3": (
        lambda o: o.product(trans=3),
        V,
        "trans must be .*got 3 .failed for keyword trans",
    ),
    "trans is another letter": (lambda o: o.product(trans="H"), V, "trans must be .*got 'H'"),
    "trans is None": (lambda o: o.product(trans=None), T, "trans must be an integer, got None"),
    "trans is a half": (
        lambda o: o.product(trans=0.5),
        T,
        "trans must be an integer, got float 0.5",
    ),
    "trans is traced": (
        lambda o: jax.jit(lambda trans: o.product(trans=trans))(1),
        T,
        "trans must be an integer",
    ),
    "accumulate is unknown": (lambda o: o.product(accumulate="no"), V, "accumulate must be .*'no'"),
    "accumulate is no word": (
        lambda o: o.product(accumulate=1),
        T,
        "accumulate must be one .*got 1",
    ),
    "out_dtype is another one": (
        lambda o: o.product(out_dtype="float64"),
        T,
        "out_dtype must be one of float32, .*'float64'",
    ),
    "out_dtype is of integers": (
        lambda o: o.product(out_dtype="int8"),
        T,
        "out_dtype must be .*int8",
    ),
    "out_dtype is a list": (
        lambda o: o.product(out_dtype=[1]),
        T,
        r"out_dtype must be .*list \[1\]",
    ),
    "out_dtype of float16 too wide": (
        lambda o: half(o, out_dtype="float64"),
        T,
        "out_dtype must be one of float16, float32, and",
    ),
    "out_dtype is not that of y": (
        lambda o: half(o, y=o.y.astype(jnp.float16), out_dtype="float32"),
        T,
        "out_dtype must be one",
    ),
    "kernel is unknown": (
        lambda o: o.product(kernel="no"),
        V,
        "no kernel 'no'; known kernels: seri",
    ),
    "kernel is no name": (
        lambda o: o.product(kernel=["serial"]),
        V,
        r"no kernel \['serial'\]; known",
    ),
    # what is traced
    "traced, x is short": (
        lambda o: o.traced(lambda a, x: matvec(a, x[:2])),
        V,
        "x must have 3 elements for a of shape",
    ),
    "traced, alpha is a vector": (
        lambda o: o.traced(lambda a, x: matvec(a, x, alpha=x)),
        T,
        "alpha must be a number or an arr",
    ),
    "traced, a of integers": (
        lambda o: o.traced(lambda a, x: matvec(a.astype(int), x.astype(int))),
        T,
        "a has dtype int",
    ),
    "traced, kernel is unknown": (
        lambda o: o.traced(lambda a, x: matvec(a, x, kernel="no")),
        V,
        "no kernel 'no'; known kernels",
    ),
}

#: The same for gemv.gemv and its kin, inside a function that JAX compiles.
TRACED = {
    "stream": (lambda a, x: gemv.gemv(1, a, x, stream=0), T, "gemv: stream cannot be kept in what"),
    "coefficients": (
        lambda a, x: gemv.gemv(1, a, x, coefficients="pointer"),
        T,
        "gemv: coefficients cannot be k",
    ),
    "device_memory_limit": (
        lambda a, x: gemv.gemv(1, a, x, device_memory_limit=5),
        T,
        "gemv: device_memory_limit cannot",
    ),
    "peer is an array": (
        lambda a, x: gemv.gemv(1, a, x, peer=np.ones(2)),
        T,
        "gemv: peer must be an integer, got numpy.ndarray",
    ),
    "a batch": (
        lambda a, x: gemv.gemv(1, a[None], x),
        T,
        "gemv: a is traced .* with one matrix, which can be traced, and jax.vmap for",
    ),
    "peer": (
        lambda a, x: gemv.gemv(1, a, x, peer=True),
        T,
        "gemv: peer cannot be kept in what JAX",
    ),
    "a short x": (lambda a, x: gemv.gemv(1, a, x[:2]), V, "gemv: x is too short: .*len.x. = 2"),
    "incx": (lambda a, x: gemv.gemv(1, a, x, incx=0), V, "gemv: incx must not be zero"),
    "a half incx": (lambda a, x: gemv.gemv(1, a, x, incx=0.5), T, "gemv: incx must be an integer"),
    "offx": (lambda a, x: gemv.gemv(1, a, x, offx=1), V, "gemv: x is too short"),
    "a short y": (lambda a, x: gemv.gemv(1, a, x, 1, x), V, "gemv: y is too short"),
    "dtype": (
        lambda a, x: gemv.dgemv(1, a, x),
        T,
        "dgemv: a has dtype float32 but dgemv computes in",
    ),
    "a vector": (lambda a, x: gemv.gemv(1, x, x), V, r"gemv: a must have two dim.*\(3,\)"),
    "overwrite_y": (
        lambda a, x: gemv.gemv(1, a, x, overwrite_y="no"),
        T,
        "gemv: overwrite_y must be",
    ),
    "alpha": (
        lambda a, x: gemv.gemv(1j, a, x),
        T,
        "gemv: alpha must be real for a of dtype float32",
    ),
    "kernel": (lambda a, x: gemv.gemv(1, a, x, kernel="no"), V, "gemv: no kernel 'no'; known"),
    "accumulate": (lambda a, x: gemv.gemv(1, a, x, accumulate="no"), V, "gemv: accumulate must be"),
    "matvec": (lambda a, x: gemv.matvec(a, x), T, "matvec: a is traced by JAX"),
    "plan": (lambda a, x: gemv.plan(a, x), T, "plan: a is traced by JAX"),
    "Matrix": (lambda a, x: gemv.Matrix(a), T, "Matrix: a is traced by JAX"),
}


def contents(array):
    return np.asarray(array).tobytes()


def test_there_are_as_many_kinds_as_are_promised():
    assert len(BAD) >= 60


@pytest.mark.parametrize("kind", BAD, ids=lambda kind: kind.replace(" ", "_"))
def test_bad_arrays(kind):
    call, error, words = BAD[kind]
    operands = Operands()
    check(
        lambda: call(operands), vars(operands), error, rf"^gemv\.jax\.matvec: (.*{words})", contents
    )


@pytest.mark.parametrize("kind", TRACED, ids=lambda kind: kind.replace(" ", "_"))
def test_bad_arguments_of_gemv_inside_a_compiled_function(kind):
    call, error, words = TRACED[kind]
    operands = Operands()
    check(lambda: operands.traced(call), vars(operands), error, f"^{words}", contents)


@pytest.mark.parametrize("alpha", [2**31, -(2**63), 2**100])
def test_an_integer_beyond_those_of_jax_is_a_factor(alpha):
    operands = Operands()
    found = matvec(operands.a, operands.x, alpha=alpha)
    assert np.array_equal(found, float(alpha) * (operands.a @ operands.x))


def test_arrays_on_a_gpu_are_refused_where_the_backend_is_host(monkeypatch):
    """At once, and not where the result is read."""
    monkeypatch.setattr("gemv.calls.jax_calls._platforms", lambda array: {"gpu"})
    gemv.use_backend("host")
    operands = Operands()
    words = r"^gemv\.jax\.matvec: a is on a GPU, but the backend is host, which takes host arrays"
    check(operands.product, vars(operands), T, words, contents)
