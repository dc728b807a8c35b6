import itertools
import os
import sys

import numpy as np
import pytest
from helpers import processes
from helpers.selection import problem_of, problem_with

import gemv
from gemv.core.dtypes import DTYPES
from gemv.core.geometry import MAX_GRID_Y, Device
from gemv.core.problem import Problem
from gemv.kernels import (
    REGISTRY,
    k10_long_columns,
    k12_phased_columns,
    k13_short_columns,
)
from gemv.kernels.kernel import MOST_PREPARED
from gemv.kernels.wide_tiles import lanes_and_pieces
from gemv.measure.inputs import make_problem
from gemv.selection import select as selection_select
from gemv.selection.entry import Entry, made
from gemv.selection.row import RANGES, numbers
from gemv.selection.select import select

DEVICE = Device("some GPU", (9, 0), 100)


def test_a_choice_is_remembered_and_the_oldest_forgotten(monkeypatch):
    selection_select.forget()
    monkeypatch.setattr(selection_select, "MAX_CHOICES", 3)
    problems = [problem_of("dot", 10, 10 + k) for k in range(5)]
    first = select(problems[0], DEVICE)
    assert select(problem_of("dot", 10, 10), DEVICE) is first
    for problem in problems:
        select(problem, DEVICE)
    assert len(selection_select.known_of(DEVICE).choices) == 3
    assert select(problems[0], DEVICE) is not first and select(problems[0], DEVICE) == first


