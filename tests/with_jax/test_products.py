"""``gemv.jax`` against JAX's own products: values, derivatives, batches, and what XLA calls.

XLA calls a handler in host memory as it does on a GPU, so nothing here needs one. Where there is a
GPU, JAX puts arrays there.
"""

from __future__ import annotations

import re
import sys
from functools import partial

import numpy as np
import pytest
from helpers import processes
from helpers.combinations import of_all
from helpers.problems import ALL_ROWS

import gemv

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp  # noqa: E402
from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

from gemv.jax import matvec  # noqa: E402

OPS = [lambda a: a, lambda a: a.T, lambda a: a.conj().T]


@pytest.fixture
def rng():
    return np.random.default_rng(11)


def array(rng, *shape, dtype="float64"):
    values = rng.standard_normal(shape)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        values = values + 1j * rng.standard_normal(shape)
    return jnp.asarray(values).astype(dtype)


def close(found, expected, dtype="float64"):
    assert found.dtype == expected.dtype and found.shape == expected.shape
    rtol = 1e-4 if jnp.dtype(dtype) in (jnp.float32, jnp.complex64) else 1e-11
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("trans", ["N", "T", "C"])
def test_values_are_those_of_jax(rng, dtype, trans):
    rows, cols = (17, 30) if trans == "N" else (30, 17)
    a, x, y = (array(rng, *shape, dtype=dtype) for shape in ((17, 30), (cols,), (rows,)))
    alpha, beta = (2 - 1j, 0.5j) if a.dtype.kind == "c" else (2.0, -0.5)
    expected = OPS["NTC".index(trans)](a) @ x
    close(matvec(a, x, trans=trans), expected, dtype)
    both = (alpha * expected + beta * y).astype(dtype)
    close(matvec(a, x, y, alpha=alpha, beta=beta, trans=trans), both, dtype)
    close(matvec(a, x, y, trans=trans), expected + y, dtype)

    @jax.jit
    def compiled(a, x, y, alpha, beta):
        return matvec(a, x, y, alpha=alpha, beta=beta, trans=trans)

    close(compiled(a, x, y, alpha, beta), both, dtype)


def test_the_host_computes_and_traces_see_it(rng, without_gpu):
    a, x = array(rng, 4, 3), array(rng, 3)
    step = jax.jit(lambda a, x: matvec(a, x).sum())
    for _ in range(2):
        with gemv.trace() as calls:
            step(a, x).block_until_ready()
        assert [(call.backend, call.kernel) for call in calls] == [("host", "dgemv")]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_numbers_are_added_up_in_float32(rng, dtype):
    a, x = array(rng, 9, 40, dtype=dtype), array(rng, 40, dtype=dtype)
    wide = a.astype("float32") @ x.astype("float32")
    close(matvec(a, x, out_dtype="float32"), wide, "float32")
    assert jnp.array_equal(matvec(a, x), matvec(a, x, out_dtype="float32").astype(dtype))
    of_a, of_x = jax.grad(lambda a, x: matvec(a, x, out_dtype="float32").sum(), (0, 1))(a, x)
    assert of_a.dtype == of_x.dtype == dtype


def test_wide_sums(rng):
    a, x = array(rng, 9, 40, dtype="float32"), array(rng, 40, dtype="float32")
    expected = (a.astype("float64") @ x.astype("float64")).astype("float32")
    assert jnp.array_equal(jax.jit(lambda a, x: matvec(a, x, accumulate="wide"))(a, x), expected)


def test_an_empty_sum_is_0():
    assert matvec(jnp.ones((3, 0)), jnp.ones(0)).tolist() == [0] * 3
    assert matvec(jnp.ones((3, 0)), jnp.ones(0), jnp.ones(3), beta=2.0).tolist() == [2] * 3
    nan = jnp.full(3, jnp.nan)
    for call in (matvec, jax.jit(matvec, static_argnames="beta")):
        assert call(jnp.ones((3, 0)), jnp.ones(0), nan, beta=0).tolist() == [0] * 3
    blas = jax.jit(lambda a, y: gemv.gemv(1.0, a, y[:1], 2.0, y))
    assert blas(jnp.ones((3, 0)), jnp.ones(3)).tolist() == [1] * 3


def test_an_alpha_of_0_reads_no_x():
    a, x, y = jnp.ones((3, 2)), jnp.full(2, jnp.nan), jnp.arange(3.0)
    assert matvec(a, x, alpha=np.float32(0)).tolist() == [0.0] * 3
    for call in (matvec, jax.jit(matvec, static_argnames="alpha")):
        assert call(a, x, alpha=0.0).tolist() == [0.0] * 3
        assert call(a, x, y, alpha=0, beta=2.0).tolist() == [0.0, 2.0, 4.0]


