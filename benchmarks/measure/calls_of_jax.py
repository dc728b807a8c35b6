"""What ``calls_of_libraries.py`` times of JAX."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

#: A small product, and one whose time is that of memory; items of a batch.
SMALL, LARGE, ITEMS = 64, 4096, 64
#: Products in a chain, and in a longer one, which tells what one more of them takes.
CHAIN, LONGER = 40, 160

Rows = dict[str, Callable[[], Any]]


def rows() -> tuple[Rows, Callable[[], None], dict[str, int]]:
    """The calls, what waits for them, and how often a hundred jitted calls ask in Python."""
    import jax
    import jax.numpy as jnp

    import gemv
    from gemv.calls import jax_handlers
    from gemv.driver import tickets
    from gemv.jax import matvec

    # Of itself, a GPU multiplies matrices of float32 in TF32 for jnp: a thousandth is lost then.
    jax.config.update("jax_default_matmul_precision", "highest")
    rng = np.random.default_rng(0)
    a = jnp.asarray(rng.standard_normal((SMALL, SMALL)).astype("f"))
    x = jnp.asarray(rng.standard_normal(SMALL).astype("f"))
    y = jnp.asarray(rng.standard_normal(SMALL).astype("f"))
    two, scaled = jnp.float32(2), gemv.gemv
    theirs, ours = jax.jit(lambda a, x: jnp.matmul(a, x)), jax.jit(lambda a, x: matvec(a, x))
    nothing = empty_call(a, x)
    forms = ((2.0, a, x), (0.3, a, x), (two, a, x), (2.0, a, x, 0.3, y), (1.0, a, x, 1.0, y),
             (two, a, x, two, y))  # fmt: skip
    firsts = [np.asarray(scaled(*form)) for form in forms]
    for _ in range(3):  # bits of repeated calls, which XLA makes, are those of the first ones
        for form, first in zip(forms, firsts, strict=True):
            assert np.array_equal(scaled(*form), first), form[3:]
    for _ in range(3):
        for found in (
            ours(a, x), matvec(a, x), gemv.gemv(1.0, a, x), scaled(2.0, a, x) / 2,
            scaled(two, a, x) / 2, (scaled(2.0, a, x, 0.5, y) - y / 2) / 2,
            matvec(a, x, alpha=2.0) / 2, (matvec(a, x, y, alpha=2.0, beta=0.5) - y / 2) / 2,
        ):  # fmt: skip
            np.testing.assert_allclose(found, np.asarray(a) @ np.asarray(x), rtol=1e-3, atol=1e-4)
    several, vectors = (
        jnp.asarray(rng.standard_normal(shape).astype("f"))
        for shape in ((ITEMS, SMALL, SMALL), (ITEMS, SMALL))
    )
    products = np.einsum("kij,kj->ki", np.asarray(several), np.asarray(vectors))
    dense, right = np.asarray(a), np.asarray(x)
    for alpha in (1.0, 2.0, 0.3, 0.7, -1.5, 0.3):  # each with its own numbers, whatever came before
        for found, expected in (
            (scaled(alpha, a, x), dense @ right), (gemv.matvec(a, x, alpha=alpha), dense @ right),
            (scaled(alpha, a, x, 0.5, y) - y / 2, dense @ right),
            (gemv.vecmat(x, a, alpha=alpha), right @ dense),
            (gemv.matvec(several, vectors, alpha=alpha), products),
            (scaled(alpha, several, vectors), products),
        ):  # fmt: skip
            np.testing.assert_allclose(found, alpha * expected, rtol=1e-3, atol=1e-3)
    many = [scaled(float(alpha), a, x) for alpha in range(1, 400)]  # before the first is computed
    for alpha, found in enumerate(many, 1):
        np.testing.assert_allclose(found, alpha * (dense @ right), rtol=1e-3, atol=1e-2)
    values = itertools.count(2)
    einsum = jax.jit(partial(jnp.einsum, "kij,kj->ki"))
    blended = jax.jit(lambda a, x, y, alpha, beta: alpha * jnp.matmul(a, x) + beta * y)
    calls: Rows = {
        "jit of jnp.matmul": lambda: theirs(a, x),
        "jit of matvec": lambda: ours(a, x),
        "jnp.matmul": lambda: jnp.matmul(a, x),
        "matvec": lambda: matvec(a, x),
        "gemv.gemv of JAX": lambda: gemv.gemv(1.0, a, x),
        "gemv.gemv of JAX, alpha=2": lambda: scaled(2.0, a, x),
        "gemv.gemv of JAX, another alpha": lambda: scaled(float(next(values)), a, x),
        "gemv.matvec of JAX": lambda: gemv.matvec(a, x),
        "gemv.matvec of JAX, 64 items": lambda: gemv.matvec(several, vectors),
        "jnp.einsum, 64 items": lambda: einsum(several, vectors),
    }
    made: Rows = {
        **calls,
        "gemv.gemv of JAX, another alpha, beta, y": lambda: scaled(
            float(next(values)), a, x, 0.5, y
        ),
        "gemv.matvec of JAX, another alpha": lambda: gemv.matvec(a, x, alpha=float(next(values))),
        "gemv.vecmat of JAX": lambda: gemv.vecmat(x, a),
        "jnp.matmul of x, a": lambda: jnp.matmul(x, a),
        "gemv.gemv of JAX, 64 items": lambda: scaled(1.0, several, vectors),
        **transformed("matvec", matvec, a, x, several, vectors),
        **transformed("jnp.matmul", jnp.matmul, a, x, several, vectors),
        "gemv.gemv of JAX, alpha in memory": lambda: scaled(two, a, x),
        "gemv.gemv of JAX, alpha, beta, y": lambda: scaled(2.0, a, x, 0.5, y),
        "gemv.gemv of JAX, all in memory": lambda: scaled(two, a, x, two, y),
        "jit of alpha * jnp.matmul + beta * y": lambda: blended(a, x, y, two, two),
        "2 * jnp.matmul": lambda: 2.0 * jnp.matmul(a, x),
        "2 * jnp.matmul + y / 2": lambda: 2.0 * jnp.matmul(a, x) + 0.5 * y,
        "matvec, alpha=2": lambda: matvec(a, x, alpha=2.0),
        "matvec, alpha, beta, y": lambda: matvec(a, x, y, alpha=2.0, beta=0.5),
        "jit of a call that does nothing": nothing,
    }
    for name, call in calls.items():
        made[f"{name}, waited for"] = lambda call=call: call().block_until_ready()
    asked, right = [], jax_handlers.engines_backend.backend
    jitted = 0
    try:
        jax_handlers.engines_backend.backend = lambda: asked.append(1) or right()
        for _ in range(100):
            ours(a, x).block_until_ready()
        jitted = len(asked)
        for _ in range(100):
            scaled(float(next(values)), a, x).block_until_ready()
            gemv.matvec(several, vectors).block_until_ready()
    finally:
        jax_handlers.engines_backend.backend = right

    def wait() -> None:
        ours(a, x).block_until_ready()

    counts = {
        "questions in Python of 100 jitted calls": jitted,
        "of 100 calls with a new alpha and 100 of a batch": len(asked) - jitted,
        "tickets": int(tickets.TABLE[0]),
    }
    return made, wait, counts


def transformed(
    name: str, product: Callable[..., Any], a: Any, x: Any, several: Any, vectors: Any
) -> Rows:
    """Transformations of a product: outside of ``jit``, and ``vmap`` inside of it as well."""
    import jax

    items, of_one = (several, vectors), (a, vectors)
    mapped, shared = jax.vmap(product), jax.vmap(product, (None, 0))
    compiled, compiled_shared = jax.jit(mapped), jax.jit(shared)
    matrix, right = np.asarray(a, "d"), np.asarray(x, "d")

    def loss(a: Any, x: Any) -> Any:
        return product(a, x).sum()

    for function, operands, sums in (
        (mapped, items, "kij,kj->ki"), (compiled, items, "kij,kj->ki"),
        (shared, of_one, "ij,kj->ki"), (compiled_shared, of_one, "ij,kj->ki"),
    ):  # fmt: skip
        expected = np.einsum(sums, *(np.asarray(each, "d") for each in operands))
        for _ in range(3):
            np.testing.assert_allclose(function(*operands), expected, rtol=1e-3, atol=1e-3)
    of_a, of_x = jax.grad(loss, (0, 1))(a, x)
    np.testing.assert_allclose(of_a, np.ones((SMALL, 1)) * right, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(of_x, matrix.sum(0), rtol=1e-3, atol=1e-3)
    _, tangent = jax.jvp(product, (a, x), (a, x))
    np.testing.assert_allclose(tangent, 2 * (matrix @ right), rtol=1e-3, atol=1e-3)
    return {
        f"jit of vmap of {name}, 64 items": lambda: compiled(*items),
        f"jit of vmap of {name}, 64 vectors": lambda: compiled_shared(*of_one),
        f"vmap of {name}, 64 items": lambda: jax.vmap(product)(*items),
        f"vmap of {name}, 64 vectors": lambda: jax.vmap(product, (None, 0))(*of_one),
        f"grad of {name} by x": lambda: jax.grad(loss, 1)(a, x),
        f"grad of {name} by a and x": lambda: jax.grad(loss, (0, 1))(a, x),
        f"vjp of {name}": lambda: jax.vjp(product, a, x),
        f"jvp of {name}": lambda: jax.jvp(product, (a, x), (a, x)),
    }


#: A handler of XLA's that does nothing; Python answers where XLA asks what it is.
EMPTY = """
define i64 @empty(i64 %frame) {
  %words = inttoptr i64 %frame to i64*
  %place = getelementptr i64, i64* %words, i64 1
  %extension = load i64, i64* %place
  %executes = icmp eq i64 %extension, 0
  br i1 %executes, label %done, label %asked
asked:
  %python = inttoptr i64 ADDRESS to i64 (i64)*
  %answer = call i64 %python(i64 %frame)
  ret i64 %answer
done:
  ret i64 0
}
"""
KEPT: list[Any] = []


def empty_call(a: Any, x: Any) -> Callable[[], Any]:
    """A compiled function of which XLA calls an empty handler: what remains is XLA's own time."""
    import ctypes

    import jax
    from llvmlite import binding

    from gemv.calls import jax_frames

    answers = jax_frames.handler(lambda frame: None, jax_frames.version_in(jax.ffi.include_dir()))
    address = ctypes.cast(answers, ctypes.c_void_p).value
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    engine = binding.create_mcjit_compiler(
        binding.parse_assembly(EMPTY.replace("ADDRESS", str(address))),
        binding.Target.from_default_triple().create_target_machine(),
    )
    engine.finalize_object()
    handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(
        engine.get_function_address("empty")
    )
    KEPT.extend((answers, engine, handler))
    platform = "cpu" if jax.default_backend() == "cpu" else "CUDA"
    jax.ffi.register_ffi_target("empty", jax.ffi.pycapsule(handler), platform=platform)
    shape = jax.ShapeDtypeStruct((SMALL,), np.float32)
    compiled = jax.jit(lambda a, x: jax.ffi.ffi_call("empty", shape)(a, x, call="[1, 0]"))
    return lambda: compiled(a, x)


