"""The formula: each term by hand, for numbers and for arrays alike."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.selection import problem_of

from gemv.core.geometry import Chip, Device
from gemv.kernels import REGISTRY
from gemv.selection.forecast import forecast
from gemv.selection.formula import (
    BOUNDS,
    Counts,
    Machine,
    Parts,
    counted,
    parts,
    resident_blocks,
)
from gemv.selection.select import select

H200 = Device("NVIDIA H200", (9, 0), 132)
NUMBERS = Machine(*(float(k + 1) for k in range(len(Machine._fields))))


def counts_of(rows=4096, cols=4096, letter="s", knobs=None, registers=64, device=H200, **more):
    kernel = REGISTRY["vector_rows"]
    problem = problem_of("dot", rows, cols, letter).at(256, 256)._replace(**more)
    knobs = {**kernel.knobs, **(knobs or {})}
    work = kernel.work(problem, kernel.geometry(problem, device, knobs), knobs)
    return work, counted(work, problem, device, registers)


def test_counts_follow_from_the_work():
    knobs = {"LANES": 32, "THREADS_PER_BLOCK": 128, "VECTORS": 4, "BLOCKS_PER_SM": 0}
    work, counts = counts_of(4096, 4096, knobs=knobs, registers=40)
    assert work.blocks == 1024 and counts.most == 8
    assert counts.excess == pytest.approx(8 * 132 / 1024 - 1)
    # 40 registers of 128 threads: 12 blocks; 2048 threads: 16 blocks
    assert counts.waves == 1.0 and counts.full_waves == 1.0
    assert counts.is_many == 1 and counts.has_splits == 0 and counts.in_cluster == 0
    assert counts.warps == 4 and counts.moved == work.bytes == 4 * 4096 * 4096
    assert counts.looked_up == work.loads * work.warp_lines
    assert counts.terms == work.flight // 4


def test_waves_count_what_the_gpu_holds_together():
    knobs = {"LANES": 32, "THREADS_PER_BLOCK": 128, "BLOCKS_PER_SM": 0}
    _, counts = counts_of(1 << 16, 64, knobs=knobs, registers=64)
    resident = resident_blocks(H200, 128, 64, 0)
    assert resident == 8
    assert counts.waves == 16384 / (132 * 8) and counts.full_waves == 16


@pytest.mark.parametrize(
    "threads, registers, shared, resident",
    [
        (1024, 32, 0, 2),
        (1024, 33, 0, 1),
        (64, 16, 0, 32),
        (256, 255, 0, 1),
        (128, 32, 100_000, 2),
        (128, 41, 0, 10),  # registers are given in units of 8: 48 for each thread
    ],
)
def test_resident_blocks(threads, registers, shared, resident):
    assert resident_blocks(H200, threads, registers, shared) == resident


def test_only_splits_that_meet_in_memory_are_counted():
    """Those of a cluster meet in the shared memory of its blocks."""
    work, _ = counts_of()
    problem = problem_of("dot", 4096, 4096)
    for splits, cluster, expected in ((1, 1, (0, 0)), (4, 1, (1, 0)), (4, 4, (0, 1))):
        counts = counted(work._replace(splits=splits, cluster=cluster), problem, H200, 64)
        assert (counts.has_splits, counts.in_cluster) == expected
    assert counted(work, problem, H200, 64).has_splits == 0


def test_a_chip_with_less_holds_less():
    small = H200._replace(chip=Chip(threads=1536, shared_bytes=100 * 1024))
    assert resident_blocks(small, 1024, 32, 0) == 1
    assert resident_blocks(small, 128, 32, 30_000) == 3


@pytest.mark.parametrize("letter, slower", [("s", 1), ("d", 32), ("z", 32), ("h", 1)])
def test_doubles_count_as_often_as_they_are_slower(letter, slower):
    usual = counts_of(64, 64, letter)[1].multiply_adds
    device = H200._replace(float64_ratio=64)
    assert counts_of(64, 64, letter, device=device)[1].multiply_adds == usual * slower


def test_every_term_by_hand():
    c = Counts(
        is_hot=0, is_narrow=1, is_many=1, has_splits=1, in_cluster=0, most=3, excess=0.5,
        waves=1.5, full_waves=2.0, warps=4, moved=1000, written=10, scratch=20, passes=7,
        edge_passes=2, loads=11, looked_up=13, x_loads=5, multiply_adds=17, terms=6, end_steps=9,
        collects=2,
    )  # fmt: skip
    m = NUMBERS
    found = parts(m, 2.0, 3.0, c)
    assert found.start == 2 * (m.start + m.start_of_many) + m.code * 6
    moved = 1000 + m.stores * 10 + 2 * 20
    assert found.bytes == pytest.approx(moved / m.memory_rate * (1 + m.imbalance * 0.5))
    waves = 1.5 + m.partial_wave * 0.5
    per_wave = m.block_start + (7 + m.edge * 2) * m.memory_latency + 9 * m.end_step
    assert found.waits == pytest.approx(waves * per_wave)
    instructions = m.load * 11 + m.x_load * 5 + (m.multiply_add + m.narrow) * 17
    assert found.issue == pytest.approx(3 * 4 * (3 * instructions + m.line * 13))
    assert found.splits == 2 * m.collect + m.meet
    root = math.sqrt(found.bytes**2 + found.waits**2 + found.issue**2)
    assert found.seconds == pytest.approx(found.start + root + found.splits)
    hot = parts(m, 2.0, 3.0, c._replace(is_hot=1, has_splits=0, in_cluster=1))
    assert hot.bytes == pytest.approx(moved / m.cache_rate * (1 + m.imbalance * 0.5))
    assert hot.splits == 2 * m.collect + m.cluster


def test_arrays_give_the_bits_of_numbers():
    rows = [counts_of(1 << k, 4096, letter)[1] for k in range(12) for letter in "sdh"]
    numbers = Machine()
    one_by_one = [parts(numbers, 0.9, 1.1, row).seconds for row in rows]
    columns = Counts(*np.array(rows, dtype=float).T)
    together = parts(numbers, np.full(len(rows), 0.9), np.full(len(rows), 1.1), columns).seconds
    assert together.tolist() == one_by_one


def test_the_longest_term_is_the_bound():
    assert Parts(1.0, 5.0, 2.0, 3.0, 4.0).bound == "bytes"
    assert set(BOUNDS) == set(Parts._fields)


def test_more_work_never_takes_less_time():
    numbers = Machine()
    _, counts = counts_of()
    usual = parts(numbers, 1.0, 1.0, counts).seconds
    for name in Counts._fields:
        more = counts._replace(**{name: getattr(counts, name) * 2 + 1})
        if name == "waves":  # an empty part of the last wave gets smaller
            more = more._replace(full_waves=more.waves + counts.full_waves)
        if name == "is_hot":  # the L2 cache is faster
            continue
        assert parts(numbers, 1.0, 1.0, more).seconds >= usual, name


# What explain says --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rows, cols, bound",
    [(16384, 16384, "the rate of the memory"), (1, 64, "the latency of the memory")],
)
def test_a_forecast_names_the_bound_and_the_next_best(rows, cols, bound):
    problem = problem_of("dot", rows, cols).at(256, 256)
    choice = select(problem, H200)
    found = forecast(choice, problem, H200)
    assert found.bound == bound
    assert found.runner_up is not None and found.runner_up_seconds > 0
    least = rows * cols * 4 / 4.9e12
    assert least < found.seconds < 1.3 * least + 4e-6
    assert str(found).startswith("The formula expects ") and bound in str(found)


def test_a_kernel_that_is_there_to_be_read_has_no_forecast():
    problem = problem_of("dot", 100, 100)
    assert forecast(select(problem, H200, "coalesced"), problem, H200) is None
