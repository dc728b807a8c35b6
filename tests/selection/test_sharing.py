"""One read of a large A for several vectors: what decides is the kernel of the product alone."""

from __future__ import annotations

import itertools

import pytest

from gemv.core.batch import Batch
from gemv.core.dtypes import DTYPES
from gemv.core.geometry import Chip, Device, ceil_div
from gemv.kernels import REGISTRY, get
from gemv.measure.inputs import make_problem
from gemv.selection import cells, sharing
from gemv.selection.choices import EMPTY, Choices, problems_of_line
from gemv.selection.machine import machine
from gemv.selection.parts import aligned, parts
from gemv.selection.ranking import predictions
from gemv.selection.select import select

H200 = Device("NVIDIA H200", (9, 0), 132)
H100 = Device("NVIDIA H100 80GB HBM3", (9, 0), 132, chip=Chip(memory_khz=2_619_000, bus_bits=5120))
#: GPUs with choices made ahead, and two for which the formula decides, with and without clusters.
GPUS = {
    "h200": H200,
    "h100": H100,
    "hopper": Device("another Hopper", (9, 0), 114),
    "ampere": Device("an Ampere", (8, 0), 108),
}
#: Sides of matrices from 24 MiB to 2 GiB: squares, tall and wide ones, powers of two and others.
SHAPES = [
    (8192, 8192), (4096, 4096), (5000, 5000), (9999, 9973), (2048, 16384), (16384, 2048),
    (160, 1 << 20), (1 << 20, 160), (77777, 333), (333, 77777), (16, 1 << 22), (1 << 22, 16),
    (128256, 1024), (1001, 100_003), (50, 1_000_000), (1_000_000, 50), (12345, 6789),
]  # fmt: skip
#: The most vectors that one read of A serves.
TOGETHER = 8
ORDERS = list(itertools.product("CF", "NT"))


def bytes_of(m, n, letter):
    return m * n * DTYPES[letter].itemsize


def reads(problem, vectors, device):
    """How often A is read for vectors that lie one behind the other."""
    rows, cols = problem.rows, problem.cols
    batch = Batch((vectors,), ((0,), (cols,), (rows,), (0,), (0,)))
    return sum(
        ceil_div(part.batch.items, part.choice.knobs.get("COUNT", 1))
        for part in parts(aligned(problem, batch), batch, device)
    )


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("letter", "sdcz")
def test_a_large_matrix_is_read_once_for_several_vectors(gpu, letter):
    looked = 0
    for (m, n), (order, trans) in itertools.product(SHAPES, ORDERS):
        problem = make_problem(m, n, DTYPES[letter], order, trans).at(256, 256)
        if bytes_of(m, n, letter) <= sharing.MAY_BE_HOT:
            continue
        for vectors in (2, 4, 8, 16):
            found = reads(problem, vectors, GPUS[gpu])
            assert found == ceil_div(vectors, TOGETHER), (m, n, order, trans, vectors)
            looked += 1
    assert looked > 150


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("letter", "hb")
def test_so_is_one_of_16_bits_whose_lines_begin_at_multiples_of_4_bytes(gpu, letter):
    looked = 0
    for (m, n), (order, trans) in itertools.product(SHAPES, ORDERS):
        problem = make_problem(m, n, DTYPES[letter], order, trans).at(256, 256)
        if bytes_of(m, n, letter) <= sharing.MAY_BE_HOT or problem.a_alignment < 4:
            continue
        for vectors in (2, 4, 8, 16):
            found = reads(problem, vectors, GPUS[gpu])
            assert found == ceil_div(vectors, TOGETHER), (m, n, order, trans, vectors)
            looked += 1
    assert looked > 80


