import itertools
import math
import os
import random
import re
import sys
import tomllib
from importlib import resources

import numpy as np
import pytest
from helpers import processes
from helpers.selection import problem_of, problem_with

import gemv
from gemv.core.dtypes import DTYPES
from gemv.core.geometry import MAX_GRID_Y, Device
from gemv.kernels import (
    REGISTRY,
    k09_vector_columns,
    k10_long_columns,
    k12_phased_columns,
    k13_short_columns,
)
from gemv.measure.inputs import make_problem
from gemv.selection import select as selection_select
from gemv.selection.parse import parse
from gemv.selection.row import RANGES, numbers
from gemv.selection.select import select
from gemv.selection.table import Tables, file_names, table, tables

DEVICE = Device("some GPU", (9, 0), 100)
FOLDER = resources.files("gemv.selection").joinpath("tables")


@pytest.fixture(autouse=True)
def tables_alone(monkeypatch):
    """Here the tables choose for products up to 32 x 32 as well."""
    monkeypatch.setattr(selection_select, "kernel_of_small", lambda problem: None)
    gemv.use_alignment(True)  # forgets what was chosen
    yield
    monkeypatch.undo()
    gemv.use_alignment(True)


def devices():
    """One for the tables of every device, and one for each special table."""
    found = [Device("no such GPU", (0, 0), 100)]
    for file in sorted(FOLDER.glob("*.toml")):
        name = file.stem
        if name.startswith("cc") and name[2:].isdigit():
            found.append(Device("no such GPU", (int(name[2:-1]), int(name[-1])), 100))
        elif name != "default":
            about = tomllib.loads(file.read_text("utf-8"))["about"]
            found.append(Device(about["gpu"], tuple(about["compute_capability"]), 100))
            assert file_names(found[-1])[0] == name
    return found


BY_DEVICE = pytest.mark.parametrize("device", devices(), ids=lambda d: "-".join(file_names(d)))


def around(condition, access, rows=None):
    """Sizes at, just below and just above every threshold of the table for `access`."""
    sizes = {4, 1 << 20} if condition == "line_bytes" else {1, 1 << 20}
    for row in table() if rows is None else rows:
        if row.conditions.get("access", access) == access:
            for end in ("min", "max"):
                at = row.conditions.get(f"{condition}_{end}")
                if at is not None:
                    step = 4 if condition == "line_bytes" else 1
                    sizes |= {max(at - step, step), at, at + step}
    return sorted(sizes)


def kinds(rows):
    """Dtype, width of loads, alignment of lda and precision for each set of them in the rows."""
    found = set()
    for row in rows:
        told = row.conditions.get
        sizes = range(told("element_bytes_min", 1), told("element_bytes_max", 16) + 1)
        wide = told("load_bytes_max", told("load_bytes_min", 16))
        fits = [d for d in told("dtype", "sdczhb") if DTYPES[d].itemsize in sizes]
        usual = [d for d in fits if DTYPES[d].itemsize <= wide]
        dense = row.kernel == "short_columns"  # which refuses gaps
        lda = None if dense else told("lda_alignment_max", 128)
        accumulate = told("accumulate", "plain")
        found.add(((usual or fits)[0], wide, lda, accumulate))
    return sorted(found, key=str)


