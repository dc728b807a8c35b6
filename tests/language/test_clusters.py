"""Sums that the blocks of a cluster send into each other's shared memory."""

from __future__ import annotations

import re

import numpy as np
import pytest
from helpers.codegen import disassemble
from helpers.combinations import of_all
from helpers.problems import Case

from gemv.core.dtypes import DTYPES
from gemv.core.geometry import Device
from gemv.engines import backend
from gemv.kernels import REGISTRY
from gemv.measure.inputs import make_problem
from gemv.selection.select import select

ON_SIMULATOR = pytest.mark.skipif(backend.backend() != "simulator", reason="plants faults in it")
CLUSTERED = [kernel for kernel in REGISTRY.values() if "CLUSTER" in kernel.knobs]
BY_NAME = pytest.mark.parametrize("kernel", CLUSTERED, ids=lambda kernel: kernel.name)


def problem_for(kernel, rows=3, cols=4000, dtype="s"):
    order = "C" if kernel.name == "cluster_rows" else "F"
    return make_problem(rows, cols, DTYPES[dtype], order, "N").at(16, 16)


# Devices ----------------------------------------------------------------------------------------


@BY_NAME
def test_a_gpu_without_clusters_is_named(kernel):
    old = Device("NVIDIA A100", (8, 0), 108)
    text = f"{kernel.name}: blocks in clusters: it needs compute capability 9.0 or newer, and"
    with pytest.raises(ValueError, match=f"{text} NVIDIA A100 has 8.0"):
        select(problem_for(kernel), old, kernel.name)
    chosen = select(problem_for(kernel), Device("NVIDIA H200", (9, 0), 132), kernel.name, {})
    assert chosen.geometry.launches[0].grid == (3 if kernel.name == "cluster_rows" else 1, 8, 1)
    assert (chosen.geometry.scratch, chosen.geometry.counters) == (0, 0)


@BY_NAME
@pytest.mark.parametrize(
    "knobs, complaint",
    [
        ({"CLUSTER": 1}, "CLUSTER must be a power of two from 2 to 16, got 1"),
        ({"CLUSTER": 3}, "CLUSTER must be a power of two from 2 to 16, got 3"),
        ({"CLUSTER": 32}, "CLUSTER must be a power of two from 2 to 16, got 32"),
        ({"LANES": 12}, "LANES"),
        ({"THREADS_PER_BLOCK": 8, "LANES": 1}, "THREADS_PER_BLOCK must be"),
    ],
)
def test_constants_that_cannot_be_are_refused(kernel, knobs, complaint):
    with pytest.raises(ValueError, match=f"{kernel.name}: .*{complaint}"):
        select(problem_for(kernel), backend.engine().device(), kernel.name, knobs)


def test_more_sums_than_shared_memory_has_are_refused():
    knobs = {"LANES": 32, "PIECES": 8, "THREADS_PER_BLOCK": 1024}
    with pytest.raises(ValueError, match="cluster_columns: the sums that arrive .* got 131072"):
        select(
            problem_for(REGISTRY["cluster_columns"]),
            backend.engine().device(),
            "cluster_columns",
            knobs,
        )


# Results ----------------------------------------------------------------------------------------

#: Three rows a thread, which are no power of two; more blocks than rows; one row a block and more;
#: one lane a row, in the smallest cluster; 16 slots for each lane of two.
FURTHER = [
    ("cluster_rows", {"LANES": 4, "ROWS": 3, "VECTORS": 1, "THREADS_PER_BLOCK": 32, "CLUSTER": 4}),
    ("cluster_rows", {"LANES": 32, "ROWS": 1, "VECTORS": 1, "THREADS_PER_BLOCK": 32, "CLUSTER": 8}),
    ("cluster_rows", {"LANES": 1, "ROWS": 1, "VECTORS": 1, "THREADS_PER_BLOCK": 32, "CLUSTER": 2}),
    ("cluster_columns", {"LANES": 32, "COLUMNS": 1, "THREADS_PER_BLOCK": 128, "CLUSTER": 2}),
    ("cluster_columns", {"LANES": 1, "COLUMNS": 2, "THREADS_PER_BLOCK": 32, "CLUSTER": 16}),
]


@pytest.mark.parametrize("name, knobs", FURTHER)
@pytest.mark.parametrize("dtype, accumulate", [("s", "plain"), ("c", "wide")])
def test_tiles_that_clusters_divide_in_other_ways(name, knobs, dtype, accumulate):
    order = "C" if name == "cluster_rows" else "F"
    for rows, cols, pad in ((1, 150, 0), (5, 50, 3), (13, 9, 5)):
        case = Case(rows, cols, dtype, order, "N", pad, 2, -2, 1.5, 0.5, accumulate=accumulate)
        if REGISTRY[name].accepts(case.problem) is None:  # a column of one row is a row
            case.check(name, knobs)


# Faults that the simulator finds ----------------------------------------------------------------


def launched(kernel, cluster=2, threads=32, grid=(1, 2), order="forward"):
    from gemv.language.simulator.memory import pointer_to
    from gemv.language.simulator.scheduler import Schedule, launch

    kernel.__dict__["cluster"] = cluster
    out = np.zeros(64)
    launch(kernel, grid, threads, [pointer_to(out, name="out")], Schedule(order))
    return out


