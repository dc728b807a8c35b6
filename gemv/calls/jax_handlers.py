"""What XLA calls for a product: SciPy's BLAS for arrays in host memory, on a GPU a kernel.

A call has two arguments, A and x, and one result. x and the result may have a dimension in front,
the batch, and then A may have it as well. In host memory each item has the bits that it has alone;
on a GPU a batch is that of :mod:`gemv.calls.jax_batches`.

A call that is no batch may have numbers in memory as well: alpha, or alpha, beta and the old y, in
whose memory XLA wants the result. The kernel reads them there, so XLA compiles nothing anew for
other numbers, and the bits are those of :func:`gemv.gemv`. Numbers of Python's come by a ticket
instead: :mod:`gemv.calls.jax_ticketed`.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gemv.calls import jax_again
from gemv.calls.jax_frames import Array, Frame
from gemv.calls.remembered import RememberedCall, packable
from gemv.core import memo, trace
from gemv.core.dtypes import DTYPES
from gemv.core.operand import Operand, array_at
from gemv.core.problem import Problem
from gemv.core.rules import check_arguments
from gemv.engines import backend as engines_backend
from gemv.engines import host

ROUTINE = "gemv.jax.matvec"
#: The most calls that are remembered.
MAX_REMEMBERED = 1024
#: The first of the options of a batch.
BATCH = "batch"

#: Where a kernel finds alpha and beta, by how many arguments there are beside A and x.
_HOMES = {
    0: ("arguments", "arguments"), 1: ("pointer", "arguments"), 3: ("pointer", "pointer"),
}  # fmt: skip

_remembered: dict[tuple, tuple[Any, Any, Problem, RememberedCall | None]] = {}
memo.on_forget(_remembered.clear)


def written(
    alpha: float, alpha_imag: float, trans: int, accumulate: str, kernel: str,
    shapes: Sequence[tuple[int, ...]] = (),
) -> str:  # fmt: skip
    """The options of a call as its only attribute: each more takes a handler some 3 us to read.

    `shapes` are those of A and x, for a batch. Its options begin as no others do, so that machine
    code compares all lengths with the text.
    """
    options = [alpha, alpha_imag, trans, accumulate, kernel]
    return json.dumps([BATCH, *options, *shapes] if shapes else options)


def written_without_numbers(count: int, trans: int, accumulate: str) -> str:
    """The same for a call with `count` arguments beside A and x, the first of which is alpha."""
    return json.dumps([None, count, trans, accumulate, ""])


@functools.lru_cache(maxsize=MAX_REMEMBERED)
def read(call: str, is_complex: bool) -> tuple[Any, int, str, str | None]:
    """alpha, or None for one in memory; trans, accumulate and kernel."""
    options = json.loads(call)
    first = int(options[0] == BATCH)
    alpha, alpha_imag, trans, accumulate, kernel = options[first : first + 5]
    if alpha is None:
        return None, trans, accumulate, None
    return complex(alpha, alpha_imag) if is_complex else alpha, trans, accumulate, kernel or None


def on_host(frame: Frame) -> None:
    """Compute a call in host memory."""
    a, x, *numbers, y = (in_memory(array) for array in (*frame.arguments, *frame.results))
    alpha, trans, accumulate, kernel = read(frame.attributes["call"], y.dtype.kind == "c")
    if numbers:
        alpha, beta = (*(each[()] for each in numbers[:2]), 0)[:2]
        old = numbers[2] if len(numbers) > 1 else None
        y[:] = host.compute(ROUTINE, trans, alpha, a, x, beta, old, accumulate, y.dtype)
        return
    if kernel is not None:
        host.known_kernel(ROUTINE, kernel)
        raise ValueError(
            f"{ROUTINE}: kernel={kernel!r} needs a GPU, but a is in host memory, where SciPy's BLAS"
            " computes"
        )
    batched = y.ndim == 2
    for item in range(len(y) if batched else 1):
        matrix = a[item] if a.ndim == 3 else a
        target = y[item] if batched else y
        source = x[item] if batched else x
        target[:] = host.compute(
            ROUTINE, trans, alpha, matrix, source, 0, None, accumulate, y.dtype
        )


def refuse_on_host() -> None:
    """Refuse arrays on a GPU where the backend is host, which does not compute them."""
    if engines_backend.backend() == "host":
        raise TypeError(
            f"{ROUTINE}: a is on a GPU, but the backend is host, which takes host arrays only; call"
            ' gemv.use_backend("cuda") or copy the arrays to the host'
        )


def on_gpu(frame: Frame) -> None:
    """Enqueue a call that is no batch on XLA's stream."""
    generation = memo.generation()
    refuse_on_host()
    (a, x, *numbers), (y,) = frame.arguments, frame.results
    y_dtype = DTYPES[y.letter]
    alpha, trans, accumulate, kernel = read(frame.attributes["call"], y_dtype.kind == "c")
    stream, engine = frame.stream(), engines_backend.engine()
    device = engine.device_of(a.address)
    with engine.on(device):
        places = a.address, x.address, y.address
        known = _launch(
            engine, device, stream, a, x, y, places, alpha, trans, accumulate, kernel, numbers
        )
        if known is not None:
            jax_again.remember(engine, known, generation, device or 0, stream, frame, alpha)