def test_a_beta_of_0_reads_no_y(rng):
    a, x, nan = array(rng, 4, 3), array(rng, 3), jnp.full(4, jnp.nan)
    for call in (matvec, jax.jit(matvec, static_argnames="beta")):
        close(call(a, x, nan, beta=0), a @ x)
    blas = jax.jit(lambda a, x, y: gemv.gemv(1.0, a, x, 0.0, y))
    close(blas(a, x, nan), a @ x)


def test_a_constant_is_multiplied_inside_of_the_product(rng):
    """A function that has alpha as a number reads and writes y once, not once more for alpha.

    The program is looked at, where all that is called inside of it has its place.
    """
    a, xs = array(rng, 7, 5, dtype="complex128"), array(rng, 3, 5, dtype="complex128")
    for alpha, steps in ((0.3 - 1.7j, []), (jnp.asarray(0.3 - 1.7j), ["multiply"])):
        product = partial(matvec, alpha=alpha)
        for step, x in ((product, xs[0]), (jax.vmap(product, (None, 0)), xs)):
            program = jax.jit(step).lower(a, x).as_text()
            names = r"stablehlo\.custom_call @(\w+)|stablehlo\.(multiply)|(call) @"
            found = ["".join(each) for each in re.findall(names, program)]
            assert found == ["gemv_product", *steps]


def test_numbers_that_change_do_not_compile_anew(rng):
    a, x = array(rng, 4, 3), array(rng, 3)
    found = [matvec(a, x, alpha=2.0)]
    with jax.log_compiles(True), pytest.MonkeyPatch.context() as patch:
        said = []
        patch.setattr("logging.Logger.log", lambda *arguments: said.append(arguments))
        found += [matvec(a, x, alpha=alpha) for alpha in (3.0, 4.5, -1.0)]
        assert not said
    for alpha, result in zip((2.0, 3.0, 4.5, -1.0), found, strict=True):
        close(result, alpha * (a @ x))


# Derivatives and batches ------------------------------------------------------------------------


def is_derived(trans, dtype):
    # to real numbers, 2 is 1; without a transpose, a complex number has what a real one has
    return ALL_ROWS or (trans == 1) == (dtype == "float64")


@of_all(is_derived, trans=(0, 1, 2), dtype=("float64", "complex128"))
def test_derivatives_of_two_orders(rng, dtype, trans):
    rows, cols = (3, 4) if trans else (4, 3)
    a, x, y = (array(rng, *shape, dtype=dtype) for shape in ((4, 3), (cols,), (rows,)))
    alpha = 2 - 1j if dtype == "complex128" else 2.0
    check_grads(lambda a, x: matvec(a, x, alpha=alpha, trans=trans), (a, x), order=2)
    numbers = jnp.asarray(alpha), jnp.asarray(alpha)
    check_grads(
        lambda a, x, y, alpha, beta: matvec(a, x, y, alpha=alpha, beta=beta, trans=trans),
        (a, x, y, *numbers), order=1,
    )  # fmt: skip