def chain_rows() -> Iterator[tuple[str, float]]:
    """Microseconds of one product of a chain in which each has the last one's y for its x."""
    import jax
    import jax.numpy as jnp
    from numba import cuda

    import gemv
    from gemv.jax import matvec

    rng = np.random.default_rng(1)
    host = (rng.standard_normal((LARGE, LARGE)) / LARGE**0.5).astype("f")
    x_host = rng.standard_normal(LARGE).astype("f")
    a, x = jnp.asarray(host), jnp.asarray(x_host)

    def chained(product: Callable[[Any, Any], Any], count: int) -> Callable[[], Any]:
        def run(a: Any, x: Any) -> Any:
            for _ in range(count):
                x = product(a, x)
            return x

        compiled = jax.jit(run)
        return lambda: compiled(a, x).block_until_ready()

    a_device, first, second = (cuda.to_device(each) for each in (host, x_host, x_host))
    there, back = gemv.plan(a_device, first, second), gemv.plan(a_device, second, first)

    def plans(count: int) -> None:
        for _ in range(count // 2):
            there(1.0, 0.0)
            back(1.0, 0.0)
        cuda.synchronize()

    ways = {"kernel": None, "matvec": matvec, "matmul": jnp.matmul}
    rows: dict[tuple[str, int], Callable[[], Any]] = {
        (name, count): partial(plans, count) if product is None else chained(product, count)
        for name, product in ways.items()
        for count in (CHAIN, LONGER)
    }
    best = dict.fromkeys(rows, float("inf"))
    for _ in range(12):
        for key, call in rows.items():
            start = time.perf_counter()
            call()
            best[key] = min(best[key], time.perf_counter() - start)
    for name in ways:
        short, long = 1e6 * best[name, CHAIN], 1e6 * best[name, LONGER]
        yield f"{'the kernel' if name == 'kernel' else name} in a chain, 4096", short / CHAIN
        yield f"one more {name} in a chain, 4096", (long - short) / (LONGER - CHAIN)
