"""What the kernels share that bring A to shared memory by copies that no thread waits for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from gemv.core.geometry import LOAD_BYTES, Device, ceil_div
from gemv.core.problem import Problem
from gemv.kernels.kernel import attach
from gemv.kernels.spec import Spec

#: The first compute capability with such copies.
COPIES = (8, 0)
#: Bytes of shared memory that every GPU gives a block without being asked. Those of a
#: multiprocessor, and its registers, say how many blocks are to fit there.
BLOCK_BYTES, PROCESSOR_BYTES, REGISTERS = 48 << 10, 224 << 10, 1 << 16
#: The most that a block may ask for on the GPUs that such kernels were timed on.
MOST_BLOCK_BYTES = 227 << 10
#: Of a block, the bytes that stages and x may take; the rest is for sums.
POOL_BYTES = 46 << 10


def line_copier(spec: Spec, threads: int, spread: Callable | None = None) -> Callable:
    """Make ``copy_lines(pool, place, a, at, lines, step, pitch, length, least, end, line, v, by)``.

    It begins to copy `lines` lines of `length` elements, `step` apart from ``a[at]`` on, and
    `pitch` apart in a pool from `place` on. This thread takes the lines `line`, `line` + `by`, ...,
    each of which `threads` threads share; `v` says which of them this is. Whole vectors of 16 bytes
    are copied, so elements before and behind a line come along. So each line begins as many bytes
    past a multiple of 16 in the pool as in memory.

    What lies before ``a[least]``, and from ``a[end]`` on, is no part of A. Of a vector that reaches
    there the other elements are copied one by one. It is the first or the last one of a batch, so
    it does not matter that this is slow.

    ``spread(place)``, if there is one, says where an element of the pool is in a pool with gaps
    between vectors. `place` is then a multiple of 16 bytes.
    """
    from gemv.language import (
        copy_async,
        copy_one,
        device,
        elements_past,
        moved,
        rolled,
        same,
        short,
    )

    WIDTH = LOAD_BYTES // spec.dtype.itemsize
    APART = threads * WIDTH
    of = same if spread is None else spread

    @device
    def copy_inside(pool, first, own, vectors, v):
        """Copy a line that lies in A together with the elements around it."""
        while v + 3 * threads < vectors:  # one address for four copies
            k = v * WIDTH
            copy_async(pool, of(first + k), own, k)
            copy_async(pool, of(first + k + APART), own, k + APART)
            copy_async(pool, of(first + k + 2 * APART), own, k + 2 * APART)
            copy_async(pool, of(first + k + 3 * APART), own, k + 3 * APART)
            v = short(v + 4 * threads)
            rolled()
        while v < vectors:
            copy_async(pool, of(first + v * WIDTH), own, v * WIDTH)
            v = short(v + threads)
            rolled()

    @device
    def copy_with_care(pool, first, own, vectors, v, least, end):
        """The same for a line at an end of A, with bounds counted from the first vector."""
        while v < vectors:
            k = v * WIDTH
            behind = k + WIDTH
            if least <= k and behind <= end:
                copy_async(pool, of(first + k), own, k)
                k = behind
            while k < behind:
                if least <= k and k < end:
                    copy_one(pool, of(first + k), own, k)
                k += 1
                rolled()
            v = short(v + threads)
            rolled()

    @device
    def copy_lines(pool, place, a, at, lines, step, pitch, length, least, end, line, v, by):
        # Whether all lines lie in A, with up to a vector on both sides.
        inside = least <= at - WIDTH and at + (lines - 1) * step + length + WIDTH <= end
        past = short(elements_past(a, 0, LOAD_BYTES))
        at, place = short(at + line * step), short(place + line * pitch)
        while line < lines:
            lead = short(at + past) % WIDTH
            own, first = moved(a, at - lead), short(place - lead)
            vectors = short(lead + length + WIDTH - 1) // WIDTH
            if inside:
                copy_inside(pool, first, own, vectors, v)
            else:
                copy_with_care(pool, first, own, vectors, v, least - at + lead, end - at + lead)
            at, place = short(at + by * step), short(place + by * pitch)
            line = short(line + by)
            rolled()

    made: Callable = copy_lines
    return made


def factor_readers(spec: Spec) -> list[Callable]:
    """Make ``of(factor, item, step)`` for alpha and for beta: an item's own, or that of all."""
    from gemv.language import device, read_only_load

    @device
    def own(factor, item, step):
        return read_only_load(factor, item * step)

    @device
    def common(factor, item, step):
        return factor

    return [own if home == "pointer" else common for home in spec.homes]


def finished(function: Callable, spec: Spec, threads: int) -> Callable:
    """`function` as a kernel of so many threads, whose parameters name the homes of its factors."""
    from gemv.language import inlined

    names = {
        name: f"{name}_pointer"
        for name, home in zip(("alpha", "beta"), spec.homes, strict=True)
        if home == "pointer"
    }
    parameters = [names.get(each, each) for each in inspect.signature(function).parameters]
    passed = ", ".join(parameters)
    # Numba takes the parameters from a def, and these are known only now.
    scope: dict[str, Any] = {"body": inlined(function)}
    exec(f"def {function.__name__}({passed}):\n    body({passed})\n", scope)
    return attach(scope[function.__name__], launch_bounds=(threads, spec["MIN_BLOCKS"]))


def vectors_of(nbytes: int) -> int:
    """`nbytes`, rounded up to whole vectors of 16 bytes."""
    return ceil_div(nbytes, LOAD_BYTES) * LOAD_BYTES


def check_copies(name: str, device: Device, knobs: Mapping[str, int], sums_bytes: int) -> None:
    """Raise a ValueError if the GPU has no such copies, or too little shared memory."""
    lacks = device.lacks(COPIES)
    if lacks:
        raise ValueError(f"{name}: copies to shared memory: {lacks}")
    if knobs["STAGES"] < 2 or knobs["POOL_BYTES"] + sums_bytes > BLOCK_BYTES:
        raise ValueError(
            f"{name}: STAGES must be 2 or more, and POOL_BYTES and {sums_bytes} for sums at most"
            f" {BLOCK_BYTES} together, got {knobs['STAGES']} and {knobs['POOL_BYTES']}"
        )


def lines_object(problem: Problem) -> str | None:
    """Why the lines of A cannot be copied as they lie in memory, or None.

    Wide loads must take them whole, because the sums are those of kernels with wide loads.
    """
    line, step = problem.cols, problem.row_stride
    if problem.access == "axpy":
        line, step = problem.rows, problem.col_stride
    if problem.lines > 1 and step < line:
        return "lines of A overlap, or run backwards"
    if problem.lines > 1 and 8 * (step - line) > line:
        return "the gaps between lines of A are more than an eighth of the lines"
    if (problem.lines - 1) * step + line >= 1 << 31:
        return "places within an item are counted in 32 bits"
    if problem.widths[0] > 1 and not problem.whole:
        return "some elements of a line fill no vector"
    if problem.accumulate != "plain":
        return f"accumulate={problem.accumulate!r}: sums are plain ones here"
    return None