def _launch(
    engine: Any, device: int | None, stream: int, a: Array, x: Array, y: Array,
    places: tuple[int, int, int], alpha: Any, trans: int, accumulate: str, kernel: str | None,
    numbers: Sequence[Array],
) -> RememberedCall | None:  # fmt: skip
    """Enqueue one product; what it can be launched from again, if that needs no engine."""
    a_at, x_at, y_at = places
    key: tuple
    key = (device, a.letter, y.letter, a.shape, trans, accumulate, kernel, a_at & 15, x_at & 15,
           y_at & 15)  # fmt: skip
    homes = _HOMES[len(numbers)]
    if numbers:
        key += homes
    found = _remembered.get(key)
    if found is None:
        generation = memo.generation()
        found = selected(engine, a, y, a.shape, places, trans, accumulate, kernel, homes)
        if generation == memo.generation():
            if len(_remembered) >= MAX_REMEMBERED:
                _remembered.clear()
            _remembered[key] = found
    choice, operands, problem, known = found
    beta: Any = 0
    if not numbers:
        if known is not None and not known.launch(stream, a_at, x_at, y_at, alpha, type(alpha)(0)):
            if trace.open_traces():
                known.record()
            return known
        known = None
    simulated = engine.in_host_memory()

    def placed(operand: Operand, at: int, letter: str) -> Operand:
        owner = in_memory(Array(letter, at, operand.shape)) if simulated else None
        return operand._replace(pointer=at, device=device, owner=owner)

    a_operand, x_operand, y_operand = map(placed, operands, places, 2 * a.letter + y.letter)
    if numbers:
        if len(numbers) > 1 and numbers[2].address != y_at:
            raise RuntimeError("XLA has the result in another place than the old y")
        scalars = [
            placed(Operand("jax", DTYPES[letter], (), (), 0, False, None), at, letter)
            for letter, at, _ in numbers[:2]
        ]
        alpha, beta = (*scalars, 0)[:2]
    engine.run(choice, problem, alpha, a_operand, x_operand, beta, y_operand, stream=stream)
    return known


def selected(
    engine: Any, a: Array, y: Array, shape: tuple[int, ...], places: tuple[int, int, int],
    trans: int, accumulate: str, kernel: str | None, homes: tuple[str, str],
) -> tuple[Any, Any, Problem, RememberedCall | None]:  # fmt: skip
    """The kernel of a call, its operands without addresses, and the call as one that is known."""
    from gemv.selection.select import select

    dtype, y_dtype = DTYPES[a.letter], DTYPES[y.letter]
    rows, cols = shape[::-1] if trans else shape
    problem = check_arguments(
        ROUTINE, dtype, shape, (shape[1], 1), cols, 1, rows, 1, trans=trans, y_dtype=y_dtype
    )
    problem = problem._replace(accumulate=accumulate).at(*places[:2])
    choice = select(problem, engine.device(), kernel=kernel, homes=homes)
    operands = tuple(
        Operand("jax", kind, lengths, strides, 0, False, None)
        for kind, lengths, strides in (
            (dtype, shape, (shape[1], 1)), (dtype, (cols,), (1,)), (y_dtype, (rows,), (1,)),
        )
    )  # fmt: skip
    known = None
    if packable(engine, choice, _Plain(operands)):
        known = RememberedCall(engine, choice, problem, rows)
    return choice, operands, problem, known


class _Plain:
    """What :func:`packable` asks of a call; numbers in memory come with each of its launches."""

    homes = _HOMES[0]

    def __init__(self, operands: tuple) -> None:
        self.a, self.x, self.y = operands


def in_memory(array: Array) -> np.ndarray:
    """XLA's memory as an array of NumPy's."""
    dtype = DTYPES[array.letter]
    if not math.prod(array.shape):
        return np.empty(array.shape, dtype)
    return array_at(array.address, array.shape, None, dtype.str, False).view(dtype)