def sender(expected=2, begin=True, wait=True, take=True, missing=False, row=0):
    """Each of two blocks sends a sum to each block; arguments plant faults."""
    from numba import cuda

    from gemv.language import (
        cluster_arrive,
        cluster_expect,
        cluster_post,
        cluster_rank,
        cluster_take,
        cluster_wait,
    )

    def kernel(out):
        sums = cuda.shared.array((1, 2), np.float64)
        box = cuda.shared.array(1, np.uint64)
        tid, rank = cuda.threadIdx.x, cluster_rank()
        if begin and tid == 0:
            cluster_expect(box, sums, expected)
        if not missing or rank == 0 or tid != 5:
            cluster_arrive()
            if wait:
                cluster_wait()
        if tid == 0:
            cluster_post(box, sums, rank, row, (1.0 + rank, 10.0 + rank), 1, 1, 1, row + 2)
        if take:
            cluster_take(box)
            if tid == 0:
                out[rank] = sums[0, 0] + 100 * sums[0, 1]

    return kernel


ORDERS = pytest.mark.parametrize("order", ["forward", "reversed", "random"])


@ON_SIMULATOR
@ORDERS
def test_sums_go_to_the_block_of_their_row(order):
    assert list(launched(sender(), order=order)[:2]) == [201.0, 1110.0]


#: Constants of :func:`sender`, and what is said in one of the orders of threads and blocks.
FAULTS = [
    ({"expected": 3}, "no thread of a cluster can go on: .*waits in cluster_take"),
    ({"expected": 3, "take": False}, "ends with [12] of 3 sums that it expects"),
    ({"expected": 1}, "has all sums that it expects"),
    ({"begin": False}, "expects no sums"),
    ({"wait": False}, "ended between cluster_arrive and cluster_wait|expects no sums"),
    ({"missing": True}, r"no thread of a cluster can go on: .*waits in cluster_wait|expects no"),
    ({"row": 1}, "no block 2 in a cluster of 2"),
]


#: Faults that do no harm in the other orders, because the sums come in time.
FORWARD = [({"expected": 2, "take": False}, "ends with 1 of 2 sums that it expects|has ended")]


def is_harmful(fault, order):
    return order == "forward" or fault not in FORWARD


@ON_SIMULATOR
@of_all(is_harmful, fault=[*FAULTS, *FORWARD], order=("forward", "reversed", "random"))
def test_a_planted_fault_is_found(fault, order):
    from gemv.language.simulator.thread import SimulatorError

    faults, text = fault
    with pytest.raises(SimulatorError, match=text):
        launched(sender(**faults), order=order)


@ON_SIMULATOR
def test_halves_of_the_barrier_come_in_turns():
    from gemv.language import cluster_arrive, cluster_wait
    from gemv.language.simulator.thread import SimulatorError

    def twice(out):
        cluster_arrive()
        cluster_arrive()

    def none(out):
        cluster_wait()

    with pytest.raises(SimulatorError, match="has not waited since it arrived"):
        launched(twice)
    with pytest.raises(SimulatorError, match="this thread has not arrived"):
        launched(none)


@ON_SIMULATOR
@ORDERS
def test_nothing_is_sent_without_clusters(order):
    """On an H200 the context is lost then."""
    from gemv.language.simulator.thread import SimulatorError

    with pytest.raises(SimulatorError, match="cluster_post: this launch has no clusters"):
        launched(sender(expected=1), cluster=1, order=order)


@ON_SIMULATOR
def test_a_grid_has_whole_clusters():
    with pytest.raises(ValueError, match=r"grid \(1, 3, 1\) has no whole clusters of 2 blocks"):
        launched(sender(), grid=(1, 3))


# Machine code -----------------------------------------------------------------------------------


@BY_NAME
@pytest.mark.parametrize("cluster", [2, 16])
def test_the_size_of_clusters_is_in_the_machine_code(kernel, cluster, compiler):
    (function,) = compiler(kernel, "float32", knobs={"CLUSTER": cluster})
    found = re.findall(r"^\.reqnctapercluster (.*)$", function["ptx"], re.M)
    assert found == [f"1, {cluster}, 1"]


@BY_NAME
@pytest.mark.parametrize("dtype, accumulate", [("float32", "plain"), ("complex128", "wide")])
def test_sums_are_sent_without_a_fence(kernel, dtype, accumulate, compiler):
    """Nothing waits for the whole GPU; all loads of A come before the wait for the cluster."""
    (function,) = compiler(kernel, dtype, accumulate=accumulate, whole=True)
    listing = disassemble(function)
    assert not re.search(r"\b(MEMBAR|ERRBAR|BAR\.SYNC|ATOM|RED)\b", listing)
    assert len(re.findall(r"\bUCGABAR_ARV\b", listing)) == 1
    assert len(re.findall(r"\bUCGABAR_WAIT\b", listing)) == 1
    assert re.search(r"\bSTAS\b", listing)
    place = {name: listing.index(name) for name in ("UCGABAR_ARV", "UCGABAR_WAIT", "STAS")}
    assert place["UCGABAR_ARV"] < place["UCGABAR_WAIT"] < place["STAS"]
    loads = [found.start() for found in re.finditer(r"\bLDG\.E\.NA\S*\.128\b", listing)]
    assert loads and place["UCGABAR_ARV"] < min(loads) and max(loads) < place["UCGABAR_WAIT"]
    assert function["stack"] == 0 and function["spills"] == 0


@BY_NAME
def test_loads_of_a_pass_are_in_flight_together(kernel, compiler):
    """As many as the constants say, with no product between them."""
    knobs = {"VECTORS": 8} if "VECTORS" in kernel.knobs else {"COLUMNS": 8}
    (function,) = compiler(kernel, "float32", knobs=knobs, whole=True)
    steps = re.findall(r"\b(LDG\.E\.NA\S*\.128|FFMA)\b", disassemble(function))
    most, run = 0, 0
    for step in steps:
        run = 0 if step == "FFMA" else run + 1
        most = max(most, run)
    assert most >= 8