@BY_DEVICE
def test_every_row_is_reached(device, monkeypatch):
    """Some of them where addresses may not matter, which rules the kernels of rows before out."""
    rows = tables(device).rows
    reached = set()

    def look(row, access, kinds, lengths, counts):
        problems = list(itertools.product(kinds, lengths, counts))
        random.Random(0).shuffle(problems)  # as a row may be left with a corner of its ranges
        for by_alignment in (True, False):
            with monkeypatch.context() as patch:
                patch.setattr(selection_select, "_by_alignment", by_alignment)
                for kind, line_bytes, lines in problems:
                    if row.reason in reached:
                        return
                    problem = problem_with(access, line_bytes, lines, *kind)
                    if row.matches(problem):
                        reached.add(select(problem, device).reason)

    for row in rows:  # most where they end, or in the middle between
        told = row.conditions.get
        for access in [told("access")] if told("access") else ("dot", "axpy", "strided"):
            ends = [told("line_bytes_min", 4), told("line_bytes_max", 1 << 20)]
            lengths = [*ends, math.isqrt(ends[0] * ends[1])]
            ends = [told("lines_min", 1), told("lines_max", 1 << 20)]
            look(row, access, kinds([row]), lengths, [*ends, math.isqrt(ends[0] * ends[1])])
    for row in rows:  # the others anywhere among all thresholds
        if row.reason not in reached:
            told = row.conditions.get
            access = told("access", "strided")
            sizes = [
                [
                    size
                    for size in around(name, access, rows)
                    if told(f"{name}_min", 0) - 4 <= size <= told(f"{name}_max", size)
                ]
                for name in ("line_bytes", "lines")
            ]
            look(row, access, kinds([row]), *sizes)
    assert reached == {row.reason for row in rows}
    assert len(reached) == len(rows), "two rows give the same reason"


def test_every_kernel_is_selected_somewhere_or_there_to_teach():
    selected = {row.kernel for device in devices() for row in tables(device).rows}
    assert selected == {kernel.name for kernel in REGISTRY.values() if not kernel.teaching}
    assert all(kernel.teaching for kernel in REGISTRY.values() if kernel.beside)