def test_every_cell_of_large_matrices_has_a_kernel_that_vectors_share():
    """Cells are all that a table decides by, so no large problem is left out.

    The problems are those of all GPUs, and take most of the time, so each is made once.
    """
    chosen = {gpu: Choices(machine(GPUS[gpu]), GPUS[gpu]) for gpu in ("h200", "h100")}
    kernels = {
        gpu: [get(found.machine.constants[each.number].name) for each in found.entries]
        for gpu, found in chosen.items()
    }
    looked, apart = dict.fromkeys(chosen, 0), dict.fromkeys(chosen, 0)
    numbers_of_lines = [cells.lines_of(lines) for lines in range(cells.LINES_INDICES)]
    for kind in cells.kinds():
        for line in range(cells.LINE_INDICES):
            size = DTYPES[kind.letter].itemsize * cells.line_of(line)
            large = [lines * size > sharing.MAY_BE_HOT for lines in numbers_of_lines]
            if not any(large):
                continue
            first = line * cells.LINES_INDICES
            problems = problems_of_line(kind, line)
            for gpu, found in chosen.items():
                numbers = found.numbers(kind)[first : first + cells.LINES_INDICES]
                for lines, number in enumerate(numbers):
                    if number == EMPTY or not large[lines]:
                        continue
                    kernel = kernels[gpu][number]
                    badly = sharing.shares_badly(kernel, problems[lines])
                    assert not badly, (gpu, kind, line, lines)
                    looked[gpu] += 1
                    apart[gpu] += kernel.name not in sharing.SEVERAL
    assert min(looked.values()) > 500_000 and min(apart.values()) > 10_000


def test_what_is_left_are_lines_of_2_byte_numbers_that_begin_anywhere_and_the_shortest_columns():
    """There a product alone gains much by kernels that vectors cannot share."""
    odd = make_problem(9999, 9973, DTYPES["h"], "C", "N").at(256, 256)
    assert odd.a_alignment == 2 and select(odd, H200).kernel.name == "phased_rows"
    points = make_problem(3, 5_000_000, DTYPES["s"], "F", "N").at(256, 256)
    assert select(points, H200).kernel.name == "short_columns"
    assert [reads(each, 4, H200) for each in (odd, points)] == [4, 4]


SIZES = {True: (8192, 8192), False: (1024, 1024)}


@pytest.mark.parametrize("large", [True, False])
@pytest.mark.parametrize("name", sorted(set(REGISTRY) - {"small_items", "small_matrix"}))
def test_which_kernels_read_a_large_matrix_again(name, large):
    """Rows in clusters are shared if they are few, and a large matrix may have any number."""
    problem = make_problem(*SIZES[large], DTYPES["d"], "C", "N").at(256, 256)
    without = name not in {*sharing.SEVERAL, "short_columns"} - {"cluster_rows"}
    assert sharing.shares_badly(get(name), problem) == (large and without)


def test_a_matrix_that_the_cache_may_hold_gets_any_kernel():
    """Its bytes decide, and the last one counts."""
    cluster = get("cluster_rows")
    whole = make_problem(1536, 2048, DTYPES["d"], "C", "N").at(256, 256)
    assert bytes_of(1536, 2048, "d") == sharing.MAY_BE_HOT
    assert not sharing.shares_badly(cluster, whole)
    assert sharing.shares_badly(cluster, whole._replace(rows=1537))


@pytest.mark.parametrize("letter, alignment, again", [
    ("h", 2, False), ("b", 2, False), ("h", 4, True), ("s", 4, True), ("d", 8, True),
])  # fmt: skip
def test_kernels_for_lines_that_begin_anywhere(letter, alignment, again):
    """They are for loads of 2 bytes; clusters gain nothing there."""
    problem = make_problem(9999, 9973, DTYPES[letter], "C", "N").at(alignment, 256)
    problem = problem.aligned(alignment, 16)
    for name in ("phased_rows", "phased_columns"):
        assert sharing.shares_badly(get(name), problem) == again
    assert sharing.shares_badly(get("cluster_rows"), problem)


