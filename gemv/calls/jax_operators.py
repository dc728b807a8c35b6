"""The product as an operation of JAX's: traced, differentiated, batched, and called by XLA.

``alpha*op(A)*x`` is linear in A and in x, so both kinds of derivatives follow from two
transpositions, to any order. This file is imported only where JAX has been.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from gemv.calls import jax_again, jax_frames, jax_handlers, jax_ticketed

TARGET = "gemv_product"
_product = Primitive(TARGET)
#: XLA has their addresses: they have to live as long as the process.
_kept: list[Any] = []


def product(
    a: Any, x: Any, *, alpha: complex = 1.0, trans: int = 0, accumulate: str = "plain",
    out_dtype: Any = None, kernel: str | None = None,
) -> Any:  # fmt: skip
    """``alpha*op(a)*x`` for two arrays of one dtype that fit together.

    Each has its usual dimensions, or x has one more in front, the batch, and A may have it too.
    """
    dtype = jnp.dtype(out_dtype or a.dtype)
    conjugate = trans == 2 and jnp.iscomplexobj(a)
    if conjugate:  # no conjugate of A is written, and none of a vector rounds
        x, alpha = jnp.conj(x), alpha.conjugate()
    a, x = _alike(a, x)
    result = _product.bind(
        a, x, alpha=float(alpha.real), alpha_imag=float(alpha.imag), trans=min(trans, 1),
        accumulate=accumulate, out_dtype=dtype.name, kernel=kernel or "",
    )  # fmt: skip
    return jnp.conj(result) if conjugate else result


def _alike(a: Any, x: Any) -> tuple[Any, Any]:
    """Both operands, which differ from device to device if one of them does.

    Inside of ``jax.shard_map`` the result has the type of the operands, and so does what arrives
    for their derivatives. For an operand that was the same on all devices, JAX adds that up over
    them.
    """
    of_a, of_x = _varying(a), _varying(x)
    if of_a != of_x:
        a = jax.lax.pcast(a, tuple(of_x - of_a), to="varying")
        x = jax.lax.pcast(x, tuple(of_a - of_x), to="varying")
    return a, x


def _varying(array: Any) -> frozenset[str]:
    """The axes of the mesh along which an array differs; none outside of ``jax.shard_map``."""
    return jax.typeof(array).manual_axis_type.varying


@functools.cache
def _register(platform: str) -> None:
    """Tell XLA the handler of a platform, before it compiles for that one."""
    known = {"cpu": ("cpu", jax_ticketed.on_host), "cuda": ("CUDA", jax_ticketed.on_gpu)}
    if platform not in known:
        return  # XLA says that there is none
    name, handle = known[platform]
    handler = jax_frames.handler(handle, jax_frames.version_in(jax.ffi.include_dir()))
    _kept.append(handler)
    target = handler if platform == "cpu" else jax_again.handler(handler)
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(target), platform=name)


def _shape(a: Any, x: Any, *, trans: int, out_dtype: str, **_: Any) -> Any:
    rows = a.shape[-1] if trans else a.shape[-2]
    return (*x.shape[:-1], rows), jnp.dtype(out_dtype)


@_product.def_abstract_eval
def _abstract(a: Any, x: Any, **options: Any) -> Any:
    shape, dtype = _shape(a, x, **options)
    return x.update(shape=shape, dtype=dtype, weak_type=False)


# A factor is one of the options, and a program may have any number of these.
@functools.lru_cache(maxsize=256)
def _compiled(options: tuple) -> Any:
    def alone(a: Any, x: Any) -> Any:
        if not isinstance(a, jax.core.Tracer):
            # `jax_debug_nans` looks for the operation that made a NaN, and this is the only one.
            raise FloatingPointError(f"a result of {TARGET} is not finite")
        return _product.bind(a, x, **dict(options))

    return jax.jit(alone)


@_product.def_impl
def _eager(a: Any, x: Any, **options: Any) -> Any:
    with jax.disable_jit(False):  # XLA has to call the handler, as it computes JAX's operations
        return _compiled(tuple(options.items()))(a, x)


def register_for(context: Any) -> None:
    """Tell XLA the handlers of all platforms that something is lowered for."""
    for platform in context.module_context.platforms:
        _register(platform)


def _lowered(context: Any, a: Any, x: Any, *, out_dtype: str, **options: Any) -> Any:
    register_for(context)
    of_a, of_x = context.avals_in
    shapes = (of_a.shape, of_x.shape) if len(of_x.shape) == 2 else ()
    call = jax_handlers.written(**options, shapes=shapes)
    return jax.ffi.ffi_lowering(TARGET)(context, a, x, call=call)


mlir.register_lowering(_product, _lowered)


# Derivatives: what is linear is its own derivative, and is transposed.


def _along_a(cotangent: Any, a: Any, x: Any, **options: Any) -> Any:
    """The cotangent of A, which is an outer product."""
    alpha = _alpha(options, cotangent.dtype)
    left, right = (x, cotangent) if options["trans"] else (cotangent, x)
    dtype = a.aval.dtype
    wide = jnp.result_type(left, right)
    left, right = left.astype(wide), right.astype(wide)
    if len(a.aval.shape) == 2 and left.ndim == 2:  # one A for the batch
        found = jnp.einsum("bi,bj->ij", left, right, precision="highest")
    else:
        found = left[..., :, None] * right[..., None, :]
    return (found if alpha == 1 else found * alpha).astype(dtype)


def _along_x(cotangent: Any, a: Any, x: Any, **options: Any) -> Any:
    """The cotangent of x: the product with the other form of A."""
    options |= {"trans": 1 - options["trans"], "out_dtype": a.dtype.name}
    return _product.bind(a, cotangent.astype(a.dtype), **options)


def _alpha(options: dict[str, Any], dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return complex(options["alpha"], options["alpha_imag"])
    return options["alpha"]


def _transposed(cotangent: Any, a: Any, x: Any, **options: Any) -> Any:
    linear_a = ad.is_undefined_primal(a)
    if type(cotangent) is ad.Zero:
        return (ad.Zero(a.aval), None) if linear_a else (None, ad.Zero(x.aval))
    if linear_a:
        return _along_a(cotangent, a, x, **options), None
    return None, _along_x(cotangent, a, x, **options)


ad.primitive_transposes[_product] = _transposed
ad.defjvp(
    _product,
    lambda tangent, a, x, **options: _product.bind(tangent, x, **options),
    lambda tangent, a, x, **options: _product.bind(a, tangent, **options),
)


# Batches.


def _batched(arguments: Any, dims: Any, **options: Any) -> Any:
    """A further batch: one dimension is made of it and of the one that is there."""
    (a, x), (a_dim, x_dim) = arguments, dims
    size = x.shape[x_dim] if a_dim is None else a.shape[a_dim]
    if a_dim is not None:
        a = jnp.moveaxis(a, a_dim, 0)
    x = jnp.broadcast_to(x, (size, *x.shape)) if x_dim is None else jnp.moveaxis(x, x_dim, 0)
    inner = x.shape[1] if x.ndim == 3 else None
    if inner is not None:
        a_rank = a.ndim - (a_dim is not None)
        if a_dim is not None and a_rank == 2:  # an A for each of the outer batch
            a = jnp.broadcast_to(a[:, None], (size, inner, *a.shape[1:]))
        elif a_dim is None and a_rank == 3:
            a = jnp.broadcast_to(a[None], (size, *a.shape))
        # A length of -1 is unknown where another one is 0.
        if a.ndim == 4:
            a = a.reshape(size * inner, *a.shape[2:])
        x = x.reshape(size * inner, x.shape[-1])
    result = _product.bind(a, x, **options)
    return (result if inner is None else result.reshape(size, inner, result.shape[-1])), 0


batching.primitive_batchers[_product] = _batched
