"""Lists in which some tiles belong to blocks, and others to warps: barriers, bits, and shares."""

from unittest import mock

import numpy as np
import pytest
from helpers.lists import run_together
from helpers.problems import Case

import gemv
from gemv.core.dtypes import DTYPES
from gemv.core.geometry import Chip, Device
from gemv.core.problem import Problem
from gemv.engines import backend
from gemv.kernels import list_blocks, list_shares, list_words
from gemv.selection import ragged

if gemv.backend() == "host":
    pytest.skip("no GPU and no simulator", allow_module_level=True)

H100 = Device(
    "NVIDIA H100 80GB HBM3",
    (9, 0),
    132,
    chip=Chip(clock_khz=1980000, memory_khz=2619000, bus_bits=5120, cache_bytes=50 << 20),
)
#: Items of both kinds, by dtype; the last row of some is not in the last vector of a tile.
MIXED = {
    "s": [(70, 70), (44, 300), (5, 34), (257, 90), (33, 36), (12, 500)],
    "z": [(40, 40), (22, 300), (3, 33), (70, 64), (16, 36), (7, 130)],
    "b": [(70, 70), (72, 300), (5, 65), (300, 90), (64, 64), (16, 700)],
}


def in_few_warps(problems, places, device):
    """Eight warps, so that each has several tiles."""
    share = ragged.shared_out_to_blocks

    def shared_out_to_blocks(tiles, rows, costs, warps, takers, of_block):
        return share(tiles, rows, costs, warps, 8, of_block)

    with mock.patch.object(ragged, "shared_out_to_blocks", shared_out_to_blocks):
        own = H100 if backend.backend() == "simulator" else device
        return ragged.groups(problems, places, own)


def cases_of(dtype):
    # Sums of narrow numbers are compared before they are rounded to these.
    rest = {"y_dtype": "s"} if dtype == "b" else {}
    return [
        Case(
            m, n, dtype, "F", pad=(0, 0, 2, 1)[k % 4], incx=(1, 1, -2)[k % 3], seed=k,
            alpha=(1.0, 0.5, 2.0)[k % 3], beta=(0.0, 2.0)[k % 2], **rest,
        )
        for k, (m, n) in enumerate(MIXED[dtype] * 2)
    ]  # fmt: skip


def of_columns(groups):
    (group,) = (each for each in groups if each.choice.kernel.name == "list_columns")
    return group, dict(zip(group.words, group.table.T, strict=True))


@pytest.mark.parametrize("dtype", MIXED)
def test_items_of_blocks_and_of_warps_have_the_bits_of_single_calls(dtype):
    cases = cases_of(dtype)
    groups, found = run_together(cases, in_few_warps)
    group, words = of_columns(groups)
    of_tile = 1 << (words["runs"] + words["warps"])
    assert set(of_tile.tolist()) == {1, list_words.WARPS}
    for each in groups:
        for k, single in zip(each.items, each.singles, strict=True):
            alone = cases[k].check(single.kernel.name, single.knobs)
            assert found[k].tobytes() == alone.tobytes(), (k, cases[k])


def with_entries(change):
    """Launches like those of a list, after `change` of what each warp of a block does."""

    def find(problems, places, device):
        groups = in_few_warps(problems, places, device)
        changed = []
        for group in groups:
            if group.choice.kernel.name == "list_columns":
                entries = group.blocks.reshape(-1, group.choice.geometry.sizes["turns"]).copy()
                change(entries)
                group = group._replace(blocks=entries.reshape(-1))
            changed.append(group)
        return changed

    return find


simulated = pytest.mark.skipif(
    backend.backend() == "cuda", reason="only the simulator says where threads wait"
)


@simulated
def test_warps_that_come_to_other_barriers_are_noticed():
    """What the host must not do: one warp of a block leaves out a tile of the block."""
    from gemv.language.simulator.thread import SimulatorError

    cases = cases_of("s")

    def leave_out(entries):
        entries[1, 1:-1] = entries[1, 2:]
        entries[1, -1] = -1

    group, _ = of_columns(run_together(cases, in_few_warps)[0])
    assert group.choice.geometry.sizes["turns"] > 2
    with pytest.raises(SimulatorError, match="divergent barrier"):
        run_together(cases, with_entries(leave_out))


@simulated
@pytest.mark.parametrize("dtype", "sb")
def test_no_order_of_threads_changes_a_bit_beside_tiles_of_blocks(dtype):
    from gemv.language.simulator.scheduler import Schedule, scheduled

    cases = cases_of(dtype)
    _, expected = run_together(cases, in_few_warps)
    for schedule in (Schedule("reversed", late=True), Schedule("warps"), Schedule("random", 0)):
        with scheduled(schedule):
            _, found = run_together(cases, in_few_warps)
        assert [each.tobytes() for each in found] == [each.tobytes() for each in expected]


def words_of(m, n, dtype="s"):
    problem = Problem(DTYPES[dtype], m, n, 0, m, n, False, 1, m).at(0, 0)
    _, words = of_columns(ragged.groups([problem], [(0, 0, 0)], H100))
    return {name: int(column[0]) for name, column in words.items()}


