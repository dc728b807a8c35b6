"""Every kernel that selection takes, with an old y beside the new one: the bits of a call in place.

So a new y costs one launch, where it took a copy of the old one and a launch in place.
"""

from __future__ import annotations

import itertools

import numpy as np
from helpers.combinations import of_all
from helpers.problems import ALL_ROWS, Case, filled, knobs_for_tests, operand_at, tile_of

from gemv.engines import backend
from gemv.kernels import REGISTRY, get
from gemv.selection.select import select

#: The last one is a kernel for batches that products of small matrices get as well.
KERNELS = [*(each for each in REGISTRY.values() if not each.teaching), get("small_matrix")]
INCREMENTS = [(1, 1), (2, 3), (-1, -1), (1, -2), (1, 1)]


def blended(case, kernel, shift):
    """The buffer of the new y, which is NaN before; the old one is moved by `shift` elements."""
    engine = backend.engine()
    new = case.y_buffer.copy()
    case.y_of(new)[...] = filled((), np.nan, case.y_element)
    before = np.concatenate([case.y_buffer[:shift], case.y_buffer])
    buffers = [engine.to_device(each) for each in (case.a_buffer, case.x_buffer, new, before)]
    views = (
        (case.a_buffer, case.a), (case.x_buffer, case.x), (case.y_buffer, case.y_of(case.y_buffer)),
    )  # fmt: skip
    operands = []
    for device, (buffer, view) in zip(buffers, views, strict=False):
        byte = view.__array_interface__["data"][0] - buffer.__array_interface__["data"][0]
        operands.append(operand_at(engine, device, byte, view))
    a, x, y = operands
    old = operand_at(engine, buffers[3], byte + shift * case.y_element.itemsize, view)
    problem = case.problem.at(a.pointer, x.pointer)
    choice = select(problem, engine.device(), kernel.name, knobs_for_tests(kernel))
    place = old.pointer
    if engine.name == "simulator":
        from gemv.language.simulator import memory

        number = choice.spec.precision.sums
        place = memory.pointer_to(old.owner, problem.y_offset, "old", False, number=number)
    sizes = {**choice.geometry.sizes, "old": place}
    apart = choice.with_old_y._replace(geometry=choice.geometry._replace(sizes=sizes))
    engine.run(apart, problem, case.alpha, a, x, case.beta, y)
    after = [engine.to_host(buffer) for buffer in buffers]
    given = (case.a_buffer, case.x_buffer, before)
    for was, now in zip(given, (*after[:2], after[3]), strict=True):
        assert was.tobytes() == now.tobytes(), "what is only read was changed"
    return after[2]


def is_accepted(order, dtype, kernel):
    return kernel.accepts(Case(9, 5, dtype, order).problem) is None


def cases(order, dtype, kernel):
    """Around the tile, with all that an end of a kernel tells apart; sums of splits as well.

    All of them with one dtype, and half of them with each other, unless all rows are asked for.
    """
    rows, cols = tile_of(kernel)
    pairs = [(1.5, -0.25), (1, 1), (0, -2.5), (-0.75, 0), (2, 0.5)]
    shapes = [(rows + 1, cols + 1), (2 * rows, cols), (3, 9 * cols + 5), (4 * rows + 3, 2), (1, 1)]
    whole = 16 // min(Case(1, 1, dtype).element.itemsize, 16)
    shapes.append((2 * rows * whole, 2 * whole))
    found = []
    for (m, n), pair, (incx, incy), pad in zip(
        shapes, itertools.cycle(pairs), itertools.cycle(INCREMENTS), itertools.cycle((0, 3, 4)),
        strict=False,
    ):  # fmt: skip
        case = Case(m, n, dtype, order, "N", pad, incx, incy, *pair)
        if kernel.accepts(case.problem) is None:
            found.append(case)
    if ALL_ROWS or dtype == "s":
        return found
    return found["zb".index(dtype) :: 2] or found


@of_all(is_accepted, order="CF", dtype="szb", kernel=KERNELS)
def test_the_bits_of_a_call_in_place(kernel, dtype, order):
    for case in cases(order, dtype, kernel):
        expected = case.check(kernel.name, knobs_for_tests(kernel))
        for shift in (0, 1):
            assert blended(case, kernel, shift).tobytes() == expected.tobytes(), (case, shift)


def with_other_dtypes(order, dtype, kernel):
    rows, cols = tile_of(kernel)
    return Case(
        rows + 3, min(cols + 1, 32), dtype, order, "N", 3, alpha=1.5, beta=-0.25, y_dtype="s",
        accumulate="plain" if dtype == "h" else "wide",
    )  # fmt: skip


@of_all(
    lambda *case: case[-1].accepts(with_other_dtypes(*case).problem) is None,
    order="CF", dtype="sh", kernel=KERNELS,
)  # fmt: skip
def test_y_and_sums_of_other_dtypes(kernel, dtype, order):
    case = with_other_dtypes(order, dtype, kernel)
    expected = case.check(kernel.name, knobs_for_tests(kernel))
    for shift in (0, 1):
        assert blended(case, kernel, shift).tobytes() == expected.tobytes()
