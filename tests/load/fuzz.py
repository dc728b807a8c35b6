"""Random calls of the families around one product, each result held against NumPy's.

    python tests/load/fuzz.py --seconds 600
    python tests/load/fuzz.py --family batches --seed 1234 --cases 1 --backend host

A case is a shape, layouts, values, factors and a way to call, all of which follow from its family
and its seed. Numbers are small and whole, or such numbers times the smallest one of the dtype, so
that every order of sums gives the same result, and it is compared for equality. Some have NaN or
an infinity in them: then each element of the result has to be of the kind that NumPy's is. What
lies between and around the elements of a result has to stay as it is.

The status is 1 if a case fails; its family and its seed are told, with which it can be repeated.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import gemv

GUARD = 77.0
as_strided = np.lib.stride_tricks.as_strided


# Values and layouts -----------------------------------------------------------------------------


def values(rng, shape, dtype, tiny=False):
    """Whole numbers, some of them -0.0; with `tiny`, times the smallest number of the dtype."""
    dtype = np.dtype(dtype)
    found = rng.integers(-4, 5, shape).astype(float)
    found = np.where(rng.random(shape) < 0.1, -0.0, found)
    if dtype.kind == "c":
        found = found + 1j * rng.integers(-4, 5, shape)
    scale = np.finfo(dtype).smallest_subnormal.astype(float) if tiny else 1.0
    return (found * float(scale)).astype(dtype)


def spoiled(rng, array):
    """Some elements become NaN or infinite; the array itself is changed."""
    count = 1 + rng.integers(0, 2)
    for _ in range(count if array.size else 0):
        place = tuple(rng.integers(0, length) for length in array.shape)
        array[place] = rng.choice([np.nan, np.inf, -np.inf])
    return array


def laid_out(rng, array):
    """The same values in other memory: gaps, negative strides, another order, an odd address."""
    guarded = rng.integers(0, 2, array.ndim)
    steps = rng.choice([1, 1, 1, 2, 3, -1, -2], array.ndim)
    order = rng.permutation(array.ndim)
    lengths = [array.shape[k] * abs(steps[k]) + 2 * guarded[k] for k in order]
    whole = np.full(lengths, GUARD, array.dtype)
    if rng.random() < 0.2:  # begins at an odd multiple of the element
        flat = np.full(whole.size + 1, GUARD, array.dtype)
        whole = flat[1:].reshape(whole.shape)
    view = whole.transpose(np.argsort(order))
    view = view[
        tuple(slice(g, g + n * abs(s)) for g, n, s in zip(guarded, array.shape, steps, strict=True))
    ][tuple(slice(None, None, s) for s in steps)]
    assert view.shape == array.shape
    view[...] = array
    return view, whole


def shared(rng, shape):
    """Some leading lengths become 1, and some leading dimensions are left away."""
    found = tuple(1 if rng.random() < 0.3 else length for length in shape)
    return found[rng.integers(0, len(found) + 1) :]


def side(rng, most):
    """A length: often small, sometimes 0 or 1."""
    chance = rng.random()
    return 0 if chance < 0.06 else 1 if chance < 0.2 else int(rng.integers(2, most + 1))


def check(found, expected, dtype, words):
    """Equal where numbers are finite, and of the same kind elsewhere."""
    found = np.asarray(found)
    assert found.shape == expected.shape, (words, found.shape, expected.shape)
    assert found.dtype == dtype, (words, found.dtype, dtype)
    with np.errstate(all="ignore"):
        expected = expected.astype(dtype)
    finite = np.isfinite(expected)
    assert np.array_equal(found[finite], expected[finite]), words
    if np.dtype(dtype).kind == "c":
        assert not np.isfinite(found[~finite]).any(), words
    else:
        assert np.array_equal(found[~finite], expected[~finite], equal_nan=True), words


def scaled(alpha, product, beta, y):
    """``alpha*product + beta*y``, where a factor of 0 reads nothing."""
    alpha, beta = (np.asarray(each)[..., None] for each in (alpha, beta))
    with np.errstate(all="ignore"):
        first = np.where(alpha == 0, 0.0, alpha * product)
        return first if y is None else first + np.where(beta == 0, 0.0, beta * y)


def summed(a, x):
    """Products of each row and x in double precision, with NaN and infinities as IEEE has them."""
    wide = "D" if "c" in (a.dtype.kind, x.dtype.kind) else "d"
    with np.errstate(all="ignore"):
        return (a.astype(wide) * x.astype(wide)[..., None, :]).sum(-1)


def factor(rng, dtype, leading=()):
    """A number for all items, or an array of them."""
    number = float(rng.choice([0.0, 1.0, -1.0, 2.0, 3.0]))
    if not leading or rng.random() < 0.7:
        return number
    wide = {"e": "f"}.get(np.dtype(dtype).char, dtype)
    return rng.choice([0.0, 1.0, 2.0, -1.0], shared(rng, leading)).astype(wide)


def on_device(array):
    from numba import cuda

    return cuda.to_device(np.ascontiguousarray(array))


def apart_on_device(rng, array):
    """A device array with these values, perhaps with gaps along one axis, and all its memory."""
    axis = int(rng.integers(0, max(array.ndim, 1)))
    if not array.ndim or rng.random() < 0.5 or not array.size:  # Numba cuts no empty array
        return (on_device(array),) * 2
    lengths = list(array.shape)
    lengths[axis] *= 2
    whole = np.full(lengths, GUARD, array.dtype)
    index = (slice(None),) * axis + (slice(None, None, 2),)
    whole[index] = array
    there = on_device(whole)
    return there[index], there


def host(array):
    return array.copy_to_host() if hasattr(array, "copy_to_host") else np.asarray(array)


# Families ---------------------------------------------------------------------------------------


def batches(rng):
    """``matvec``, ``vecmat`` and ``gemv`` with leading dimensions, on host and device arrays."""
    simulated = gemv.backend() != "host"
    dtype = np.dtype(rng.choice(list("fdFDe")))
    leading = tuple(side(rng, 3) for _ in range(rng.integers(0, 4)))
    m, n = side(rng, 12 if simulated else 40), side(rng, 12 if simulated else 40)
    routine = rng.choice(["matvec", "vecmat", "gemv"])
    trans = int(rng.integers(0, 3)) if routine == "gemv" else int(routine == "vecmat")
    if routine == "gemv":
        leading, m, n = leading or (2,), max(m, 1), max(n, 1)
    rows, cols = (m, n) if trans == 0 else (n, m)
    tiny = dtype != "e" and rng.random() < 0.15
    a = values(rng, (*shared(rng, leading), m, n), dtype)
    x = values(rng, (*shared(rng, leading), cols), dtype, tiny)
    if routine == "gemv" and a.ndim == 2:
        a = a[None]
    if rng.random() < 0.2:
        spoiled(rng, a if rng.random() < 0.5 else x)
    alpha, beta = factor(rng, dtype, leading), factor(rng, dtype, leading)
    shapes = [a.shape[:-2], x.shape[:-1], *(np.shape(each) for each in (alpha, beta))]
    batch = np.broadcast_shapes(*shapes)
    has_out = rng.random() < 0.6
    if not has_out:
        beta, batch = 0.0, np.broadcast_shapes(*shapes[:3])
    old = values(rng, (*batch, rows), dtype, tiny)
    if np.ndim(beta) == 0 and beta == 0 and old.size and rng.random() < 0.5:
        old[...] = np.nan  # is not read
    op = a if trans == 0 else a.swapaxes(-1, -2)
    op = op.conj() if trans == 2 else op
    vector = x.conj() if routine == "vecmat" else x
    expected = scaled(alpha, summed(op, vector), beta, old if has_out else None)
    expected = np.broadcast_to(expected, (*batch, rows)) if expected.size else expected
    expected = expected.reshape(*batch, rows)
    words = (routine, trans, dtype.char, a.shape, x.shape, batch, alpha, beta)

    there = simulated and rng.random() < 0.4
    step = -1 if routine == "gemv" and rng.random() < 0.3 else 1
    given_x = x[..., ::step]
    if there:
        (a, _), (given_x, _) = apart_on_device(rng, a), apart_on_device(rng, given_x)
        out, whole = apart_on_device(rng, old) if has_out else (None, None)
        alpha, beta = (on_device(f) if np.ndim(f) else f for f in (alpha, beta))
    else:
        (a, _), (given_x, _) = laid_out(rng, a), laid_out(rng, given_x)
        out, whole = laid_out(rng, old) if has_out else (None, None)
    before = None if whole is None else host(whole).copy()
    if routine == "gemv":
        overwrite = int(has_out and rng.random() < 0.7)
        got = gemv.gemv(alpha, a, given_x, beta, out, incx=step, trans=trans, overwrite_y=overwrite)
        if has_out and not overwrite:
            assert host(whole).tobytes() == before.tobytes(), ("y was changed", words)
    else:
        overwrite = has_out
        arguments = (a, given_x) if routine == "matvec" else (given_x, a)
        got = getattr(gemv, routine)(*arguments, out, alpha=alpha, beta=beta)
        assert out is None or got is out, words
    check(host(got), expected, dtype, words)
    if overwrite and there:
        gaps = host(whole)
        gaps = gaps[..., 1::2] if gaps.shape[-1:] != old.shape[-1:] else gaps[:0]
        assert (gaps == GUARD).all(), ("memory between elements of out was changed", words)
    elif overwrite:
        out[...] = old
        assert whole.tobytes() == before.tobytes(), ("memory around out was changed", words)


def view(rng, memory, shape):
    """A view of a piece of memory, of float64, with any strides; None where it does not fit."""
    steps = [int(rng.integers(1, 8)) * int(rng.choice([1, 1, -1])) for _ in shape]
    reach = [(length - 1) * step for length, step in zip(shape, steps, strict=True)]
    low, high = (sum(f(r, 0) for r in reach) for f in (min, max))
    if high - low >= memory.size:
        return None
    start = int(rng.integers(-low, memory.size - high))
    return as_strided(memory[start:], shape, [8 * step for step in steps])


def aliases(rng):
    """Views of one piece of memory for a, x and out: wrong results are never returned."""
    memory = values(rng, 60, "d")
    kept = memory.copy()
    items, m, n = (int(rng.integers(1, 4)) for _ in range(3))

    a, x, out = (view(rng, memory, each) for each in ((items, m, n), (items, n), (items, m)))
    if a is None or x is None or out is None:
        return
    expected = summed(a, x)
    own = len({*offsets(out, memory)}) < out.size
    meets = own or np.shares_memory(out, a) or np.shares_memory(out, x)
    words = (a.strides, x.strides, out.strides, meets)
    try:
        gemv.matvec(a, x, out)
    except ValueError as error:
        assert "overlaps" in str(error) or "share elements" in str(error), words
        assert memory.tobytes() == kept.tobytes(), ("memory was changed", words)
        return
    assert not meets, ("an overlap was not seen", words)
    check(out, expected, np.dtype("d"), words)


def offsets(array, memory):
    start = array.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
    for index in itertools.product(*map(range, array.shape)):
        yield start + sum(i * s for i, s in zip(index, array.strides, strict=True))


def columns(rng):
    """Several vectors times one ``gemv.Matrix``, each with the bits that it has alone."""
    dtype = np.dtype(rng.choice(list("fdFD")))
    m, n, k = side(rng, 20), side(rng, 20), int(rng.integers(0, 5))
    a, x = values(rng, (m, n), dtype), values(rng, (n, k), dtype, rng.random() < 0.15)
    z = values(rng, (m, k), dtype)
    if rng.random() < 0.2:
        spoiled(rng, x)
    (given, _), (given_x, _), (given_z, _) = (laid_out(rng, each) for each in (a, x, z))
    words = (dtype.char, m, n, k, given.strides, given_x.strides)
    with gemv.Matrix(given) as matrix:
        for form, op, right in (
            (matrix, a, (given_x, x)),
            (matrix.H, a.conj().T, (given_z, z)),
            (matrix.T, a.T, (given_z, z)),
        ):
            got = form @ right[0]
            expected = summed(op[None], right[1].T).T if k else np.zeros((op.shape[0], 0))
            check(got, expected.reshape(op.shape[0], k), dtype, (words, form.shape))
            for column in range(min(k, 1)):
                alone = form @ np.ascontiguousarray(right[1][:, column])
                same = np.ascontiguousarray(got[:, column]).tobytes() == alone.tobytes()
                assert same, ("other bits alone", words)
        assert np.array_equal(given, a), "the matrix was changed"


def shards(rng):
    """One matrix on several devices, of which the simulator has any number."""
    dtype = np.dtype(rng.choice(list("fdFD")))
    m, n, count = side(rng, 20), side(rng, 20), int(rng.integers(1, 5))
    a = values(rng, (m, n), dtype)
    (given, _) = laid_out(rng, a)
    split = rng.choice(["rows", "columns"])
    reproducible = bool(rng.random() < 0.5)
    gather = rng.choice(np.array(["x", "all", None, 0], object))
    cuts = None
    if rng.random() < 0.4:
        axis = int(rng.integers(0, 2))
        cuts = sorted(rng.integers(0, a.shape[axis] + 1, count - 1).tolist())
        order = rng.choice(["C", "F"])
        parts = [np.array(part, order=order) for part in np.split(a, cuts, axis)]
        if gemv.backend() != "host":
            from numba import cuda

            parts = [cuda.to_device(part) for part in parts]
        try:
            several = gemv.sharded(parts, axis, gather=gather, reproducible=reproducible)
        except ValueError as error:
            assert reproducible and "bits of one device" in str(error), error
            return
    else:
        several = gemv.Matrix(
            given, devices=[0] * count, split=split, gather=gather, reproducible=reproducible
        )
    words = (dtype.char, m, n, count, split, reproducible, gather, cuts, given.strides)
    with several:
        for form, op in ((several, a), (several.T, a.T), (several.H, a.conj().T)):
            x = values(rng, op.shape[1], dtype, rng.random() < 0.15)
            expected = summed(op, x)
            there = gemv.backend() != "host" and rng.random() < 0.4
            try:
                got = form @ (on_device(x) if there else laid_out(rng, x)[0])
            except ValueError as error:
                assert reproducible and "bits of one device" in str(error), (error, words)
                continue
            if isinstance(got, list):
                got = [host(part) for part in got]
                got = np.concatenate(got) if gather is None else got[0]
            check(host(got), expected, dtype, (words, form.shape))


def tensors(rng):
    """``gemv.torch.mv`` and ``addmv`` on tensors in host memory, of any strides."""
    import torch

    import gemv.torch

    dtype = np.dtype(rng.choice(list("fdFDe")))
    m, n, trans = side(rng, 30), side(rng, 30), int(rng.integers(0, 3))
    rows, cols = (m, n) if trans == 0 else (n, m)
    a, x, y = (values(rng, shape, dtype) for shape in ((m, n), cols, rows))
    if rng.random() < 0.2:
        spoiled(rng, x)

    def tensor(array):
        lazy = dtype.kind == "c" and rng.random() < 0.3
        made = torch.from_numpy((array.conj() if lazy else array).copy())
        for axis in range(made.dim()):
            if rng.random() < 0.3:
                made = made.repeat_interleave(2, axis)
                made = made[::2] if axis == 0 else made[:, ::2]
        if made.dim() == 2 and rng.random() < 0.5:
            made = made.T.contiguous().T
        return made.conj() if lazy else made

    alpha, beta = (float(rng.choice([0, 1, -1, 2, 3])) for _ in range(2))
    op = a if trans == 0 else a.T if trans == 1 else a.conj().T
    given = tensor(a), tensor(x), tensor(y)
    kept = [each.clone() for each in given]
    number = torch.tensor(alpha, dtype=given[0].dtype) if rng.random() < 0.2 else alpha
    add = rng.random() < 0.5
    out = None
    if rng.random() < 0.4:
        out = torch.full((rows,), float("nan"), dtype=given[0].dtype)
    if add:
        got = gemv.torch.addmv(given[2], *given[:2], beta=beta, alpha=number, trans=trans, out=out)
    else:
        got = gemv.torch.mv(*given[:2], out, alpha=number, trans=trans)
    assert out is None or got is out
    expected = scaled(alpha, summed(op, x), beta, y if add else None)
    if isinstance(number, torch.Tensor):  # multiplies what is there already
        with np.errstate(all="ignore"):
            expected = alpha * summed(op, x) + (scaled(0.0, 0 * y, beta, y) if add else 0)
    words = (dtype.char, m, n, trans, add, alpha, beta, [each.stride() for each in given])
    check(got.resolve_conj().numpy(), expected, dtype, words)
    for before, after in zip(kept, given, strict=True):
        assert torch.equal(before.nan_to_num(), after.nan_to_num()), ("an operand changed", words)


def arrays(rng):
    """``gemv.jax.matvec``, at once and compiled; few shapes, as each of them is compiled."""
    import jax
    import jax.numpy as jnp

    import gemv.jax

    dtype = np.dtype(rng.choice(list("fF")))
    m, n = [(0, 3), (1, 1), (5, 4), (3, 0)][rng.integers(0, 4)]
    trans = int(rng.integers(0, 3))
    rows, cols = (m, n) if trans == 0 else (n, m)
    a, x, y = (values(rng, shape, dtype) for shape in ((m, n), cols, rows))
    if rng.random() < 0.2:
        spoiled(rng, x)
    alpha, beta = (float(rng.choice([0, 1, 2])) for _ in range(2))
    op = a if trans == 0 else a.T if trans == 1 else a.conj().T
    given = [jnp.asarray(each) for each in (a, x, y)]
    has_y = rng.random() < 0.5

    def call(a, x, y):
        return gemv.jax.matvec(a, x, y if has_y else None, alpha=alpha, beta=beta, trans=trans)

    if rng.random() < 0.3:
        call = jax.jit(call)
    expected = scaled(alpha, summed(op, x), beta, y if has_y else None)
    words = (dtype.char, m, n, trans, has_y, alpha, beta)
    check(np.asarray(call(*given)), expected, dtype, words)


def chunks(rng):
    """``gemv.dask.matvec`` and ``vecmat`` of arrays in chunks of any sizes, also of none."""
    import dask.array as da

    import gemv.dask

    dtype = np.dtype(rng.choice(list("fdFD")))
    leading = tuple(max(side(rng, 3), 1) for _ in range(rng.integers(0, 3)))
    m, n = side(rng, 12), side(rng, 12)
    of_rows = rng.random() < 0.5
    a = values(rng, (*shared(rng, leading), m, n), dtype)
    x = values(rng, (*shared(rng, leading), n if of_rows else m), dtype)
    if rng.random() < 0.2:
        spoiled(rng, x)

    def cut(length):
        cuts = np.sort(rng.integers(0, length + 1, rng.integers(0, 3)))
        return tuple(np.diff([0, *cuts, length]).tolist())

    chunked = da.from_array(a, chunks=tuple(map(cut, a.shape)))
    given = da.from_array(x, chunks=tuple(map(cut, x.shape))) if rng.random() < 0.7 else x
    alpha = float(rng.choice([0, 1, 2]))
    if of_rows:
        got = gemv.dask.matvec(chunked, given, alpha=alpha)
        expected = summed(a, x)
    else:
        got = gemv.dask.vecmat(given, chunked, alpha=alpha)
        expected = summed(a.swapaxes(-1, -2), x.conj())
    words = (of_rows, dtype.char, a.shape, x.shape, chunked.chunks, alpha)
    assert got.shape == expected.shape and got.dtype == dtype, words
    check(got.compute(scheduler="sync"), scaled(alpha, expected, 0.0, None), dtype, words)


def lists(rng):
    """``gemv_batched`` and ``Batch``: items of different sizes, layouts and transpositions."""
    simulated = gemv.backend() != "host"
    dtype = np.dtype(rng.choice(list("fdFDe")))
    count, most = int(rng.integers(0, 5)), 12 if simulated else 40
    there = simulated and count > 0 and rng.random() < 0.5
    tiny = dtype != "e" and rng.random() < 0.15
    given, expected, kept = {"a": [], "x": [], "y": []}, [], []
    factors = {name: [factor(rng, dtype) for _ in range(count)] for name in ("alpha", "beta")}
    for name, own in factors.items():
        if rng.random() < 0.5:  # one for all
            factors[name] = factor(rng, dtype)
            own[:] = [factors[name]] * count
    codes = [int(rng.integers(0, 3)) for _ in range(count)]
    alphas, betas = (np.broadcast_to(each, (count,)).tolist() for each in factors.values())
    has_y = rng.random() < 0.7
    for k in range(count):
        m, n = side(rng, most), side(rng, most)
        rows, cols = (m, n) if codes[k] == 0 else (n, m)
        a, x, y = (values(rng, s, dtype, t) for s, t in (((m, n), 0), (cols, tiny), (rows, tiny)))
        if rng.random() < 0.1:
            spoiled(rng, a if rng.random() < 0.5 else x)
        if betas[k] == 0 and m * n and rng.random() < 0.5:
            y[...] = np.nan  # is not read
        op = a if codes[k] == 0 else a.T if codes[k] == 1 else a.conj().T
        if m * n == 0:
            expected.append(y if has_y else np.zeros(rows, dtype))
        else:
            expected.append(scaled(alphas[k], summed(op, x), betas[k], y if has_y else None))
        for name, array in (("a", a), ("x", x), ("y", y)):
            own, whole = (apart_on_device if there else laid_out)(rng, array)
            given[name].append(own)
            kept.append((whole, host(whole).copy()) if name == "y" else None)
    kept = [each for each in kept if each is not None]
    words = (dtype.char, [a.shape for a in given["a"]], codes, alphas, betas, there, has_y)
    overwrite = int(has_y and rng.random() < 0.6)
    ys = given["y"] if has_y else None
    if rng.random() < 0.5:
        got = gemv.gemv_batched(
            factors["alpha"], given["a"], given["x"], factors["beta"], ys, codes,
            overwrite_y=overwrite,
        )  # fmt: skip
    else:
        batch = gemv.Batch(given["a"], codes)
        if count == 0 or batch.dtype == dtype:
            got = batch.gemv(
                factors["alpha"], given["x"], factors["beta"], ys, overwrite_y=overwrite
            )
    for k, (found, exact) in enumerate(zip(got, expected, strict=True)):
        check(host(found), np.asarray(exact), dtype, (k, words))
        in_place = overwrite and (there or found is given["y"][k])
        assert in_place or host(kept[k][0]).tobytes() == kept[k][1].tobytes(), ("y", k, words)


def list_aliases(rng):
    """Views of one piece of memory for the items of a list: wrong results are never returned."""
    memory = values(rng, 60, "d")
    kept = memory.copy()

    sizes = [
        tuple(int(rng.integers(1, 4)) for _ in range(2)) for _ in range(int(rng.integers(1, 4)))
    ]
    a, x, y = ([view(rng, memory, s) for s in each] for each in (
        sizes, [(n,) for _, n in sizes], [(m,) for m, _ in sizes]))  # fmt: skip
    if any(each is None for each in (*a, *x, *y)):
        return
    y = [each[::1] if each.flags.c_contiguous else np.zeros(len(each)) for each in y]
    expected = [summed(own_a, own_x) for own_a, own_x in zip(a, x, strict=True)]
    inside = [each for each in y if np.shares_memory(each, memory)]
    meets = any(np.shares_memory(own, other) for own in inside for other in (*a, *x)) or any(
        np.shares_memory(own, other) for own, other in itertools.combinations(inside, 2)
    )
    words = ([each.strides for each in (*a, *x, *y)], meets)
    try:
        gemv.gemv_batched(1, a, x, 0, y, overwrite_y=1)
    except ValueError as error:
        assert "overlaps" in str(error), words
        assert memory.tobytes() == kept.tobytes(), ("memory was changed", words)
        assert meets, ("an overlap was seen where none is", words)
        return
    assert not meets, ("an overlap was not seen", words)
    for found, exact in zip(y, expected, strict=True):
        check(found, exact, np.dtype("d"), words)


FAMILIES: dict[str, Callable[[Any], None]] = {
    each.__name__: each
    for each in (
        batches, aliases, columns, shards, tensors, arrays, chunks, lists, list_aliases,
    )
}  # fmt: skip


# Running ----------------------------------------------------------------------------------------


def run(family, seed):
    """One case."""
    FAMILIES[family](np.random.default_rng([list(FAMILIES).index(family), seed]))


def several(families, first, seconds=None, cases=None):
    """Cases of some families in turn until the time or their number is up; those that failed."""
    end = None if seconds is None else time.monotonic() + seconds
    count, failed = 0, []
    for seed in itertools.count(first):
        for family in families:
            if (end is not None and time.monotonic() > end) or (cases and count >= cases):
                return count, failed
            count += 1
            try:
                run(family, seed)
            except Exception:
                failed.append((family, seed, traceback.format_exc()))
    raise AssertionError("seeds do not end")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--family", action="append", choices=FAMILIES)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--cases", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", choices=("cuda", "simulator", "host"))
    options = parser.parse_args()
    # Asked for by name, so that a GPU computes with host arrays of any size.
    gemv.use_backend(options.backend or gemv.backend())
    warnings.simplefilter("error")
    families = options.family or [
        "batches",
        "aliases",
        "columns",
        "shards",
        "lists",
        "list_aliases",
    ]
    seconds = 60.0 if options.seconds is None and options.cases is None else options.seconds
    count, failed = several(families, options.seed, seconds, options.cases)
    for family, seed, text in failed[:20]:
        print(f"--family {family} --seed {seed} --cases 1\n{text}", flush=True)
    print(f"{count} cases of {', '.join(families)} on {gemv.backend()}: {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[2])]
    raise SystemExit(main())
