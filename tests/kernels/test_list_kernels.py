"""Kernels that compute most items of a list in one launch: bits, tables, and what they touch."""

import functools
import itertools
from unittest import mock

import numpy as np
import pytest
from helpers.lists import forced, run_together
from helpers.problems import ALL_ROWS, Case, filled, knobs_for_tests, tile_of

import gemv
from gemv.core.dtypes import DTYPES
from gemv.core.geometry import Chip, Device
from gemv.core.narrow import cast
from gemv.core.problem import Problem
from gemv.engines import backend
from gemv.kernels import get, list_shares, list_words
from gemv.kernels.list_words import AROUND
from gemv.kernels.tables import BY_WARP
from gemv.selection import ragged

if gemv.backend() == "host":
    pytest.skip("no GPU and no simulator", allow_module_level=True)

ROWS, COLUMNS, IN_ORDER = "list_rows", "list_columns", "list_in_order"
#: For what each kernel stands in: order and op of the items, and the kernel for lists.
ALONE = {
    "vector_rows": ([("C", "N"), ("F", "T"), ("F", "C")], ROWS),
    "vector_columns": ([("F", "N"), ("C", "T"), ("C", "C")], COLUMNS),
    "long_columns": ([("F", "N"), ("C", "T"), ("C", "C")], IN_ORDER),
}
H100 = Device(
    "NVIDIA H100 80GB HBM3",
    (9, 0),
    132,
    chip=Chip(clock_khz=1980000, memory_khz=2619000, bus_bits=5120, cache_bytes=50 << 20),
)
#: Sizes around what decides: widths of loads, few groups, rows that fill no vector, long sums.
SIZES = [
    (1, 1), (4, 4), (5, 7), (8, 3), (3, 40), (33, 36), (36, 33), (17, 64), (64, 17), (2, 90),
    (90, 2), (16, 16), (12, 130), (70, 9),
]  # fmt: skip
SCALARS = [(1.0, 0.0), (0.5, 2.0), (0.0, 0.5), (2.0, 1.0), (0.0, 0.0), (-1.5, -0.25)]


def few_warps(problems, places, device):
    """The launches that the GPU gets, in which eight warps compute all tiles.

    In the simulator it is an H100, so that the constants are those that are used there.
    """
    share, share_to_blocks = ragged.shared_out, ragged.shared_out_to_blocks

    def shared_out(tiles, rows, costs, takers, together, order):
        return share(tiles, rows, costs, 8, together, order)

    def shared_out_to_blocks(tiles, rows, costs, warps, takers, of_block):
        return share_to_blocks(tiles, rows, costs, warps, 8, of_block)

    with (
        mock.patch.object(ragged, "shared_out", shared_out),
        mock.patch.object(ragged, "shared_out_to_blocks", shared_out_to_blocks),
    ):
        return on_all(problems, places, device)


def on_all(problems, places, device):
    """As :func:`few_warps`, with as many warps as fit on the GPU."""
    return ragged.groups(problems, places, H100 if backend.backend() == "simulator" else device)


def assert_bits(cases, find=few_warps):
    """Each item has the bits of the kernel that it would have alone, within bounds of the exact.

    Returns the launches, and the buffers of y.
    """
    groups, found = run_together(cases, find)
    assert sorted(k for group in groups for k in group.items) == list(range(len(cases)))
    for group in groups:
        for k, single in zip(group.items, group.singles, strict=True):
            alone = cases[k].check(single.kernel.name, single.knobs)
            assert found[k].tobytes() == alone.tobytes(), (k, cases[k], group.choice.kernel.name)
    return groups, found


def by_warp(groups):
    return [group for group in groups if group.choice.spec.table == BY_WARP]


