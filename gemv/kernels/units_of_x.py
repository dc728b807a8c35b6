"""Numbers of x for several vectors, brought to shared memory by 16 bytes and converted late.

This does what ``x_movers`` of :mod:`gemv.kernels.numbers_of_x` does, for the same places in shared
memory, but for numbers of 2 bytes, which have to be converted, by fewer instructions:

- A thread brings the numbers that four vectors have for a column. They are 16 bytes once they are
  float32, so it stores them by one instruction, where one number at a time takes four.
- What it has loaded stays in registers as it is in memory, until it is stored. A conversion where
  numbers are loaded would wait for them there, although nobody needs them before the next stage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gemv.core.geometry import LOAD_BYTES, ceil_div
from gemv.kernels.numbers_of_x import x_dtype_of
from gemv.kernels.spec import Spec


def x_unit_movers(count: int, columns: int, threads: int, spec: Spec) -> tuple[Callable, ...]:
    """The functions of :func:`gemv.kernels.numbers_of_x.x_movers`, for units of 16 bytes."""
    from gemv import language
    from gemv.language import (
        device,
        from_stored,
        gather_stored,
        kept,
        moved,
        put_unit,
        quotient,
        short,
    )

    of_x = language.conjugated if spec.conjugate_x else language.same
    UNIT = min(count, max(1, LOAD_BYTES // x_dtype_of(spec.precision).itemsize))
    UNITS = count // UNIT  # of a column
    PLACES, APART = columns * UNITS, threads // UNITS
    TURNS = ceil_div(PLACES, threads)

    @device
    def own_numbers(x, x_step, incx, vector, vectors, tid):
        """Where a thread's first vector begins, the elements to its next one, how many it has."""
        item = vector + tid % UNITS * UNIT
        own = moved(x, min(item, vectors - 1) * x_step + tid // UNITS * incx)
        return own, x_step, short(max(vectors - item, 0))

    @device
    def of_vector(place, k, own, incx, valid):
        """The numbers of the thread's vector k, zeros if there is none."""
        _, x_step, items = own
        present = valid if k < items else 0
        return gather_stored(of_x(moved(place, k * x_step)), 0, APART, TURNS, incx, present)

    lines = [
        "def numbers_of(own, first, incx, end, tid):",
        f"    rest = short(max(min(end - first, {columns}), 0))  # columns that there are",
        f"    valid = quotient(short(rest + {APART - 1} - tid // {UNITS}), {APART})",
        "    place = kept(moved(own[0], first * incx))  # computed once for all vectors",
        "    return (",
        *(f"        of_vector(place, {k}, own, incx, valid)," for k in range(UNIT)),
        "    )",
        "def put_numbers(xs, at, numbers, tid, own):",
    ]
    for turn in range(TURNS):
        first = turn * threads
        if first + threads > PLACES:
            lines.append(f"    if tid < {PLACES - first}:")
        indent = "        " if first + threads > PLACES else "    "
        unit = "".join(f"numbers[{k}][{turn}], " for k in range(UNIT))
        values = f"from_stored(of_x(own[0]), ({unit}))"
        lines.append(f"{indent}put_unit(xs, at + ({first} + tid) * {UNIT}, {values}, 0, {UNIT})")
    scope: dict[str, Any] = {
        "of_vector": of_vector, "of_x": of_x, "quotient": quotient, "short": short, "kept": kept,
        "moved": moved, "put_unit": put_unit, "from_stored": from_stored,
    }  # fmt: skip
    exec("\n".join(lines), scope)
    return own_numbers, device(scope["numbers_of"]), device(scope["put_numbers"])