@pytest.mark.parametrize("m, n, is_alone", [
    (36, 64, True),  # 9 KiB
    (36, 65, True), (64, 64, True), (40, 72, True), (8, 288, True),
    (40, 73, False), (8, 289, False),
])  # fmt: skip
def test_small_tiles_belong_to_warps(m, n, is_alone):
    """Of up to 9 KiB: all rows of a matrix, or neighbouring ones, at least a line of the cache."""
    words = words_of(m, n)
    tile = min(words["step"] << words["runs"], m) * n * 4
    assert (words["runs"] + words["warps"] == 0) == is_alone
    assert (tile <= list_words.ALONE_BYTES) or not is_alone


def shared_out(takers=240):
    """Tiles of 60 items, every third of which is one of blocks."""
    rng = np.random.default_rng(3)
    tiles, warps = rng.integers(1, 40, 60), np.where(np.arange(60) % 3, 1, 4)
    costs = rng.integers(1000, 9000, 60)
    found = list_blocks.shared_out_to_blocks(tiles, np.full(60, 8), costs, warps, takers, 4)
    return tiles, warps, costs, *found


def test_each_tile_is_taken_once_and_those_of_blocks_come_first():
    tiles, warps, _, item, row, each = shared_out()
    assert each == 1
    of_all = np.zeros((60, 40), int)
    np.add.at(of_all, (item[item >= 0], row[item >= 0] // 8), 1)
    assert (of_all == np.where(np.arange(40) < tiles[:, None], warps[:, None], 0)).all()
    is_shared = (item >= 0) & (warps[item] == 4)
    together = np.where(is_shared, item * 1000 + row, -1).reshape(-1, 4, item.shape[1])
    assert (together == together[:, :1]).all()
    assert ((together[..., 1:] < 0) | (together[..., :-1] >= 0)).all()
    assert ((item[:, 1:] < 0) | (item[:, :-1] >= 0)).all()


def test_tiles_of_warps_fill_what_those_of_blocks_leave():
    _, _, costs, item, _, _ = shared_out()
    loads = np.where(item >= 0, costs[item], 0).sum(axis=1)
    assert loads.max() <= loads.mean() + costs.max()
    assert loads.min() >= loads.mean() - costs.max()


def test_a_long_list_has_few_turns_with_tiles_of_both_kinds(monkeypatch):
    monkeypatch.setattr(list_shares, "MOST_TURNS", 4)
    tiles, warps, _, item, row, each = shared_out(takers=8)
    assert each > 1
    of_all = np.zeros((60, 40 + each), int)
    for k in range(each):
        np.add.at(of_all, (item[item >= 0], row[item >= 0] // 8 + k), 1)
    assert (of_all[:, :40] >= np.where(np.arange(40) < tiles[:, None], warps[:, None], 0)).all()
    assert of_all.max() == 4


def test_a_few_tiles_go_to_as_many_blocks():
    item, _, _ = list_blocks.shared_out_to_blocks(
        np.array([2, 3]), np.array([8, 8]), np.array([100, 100]), np.array([4, 1]), 2112, 4
    )
    assert item.shape[0] == 5 * 4
    assert (item.reshape(5, -1) >= 0).any(axis=1).all()


def test_warps_of_a_block_with_much_to_do_get_nothing_of_their_own():
    """One tile of a block costs more than the mean; the other block has all tiles of warps."""
    item, _, _ = list_blocks.shared_out_to_blocks(
        np.array([1, 20]), np.array([8, 8]), np.array([1000, 100]), np.array([4, 1]), 8, 4
    )
    of_blocks, of_warps = (item == 0).sum(axis=1), (item == 1).sum(axis=1)
    found = sorted(zip(of_blocks.tolist(), of_warps.tolist(), strict=True))
    assert found == [(0, 5)] * 4 + [(1, 0)] * 4


@pytest.mark.parametrize("letter", "sdczbh")
def test_no_lane_has_more_turns_of_a_tree_than_it_can_add_up(letter):
    """Sums of four turns are combined; trees of 32 groups need lanes that share their parts."""
    seen = set()
    for rows in (3, 8, 30, 60, 64, 120, 250, 500):
        for cols in (4, 18, 40, 130):
            for pad in (0, 1):
                if rows * pad > 400:
                    continue
                problem = Case(rows, cols, letter, "F", pad=pad).problem.at(256, 256)
                for tree in (1, 4, 8, 16, 32):
                    found = list_words.words_of_trees(problem, tree, 4)
                    for words in [] if found is None or found[0] != "list_columns" else found[1]:
                        turns = max((1 << words["tree"]) // list_words.AT_ONCE, 1) >> words["parts"]
                        assert 1 <= turns <= list_words.MOST_TURNS, (rows, cols, tree, words)
                        assert words["lanes"] + words["shares"] + words["parts"] <= 5
                        seen.add(turns)
    assert list_words.MOST_TURNS in seen