@pytest.mark.parametrize(
    "letter, rows", [("b", 131_072), ("s", 1 << 16), ("d", 1 << 16), ("z", 1 << 16)]
)
def test_tall_matrices_get_a_kernel_whose_threads_own_their_rows(letter, rows):
    """With few columns, blocks that add up sums move more of these than of A.

    A thread owns the rows of a load. With 16,384 threads it took an H200 as long as cuBLAS.
    """
    across, along = get("vector_columns"), get("long_columns")
    tall = make_problem(rows, 256, DTYPES[letter], "F", "N").at(256, 256)
    assert rows == max(1 << 16, 16_384 * tall.widths[0])
    assert sharing.shares_badly(across, tall) and not sharing.shares_badly(along, tall)
    assert select(tall._replace(rows=1 << 20), H200).kernel is along
    narrow = tall.aligned(tall.dtype.itemsize, 16)
    others = [tall._replace(rows=rows - 1), tall._replace(cols=257)]
    others += [narrow] if narrow.widths != tall.widths else []  # a load of one complex128 is wide
    assert not any(sharing.shares_badly(across, other) for other in others)
    # Of those that the L2 cache may hold, the ones with fewer columns; 25 of complex128 it may not.
    most = {"b": 16, "z": 24}.get(letter, 32)
    assert sharing.shares_badly(across, tall._replace(cols=most))
    assert sharing.shares_badly(across, tall._replace(cols=most + 1)) == (letter == "z")


def test_where_no_kernel_reads_a_matrix_once_none_is_left_out():
    strided = make_problem(8192, 8192, DTYPES["d"], "C", "N")._replace(
        row_stride=20000, col_stride=2
    )
    assert strided.access == "strided"
    split = make_problem(8192, 8192, DTYPES["z"], "C", "N").at(256, 256).aligned(8, 16)
    assert split.splits_elements
    for problem in (strided, split):
        assert not sharing.shares_badly(get("last_block"), problem)


def test_the_formula_compares_what_vectors_share_unless_a_kernel_is_asked_for():
    device = GPUS["hopper"]
    problem = make_problem(8192, 8192, DTYPES["d"], "C", "N").at(256, 256)
    names = {each.constants.name for each in predictions(machine(device), problem, device)}
    assert names and names <= set(sharing.SEVERAL)
    asked = predictions(machine(device), problem, device, kernel=get("cluster_rows"))
    assert {each.constants.name for each in asked} == {"cluster_rows"}
    assert select(problem, device, kernel="cluster_rows").kernel.name == "cluster_rows"


def test_few_rows_that_are_not_split_share_well_where_blocks_take_shares_of_them():
    kernel, knobs = get("vector_rows"), {**get("vector_rows").knobs, "BLOCKS_PER_SM": 0}
    few = make_problem(100, 100000, DTYPES["d"], "C", "N").at(256, 256)
    for lanes, blocks, well in ((512, 0, True), (512, 4, False), (32, 4, True), (32, 0, False)):
        constants = {**knobs, "LANES": lanes, "BLOCKS_PER_SM": min(blocks, 1)}
        assert sharing.shares_well(kernel, constants, blocks, few) == well, (lanes, blocks)
    long = {**knobs, "LANES": 512}
    odd = make_problem(100, 100001, DTYPES["d"], "C", "N").at(8, 8)
    assert not sharing.shares_well(kernel, long, 0, odd)
    assert not sharing.shares_well(kernel, long, 0, few._replace(rows=129))


@pytest.mark.parametrize("letter", ["h", "b"])
@pytest.mark.parametrize("lanes, threads, blocks, well", [
    (8, 512, 0, True), (16, 512, 0, True), (4, 512, 0, False), (32, 512, 0, False),
    (8, 512, 1, False), (16, 512, 2, False), (8, 256, 0, False), (32, 256, 1, False),
])  # fmt: skip
def test_columns_of_short_numbers_that_eight_vectors_share_well(
    letter, lanes, threads, blocks, well
):
    kernel, knobs = get("vector_columns"), {"LANES": lanes, "THREADS_PER_BLOCK": threads}
    many = make_problem(16384, 1024, DTYPES[letter], "F", "N").at(256, 256)
    assert sharing.shares_well(kernel, knobs, blocks, many) == well
    for other in (
        many._replace(cols=1023),
        many._replace(rows=12288),  # an A that the cache may hold
        many.aligned(8, 16),
        make_problem(16384, 1024, DTYPES["s"], "F", "N").at(256, 256),
    ):
        assert not sharing.shares_well(kernel, knobs, blocks, other)
