"""Sets of constants of the kernels for several vectors that have the sums of a given one.

Those come first that read x least often; what does not fit the registers or shared memory of a
multiprocessor is left out, and so is what keeps too few bytes on their way.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from gemv.core.geometry import LOAD_BYTES, ceil_div
from gemv.core.problem import Problem
from gemv.kernels.ends_of_rows import turns_of
from gemv.kernels.rings import ring_bytes, shares_copies
from gemv.kernels.staging import MOST_BLOCK_BYTES, PROCESSOR_BYTES
from gemv.kernels.vectors import b06_several_long_rows as long_rows
from gemv.kernels.wide_tiles import lanes_and_pieces_of

#: Registers of a multiprocessor, bytes of shared memory that a block gets for sums or for x, and
#: bytes that a multiprocessor should have in flight.
REGISTERS, SHARED, FLIGHT = 65536, 40 << 10, 20_000
#: A set by how soon it is tried: the lower number first.
_Rated = tuple[float, dict[str, int]]


def candidates(
    name: str, problem: Problem, own: Mapping[str, int], most: int
) -> list[dict[str, int]]:
    """Sets of constants with the sums of `own`, which comes first; those with least x first."""
    found = [dict(own)]
    makers = {
        "several_rows": _rows, "several_columns": _columns, "several_short_rows": _short_rows,
        "several_long_rows": _long_rows,
    }  # fmt: skip
    if name not in makers:
        return found
    for _, knobs in sorted(makers[name](problem, own), key=lambda pair: pair[0]):
        if knobs not in found and len(found) < most:
            found.append(knobs)
    return found


def _blocks(threads: int, registers: int) -> int:
    """Blocks whose registers a multiprocessor has."""
    return max(1, min(16, REGISTERS // (threads * ceil_div(registers, 8) * 8)))


def _rows(problem: Problem, own: Mapping[str, int]) -> Iterator[_Rated]:
    width, size = problem.widths[0], problem.dtype.itemsize
    sums, lanes, count = problem.precision.sums.itemsize, own["LANES"], own["COUNT"]
    for parts_, turns, rows, loads, threads in itertools.product(
        (1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8), (64, 128, 256, 512)
    ):
        row_threads, unit = lanes // turns * parts_, width // parts_
        if parts_ > width or turns != turns_of(turns, lanes) or row_threads > threads:
            continue
        flight = rows * loads * unit * size
        registers = rows * count * unit * sums // 4 + (rows + 1) * loads * max(1, unit * size // 4)
        registers += 3 * rows + 2 * count + 26
        spread = min(lanes, 32) * parts_ > 32
        slots = lanes // turns if spread else max(1, lanes // turns // 32)
        groups = threads // row_threads
        blocks = _blocks(threads, registers)
        if (
            registers > 180
            or groups * rows * count * (slots + (turns > 1)) * sums > SHARED
            or problem.rows < groups * rows
            or blocks * threads * flight < FLIGHT
        ):
            continue
        tile = {"PARTS": parts_, "TURNS": turns, "ROWS": rows, "VECTORS": loads}
        knobs = {**own, **tile, "THREADS_PER_BLOCK": threads, "MIN_BLOCKS": blocks}
        rating = count / rows + 30_000 / (blocks * threads * flight)
        # Where threads share a lane, x may stay in the L1 cache, and addresses in registers.
        for kept in (0, 1):
            yield rating + kept, {**knobs, "PAST_L1": int(parts_ > 1), "KEPT": kept}


def _short_rows(problem: Problem, own: Mapping[str, int]) -> Iterator[_Rated]:
    """Those with the fewest threads of a lane first, which convert A least often."""
    if own["STAGES"]:
        yield from _rings(problem, own)
        return
    width, count = problem.widths[0], own["COUNT"]
    of_vector = own["LOADS"] * width * problem.precision.sums.itemsize // 4
    of_row = own["LOADS"] * max(1, width * problem.dtype.itemsize // 4)
    for sharers, rows, threads in itertools.product((1, 2, 4, 8), (1, 2, 4, 8), (64, 128, 256)):
        if sharers > count or own["LANES"] * sharers > 32 or rows * of_row > 64:
            continue
        registers = count // sharers * of_vector + rows * of_row // 2 + 48
        if registers > 240:
            continue
        blocks = _blocks(threads, registers)
        tile = {"SHARERS": sharers, "ROWS": rows, "THREADS_PER_BLOCK": threads}
        yield sharers - rows / 16, {**own, **tile, "MIN_BLOCKS": blocks}


def _rings(problem: Problem, own: Mapping[str, int]) -> Iterator[_Rated]:
    """The same with a ring, and with as many bytes of it on a multiprocessor as it has room for."""
    loads, count = own["LOADS"], own["COUNT"]
    of_vector = loads * problem.widths[0] * problem.precision.sums.itemsize // 4
    of_team = itertools.product((1, 2, 4, 8), (1, 2, 4, 8), (64, 128, 256))
    for (sharers, warps, threads), rows, stages in itertools.product(of_team, (1, 2, 4, 8), (2, 3)):
        all_sharers = sharers * warps
        if (
            all_sharers > count
            or own["LANES"] * sharers > 32
            or threads % (32 * warps)
            or not shares_copies(rows, loads, all_sharers)
        ):
            continue
        each = count // all_sharers
        registers = each * (of_vector + rows) + 48
        nbytes = ring_bytes(stages, rows, loads, sharers, threads // 32 // warps)
        blocks = _blocks(threads, registers)
        flight = blocks * nbytes * (stages - 1) // stages
        if (
            registers > 240
            or nbytes > SHARED
            or blocks * nbytes > PROCESSOR_BYTES
            or flight < FLIGHT
        ):
            continue
        tile = {
            "SHARERS": sharers, "WARPS": warps, "ROWS": rows, "STAGES": stages,
            "THREADS_PER_BLOCK": threads, "MIN_BLOCKS": blocks,
        }  # fmt: skip
        yield all_sharers - rows / 16, {**own, **tile}


def _long_rows(problem: Problem, own: Mapping[str, int]) -> Iterator[_Rated]:
    """Those with the most bytes on their way first, where x leaves room for these."""
    of_load = own["LANES"] * problem.widths[0]
    for threads, blocks, stages, at_once in itertools.product(
        (128, 256, 512), (1, 2, 4), (2, 3, 4), (1, 2, 4)
    ):
        loads = ceil_div(ceil_div(problem.cols, of_load), at_once) * at_once
        knobs = {
            **own, "LOADS": loads, "FULL": int(loads * of_load == problem.cols),
            "THREADS_PER_BLOCK": threads, "MIN_BLOCKS": blocks, "STAGES": stages,
            "AT_ONCE": at_once,
        }  # fmt: skip
        nbytes = long_rows.shared_bytes(knobs)
        flight = blocks * threads * (stages - 1) * at_once * LOAD_BYTES
        if (
            threads % (min(own["LANES"], 32) * long_rows.PARTS)
            or threads * blocks not in (256, 512)  # with 128 registers of a thread, or more
            or nbytes > MOST_BLOCK_BYTES
            or blocks * (nbytes + long_rows.OF_BLOCK) > long_rows.PROCESSOR_BYTES
            or flight < FLIGHT / 2
        ):
            continue
        yield -flight, knobs


def _columns(problem: Problem, own: Mapping[str, int]) -> Iterator[_Rated]:
    width, threads, count = problem.widths[0], own["THREADS_PER_BLOCK"], own["COUNT"]
    lanes, pieces = lanes_and_pieces_of(problem, own)
    sums = problem.precision.sums.itemsize
    for staged, loads, blocks in itertools.product((0, 1, 2, 4), (2, 4, 8, 16), (1, 2, 3, 4)):
        stage = 2 * staged * (threads // lanes) * loads * count * sums
        registers = pieces * width * count * sums // 4 + loads * pieces * 4 + 40
        registers += 0 if staged else loads
        if (
            stage > SHARED
            or blocks * threads > 1024
            or registers > 1.1 * REGISTERS / (blocks * threads)
            or loads * pieces * 16 * blocks * threads < FLIGHT
        ):
            continue
        yield -loads * (1 + (staged > 0)), {
            **own, "STAGED": staged, "LOADS": loads, "MIN_BLOCKS": blocks,
        }  # fmt: skip