def random_cases(seed, dtype, order, op, sizes=SIZES, **rest):
    """Items of many sizes, some at odd addresses, with gaps between lines, with any increments."""
    rng = np.random.default_rng(seed)
    for k, place in enumerate(rng.permutation(len(sizes))):
        m, n = sizes[place]
        incx, incy = (1, 1) if k % 3 else rng.choice([-2, -1, 2, 3], 2)
        alpha, beta = SCALARS[k % len(SCALARS)]
        yield Case(
            m, n, dtype, order, op, pad=int(rng.choice([0, 0, 1, 3, 4, 8])), incx=int(incx),
            incy=int(incy), alpha=alpha, beta=beta, seed=k, shift=(0, 0, 1, 0, 2)[k % 5], **rest,
        )  # fmt: skip


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize(
    "dtype, op", [*itertools.product("sdhb", "NT"), *itertools.product("cz", "NTC")]
)
def test_each_item_has_the_bits_that_it_has_alone(dtype, op, order):
    seed = "sdczhb".index(dtype) * 10 + "NTC".index(op) * 2 + (order == "F")
    sizes = SIZES if ALL_ROWS else [each for k, each in enumerate(SIZES) if k % 2 == seed // 2 % 2]
    cases = list(random_cases(seed, dtype, order, op, sizes))
    groups, found = assert_bits(cases)
    _, by_all = run_together(cases, on_all)
    assert [each.tobytes() for each in by_all] == [each.tobytes() for each in found]
    kernels = [ROWS] if (order == "C") == (op == "N") else [COLUMNS, IN_ORDER]
    together = by_warp(groups)
    assert sorted(group.choice.kernel.name for group in together) == sorted(kernels)
    assert sum(len(group.items) for group in together) > len(cases) / 2


#: Items of columns for each way in which lanes and warps share rows, trees, and parts of a tree;
#: the last ones have four groups whose sums are added up in order.
SHAPES = {
    "s": [(4, 34), (8, 300), (3, 33), (5, 130), (13, 33), (2, 300), (44, 300), (130, 8), (257, 90)],
    "d": [
        (2, 33), (5, 33), (5, 300), (7, 300), (22, 300), (34, 40), (36, 40), (40, 40), (18, 40),
        (33, 9), (90, 12), (66, 40),
    ],
    "z": [(2, 33), (3, 300), (7, 300), (17, 40), (9, 64), (33, 9), (17, 33), (1100, 64)],
    "h": [
        (8, 33), (5, 33), (5, 130), (2, 300), (9, 90), (200, 5), (57, 33), (33, 5), (61, 5),
        (129, 9),
    ],
}  # fmt: skip


@pytest.mark.parametrize("dtype", SHAPES)
def test_each_way_to_share_rows_and_columns(dtype):
    # Sums of narrow numbers are compared before they are rounded to these.
    rest = {"y_dtype": "s"} if dtype == "h" else {}
    cases = list(random_cases(5, dtype, "F", "N", SHAPES[dtype], **rest))
    groups, _ = assert_bits(cases)
    words = {name: set() for name in ("warps", "runs", "tree", "parts", "shares", "in_pairs")}
    for group in by_warp(groups):
        for name, column in zip(group.words, group.table.T, strict=True):
            words.get(name, set()).update(column.tolist())
    assert len(words["tree"]) >= 3 and len(words["parts"]) >= 3
    assert words["shares"] >= {0, 1}
    # Tiles of few bytes, and all with two trees of float32 are such, belong to single warps.
    assert words["runs"] >= {0, 1} or dtype not in "dz"
    assert dtype not in "sdz" or words["warps"] == ({0, 2} if dtype == "s" else {0, 1, 2})
    assert dtype != "h" or 0 in words["in_pairs"]


@pytest.mark.parametrize("dtype", "sdczhb" if ALL_ROWS else "sz")
@pytest.mark.parametrize("name", list(ALONE))
def test_items_have_the_bits_of_the_kernel_that_is_theirs_alone(name, dtype, monkeypatch):
    ways, kernel = ALONE[name]
    knobs = knobs_for_tests(get(name))
    rows, cols = tile_of(get(name))
    sides = [(1, 1), (rows - 1, 3), (rows, min(cols, 24) + 1), (rows + 1, 8), (2 * rows + 3, 5)]
    cases = []
    for k, (m, n) in enumerate(sides):
        order, op = ways[k % len(ways)]
        m = max(m, 1)
        alpha, beta = SCALARS[k]
        case = Case(
            *((m, n) if op == "N" else (n, m)), dtype, order, op, pad=(7, 5, 7, 8, 3)[k],
            incx=(1, -1, 1, 1, 3)[k], incy=(1, -2, 1, 3, 1)[k], alpha=alpha, beta=beta, seed=k,
        )  # fmt: skip
        if get(name).accepts(case.problem.at(0, 0)) is None:
            cases.append(case)
    assert len(cases) >= 3, "the kernel refuses most of them"
    forced(monkeypatch, name, knobs, in_lists=True)
    groups, _ = assert_bits(cases, ragged.groups)
    assert {each.kernel.name for group in groups for each in group.singles} == {name}
    assert kernel in {group.choice.kernel.name for group in groups}


#: Dtypes, lanes and threads: each block with the dtype that shows most, which planted faults told;
#: with both dtypes if all rows are asked for.
BLOCKS = [
    ("b", 1, 512), ("s", 2, 256), ("b", 32, 512), ("s", 8, 32), ("b", 2, 32), ("b", 8, 128),
]  # fmt: skip
if ALL_ROWS:
    BLOCKS = [(dtype, *each) for dtype in "sb" for _, *each in BLOCKS]


@pytest.mark.parametrize("dtype, lanes, threads", BLOCKS)
def test_blocks_of_other_sizes_have_other_trees(dtype, lanes, threads, monkeypatch):
    """Constants of other GPUs: up to sixteen trees, or a single one of few groups.

    Some items have more trees than the warps of a block compute at once. The last ones begin at odd
    places in each column, and have four groups of columns of different phases.
    """
    knobs = {"LANES": lanes, "THREADS_PER_BLOCK": threads, "BLOCKS_PER_SM": 0}
    forced(monkeypatch, "vector_columns", knobs, True)
    sizes = [(8, 520), (33, 260), (64, 520), (16, 600), (72, 36), (40, 130), (64, 520)]
    # Sums of narrow numbers are compared before they are rounded to these.
    rest = {"y_dtype": "s"} if dtype == "b" else {}
    cases = [
        Case(m, n, dtype, "F", pad=(0, 8, 3)[k % 3], seed=k, beta=0.5, **rest)
        for k, (m, n) in enumerate(sizes)
    ]
    groups, _ = assert_bits(cases)
    found = {group.choice.kernel.name: len(group.items) for group in by_warp(groups)}
    assert found[COLUMNS] >= 2


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("dtype", "sbd")
def test_wide_sums_of_rows_are_those_of_single_products(dtype, order):
    cases = list(random_cases(3, dtype, order, "N", SIZES[:8], accumulate="wide"))
    assert_bits(cases)


def rows_around(groups):
    """Logarithms of lanes and loads of the items whose rows are read by vectors around them."""
    found = set()
    for group in by_warp(groups):
        words = dict(zip(group.words, group.table.T.tolist(), strict=True))
        if "loads" in words:
            found |= set(zip(words["lanes"], words["loads"], strict=True))
    return {(lanes, loads - AROUND) for lanes, loads in found if loads >= AROUND}


@pytest.mark.parametrize("lanes", [4, 8, 32])
@pytest.mark.parametrize("dtype", "sdhb")
def test_rows_around_vectors_have_the_bits_of_narrow_loads(dtype, lanes, monkeypatch):
    """Rows of one column and more, at any element, with any gaps, which are no numbers."""
    knobs = {"LANES": lanes, "ROWS": 1, "THREADS_PER_BLOCK": 32, "BLOCKS_PER_SM": 0}
    forced(monkeypatch, "vector_rows", knobs, in_lists=True)
    monkeypatch.setattr(list_words, "LEAST_AROUND", {2: 1, 4: 1, 8: 1})
    # Sums of narrow numbers are compared before they are rounded to these.
    rest = {"y_dtype": "s"} if dtype in "hb" else {}
    columns = [1, 2, 3, 5, 6, 7, 8, 9, 13, 17, 31, 65, 70, 130, 150]
    cases = []
    for k, cols in enumerate(columns if ALL_ROWS else columns[dtype in "db" :: 2]):
        order, op = ("C", "N") if k % 2 else ("F", "TC"[k // 2 % 2])
        rows, unit = (1, 5, 23)[k % 5 % 3], (1, 2, 4)[k % 3]  # elements that rows are aligned to
        alpha, beta = SCALARS[k % len(SCALARS)]
        size = (rows, cols) if op == "N" else (cols, rows)
        case = Case(
            *size, dtype, order, op, pad=-cols % unit + unit * (k % 2), shift=unit, alpha=alpha,
            beta=beta, incy=(1, -2)[k % 2], seed=k, **rest,
        )  # fmt: skip
        if get("vector_rows").accepts(case.problem.at(0, 0)) is None:
            cases.append(case)
    groups, _ = assert_bits(cases)
    found = rows_around(groups)
    size = DTYPES[dtype].itemsize
    widths = {width for width in (1, 2, 4) if width * size < 16 <= lanes * width * size}
    assert {loads // 2 for _, loads in found} == widths


@pytest.mark.parametrize(
    "dtype, cols", [("s", 257), ("s", 130), ("d", 65), ("h", 65), ("b", 70), ("b", 68)]
)
def test_a_row_reaches_no_other(dtype, cols):
    """Vectors around a row have elements of its neighbours, and their numbers stay theirs."""
    case = Case(23, cols, dtype, "C", shift=1 if cols % 2 else 2, beta=0.5)
    case.a[4], case.a[11] = filled(cols, np.nan, case.element), filled(cols, np.inf, case.element)
    groups, (found,) = run_together([case], few_warps)
    assert rows_around(groups)
    finite = np.isfinite(cast(case.y_of(found).copy(), np.dtype("f8")))
    assert np.flatnonzero(~finite).tolist() == [4, 11]


def test_which_rows_are_read_by_vectors_around_them():
    """From one lane on with 2 bytes, from four lanes on with more; else loads are as before."""

    def words(dtype, lanes, width=1, incx=1, accumulate="plain"):
        problem = Problem(
            DTYPES[dtype], 9, 65, 0, 9, 65, False, 65, 1, incx, accumulate=accumulate
        ).at(0, 0)
        (found,) = list_words.words_of_rows(problem, lanes, width, False)
        return found["lanes"], found["loads"]

    assert words("b", 8) == words("h", 8) == (0, AROUND + 2) and words("b", 4) == (2, 2)
    assert words("b", 32, 4) == (4, AROUND + 8) and words("b", 32, 8) == (5, 16)
    assert words("s", 16) == (2, AROUND + 2) and words("s", 8) == (3, 2)
    assert words("s", 8, 2) == (2, AROUND + 4) and words("s", 4, 2) == (2, 4)
    assert words("d", 8) == (2, AROUND + 2) and words("d", 4) == (2, 2)
    for dtype, rest in (("c", {}), ("z", {}), ("b", {"incx": 2}), ("s", {"accumulate": "wide"})):
        assert words(dtype, 32, **rest) == (5, 2)


def test_narrow_numbers_may_have_wider_results():
    cases = list(random_cases(4, "b", "C", "N", SIZES[4:12], y_dtype="s"))
    assert len(by_warp(assert_bits(cases)[0])) == 1


@pytest.mark.parametrize("order", "CF")
def test_one_item_is_a_list(order):
    (group,), _ = assert_bits([Case(33, 36, "s", order, alpha=0.5, beta=2.0)])
    assert group.choice.spec.table == BY_WARP and len(group.items) == 1


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("dtype", "sz")
def test_a_nan_stays_in_its_item(dtype, order):
    cases = [Case(17, 24, dtype, order, seed=k, beta=0.5) for k in range(5)]
    cases[2].a[...] = np.nan
    cases[3].x[...] = np.inf
    _, found = run_together(cases, few_warps)
    for k, (case, after) in enumerate(zip(cases, found, strict=True)):
        assert np.isfinite(case.y_of(after)).all() == (k not in (2, 3))


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("dtype", "sdchb")
def test_no_load_reaches_past_the_end_of_a(dtype, order):
    """Nothing may lie behind the last element, and the simulator has nothing there.

    Lines begin anywhere, and are shorter than a load as well as longer. Some follow each other
    backwards, so that the first one ends A.
    """
    sizes = [(3, 41), (5, 64), (7, 35), (9, 40), (33, 37), (67, 34), (70, 19), (40, 65)]
    cases = [
        Case(
            *((m, n) if order == "F" else (n, m)), dtype, order, pad=(0, 1, 0, 5)[k % 4],
            shift=(0, 1, 3)[k % 3], seed=k, beta=0.5,
        )
        for k, (m, n) in enumerate(sizes)
    ]  # fmt: skip
    for case in cases[::3]:
        case.a = case.a[:, ::-1] if order == "F" else case.a[::-1]
    assert by_warp(assert_bits(cases)[0])


@pytest.mark.parametrize("order", "CF")
def test_an_entry_may_be_several_tiles(order, monkeypatch):
    """In a long list a warp takes neighbouring tiles at once, so that there are not many turns."""
    monkeypatch.setattr(list_shares, "MOST_TURNS", 1)
    few = H100._replace(multiprocessors=1)
    sizes = [(800, 20), (5, 7), (64, 64), (530, 12), (4, 9)]
    cases = [Case(m, n, "s", order, seed=m, beta=0.5) for m, n in sizes]

    def find(problems, places, device):
        return ragged.groups(problems, places, few)

    groups, _ = assert_bits(cases, find)
    assert max(group.choice.geometry.sizes["each"] for group in by_warp(groups)) > 1


@pytest.mark.parametrize("order", "CF" if ALL_ROWS else "C")
def test_a_warp_takes_more_turns_than_it_has_lanes(order):
    """A lane has what the warp does in one turn; after 32 turns they load what comes next.

    The kernels of both orders walk through their items alike.
    """
    one = H100._replace(multiprocessors=1)
    kinds = [Case(m, n, "s", order, beta=0.5, seed=m) for m, n in ((5, 8), (7, 4), (32, 9))]
    cases = [kinds[k % 3] for k in range(900)]

    def find(problems, places, device):
        return ragged.groups(problems, places, one)

    groups, found = run_together(cases, find)
    (group,) = by_warp(groups)
    assert len(group.items) == len(cases) and group.choice.geometry.sizes["turns"] > 33
    singles = dict(zip((k % 3 for k in group.items), group.singles, strict=True))
    alone = [kinds[k].check(singles[k].kernel.name, singles[k].knobs) for k in range(3)]
    for k, after in enumerate(found):
        assert after.tobytes() == alone[k % 3].tobytes(), k


@pytest.mark.skipif(
    backend.backend() == "cuda", reason="only the simulator has schedules that can be chosen"
)
@pytest.mark.parametrize("order", "CF")
def test_no_order_of_threads_and_blocks_changes_a_bit(order):
    from gemv.language.simulator.scheduler import Schedule, scheduled

    cases = list(random_cases(9, "s", order, "N", [*SIZES[4:11], (130, 36), (200, 40)]))

    def find(problems, places, device):
        """So few warps, or blocks, that each takes several tiles."""
        return ragged.groups(problems, places, H100._replace(multiprocessors=1))

    _, expected = run_together(cases, find)
    for schedule in (
        Schedule("reversed", late=True), Schedule("warps"), Schedule("random", 0),
    ):  # fmt: skip
        with scheduled(schedule):
            _, found = run_together(cases, find)
        assert [each.tobytes() for each in found] == [each.tobytes() for each in expected]


def problems_of(sizes, dtype="s", order="C"):
    for m, n in sizes:
        strides = (n, 1) if order == "C" else (1, m)
        yield Problem(DTYPES[dtype], m, n, 0, m, n, False, *strides).at(0, 0)


def all_planned(sizes, dtype="s", order="C", device=H100):
    """The launches of kernels for lists, which most items have, and what each warp does there."""
    problems = list(problems_of(sizes, dtype, order))
    groups = by_warp(ragged.groups(problems, [(0, 0, 0)] * len(problems), device))
    assert sum(len(group.items) for group in groups) > 0.8 * len(problems)
    for group in groups:
        sizes = group.choice.geometry.sizes
        yield group, group.blocks.reshape(sizes["takers"], sizes["turns"])


def planned(*arguments, **rest):
    """The only one of these launches, or the one that moves most bytes."""
    return next(all_planned(*arguments, **rest))


@functools.cache
def many_sizes(count):
    sides = 4 * 2 ** (7 * np.random.default_rng(6).random((count, 2)))
    return [(int(m), int(n)) for m, n in sides]


def once(entries, warps, of_block):
    """All entries, those of blocks once: each warp of a block begins with the same ones."""
    is_shared = (entries >= 0) & (warps[np.maximum(entries, 0) >> 32] > 1)
    if not is_shared.any():
        return entries[entries >= 0]
    by_block = entries.reshape(-1, of_block, entries.shape[1])
    is_shared = is_shared.reshape(by_block.shape)
    assert (is_shared == is_shared[:, :1]).all(), "warps with other barriers"
    assert (np.where(is_shared, by_block - by_block[:, :1], 0) == 0).all()
    assert (is_shared[:, :, 1:] <= is_shared[:, :, :-1]).all(), "a tile of a block comes late"
    by_block = np.where(is_shared & (np.arange(of_block)[:, None] > 0), -1, by_block)
    return by_block[by_block >= 0]


def assert_each_row_once(group, entries):
    """Tables stay within their bounds, and each row of each word of the table has one warp."""
    geometry = group.choice.geometry
    takers, turns, items, each = (geometry.sizes[k] for k in ("takers", "turns", "items", "each"))
    (launch,) = geometry.launches
    assert len(group.table) == len(group.slots) == items + takers
    words = {name: group.table[:items, k] for k, name in enumerate(group.words)}
    tiles = group.choice.kernel.tiles_of(words, group.choice.spec)
    block = launch.block[0] // 32
    assert takers <= launch.grid[0] * block < takers + block
    begins = entries[:, 0].reshape(-1, tiles.together) >= 0
    assert entries.shape == (takers, turns) and begins.any(axis=1).all(), "all have work"
    assert ((entries[:, 1:] < 0) | (entries[:, :-1] >= 0)).all(), "no gap before the end"
    taken = once(entries, np.broadcast_to(tiles.warps, items), block)
    slot, first = taken >> 32, taken & 0xFFFFFFFF
    assert slot.max() < items
    # The words with which a warp begins are those of its first item.
    begun = np.maximum(entries[:, 0], 0) >> 32
    assert (group.table[items:] == group.table[begun]).all()
    assert (group.slots[items:] == group.slots[begun]).all()
    begin = words.get("begin", np.zeros(items, np.int64))
    step = tiles.rows[slot] * each
    assert ((first - begin[slot]) % step == 0).all() or each > 1
    order = np.lexsort((first, slot))
    slot, first = slot[order], first[order]
    step = step[order]
    is_first = np.r_[True, slot[1:] != slot[:-1]]
    is_last = np.r_[is_first[1:], True]
    assert np.unique(slot).size == items, "an item without a warp"
    assert (first[is_first] == begin[slot[is_first]]).all()
    assert (first[1:][~is_first[1:]] == (first + step)[:-1][~is_last[:-1]]).all()
    assert (first[is_last] < words["rows"][slot[is_last]]).all()
    assert ((first + step)[is_last] >= words["rows"][slot[is_last]]).all()


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("dtype", "sdczhb")
def test_each_row_is_computed_once(dtype, order):
    sizes = many_sizes(200)
    if dtype in "cz":  # of rows that fill no vector, the sums of complex numbers are others
        sizes = [(4 * (m // 4), n) for m, n in sizes]
    for group, entries in all_planned(sizes, dtype, order):
        assert_each_row_once(group, entries)


@pytest.mark.parametrize("order", "CF")
def test_warps_have_equal_shares(order):
    """No block has more than the mean and a tile for each warp, which differ by one at most."""
    group, entries = planned(many_sizes(700), order=order)
    geometry = group.choice.geometry
    words = {name: group.table[:, k] for k, name in enumerate(group.words)}
    tiles = group.choice.kernel.tiles_of(words, group.choice.spec)
    fitting = H100.multiprocessors * tiles.blocks
    assert geometry.launches[0].grid[0] == fitting, "all that fit at once"
    costs = tiles.rows * words["cols"] * 4 // tiles.warps + tiles.wait * tiles.passes
    slot = np.maximum(entries >> 32, 0)
    shares = np.where(entries >= 0, costs[slot], 0).sum(axis=1)
    together = shares.reshape(-1, tiles.together)
    blocks, most = together.sum(axis=1), costs.max()
    assert blocks.max() <= blocks.mean() + most * tiles.together
    assert (together.max(axis=1) - together.min(axis=1)).max() <= most


@pytest.mark.parametrize("order", "CF")
def test_more_items_than_a_grid_has_places(order):
    group, entries = planned([(5, 4)] * 70_000, order=order)
    assert len(group.items) == 70_000
    assert_each_row_once(group, entries)


def test_items_of_one_number_are_in_few_launches():
    """They have the kernel for small items, and a grid has a place for each of them."""
    problems = list(problems_of([(1, 1)])) * 70_000
    groups = ragged.groups(problems, [(0, 0, 0)] * len(problems), H100)
    assert [len(group.items) for group in groups] == [ragged.MOST_ITEMS, 70_000 - ragged.MOST_ITEMS]


@pytest.mark.parametrize("order", "CF")
def test_more_items_than_turns(order):
    """Each needs an entry of its own, so that warps take more turns than they otherwise would."""
    one = H100._replace(multiprocessors=1)
    group, entries = planned([(64, 8)] * 7000, order=order, device=one)
    assert group.choice.geometry.sizes["turns"] > list_shares.MOST_TURNS
    assert_each_row_once(group, entries)


@pytest.mark.parametrize("order", "CF")
def test_rows_that_are_counted_in_more_than_31_bits_have_another_kernel(order, monkeypatch):
    def together(m, n):
        return bool(
            by_warp(ragged.groups(list(problems_of([(m, n)], "s", order)), [(0, 0, 0)], H100))
        )

    most = ragged.MOST_ROWS
    assert not together(most + 1, 64) and not together(64, most + 1)
    monkeypatch.setattr(ragged, "MOST_ROWS", 64)  # as if they were counted in fewer bits
    assert together(64, 64) and not together(68, 40) and not together(40, 68)


@pytest.mark.parametrize("dtype", "sdczhb")
@pytest.mark.parametrize("name, order, size, blocks", [
    (ROWS, "C", (64, 64), 6), (COLUMNS, "F", (64, 64), 4), (IN_ORDER, "F", (32, 8), 5),
])  # fmt: skip
def test_blocks_of_a_multiprocessor(name, order, size, blocks, dtype):
    """As many as were fastest on an H100, or as do not spill."""
    if (name, dtype) == (COLUMNS, "s"):
        blocks += 1
    group, _ = planned([size], dtype, order)
    assert group.choice.kernel.name == name
    words = dict(zip(group.words, group.table.T, strict=True))
    assert group.choice.kernel.tiles_of(words, group.choice.spec).blocks == blocks


def turns_of_tiles(kernel_order):
    """Of 60 items: for each tile of each item the turn in which it is taken, and its owner."""
    tiles, rows = np.full(60, 37), np.full(60, 8)
    costs = np.arange(60)[::-1] * 100 + 1000
    item, row, each = list_shares.shared_out(tiles, rows, costs, 400, 1, kernel_order)
    assert each == 1
    owner, turn = np.nonzero(item >= 0)
    found = np.full((60, 37, 2), -1)
    found[item[owner, turn], row[owner, turn] // 8] = np.stack([turn, owner], axis=1)
    assert found.min() == 0
    return found[..., 0], found[..., 1]


def test_neighbouring_tiles_of_columns_are_taken_at_the_same_time():
    """They share lines of memory, which the second one then finds in the L2 cache."""
    turns, _ = turns_of_tiles(list_shares.FORWARD)
    apart = np.abs(np.diff(turns, axis=1))
    assert apart.max() <= 1 and (apart > 0).mean() < 0.05
    for order in "FC":
        group, _ = planned([(300, 90)], order=order)
        tiles = group.choice.kernel.tiles_of(
            dict(zip(group.words, group.table.T, strict=True)), group.choice.spec
        )
        assert tiles.order == (list_shares.BLOCKS_FIRST if order == "F" else list_shares.HALVES)


def test_half_of_the_warps_begin_with_their_shortest_tiles_of_rows():
    turns, owners = turns_of_tiles(list_shares.HALVES)
    item = np.arange(60)[:, None]  # the first ones have the longest tiles
    early, late = turns == 0, turns == turns.max()
    lower = owners < 200
    assert item[np.nonzero(early & lower)[0]].max() < item[np.nonzero(early & ~lower)[0]].min()
    assert late[50:][lower[50:]].any() and late[:10][~lower[:10]].any()


def test_a_gpu_with_one_multiprocessor_computes_a_list():
    few = H100._replace(multiprocessors=1)
    for order in "CF":
        for group, entries in all_planned(many_sizes(80), order=order, device=few):
            assert_each_row_once(group, entries)


def test_what_each_word_stands_for():
    group, _ = planned([(40, 36), (5, 7), (40, 36)])
    words = dict(zip(group.words, group.table.T, strict=True))
    items = group.choice.geometry.sizes["items"]
    assert items == 3 and group.slots[:items].tolist() == [0, 1, 2]
    assert words["rows"][:3].tolist() == [40, 5, 40] and words["cols"][:3].tolist() == [36, 7, 36]
    assert words["row_stride"][:3].tolist() == [36, 7, 36]
    single = group.singles[0]
    assert single.kernel.name == "vector_rows"
    assert 1 << words["lanes"][0] == single.knobs["LANES"]


@pytest.mark.parametrize(
    "name, knobs, words",
    [
        (ROWS, {"ROWS": 3}, "ROWS must be 1 or 2, and THREADS_PER_BLOCK whole warps"),
        (ROWS, {"THREADS_PER_BLOCK": 48}, "THREADS_PER_BLOCK whole warps, got 2 and 48"),
        (IN_ORDER, {"THREADS_PER_BLOCK": 48}, "THREADS_PER_BLOCK must be whole warps, got 48"),
    ],
)
def test_constants_that_make_no_sense_are_refused(name, knobs, words):
    kernel = get(name)
    (problem,) = problems_of([(5, 5)])
    with pytest.raises(ValueError, match=f"{name}: .*{words}"):
        kernel.geometry(problem, H100, {**kernel.knobs, **knobs})
