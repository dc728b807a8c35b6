"""Orders of threads and blocks: splits that meet, tiles in turn, and the barriers they need.

The simulator runs the threads of a launch in an order of its own, and another one for each seed. A
fault in how blocks meet shows in some of them: as another result, as a read of what nobody wrote,
or as threads that wait for ever.
"""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path

import pytest
from helpers.problems import ALL_ROWS, Case, knobs_for_tests, tile_of

from gemv.engines import backend
from gemv.kernels import REGISTRY
from gemv.kernels.t06_where_x_lives import HOMES, TILE_BYTES
from gemv.selection.select import select

if backend.backend() != "simulator":
    pytest.skip("only the simulator runs threads in a chosen order", allow_module_level=True)

from gemv.language.simulator.scheduler import Schedule, scheduled
from gemv.language.simulator.thread import SimulatorError

CLUSTERED = [name for name, kernel in REGISTRY.items() if "CLUSTER" in kernel.knobs]
WIDE = [name for name, kernel in REGISTRY.items() if kernel.wide and kernel.splits_apart]
WIDE += CLUSTERED
#: Constants besides the smallest: two warps of a block that finish one row together, or that send
#: its sums to one block.
FURTHER = {
    name: {"LANES": 64, "ROWS": 1, "VECTORS": 1, "THREADS_PER_BLOCK": 64, "BLOCKS_PER_SM": 4,
           "MIN_BLOCKS": 1}
    for name in ("vector_rows", "phased_rows")
}  # fmt: skip
FURTHER |= {
    "cluster_rows": {"LANES": 64, "ROWS": 1, "VECTORS": 1, "THREADS_PER_BLOCK": 64, "CLUSTER": 4},
    "cluster_columns": {"LANES": 2, "PIECES": 1, "COLUMNS": 1, "THREADS_PER_BLOCK": 64,
                        "CLUSTER": 4},
}  # fmt: skip
SETS = [(name, "smallest") for name in WIDE] + [(name, "two warps a row") for name in FURTHER]
BY_SET = pytest.mark.parametrize("name, which", SETS)


def constants(name, which):
    kernel = REGISTRY[name]
    return knobs_for_tests(kernel) if which == "smallest" else {**kernel.knobs, **FURTHER[name]}


def cases(name, which, dtype="c", ops="NC", shift=0):
    """Cases whose sums are split, without gaps in A, one for each operation and storage order.

    There is one tile of rows, a row less than it has, if it has several; and as many columns as
    some splits of different lengths have.
    """
    kernel, knobs = REGISTRY[name], constants(name, which)
    found = []
    for op, order in itertools.product(ops, "CF"):
        for rows, passes in itertools.product(range(tile_of(kernel)[0], 0, -1), (9, 20, 40)):
            cols = passes * kernel.tile(knobs)[1] + 1
            m, n = (rows, cols) if op == "N" else (cols, rows)
            alpha = 1.5 + 1j if dtype in "cz" else 1.5
            case = Case(m, n, dtype, order, op, alpha=alpha, beta=-1, shift=shift)
            at = 16 + shift * case.element.itemsize
            problem = case.problem.at(at, at)
            if kernel.accepts(problem) is not None:
                break
            geometry = select(problem, backend.engine().device(), name, knobs).geometry
            splits, tiles = geometry.sizes["splits"], geometry.launches[0].grid[0]
            if splits > (name not in CLUSTERED) + 1 and tiles <= geometry.sizes.get("phases", 1):
                found.append(case.with_rows(rows - 1) if rows > 1 else case)
                break
    return found


#: Four rows of a lane, and four groups.
FOUR_ROWS = {"LANES": 8, "ROWS": 4, "VECTORS": 1, "THREADS_PER_BLOCK": 32, "BLOCKS_PER_SM": 0,
             "MIN_BLOCKS": 1}  # fmt: skip


@pytest.mark.parametrize("groups", range(1, 5))
@pytest.mark.parametrize("name, phases", [("vector_rows", 1), ("phased_rows", 4)])
def test_rows_that_are_a_multiple_of_the_groups(name, phases, groups):
    """No lane stores the row behind the last one, for any of its rows."""
    Case(4 * groups * phases, 16 + (phases > 1), "s").check(name, FOUR_ROWS)


def test_several_warps_finish_more_splits_than_they_have_lanes():
    """Two warps for each of two rows; all of their lanes take a sum, and some a second one."""
    knobs = {"LANES": 64, "ROWS": 1, "VECTORS": 0, "THREADS_PER_BLOCK": 128, "MIN_BLOCKS": 1,
             "BLOCKS_PER_SM": 1000}  # fmt: skip
    case = Case(2, 67 * 64, "d", pad=1, alpha=2, beta=-1)
    problem = case.problem.at(16, 16)
    choice = select(problem, backend.engine().device(), "vector_rows", knobs)
    assert choice.geometry.sizes["splits"] == 67
    case.check("vector_rows", knobs)


def schedules(seeds):
    chosen = [Schedule("forward"), Schedule("forward", late=True), Schedule("reversed")]
    return chosen + [Schedule("random", seed) for seed in range(seeds)]