TRANSFORMED = {
    "hessian": lambda mv: jax.hessian(lambda x, a: (mv(a, x) ** 3).sum()),
    "jacfwd_of_jacrev_of_a": lambda mv: jax.jacfwd(
        jax.jacrev(lambda x, a: (mv(a, x) ** 2).sum(), 1), 0
    ),
    "linearize": lambda mv: lambda x, a: jax.linearize(mv, a, x)[1](a, x),
    "remat": lambda mv: jax.grad(lambda x, a: jax.checkpoint(mv)(a, jnp.sin(x)).sum()),
    "scan": lambda mv: lambda x, a: jax.lax.scan(lambda y, _: (mv(a, y), y), x, None, 3)[0],
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transformations_see_through(rng, name):
    a, x = array(rng, 3, 3), array(rng, 3)
    make = TRANSFORMED[name]
    expected = make(jnp.matmul)(x, a)
    close(make(matvec)(x, a), expected)
    close(jax.jit(make(matvec))(x, a), expected)


#: Where the batch dimensions of A and x are, from the outermost vmap on, and how many there are.
BATCHES = [
    ((None, 0),), ((0, None),), ((0, 0),), ((1, 1),), ((None, 0), (None, 0)), ((0, 0), (0, 0)),
    ((0, None), (None, 0)), ((None, 0), (0, None)), ((0, 0), (0, None)), ((None, 0), (0, 0)),
    ((None, 1), (None, 0)),
]  # fmt: skip


def sizes_of(number, axes):
    """Of each dimension: full ones, and an empty one: the outer or the inner one, in turn.

    Either of them is empty if all rows are asked for.
    """
    if len(axes) == 1:
        return [(2,), (0,)]
    empty = [(0, 3), (2, 0)]
    return [(2, 3), *(empty if ALL_ROWS else [empty[number % 2]])]


@pytest.mark.parametrize("axes, sizes", [
    (axes, sizes) for number, axes in enumerate(BATCHES) for sizes in sizes_of(number, axes)
], ids=str)  # fmt: skip
def test_batches(rng, axes, sizes):
    shapes = [[4, 3], [3]]
    for size, places in reversed(list(zip(sizes, axes, strict=True))):
        for shape, place in zip(shapes, places, strict=True):
            if place is not None:
                shape.insert(place, size)
    operands = [array(rng, *shape) for shape in shapes]

    def batched(product):
        for places in reversed(axes):
            product = jax.vmap(product, places)
        return product

    close(batched(matvec)(*operands), batched(jnp.matmul)(*operands))
    found, expected = (
        jax.jit(jax.grad(lambda a, x, mv=mv: (batched(mv)(a, x) ** 2).sum(), (0, 1)))(*operands)
        for mv in (matvec, jnp.matmul)
    )
    close(found[0], expected[0])
    close(found[1], expected[1])


def test_an_item_of_a_batch_has_the_bits_that_it_has_alone(rng):
    a, xs = array(rng, 50, 70, dtype="float32"), array(rng, 4, 70, dtype="float32")
    alone = jnp.stack([matvec(a, x) for x in xs])
    with gemv.trace() as calls:
        assert jnp.array_equal(jax.vmap(matvec, (None, 0))(a, xs), alone)
    assert len(calls) == (4 if jax.default_backend() == "cpu" else 1)


def test_shards_are_multiplied_where_they_are(rng):
    # JAX's CPU is two devices here, and may stand beside a single GPU.
    devices = jax.devices() if jax.device_count() > 1 else jax.devices("cpu")
    mesh = jax.make_mesh((2,), ("rows",), devices=devices[:2])
    rows = PartitionSpec("rows", None)
    a = jax.device_put(array(rng, 6, 3), NamedSharding(mesh, rows))
    x = jax.device_put(array(rng, 3), NamedSharding(mesh, PartitionSpec()))
    sharded = jax.jit(
        jax.shard_map(
            lambda a, x: matvec(a, x),
            mesh=mesh,
            in_specs=(rows, PartitionSpec()),
            out_specs=PartitionSpec("rows"),
        )  # fmt: skip
    )
    close(sharded(a, x), np.asarray(a) @ np.asarray(x))


def of_shards(product, of_a, of_x, of_y):
    """The same for parts that lie on two devices: rows of what is cut."""
    devices = jax.devices() if jax.device_count() > 1 else jax.devices("cpu")
    automatic = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((2,), ("rows",), axis_types=automatic, devices=devices[:2])
    specs = PartitionSpec(of_a, None), PartitionSpec(of_x), PartitionSpec(of_y)
    return jax.shard_map(product, mesh=mesh, in_specs=specs[:2], out_specs=specs[2])


CUTS = [("rows", None), (None, "rows"), ("rows", "rows"), (None, None)]


@pytest.mark.parametrize("of_a, of_x", CUTS, ids=str)
def test_derivatives_inside_of_shards(of_a, of_x, rng):
    a, x = array(rng, 6, 3), array(rng, 6 if of_x else 3)
    of_y = of_a or of_x

    def gradients(product):
        sharded = of_shards(product, of_a, of_x, of_y)
        return jax.grad(lambda *each: (sharded(*each) ** 2).sum(), (0, 1))(a, x)

    found, expected = gradients(matvec), gradients(jnp.matmul)
    close(found[0], expected[0])
    close(found[1], expected[1])
    batched = of_shards(jax.vmap(matvec, (None, 1), 1), of_a, of_x, of_y)
    columns = jnp.stack([x, 2 * x], 1)
    alone = of_shards(matvec, of_a, of_x, of_y)
    assert jnp.array_equal(batched(a, columns)[:, 1], alone(a, 2 * x))


@pytest.mark.parametrize("of_a, of_x", CUTS, ids=str)
def test_a_result_that_differs_is_not_taken_for_the_same_on_all_devices(of_a, of_x, rng):
    a, x = array(rng, 6, 3), array(rng, 6 if of_x else 3)
    replicated = of_shards(matvec, of_a, of_x, None)
    if of_a or of_x:
        with pytest.raises(ValueError, match="rows"):
            replicated(a, x)
    else:
        close(replicated(a, x), a @ x)


#: Threads enqueue calls that XLA runs in threads of its own, each of which takes Python's lock.
THREADS = """
import threading
import jax, jax.numpy as jnp, numpy as np
from gemv.jax import matvec
a, x = jnp.arange(3000.0).reshape(60, 50) / 3000, jnp.ones(50)
step = jax.jit(lambda x: a.T @ matvec(a, x) / 9)
expected, wrong = np.asarray(step(step(step(x)))), []
def work():
    for _ in range(20):
        if not np.array_equal(step(step(step(x))), expected):
            wrong.append(1)
threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert not wrong
"""


def test_threads_call_at_the_same_time():
    done = processes.run([sys.executable, "-c", THREADS], timeout=120)
    assert done.returncode == 0


def test_ctrl_c_inside_of_a_product(rng, without_gpu, monkeypatch):
    """XLA is told, as nothing of Python's passes through it, and the next call is right."""
    a, x = array(rng, 4, 3), array(rng, 3)
    compiled = jax.jit(lambda a, x: jnp.sin(matvec(a, x)))
    close(compiled(a, x), jnp.sin(a @ x))

    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("gemv.engines.host.compute", interrupted)
        for call in (compiled, matvec):
            with pytest.raises(Exception, match="KeyboardInterrupt"):
                call(a, x).block_until_ready()
    close(compiled(a, x), jnp.sin(a @ x))
    close(matvec(a, x), a @ x)


# The drop-in --------------------------------------------------------------------------------------


def test_gemv_is_traced(rng):
    a, x, y = array(rng, 4, 3), array(rng, 9), array(rng, 11)
    options = {"offx": 1, "incx": -2, "offy": 2, "incy": 2}

    def call(alpha, a, x, beta, y):
        return gemv.gemv(alpha, a, x, beta, y, **options)

    expected = gemv.gemv(2.0, *(np.asarray(part) for part in (a, x)), 0.5, np.asarray(y), **options)
    close(jax.jit(call)(2.0, a, x, 0.5, y), jnp.asarray(expected))
    new = gemv.gemv(2.0, np.asarray(a), np.asarray(x), **options)
    close(jax.jit(lambda a, x: gemv.gemv(2.0, a, x, **options))(a, x), jnp.asarray(new))
    # Of an x that is longer than it has to be, the rest is not used.
    gradient = jax.grad(lambda x: gemv.dgemv(1.0, a, x, trans="N").sum())(x[:5])
    close(gradient, jnp.concatenate([a.sum(0), jnp.zeros(2)]))
    constant = np.asarray(a)
    close(jax.jit(lambda x: gemv.gemv(1.0, constant, x))(x[:3]), a @ x[:3])


@pytest.mark.parametrize("has_y", [False, True])
def test_increments_of_minus_1_begin_at_the_far_end(rng, has_y):
    a, x, y = array(rng, 4, 3), array(rng, 3), array(rng, 4)
    beta, y = (0.5, y) if has_y else (0.0, None)

    def call(a, x, y):
        return gemv.gemv(2.0, a, x, beta, y, incx=-1, incy=-1)

    expected = call(np.asarray(a), np.asarray(x), None if y is None else np.asarray(y))
    close(jax.jit(call)(a, x, y), jnp.asarray(expected))


REFUSED = {
    "rank_of_a": (lambda a, x: matvec(x, x), ValueError, r"matvec: a must have two dimensions"),
    "length": (lambda a, x: matvec(a, x[:2]), ValueError, "x must have 3 elements .*got 2"),
    "dtypes": (lambda a, x: matvec(a, x.astype("float32")), TypeError, "x must have the dtype of"),
    "integers": (lambda a, x: matvec(a.astype(int), x.astype(int)), TypeError, "dtype int64"),
    "list": (lambda a, x: matvec(a, [1.0]), TypeError, "x must be an array of JAX's, got list"),
    "complex": (lambda a, x: matvec(a, x, alpha=1j), TypeError, "alpha must be real"),
    "vector": (lambda a, x: matvec(a, x, alpha=x), TypeError, "alpha must be a number or an array"),
    "trans": (lambda a, x: matvec(a, x, trans=5), ValueError, "trans must be .*got 5"),
    "out_dtype": (lambda a, x: matvec(a, x, out_dtype="int8"), TypeError, "out_dtype must be"),
    "y": (lambda a, x: matvec(a, x, x), ValueError, "y must have 4 elements .*got 3"),
    "routine": (lambda a, x: gemv.sgemv(1, a, x), TypeError, "sgemv: a has dtype float64 but"),
    "stream": (lambda a, x: gemv.gemv(1, a, x, stream=1), TypeError, "stream cannot be kept"),
    "limit": (
        lambda a, x: gemv.gemv(1, a, x, device_memory_limit=9), TypeError, "limit cannot be kept",
    ),
    "plan": (lambda a, x: gemv.plan(a, x), TypeError, r"a is traced by JAX .*gemv\.jax\.matvec"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_errors_name_argument_rule_and_value(rng, name):
    call, kind, words = REFUSED[name]
    with pytest.raises(kind, match=words):
        jax.jit(call)(array(rng, 4, 3), array(rng, 3))


@pytest.mark.parametrize("options", [{"accumulate": "wide"}, {"kernel": "vector_rows"}], ids=str)
def test_errors_of_a_running_program_reach_the_caller(rng, options, without_gpu):
    a, x = array(rng, 4, 3), array(rng, 3)
    with pytest.raises(Exception, match=r"gemv\.jax\.matvec: .* needs a GPU, but a is in host"):
        jax.jit(lambda a, x: matvec(a, x, **options))(a, x).block_until_ready()


def test_programs_for_factors_that_change_are_not_kept_for_ever(rng):
    """Outside of ``jit`` a derivative has one for each alpha."""
    a, x = array(rng, 4, 3), array(rng, 3)
    compiled = sys.modules["gemv.calls.jax_operators"]._compiled
    before = compiled.cache_info().misses
    for alpha in (1.25, 1.5):
        jax.grad(lambda x, alpha=alpha: matvec(a, x, alpha=alpha).sum())(x)
    assert compiled.cache_info().misses == before + 2
    for number in range(1000):
        compiled((("alpha", float(number)),))  # which compiles nothing before it is called
    assert compiled.cache_info().currsize < 500
    compiled.cache_clear()


@pytest.mark.parametrize("call", ["matvec", "grad", "vmap", "scan"])
def test_a_product_is_an_operation_where_jit_is_disabled(rng, call):
    a, x = array(rng, 4, 4), array(rng, 4)
    calls = {
        "matvec": lambda product: product(a, x),
        "grad": lambda product: jax.grad(lambda x: product(a, x).sum())(x),
        "vmap": lambda product: jax.vmap(product)(a[None], x[None]),
        "scan": lambda product: jax.lax.scan(lambda x, _: (product(a, x), 0), x, length=2)[0],
    }
    with jax.disable_jit():
        close(calls[call](matvec), calls[call](jnp.matmul))


@pytest.mark.parametrize("compiled", [False, True])
def test_debugging_finds_the_product_that_is_no_number(compiled):
    a, x = jnp.zeros((3, 2)), jnp.asarray([np.inf, 1.0])
    call = jax.jit(matvec) if compiled else matvec
    with jax.debug_nans(True):
        assert call(a, jnp.ones(2)).tolist() == [0] * 3
        with pytest.raises(FloatingPointError, match="gemv_product is not finite"):
            call(a, x)


def test_importing_gemv_does_not_load_jax():
    code = "import sys, gemv; gemv.gemv; assert 'jax' not in sys.modules; import gemv.jax"
    assert processes.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_eager_calls_on_arrays_in_host_memory():
    """Results hold what was computed, also where JAX copies memory that it is handed."""
    a = jnp.arange(30.0, dtype=jnp.float32).reshape(5, 6)
    x, y = jnp.ones(6, jnp.float32), jnp.full(5, 2.0, jnp.float32)
    expected = np.asarray(a) @ np.ones(6, np.float32)
    for call, exact in (
        (lambda: gemv.gemv(1, a, x), expected),
        (lambda: gemv.gemv(2, a, x, 1, y, overwrite_y=1), 2 * expected + 2),
        (lambda: gemv.sgemv(1, a, x), expected),
        (lambda: gemv.matvec(a[None], x)[0], expected),
        (lambda: gemv.gemv(1, jnp.stack([a, a]), x, 1, jnp.stack([y, y]))[1], expected + 2),
        (lambda: gemv.gemv_batched(1, [a, a[:2]], [x, x])[0], expected),
        (lambda: gemv.gemv_batched(1, [a, a[:2]], [x, x], 3, [y, y[:2]])[1], expected[:2] + 6),
        (lambda: gemv.Batch([a, a]) @ [x, x], [expected, expected]),
        (lambda: gemv.Batch([a]) @ x, expected),
    ):
        found = call()
        assert np.array_equal(np.asarray(found), exact)
        assert all(
            isinstance(each, jax.Array) for each in (found if type(found) is list else [found])
        )