@pytest.mark.parametrize("row", table(), ids=lambda row: row.reason.replace(" ", "-"))
def test_a_row_matches_up_to_its_thresholds_and_no_further(row):
    wanted = row.conditions
    access = wanted.get("access", "strided")
    lines = wanted.get("lines_min", min(wanted.get("lines_max", 4000), 4000))
    sizes = range(wanted.get("element_bytes_min", 1), wanted.get("element_bytes_max", 16) + 1)
    dtype = wanted.get("dtype", [each for each in "shd" if DTYPES[each].itemsize in sizes])[0]
    least, most = wanted.get("line_bytes_min", 0), wanted.get("line_bytes_max", 4000)
    whole = DTYPES[dtype].itemsize
    line = -(-least // whole) * whole or min(most, 4000)
    kind = {
        "dtype": dtype,
        "accumulate": wanted.get("accumulate", "plain"),
        "load_bytes": wanted.get("load_bytes_max", 16),
        "lda_alignment": wanted.get("lda_alignment_max"),
    }
    assert row.matches(problem_with(access, line, lines, **kind))
    for condition, at in wanted.items():
        if condition == "access":
            other = problem_with({"dot": "axpy", "axpy": "dot"}[at], line, lines, **kind)
            assert not row.matches(other)
            continue
        if condition == "accumulate":
            another = "wide" if at == "plain" else "plain"
            other = problem_with(access, line, lines, **{**kind, "accumulate": another})
            assert not row.matches(other)
            continue
        if condition == "dtype":
            continue
        size, end = condition.rsplit("_", 1)
        if size not in ("line_bytes", "lines"):
            continue
        step = whole if size == "line_bytes" else 1
        first, last = -(-at // step) * step, at // step * step  # that there are, on this side
        inside = {"line_bytes": line, "lines": lines, size: first if end == "min" else last}
        outside = {**inside, size: first - step if end == "min" else last + step}
        assert row.matches(problem_with(access, **inside, **kind))
        assert not row.matches(problem_with(access, **outside, **kind))


LAST = '[[row]]\nkernel = "last_block"\nreason = "rest"\n'


#: Before :data:`LAST`: a row whose kernel refuses some problems.
WIDE = '[[row]]\nkernel = "vector_rows"\nreason = "wide"\n'


def inline(knobs):
    """Constants as TOML writes them in a line."""
    return "{ " + ", ".join(f"{name} = {value}" for name, value in knobs.items()) + " }"


def row_text(reason, **fields):
    said = "".join(f"{name} = {value!r}\n" for name, value in fields.items())
    return f'[[row]]\nkernel = "last_block"\nreason = "{reason}"\n{said}'.replace("'", '"')


@pytest.mark.parametrize(
    "condition, yes, no",
    [
        ({"dtype": "sd"}, {"dtype": "d"}, {"dtype": "c"}),
        ({"accumulate": "wide"}, {"accumulate": "wide"}, {"accumulate": "plain"}),
        ({"element_bytes_max": 4}, {"dtype": "s"}, {"dtype": "d"}),
        ({"element_bytes_min": 8}, {"dtype": "c"}, {"dtype": "s"}),
        ({"load_bytes_min": 16}, {"load_bytes": 16}, {"load_bytes": 8}),
        ({"load_bytes_max": 8}, {"load_bytes": 4}, {"load_bytes": 16}),
        ({"load_bytes_max": 8}, {"dtype": "d", "load_bytes": 8}, {"dtype": "d"}),
    ],
    ids=str,
)
@pytest.mark.parametrize("access", ["dot", "axpy"])
def test_rows_for_a_dtype_or_an_alignment(condition, yes, no, access, tmp_path, own_tables):
    (tmp_path / "cc90.toml").write_text(row_text("special", **condition))
    (row,) = parse(row_text("special", **condition), last=False)
    for facts, matches in ((yes, True), (no, False)):
        problem = problem_with(access, 4096, 77, **facts)
        assert row.matches(problem) == matches
        assert (select(problem, DEVICE).reason == "special") == matches


@pytest.fixture
def own_tables(tmp_path, monkeypatch):
    """Tables from this test's folder before those of the package."""

    def forget():
        tables.cache_clear()
        selection_select._choices.clear()

    monkeypatch.setenv("GEMV_TABLES", str(tmp_path))
    forget()
    yield forget
    forget()


def test_the_table_of_the_very_gpu_comes_first_then_its_capability_then_the_rest(
    tmp_path, own_tables
):
    problem = problem_of("dot", 100, 100)
    (tmp_path / "cc90.toml").write_text(row_text("capability", lines_max=100))
    (tmp_path / "some-gpu.toml").write_text(row_text("name", lines_max=99))
    assert tables(DEVICE).names == ("some-gpu", "cc90", "default")
    assert select(problem, DEVICE).reason == "capability"
    assert select(problem_of("dot", 99, 100), DEVICE).reason == "name"
    assert select(problem_of("dot", 101, 100), DEVICE).reason in {row.reason for row in table()}
    other = DEVICE._replace(name="some GPU 2", compute_capability=(8, 0))
    assert tables(other).names == ("default",)
    (tmp_path / "default.toml").write_text(LAST)
    own_tables()
    assert select(problem_of("dot", 101, 100), DEVICE).reason == "rest"


def test_the_hash_is_of_what_is_selected_not_of_its_reasons():
    def hash_of(text):
        return Tables({"default": parse(text)}).hash

    one = hash_of(row_text("why", lines_max=3, access="dot") + LAST)
    assert one == hash_of(row_text("other words", access="dot", lines_max=3, figure="2 x") + LAST)
    assert one != hash_of(row_text("why", lines_max=4, access="dot") + LAST)
    assert one != hash_of(LAST + row_text("why", lines_max=3, access="dot") + LAST)
    assert len(tables().hash) == 64


def test_a_choice_is_remembered_and_the_oldest_forgotten(monkeypatch):
    selection_select._choices.clear()
    monkeypatch.setattr(selection_select, "MAX_CHOICES", 3)
    problems = [problem_of("dot", 10, 10 + k) for k in range(5)]
    first = select(problems[0], DEVICE)
    assert select(problem_of("dot", 10, 10), DEVICE) is first
    for problem in problems:
        select(problem, DEVICE)
    assert len(selection_select._choices) == 3
    assert select(problems[0], DEVICE) is not first and select(problems[0], DEVICE) == first


def test_the_memo_agrees_with_a_search():
    """The rows as they are compared in a search say what :meth:`Row.matches` says."""
    for access, dtype in itertools.product(("dot", "axpy", "strided"), DTYPES):
        for line_bytes, lines in itertools.product((4, 64, 1536, 40000), (1, 8, 300, 9000)):
            problem = problem_with(access, line_bytes, lines, dtype)
            found = [each.row for each in tables().matching(problem)]
            assert found == [row for row in table() if row.matches(problem)]
            chosen = select(problem, DEVICE)
            spec = chosen.kernel.spec(problem, found[0].knobs)
            assert (chosen.kernel.name, chosen.spec) == (found[0].kernel, spec)


@pytest.mark.parametrize("access", ["dot", "axpy"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_lines_of_whole_vectors_have_machine_code_of_their_own(access, dtype):
    """Neighbours in one cell of the table, in any order; elements of 16 bytes are vectors."""
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


@BY_DEVICE
def test_a_choice_is_the_first_row_that_matches_whatever_was_chosen_before(device):
    """Problems of all kinds in turn: what is remembered for one kind is of no use to another."""
    rng = np.random.default_rng(3)
    rows, kinds = tables(device).rows, set()
    for _ in range(1500):
        m, n = (int(size) for size in 2 ** rng.uniform(0, 20, 2))
        dtype = DTYPES[rng.choice(list(DTYPES))]
        problem = make_problem(m, n, dtype, rng.choice(list("CF")), rng.choice(list("NTC")))
        problem = problem._replace(
            incx=int(rng.choice([1, 2])),
            result=[None, DTYPES["s"]][rng.integers(2)] if dtype.itemsize == 2 else None,
            accumulate=str(rng.choice(["plain", "wide"])),
        ).at(*(16 + int(at) * dtype.itemsize for at in rng.integers(0, 4, 2)))
        homes = [("arguments", "arguments"), ("constant", "pointer")][rng.integers(2)]
        row = next(
            row
            for row in rows
            if row.matches(problem) and not REGISTRY[row.kernel].accepts(problem)
        )
        kernel = REGISTRY[row.kernel]
        spec = kernel.spec(problem, row.knobs, homes)
        geometry = kernel.geometry(problem, device, dict(spec.knobs))
        assert select(problem, device, homes=homes) == (kernel, spec, geometry, row.reason)
        kinds.add((spec, problem.row_stride))
    assert len(kinds) > 500


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


def test_a_kernel_asked_for_has_the_constants_of_the_table():
    """Asked for or chosen, the same kernel on the same problem is the same machine code."""
    corners = {
        (access, line_bytes, lines)
        for access in ("dot", "axpy")
        for row in table()
        for line_bytes in around("line_bytes", access, [row])
        for lines in around("lines", access, [row])
        if row.conditions.get("access", access) == access
    }
    for corner in corners:
        problem = problem_with(*corner)
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
                    assert along % spec.widths[0] == 0, "a split begins between two vectors"
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
    if choice.kernel.name == "phased_columns":
        pieces = k12_phased_columns.block_of(knobs, width, itemsize)[0]
        return k12_phased_columns.own_rows(knobs["LANES"], pieces, width)
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


@pytest.mark.parametrize(
    "text, complaint",
    [
        ('[[row]]\nkernel = "nothing"\nreason = ""\n' + LAST, "no kernel 'nothing'"),
        ('[[row]]\nkernel = "atomics"\nreason = ""\n' + LAST, "cannot be selected"),
        ('[[row]]\nkernel = "serial"\nreason = ""\n' + LAST, "cannot be selected"),
        (row_text("", row_min=3) + LAST, "row 1: unknown field 'row_min'"),
        ("rows = 3\n" + LAST, "unknown field 'rows'"),
        (row_text("", lines_min=3), "must accept every problem"),
        (row_text("", dtype="sx") + LAST, "dtype must be one or more of .*, got str 'sx'"),
        (row_text("", accumulate="twice") + LAST, "accumulate must be one of .*, got str 'twice'"),
        (
            '[[row]]\nkernel = "last_block"\nreason = ""\nknobs = { X = 1 }\n' + LAST,
            "row 1: kernel 'last_block' has no knob X; it has: BLOCK_X",
        ),
        # What a row lacks, or what is of the wrong kind
        ('[[row]]\nreason = ""\n' + LAST, "row 1: kernel is missing"),
        (LAST + '[[row]]\nkernel = "last_block"\n', "row 2: reason is missing"),
        ('[[row]]\nkernel = 3\nreason = ""\n', "kernel must be a string, got int 3"),
        ('[[row]]\nkernel = "last_block"\nreason = []\n', "reason must be a string, got list"),
        (row_text("", figure=1.5) + LAST, "figure must be a string, got float 1.5"),
        (row_text("", knobs=7) + LAST, "knobs must be a table of constants, got int 7"),
        (row_text("", access="rows") + LAST, 'access must be one of "dot", "axpy", "strided", got'),
        (row_text("", access=["dot"]) + LAST, "access must be one of"),
        (row_text("", dtype="") + LAST, "dtype must be one or more of the letters"),
        (row_text("", dtype=4) + LAST, "dtype must be one or more of the letters .*, got int 4"),
        # Numbers
        (row_text("", lines_min=0) + LAST, "row 1: lines_min must be .* from 1 to .*, got int 0"),
        (row_text("", lines_max=-4) + LAST, "lines_max must be an integer from 1 .*, got int -4"),
        (row_text("", lines_min=1.0) + LAST, "lines_min must be an integer .* got float 1.0"),
        (row_text("", lines_min="9") + LAST, "lines_min must be an integer from 1 .*, got str '9'"),
        (LAST + "lines_min = true\n", "lines_min must be an integer from 1 .*, got bool True"),
        (LAST + "lines_min = nan\n", "lines_min must be an integer from 1 .*, got float nan"),
        (row_text("", lines_min=2**63) + LAST, "lines_min must be an integer from 1 to 92233720"),
        (LAST + f"lines_min = 0x{'f' * 5000}\n", "lines_min must be an integer from 1 .*, got int"),
        (row_text("", lines_min=5, lines_max=4) + LAST, "lines_min = 5 is larger than lines_max"),
        (LAST + "knobs = { BLOCK_X = 0 }\n", "last_block: BLOCK_X must be an integer .* int 0"),
        (LAST + "knobs = { BLOCK_X = -8 }\n", "last_block: BLOCK_X must be an integer .* -8"),
        (LAST + "knobs = { BLOCK_X = 8.0 }\n", "BLOCK_X must be an integer .*, got float 8.0"),
        (LAST + "knobs = { BLOCK_X = true }\n", "BLOCK_X must be an integer .*, got bool True"),
        (LAST + "knobs = { BLOCK_X = 4294967296 }\n", "BLOCK_X must be an integer from 1 to 21474"),
        (WIDE + "knobs = { LANES = 0 }\n" + LAST, "vector_rows: LANES must be an integer from 1"),
        (WIDE + "knobs = { BLOCKS_PER_SM = -1 }\n" + LAST, "BLOCKS_PER_SM must be .* from 0 to"),
        # The whole
        ("", "it has no .*row"),
        ("# nothing\n", "it has no .*row"),
        ("row = 3\n", "row must be an array of tables"),
        ("row = [1, 2]\n", "row must be an array of tables"),
        ("[row]\nkernel = 1\n", "row must be an array of tables"),
        ("about = 3\n" + LAST, "about must be a table, got int 3"),
        (WIDE, "row 1: the last row must accept every problem"),
        ("[[row]\n", "it is not valid TOML: .*line 1"),
        (LAST + LAST.replace("[[row]]", ""), "it is not valid TOML: "),
        ("row = " + "[" * 100_000, "it is not valid TOML: "),
        (LAST + f"lines_min = {'9' * 5000}\n", "it is not valid TOML: .*limit"),
    ],
    ids=lambda value: value[-60:],
)
def test_a_bad_table_is_refused(text, complaint):
    with pytest.raises(ValueError, match=f"^selection table f.toml(, |: )(.*{complaint})"):
        parse(text, source="f.toml")


@pytest.mark.parametrize(
    "knobs, complaint",
    [
        ({"LANES": 24}, "vector_rows: ROWS must be 1 to 4, got 1, and LANES .* 24"),
        ({"ROWS": 9}, "vector_rows: ROWS must be 1 to 4, got 9"),
        ({"LANES": 4096}, "a block has at most 1024 threads, and .* of vector_rows .* 4096"),
    ],
)
def test_constants_that_do_not_go_together_are_refused_with_their_row(
    knobs, complaint, tmp_path, own_tables
):
    file = tmp_path / "default.toml"
    file.write_text(row_text("few", lines_max=9) + WIDE + f"knobs = {inline(knobs)}\n" + LAST)
    assert select(problem_of("dot", 9, 100), DEVICE).reason == "few"
    for kernel in (None, "vector_rows"):  # whose constants are those of its row
        with pytest.raises(
            ValueError, match=f"^selection table {re.escape(str(file))}, row 2: {complaint}"
        ):
            select(problem_of("dot", 100, 100), DEVICE, kernel)
    with pytest.raises(ValueError, match="^" + complaint):
        select(problem_of("dot", 100, 100), DEVICE, "vector_rows", knobs)


def test_a_file_that_is_no_table_is_named(tmp_path, own_tables, monkeypatch):
    file = tmp_path / "cc90.toml"
    problem = problem_of("dot", 9, 100)

    def refused(complaint):
        own_tables()
        place = f"^selection table {re.escape(str(file))}(, row 1)?: "
        with pytest.raises(ValueError, match=place + complaint):
            select(problem, DEVICE)

    file.mkdir()
    refused("it cannot be read: ")
    file.rmdir()
    file.write_bytes(b"")
    refused("it has no .*row")
    file.write_bytes(LAST.encode() + b"# \xff\n")
    refused("it is not UTF-8: .*0xff")
    file.write_bytes(LAST.encode("utf-16"))
    refused("it is not UTF-8: ")
    file.write_text("\0")
    refused("it is not valid TOML: ")
    file.write_text(row_text("", lines_max=0))
    refused("lines_max must be an integer from 1")
    file.write_text(LAST)
    read = type(file).read_bytes

    def no_rights(self):
        if self == file:
            raise PermissionError(13, "Permission denied", str(self))
        return read(self)

    with monkeypatch.context() as patch:
        patch.setattr(type(file), "read_bytes", no_rights)
        refused("it cannot be read: Permission denied")
    own_tables()
    assert select(problem, DEVICE).reason == "rest"


def test_a_folder_of_tables_that_is_none_is_refused(tmp_path, own_tables, monkeypatch):
    file = tmp_path / "a file"
    file.write_text("")
    for wrong, complaint in (
        (file, "GEMV_TABLES must name a folder"),
        (tmp_path / "none", "GEMV_TABLES must name a folder"),
        ("~nobody has this name", "GEMV_TABLES = '~nobody.*' cannot be looked into"),
    ):
        monkeypatch.setenv("GEMV_TABLES", str(wrong))
        own_tables()
        with pytest.raises(ValueError, match=complaint):
            tables(DEVICE)


def test_calls_say_which_table_is_bad_and_leave_y(tmp_path, own_tables):
    if gemv.backend() == "host":
        pytest.skip("nothing is selected on the host")
    (tmp_path / "default.toml").write_text(LAST + "lines_max = -1\n")
    y = np.array([3.0, 4.0])
    arguments = 1.0, np.ones((2, 3)), np.ones(3), 1.0, y
    for call in (gemv.gemv, gemv.dgemv, gemv.explain, gemv.precompile):
        routine = "dgemv" if call is gemv.dgemv else "gemv"
        said = f"^{routine}: selection table .*default.toml, row 1: lines_max must be .*-1"
        with pytest.raises(ValueError, match=said):
            call(*arguments, overwrite_y=1)
    assert y.tolist() == [3.0, 4.0]


NASTY = (
    "0", "-1", "1", "3", "1.5", "true", "nan", '""', '"x"', '"dot"', '"sd"', '"serial"', "[]",
    "[1]", "{}", "{ a = 1 }", "{ LANES = 0 }", "{ ROWS = 2, LANES = 24 }", "1979-05-27", "0xff",
    "[", "=", str(2**63), str(2**70), "'''", '"last_block"', '"vector_rows"', '"\\ud800"',
)  # fmt: skip
NAMES = (
    "row", "about", "[row]", "[[row]]", "[[about]]", "kernel", "reason", "figure", "knobs",
    "access", "dtype", "accumulate",
    *(f"{name}_{end}" for name in RANGES for end in ("min", "max")),
)  # fmt: skip


def mutated(chance, table):
    """The bytes of a table with a few faults, in fields, in lines or in single bytes."""
    lines = table.splitlines()
    for _ in range(chance.choice((1, 1, 2, 5))):
        place = chance.randrange(len(lines))
        name, _, value = lines[place].partition(" = ")
        fault = chance.randrange(6)
        if fault == 0:
            del lines[place]
        elif fault == 1:
            lines.insert(chance.randrange(len(lines) + 1), lines[place])
        elif fault == 2:
            lines[place] = f"{chance.choice(NAMES)} = {value or chance.choice(NASTY)}"
        elif fault == 3 and "{" in value:
            lines[place] = lines[place].replace("2", chance.choice(NASTY), 1)
        else:
            lines[place] = f"{name} = {chance.choice(NASTY)}"
        lines = lines or [""]
    text = bytearray("\n".join(lines).encode())
    if chance.random() < 0.2:
        for _ in range(chance.choice((1, 3, 10))):
            at = chance.randrange(len(text) + 1)
            text[at : at + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
    return bytes(text)


@pytest.mark.parametrize("name", ["default", "cc90"])
def test_no_table_raises_anything_else(name, tmp_path, own_tables):
    """Thousands of tables with a few faults each are used, or refused in the documented way."""
    chance = random.Random(7)
    sound = (
        '[about]\ngpu = "some GPU"\n'
        + row_text("one", access="dot", lines_max=4096, lines_min=2, dtype="sd", load_bytes_min=4)
        + WIDE
        + "knobs = { LANES = 8, ROWS = 2, THREADS_PER_BLOCK = 64, BLOCKS_PER_SM = 2 }\n"
        + WIDE.replace("rows", "columns")
        + 'figure = "some"\nknobs = { PIECES = 2, COLUMNS = 4, MIN_BLOCKS = 2 }\n'
        + row_text("two", line_bytes_min=100, element_bytes_max=8, lda_alignment_min=16)
        + LAST
    )
    (tmp_path / "default.toml").write_text(LAST)
    file = tmp_path / f"{name}.toml"
    kinds = itertools.product(("dot", "axpy"), "sz")
    problems = [problem_of(access, 100, 900, letter) for access, letter in kinds]
    used = refused = 0
    for _ in range(1000):
        file.write_bytes(mutated(chance, sound))
        own_tables()
        try:
            for problem in problems:
                select(problem, DEVICE)
            used += 1
        except ValueError as error:
            assert re.match(f"selection table {re.escape(str(file))}(, row \\d+)?: ", str(error))
            refused += 1
    assert used > 50 and refused > 500


def test_alignment_by_environment():
    code = "from gemv.selection import select; print(select._by_alignment)"
    for value, said in (("0", "False"), ("1", "True"), ("", "True")):
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

    selection_select._choices.clear()
    monkeypatch.setattr(selection_select, "_first", forbidden_meanwhile)
    aligned = problem_of("dot", 64, 64).at(0, 0)
    chosen = select(aligned, DEVICE)
    later = select(aligned, DEVICE)
    assert later != chosen
    assert later == select(selection_select._aligned_to_elements(aligned), DEVICE)