@pytest.mark.parametrize("access", ["dot", "axpy"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_lines_of_whole_vectors_have_machine_code_of_their_own(access, dtype):
    """Neighbours in one cell, in any order; elements of 16 bytes are vectors."""
    width = 16 // DTYPES[dtype].itemsize
    near = [1003, 1008, 1006, 1007, 1000]
    sizes = [(each, 300) if access == "axpy" else (300, each) for each in near]
    for order in (sizes, sizes[::-1]):
        for rows, cols in order:
            # As views of something wider, whose lines begin at multiples of 16 bytes.
            lda = {"col_stride" if access == "axpy" else "row_stride": 1024}
            problem = problem_of(access, rows, cols, dtype)._replace(**lda).at(256, 256)
            choice = select(problem, DEVICE)
            assert choice.kernel.wide and not choice.kernel.phased
            length = rows if access == "axpy" else cols
            assert choice.spec.whole == problem.whole == (width > 1 and length % width == 0)
            assert choice.spec == choice.kernel.spec(problem, choice.knobs)


def numbers_of(problem):
    return numbers(problem, problem.access, problem.widths[0])


def test_ranges_are_in_the_order_of_their_numbers():
    problem = problem_with("axpy", 4096, 77, "c", 8)
    assert dict(zip(RANGES, numbers_of(problem), strict=True)) == {
        "line_bytes": 4096, "lines": 77, "element_bytes": 8, "load_bytes": 8, "lda_alignment": 128,
    }  # fmt: skip
    wide = problem_with("axpy", 4096 + 16, 77, "s", 16)
    assert numbers_of(wide)[-1] == 16
    assert numbers_of(wide._replace(col_stride=4096))[-1] == 128
    assert numbers_of(wide._replace(cols=1))[-1] == 128


@pytest.fixture
def alignment_again():
    yield
    gemv.use_alignment(True)


@pytest.mark.parametrize("access", ["dot", "axpy"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_without_alignment_every_address_gives_the_same_kernel(access, dtype, alignment_again):
    size = DTYPES[dtype].itemsize
    aligned = [problem_of(access, 40, 64, dtype).at(16 + at, 16 + at) for at in range(0, 17, size)]
    with_it = {(select(problem, DEVICE).spec) for problem in aligned}
    assert len(with_it) > 1 or size == 16
    gemv.use_alignment(False)
    choices = [select(problem, DEVICE) for problem in aligned]
    assert all(choice == choices[0] for choice in choices)
    assert choices[0].spec.widths in ((1, 1), (1, 0))
    forced = [select(problem, DEVICE, choices[0].kernel.name) for problem in aligned]
    assert {choice.spec for choice in forced} == {choices[0].spec}
    gemv.use_alignment(True)
    assert {select(problem, DEVICE).spec for problem in aligned} == with_it


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


@pytest.mark.parametrize(
    "knobs, dtype, accumulate, complaint",
    [
        ({"THREADS_PER_BLOCK": 160}, "s", "plain", "a power of two from 128 to 1024"),
        ({"THREADS_PER_BLOCK": 64}, "s", "plain", "got 64 and 4"),
        ({"THREADS_PER_BLOCK": 2048}, "s", "plain", "got 2048 and 4"),
        ({"VECTORS": 0}, "s", "plain", "VECTORS 1 or more, got 256 and 0"),
        ({"FACTORS": 1}, "s", "plain", "up to 2 columns that are 3 elements apart"),
        ({"THREADS_PER_BLOCK": 1024}, "h", "pairs", "shared memory, got 8192 sums of 8 bytes"),
    ],
)
def test_constants_of_short_columns_that_cannot_be_are_refused(knobs, dtype, accumulate, complaint):
    problem = problem_of("axpy", 3, 100000, dtype)._replace(accumulate=accumulate)
    with pytest.raises(ValueError, match=f"short_columns: .*{complaint}"):
        select(problem, DEVICE, "short_columns", {"FACTORS": 0, "VECTORS": 4, **knobs})


def test_no_grid_is_higher_than_there_are():
    problem = problem_of("axpy", 3, 10**9)
    choice = select(problem, DEVICE, "short_columns", {"VECTORS": 1, "BLOCKS_PER_SM": 10**6})
    assert choice.geometry.launches[0].grid[1] <= MAX_GRID_Y


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
                    along = columns * rows if choice.kernel.name == "short_columns" else columns
                    # Vectors of the other kernel of clusters run down the columns.
                    if choice.kernel.name != "cluster_columns":
                        assert along % spec.widths[0] == 0, "a split begins between two vectors"
                    in_cluster = "CLUSTER" in choice.knobs  # sums need no memory
                    assert geometry.scratch == (0 if in_cluster else splits * rows)
                    assert in_cluster or geometry.counters >= 1 or len(geometry.launches) == 2
                if choice.kernel.wide:
                    per_tile = -(-rows // geometry.launches[0].grid[0])
                    assert per_tile <= rows_of_a_tile(choice)
                    if "CLUSTER" in choice.knobs:
                        assert splits <= choice.knobs["CLUSTER"]
                    else:
                        assert splits == 1 or geometry.counters == geometry.launches[0].grid[0]
    assert split > 0


def rows_of_a_tile(choice):
    """What a block of a wide kernel covers, by its constants and the width of its loads."""
    knobs, width, itemsize = choice.knobs, choice.spec.widths[0], choice.spec.dtype.itemsize
    if choice.kernel.name == "vector_columns":
        lanes, pieces = lanes_and_pieces(knobs, width, itemsize, choice.spec.narrow)
        return lanes * pieces * width
    if choice.kernel.name == "phased_columns":
        pieces = k12_phased_columns.block_of(knobs, width, itemsize)[0]
        return k12_phased_columns.own_rows(knobs["LANES"], pieces, width)
    if choice.kernel.name == "cluster_columns":
        return knobs["LANES"] * knobs["PIECES"] * max(width, 16 // itemsize)
    if choice.kernel.name == "short_columns":
        return k13_short_columns.MOST_ROWS
    if choice.kernel.name == "long_columns":
        pieces = k10_long_columns.pieces_of_a_thread(knobs, width, itemsize)
        return knobs["THREADS_PER_BLOCK"] * pieces * width
    return max(knobs["THREADS_PER_BLOCK"] // knobs["LANES"], 1) * knobs["ROWS"]


def test_unknown_names_list_the_known():
    with pytest.raises(ValueError, match="no kernel 'warp'.*warp_per_row"):
        select(problem_of("dot", 5, 5), DEVICE, "warp")
    with pytest.raises(ValueError, match="no knob WARPS.*WARPS_PER_BLOCK"):
        select(problem_of("dot", 5, 5), DEVICE, "warp_per_row", {"WARPS": 1})


def test_alignment_by_environment():
    code = "from gemv.selection import select; print(select._by_alignment)"
    for value, said in (("0", "False"), (" Off", "False"), ("1", "True"), ("", "True")):
        run = processes.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True,
            env={**os.environ, "GEMV_ALIGNMENT": value},
        )  # fmt: skip
        assert run.stdout.strip() == said
    with pytest.raises(TypeError, match="use_alignment: yes must be True or False, got 0"):
        gemv.use_alignment(0)


@pytest.mark.parametrize("order", "CF")
def test_bits_do_not_depend_on_addresses_without_alignment(order, alignment_again):
    """The same values one element further in memory, computed: their kernels differ, or may not."""
    from numba import cuda

    if gemv.backend() == "host":
        pytest.skip("the host backend has no kernels")
    m, n = 36, 72
    rng = np.random.default_rng(5)
    a, x = rng.random((m, n), dtype=np.float32), rng.random(n, dtype=np.float32)

    def transposed(view):
        if gemv.backend() == "simulator":
            return view.T
        # On the GPU .T is a copy.
        return type(view)(view.shape[::-1], view.strides[::-1], view.dtype, gpu_data=view.gpu_data)

    def bits():
        found = set()
        for at in range(4):
            memory = np.full(m * n + 8, np.nan, np.float32)
            start = -memory.ctypes.data % 16 // 4 + at if gemv.backend() == "simulator" else at
            memory[start : start + m * n] = a.ravel(order)
            shape, back = ((m, n), 0) if order == "C" else ((n, m), 1)
            view = cuda.to_device(memory, copy=gemv.backend() == "cuda")
            view = view[start : start + m * n].reshape(shape)
            view = transposed(view) if back else view
            y = gemv.gemv(1, view, cuda.to_device(x))
            found.add(y.copy_to_host().tobytes())
        return found

    assert order == "F" or len(bits()) > 1, "the sum of this test is the same in any order"
    gemv.use_alignment(False)
    assert len(bits()) == 1


def test_a_choice_made_before_alignment_was_forbidden_is_not_kept(monkeypatch, alignment_again):
    """Another thread may forbid it in the middle of a call."""
    first = selection_select._first

    def forbidden_meanwhile(*arguments):
        monkeypatch.setattr(selection_select, "_first", first)
        gemv.use_alignment(False)
        return first(*arguments)

    selection_select.forget()
    monkeypatch.setattr(selection_select, "_first", forbidden_meanwhile)
    aligned = problem_of("dot", 64, 64).at(0, 0)
    chosen = select(aligned, DEVICE)
    later = select(aligned, DEVICE)
    assert later != chosen
    assert later == select(selection_select.as_computed(aligned, DEVICE, False), DEVICE)


GPU = Device("any", (9, 0), 132)
H200 = Device("NVIDIA H200", (9, 0), 132)
#: A problem, and others that differ from it in one thing that a kernel is chosen or compiled by.
BASE = Problem(
    np.dtype("F"), 96, 4096, 0, 96, 4096, False, 4096, 1, a_alignment=16, x_alignment=16
)  # fmt: skip
OTHERS = {
    "conj": {"conj": True}, "x aligned less": {"x_alignment": 8}, "x with gaps": {"incx": 2},
    "a aligned less": {"a_alignment": 8}, "a aligned like its real part": {"a_alignment": 4},
    "lines that fill no vector": {"n": 4095, "cols": 4095}, "wide": {"accumulate": "wide"},
    "one line": {"m": 1, "rows": 1}, "columns": {"row_stride": 1, "col_stride": 96},
    "strides": {"col_stride": 2, "row_stride": 8192}, "gaps": {"row_stride": 4224},
    "short": {"n": 16, "cols": 16, "row_stride": 16},
}  # fmt: skip


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_a_choice_follows_its_problem_and_not_the_one_before(other):
    """What is remembered of one problem must not be taken for another."""
    changed = BASE._replace(**other)
    for first, second in ((BASE, changed), (changed, BASE)):
        selection_select.forget()
        alone = select(second, GPU)
        selection_select.forget()
        select(first, GPU)
        assert select(second, GPU) == alone


def test_unknown_addresses_are_not_taken_for_those_of_split_elements():
    """Neither allows wide loads, but elements at unknown addresses are aligned to their size."""
    unknown, split = (BASE._replace(a_alignment=each) for each in (0, 4))
    for first, second in ((unknown, split), (split, unknown)):
        selection_select.forget()
        alone = select(second, GPU)
        selection_select.forget()
        select(first, GPU)
        assert select(second, GPU) == alone
    assert select(unknown, GPU).kernel is not select(split, GPU).kernel


# New shapes -------------------------------------------------------------------------------------


PREPARED = [kernel for kernel in REGISTRY.values() if kernel.prepared is not None]
DIMENSIONS = (1, 2, 3, 7, 40, 1000, 4099, 1 << 17)


@pytest.mark.parametrize("kernel", PREPARED, ids=lambda kernel: kernel.name)
def test_what_is_prepared_for_one_shape_is_right_for_others(kernel):
    """One shape's geometry is prepared, and those of the others are as if each were the first."""
    compared = 0
    for access, letter, part in itertools.product(("dot", "axpy"), "shz", ("none", "one", "half")):
        width = 16 // DTYPES[letter].itemsize
        more = {"none": 0, "one": 1, "half": width // 2}[part]  # than whole vectors
        problems = []
        for lines, units in itertools.product(DIMENSIONS, repeat=2):
            line = units * width + more
            sizes = (lines, line) if access == "dot" else (line, lines)
            problems.append(problem_of(access, *sizes, letter).at(256, 256))
        by_loads = {}
        for problem in problems:
            if kernel.accepts(problem) is None and problem.access == access:
                key = problem.widths, problem.whole, kernel.spec(problem).narrow
                by_loads.setdefault(key, []).append(problem)
        for alike in by_loads.values():
            for first in (alike[0], alike[-1]):
                geometry_of = kernel.prepared(first, GPU, kernel.knobs)
                for problem in alike:
                    assert kernel.accepts(problem) is None
                    assert geometry_of(problem) == kernel.geometry(problem, GPU, kernel.knobs)
                    compared += 1
    assert compared > 200


@pytest.mark.parametrize("kernel", PREPARED, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("access", ["dot", "axpy"])
def test_what_is_prepared_is_accepted_whatever_the_sizes(kernel, access):
    if kernel.accepts(problem_of(access, 8, 8)) is not None:
        return
    for rows, cols in itertools.product((1, 9, 10**6, MOST_PREPARED), (1, 9, 10**6, 2**40)):
        problem = problem_of(access, rows, cols)
        assert problem.access != access or kernel.accepts(problem) is None


def test_problems_of_one_entry_have_the_lanes_that_their_own_rows_need():
    """Narrow loads of a few rows: what is made for the first problem is not for all others.

    Which cells share an entry follows from what was chosen for them, so it is asked itself.
    """
    kernel, homes = REGISTRY["vector_columns"], ("arguments", "arguments")
    knobs = {**kernel.knobs, "LANES": 4}
    problems = [
        problem_of("axpy", rows, cols, "h").at(258, 256)
        for rows in (2, 9, 5, 3, 40) for cols in (5000, 300_007)
    ]  # fmt: skip
    for order in (problems, problems[::-1]):
        entry, narrow = Entry(kernel, knobs, "why", ""), set()
        for problem in order:
            choice = entry.choice(problem, H200, homes)
            assert choice == made(kernel, problem, H200, knobs, homes, (), "why")
            narrow.add(choice.spec.narrow)
        assert narrow == {1, 2, 4}


@pytest.mark.parametrize("first", [0, 1])
def test_problems_of_one_entry_are_compiled_for_their_own_gaps(first):
    """Whether A is sparse does not follow from the kind of its cell."""
    kernel, homes = REGISTRY["vector_columns"], ("arguments", "arguments")
    entry = Entry(kernel, kernel.knobs, "why", "")
    dense = make_problem(4, 1 << 18, DTYPES["z"], "F", "N").at(256, 256)
    both = [dense, dense._replace(col_stride=8)]
    for problem in (both[first], both[1 - first]):
        assert entry.choice(problem, H200, homes).spec.sparse == (problem is both[1])


ONE_LOAD = {"LANES": 1, "ROWS": 4, "VECTORS": 0, "THREADS_PER_BLOCK": 64, "MIN_BLOCKS": 16}
ONE_LOAD["BLOCKS_PER_SM"] = 0


@pytest.mark.parametrize(
    "cols, step, letter, alignment, apart",
    [
        (7, 12, "s", 4, True),  # 48 bytes of each of 4096 rows of a multiprocessor
        (7, 10, "s", 4, False),  # 40 bytes
        (7, 11, "s", 4, True),
        (7, 7, "s", 4, False),
        (11, 11, "s", 4, True),
        (4, 40, "s", 4, False),  # four loads
        (5, 40, "s", 4, True),
        (8, 40, "s", 8, False),  # four loads of 8 bytes
        (10, 40, "s", 8, True),
        (2, 4, "z", 16, False),
    ],
)
def test_rows_that_the_l1_cache_cannot_hold_have_all_loads_on_their_way(
    cols, step, letter, alignment, apart
):
    kernel, homes = REGISTRY["vector_rows"], ("arguments", "arguments")
    knobs = {**kernel.knobs, **ONE_LOAD}
    problem = make_problem(1 << 20, cols, DTYPES[letter], "C", "N")
    problem = problem._replace(row_stride=step).aligned(alignment, 256)
    entry = Entry(kernel, knobs, "why", "")
    for each in (problem, problem._replace(rows=99), problem):
        found = dict(entry.choice(each, H200, homes).spec.knobs)
        wanted = {"VECTORS": 4, "ROWS": 1, "THREADS_PER_BLOCK": 256, "MIN_BLOCKS": 4}
        assert found == {**knobs, **(wanted if apart else {})}
    for other in ({"LANES": 2}, {"VECTORS": 1}, {"MIN_BLOCKS": 4}, {"BLOCKS_PER_SM": 4}):
        assert dict(
            Entry(kernel, {**knobs, **other}, "why", "").choice(problem, H200, homes).spec.knobs
        ) == {**knobs, **other}


def test_more_rows_than_a_grid_has_blocks_are_refused_after_fewer():
    """Both are in the last cell of the same kind."""
    few, many = (problem_of("dot", rows, 3000).at(256, 256) for rows in (2**28, 2**31))
    assert select(few, GPU).kernel.prepared is not None
    assert select(few, GPU).kernel.accepts(many) is not None
    assert select(many, GPU).kernel.accepts(many) is None


def test_a_new_shape_of_a_known_cell_takes_few_functions():
    """Time on the host is mostly calls of Python's functions, which can be counted anywhere."""
    for access in ("dot", "axpy"):
        sizes = (1024, 1020, 1016, 1000, 904)
        first, *others = (problem_of(access, rows, 640).at(256, 256) for rows in sizes)
        selection_select.forget()
        select(first, H200)
        for problem in others:
            assert entered(lambda problem=problem: select(problem, H200)) <= 16


def entered(call):
    """How many functions of Python a call enters, without its own."""
    count = -1

    def note(frame, event, argument):
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("homes", [("constant", "constant"), ("pointer", "arguments")])
def test_a_choice_has_the_homes_that_were_asked_for(homes):
    assert select(BASE, GPU).spec.homes == ("arguments", "arguments")
    assert select(BASE, GPU, homes=homes).spec.homes == homes
    assert select(BASE, GPU).spec.homes == ("arguments", "arguments")