@BY_SET
def test_splits_have_one_result_in_every_order(name, which):
    kernel, knobs = REGISTRY[name], constants(name, which)
    met = cases(name, which)
    assert {case.op for case in met} == {"N", "C"}
    for case in met:
        results = set()
        # Where two warps finish a row, only the fifth seed lets one read before the other stores.
        for schedule in schedules(4 if which == "smallest" else 5):
            with scheduled(schedule):
                results.add(case.check(name, knobs).tobytes())
        assert len(results) == 1 or not kernel.same_bits, case


# Barriers ---------------------------------------------------------------------------------------

#: Kernels whose blocks take several tiles, one after the other, in the same shared memory.
TILES_IN_TURN = ("block_per_row", "tile2d", "coalesced", "last_block", "atomics")
#: x in shared memory, and two warps, which no shuffle keeps together.
SHARED_X = {"X_HOME": HOMES.index("shared"), "LANES_PER_ROW": 8, "THREADS_PER_BLOCK": 64}
#: What stands at the beginning of a line that keeps threads of a block or a cluster, or all threads
#: of the grid, in order.
BARRIERS = ("cuda.sync", "cuda.threadfence", "cluster_arrive(", "cluster_wait(", "cluster_take(")
#: What stands in the line above a fence that only ``test_ptx.py`` can show to be there: it orders
#: reads, and the simulator never changes their order.
READERS = "# Orders the reads"


def lines_of(name):
    file = importlib.util.find_spec(REGISTRY[name].build.__module__).origin
    return file, Path(file).read_text(encoding="utf-8").splitlines()


def barriers(name):
    """Numbers of the lines of a kernel's file that are barriers or fences."""
    lines = lines_of(name)[1]
    return [
        number
        for number, line in enumerate(lines)
        if line.strip().startswith(BARRIERS) and READERS not in lines[number - 1]
    ]


def without_line(name, number):
    """The kernel of a file in which one line does nothing."""
    file, lines = lines_of(name)
    indent = len(lines[number]) - len(lines[number].lstrip())
    lines[number] = " " * indent + "pass"
    names = {"__name__": "without_a_barrier", "__file__": file}
    exec(compile("\n".join(lines), file, "exec"), names)
    return names["KERNEL"]


def attempts(name):
    """Cases with constants and a number of seeds, in which the barriers of a kernel matter."""
    if name in WIDE:
        sets = [which for each, which in SETS if each == name]
        # A that begins at a multiple of 16 bytes, and one element behind.
        for dtype, shift, which in itertools.product("cs", (0, 1), sets):
            for case in cases(name, which, dtype, "N", shift):
                yield case, constants(name, which), 20
        return
    if name == "where_x_lives":  # more of x than shared memory has
        yield Case(9, TILE_BYTES // 8 + 9, "c", alpha=2, beta=1), SHARED_X, 20
        return
    kernel = REGISTRY[name]
    tile_rows, tile_cols = tile_of(kernel)
    side = max(tile_rows, tile_cols) if name != "block_per_row" else 1
    # Blocks that take three tiles in turn; then one tile, whose blocks seldom meet at a bad moment.
    turns = 2 * kernel.small_knobs.get("MAX_BLOCKS", 1) * side + 1
    shapes = [((turns, n), 12) for n in (tile_cols, 9 * tile_cols + 1)]
    shapes += [((side, 2 * tile_cols + 1), 150)]
    for ((m, n), seeds), order in itertools.product(shapes, "CF"):
        yield Case(m, n, "c", order, alpha=2, beta=1), knobs_for_tests(kernel), seeds


def wrong_in_some_order(name, share=1):
    """Where a kernel is wrong, in words; None if it is right in every order that is tried.

    Of the orders of chance, one in `share` is tried.
    """
    for case, knobs, seeds in attempts(name):
        for schedule in schedules(seeds // share):
            try:
                with scheduled(schedule):
                    case.check(name, knobs)
            except (AssertionError, SimulatorError) as error:
                return f"{case}, {knobs}, {schedule}: {error}"
    return None


@pytest.mark.parametrize("name", TILES_IN_TURN)
def test_blocks_that_take_several_tiles_are_right_in_every_order(name):
    """In a quarter of the orders of chance, unless all rows are asked for."""
    assert wrong_in_some_order(name, 1 if ALL_ROWS else 4) is None


@pytest.mark.parametrize("name, which", [(n, k) for n in REGISTRY for k in range(len(barriers(n)))])
def test_every_barrier_protects_something(name, which, monkeypatch):
    """Without it some order of the threads gives another result, or is an error."""
    line = barriers(name)[which]
    monkeypatch.setitem(REGISTRY, name, without_line(name, line))
    assert wrong_in_some_order(name), f"the barrier in line {line + 1} protects nothing"


def test_one_fence_is_left_to_another_test():
    lines = [line for name in REGISTRY for line in lines_of(name)[1]]
    assert sum(READERS in line for line in lines) == 1
