import dataclasses

import pytest

from gemv._measure import make_problem
from gemv._problem import DTYPES, Device
from gemv._select import parse, select, table
from gemv.kernels import REGISTRY, k09_vector_columns, k10_long_columns

DEVICE = Device("some GPU", (9, 0), 100)


def problem_of(access, rows, cols):
    order = "F" if access == "axpy" else "C"
    return make_problem(rows, cols, DTYPES["s"], order, "N")


def problem_with(access, line_bytes, lines):
    """A float32 problem of so many lines of at most so many bytes along the unit stride."""
    length = max(line_bytes // 4, 1)
    rows, cols = (length, lines) if access == "axpy" else (lines, length)
    problem = problem_of(access, rows, cols)
    if access == "strided":
        problem = dataclasses.replace(problem, row_stride=3 * cols, col_stride=2)
    return problem


def around(condition, access):
    """Sizes at, just below and just above every threshold of the table for `access`."""
    sizes = {4, 1 << 20} if condition == "line_bytes" else {1, 1 << 20}
    for row in table():
        if row.conditions.get("access", access) == access:
            for end in ("min", "max"):
                at = row.conditions.get(f"{condition}_{end}")
                if at is not None:
                    step = 4 if condition == "line_bytes" else 1
                    sizes |= {max(at - step, step), at, at + step}
    return sorted(sizes)


def test_every_row_is_reached():
    reached = set()
    for access in ("dot", "axpy", "strided"):
        for line_bytes in around("line_bytes", access):
            for lines in around("lines", access):
                problem = problem_with(access, line_bytes, lines)
                reached.add(select(problem, DEVICE).reason)
    assert reached == {row.reason for row in table()}
    assert len(reached) == len(table()), "two rows give the same reason"


@pytest.mark.parametrize("row", table(), ids=lambda row: row.reason.replace(" ", "-"))
def test_a_row_matches_up_to_its_thresholds_and_no_further(row):
    wanted = row.conditions
    access = wanted.get("access", "strided")
    line = wanted.get("line_bytes_min", min(wanted.get("line_bytes_max", 4000), 4000))
    lines = wanted.get("lines_min", min(wanted.get("lines_max", 4000), 4000))
    assert row.matches(problem_with(access, line, lines))
    for condition, at in wanted.items():
        if condition == "access":
            other = problem_with({"dot": "axpy", "axpy": "dot"}[at], line, lines)
            assert not row.matches(other)
            continue
        size, end = condition.rsplit("_", 1)
        step = 4 if size == "line_bytes" else 1
        inside = {"line_bytes": line, "lines": lines, size: at}
        outside = {**inside, size: at - step if end == "min" else -(-(at + 1) // step) * step}
        assert row.matches(problem_with(access, **inside))
        assert not row.matches(problem_with(access, **outside))


@pytest.mark.parametrize("access", ["dot", "axpy"])
@pytest.mark.parametrize("rows, cols", [(1, 1), (1, 10**9), (10**9, 1), (4096, 4096), (7, 13)])
def test_every_shape_finds_a_kernel_that_is_not_there_to_teach(access, rows, cols):
    choice = select(problem_of(access, rows, cols), DEVICE)
    assert not choice.kernel.teaching and choice.kernel.same_bits
    for launch in choice.geometry.launches:
        assert launch.grid[0] < 2**31 and launch.grid[1] <= 65535 and launch.grid[2] == 1
        assert 1 <= launch.threads_per_block <= 1024


@pytest.mark.parametrize("kernel", REGISTRY.values(), ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("rows, cols", [(1, 1000), (2**33, 1), (2**20, 7), (3, 1024)])
@pytest.mark.parametrize("access", ["dot", "axpy"])
def test_geometry_stays_within_the_hardware(kernel, rows, cols, access):
    problem = problem_of(access, rows, cols)
    if kernel.accepts(problem):
        with pytest.raises(ValueError, match="refuses this problem"):
            select(problem, DEVICE, kernel.name)
        return
    geometry = select(problem, DEVICE, kernel.name).geometry
    for launch in geometry.launches:
        assert 1 <= launch.grid[0] < 2**31 and 1 <= launch.grid[1] <= 65535
        assert 1 <= launch.threads_per_block <= 1024


def test_forced_kernel_and_knobs():
    choice = select(problem_of("dot", 5, 5), DEVICE, "block_per_row", {"THREADS_PER_BLOCK": 64})
    assert choice.kernel.name == "block_per_row"
    assert choice.knobs["THREADS_PER_BLOCK"] == 64
    assert choice.geometry.launches[0].block == (64, 1, 1)


def test_a_kernel_asked_for_has_the_constants_of_the_table():
    """Asked for or chosen, the same kernel on the same problem is the same machine code."""
    for access in ("dot", "axpy"):
        for line_bytes in around("line_bytes", access):
            for lines in around("lines", access):
                problem = problem_with(access, line_bytes, lines)
                chosen = select(problem, DEVICE)
                asked = select(problem, DEVICE, chosen.kernel.name)
                assert (asked.spec, asked.geometry) == (chosen.spec, chosen.geometry)
                own = select(problem, DEVICE, chosen.kernel.name, {})
                assert own.knobs == dict(chosen.kernel.knobs)


@pytest.mark.parametrize(
    "access, knobs",
    [
        ("dot", {"ROWS": 8}),
        ("dot", {"ROWS": 0}),
        ("dot", {"LANES": 24}),
        ("dot", {"LANES": 32, "THREADS_PER_BLOCK": 96}),
        ("dot", {"LANES": 4, "THREADS_PER_BLOCK": 16}),
        ("axpy", {"LANES": 24}),
        ("axpy", {"LANES": 32, "THREADS_PER_BLOCK": 48}),
    ],
)
def test_constants_that_would_leave_rows_undone_are_refused(access, knobs):
    name = {"dot": "vector_rows", "axpy": "vector_columns"}[access]
    with pytest.raises(ValueError, match=f"{name}: .*got"):
        select(problem_of(access, 100, 100), DEVICE, name, knobs)


@pytest.mark.parametrize("a_pointer", [16, 8, 4])
@pytest.mark.parametrize("dtype", "sdcz")
@pytest.mark.parametrize("order", "CF")
def test_splits_cover_the_columns_and_none_is_empty(order, dtype, a_pointer):
    """Every block draws a number of the counter, so no split may be missing or without columns."""
    shapes = [1, 2, 7, 33, 1000, 1 << 17, (1 << 20) + 12]
    split = 0
    for rows in shapes:
        for cols in shapes:
            problem = make_problem(rows, cols, DTYPES[dtype], order, "N").at(a_pointer, 16)
            for kernel in (None, "last_block", "coalesced", "tile2d"):
                choice = select(problem, DEVICE, kernel)
                geometry, spec = choice.geometry, choice.spec
                splits = geometry.sizes.get("splits", 1)  # long_columns has none
                columns = geometry.sizes.get("cols_per_split", cols)
                assert (splits - 1) * columns < cols <= splits * columns
                assert geometry.launches[0].grid[1] == splits
                if splits > 1:
                    split += 1
                    assert columns % spec.widths[0] == 0, "a split begins between two vectors"
                    assert geometry.scratch == splits * rows
                    assert geometry.counters >= 1 or len(geometry.launches) == 2
                if choice.kernel.wide:
                    per_tile = -(-rows // geometry.launches[0].grid[0])
                    assert per_tile <= rows_of_a_tile(choice)
                    assert splits == 1 or geometry.counters == geometry.launches[0].grid[0]
    assert split > 0


def rows_of_a_tile(choice):
    """What a block of a wide kernel covers, by its constants and the width of its loads."""
    knobs, width, itemsize = choice.knobs, choice.spec.widths[0], choice.spec.dtype.itemsize
    if choice.kernel.name == "vector_columns":
        lanes, pieces = k09_vector_columns.lanes_and_pieces(knobs, width, itemsize)
        return lanes * pieces * width
    if choice.kernel.name == "long_columns":
        pieces = k10_long_columns.pieces_of_a_thread(knobs, width, itemsize)
        return knobs["THREADS_PER_BLOCK"] * pieces * width
    return max(knobs["THREADS_PER_BLOCK"] // knobs["LANES"], 1) * knobs["ROWS"]


def test_unknown_names_list_the_known():
    with pytest.raises(ValueError, match="no kernel 'warp'.*warp_per_row"):
        select(problem_of("dot", 5, 5), DEVICE, "warp")
    with pytest.raises(ValueError, match="no knob WARPS.*WARPS_PER_BLOCK"):
        select(problem_of("dot", 5, 5), DEVICE, "warp_per_row", {"WARPS": 1})


LAST = '[[row]]\nkernel = "last_block"\nreason = "rest"\n'


@pytest.mark.parametrize(
    "text, complaint",
    [
        ('[[row]]\nkernel = "nothing"\nreason = ""\n' + LAST, "no kernel 'nothing'"),
        ('[[row]]\nkernel = "atomics"\nreason = ""\n' + LAST, "cannot be selected"),
        ('[[row]]\nkernel = "serial"\nreason = ""\nrow_min = 3\n' + LAST, "unknown field row_min"),
        ('[[row]]\nkernel = "serial"\nreason = ""\nlines_min = 3\n', "must accept every problem"),
        (
            '[[row]]\nkernel = "last_block"\nreason = ""\nknobs = { X = 1 }\n' + LAST,
            "cannot be selected with",
        ),
    ],
)
def test_a_bad_table_is_refused(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        parse(text)
