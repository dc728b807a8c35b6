"""One formula for all kernels, from counts of work to seconds.

The time of a launch is the time to start it, three times that overlap, and the time to add up its
splits. The root of the squares is a little above the longest of the three::

    T = start + sqrt(bytes**2 + waits**2 + issue**2) + splits

    start    before the first load and after the last store. It is longer for more than 64 blocks,
             which do not fit on the GPU beside the kernel before, and for longer code, which the
             GPU has to fetch
    bytes    bytes of A, y and partial sums, divided by the rate of the memory or of the L2 cache.
             It is longer where some multiprocessors have more blocks than others
    waits    the sum over the waves of blocks: the start of a block, one latency for each pass, in
             which a thread waits for its loads, and the steps at the end of a block
    issue    instructions of the warps of a multiprocessor: loads of A and x, multiply-adds, and the
             cache lines that the L1 cache looks up one after the other
    splits   the time until blocks that share rows have posted their sums, and the rounds in which
             the last block adds them up

The formula reads the counts of a kernel (:class:`gemv.kernels.work.Work`) and the registers and
shared memory that the compiler gave it. Only two factors are fitted for each kernel, one for the
start and one for the issue; they stand for instructions that are in no count.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

#: Threads, registers, blocks and bytes of shared memory of a multiprocessor; the bytes of shared
#: memory that the system takes for each block; the unit in which a thread gets registers.
THREADS, REGISTERS, BLOCKS, SHARED, SHARED_OF_BLOCK, REGISTER_UNIT = (
    2048, 65536, 32, 227 * 1024, 1024, 8,
)  # fmt: skip
#: The most blocks of a launch that still fit on the GPU beside the launch before.
FEW_BLOCKS = 64


class Machine(NamedTuple):
    """Numbers of a GPU: times in seconds, rates in bytes per second, and weights without a unit.

    Attributes
    ----------
    start, start_of_many : float
        Time to start a launch, and the additional time if it has more than 64 blocks.
    memory_rate, cache_rate : float
        Rates of the memory and of the L2 cache.
    memory_latency, cache_latency : float
        Time that one pass waits for the memory or for the L2 cache.
    load, x_load, multiply_add : float
        Time of one instruction of a warp: a load of A, a load of x, a multiply-add.
    line : float
        Additional time for each cache line that a load of A touches.
    narrow : float
        Additional time of a multiply-add of 2-byte elements.
    block_start, end_step : float
        Time to start a block, and time of a step at its end.
    collect, meet : float
        Time of a round of partial sums, and the time that any split costs once per launch.
    code : float
        Time to fetch the code, for each multiply-add in a pass of a thread.
    stores, imbalance, partial_wave, edge : float
        Weights: of a stored byte against a loaded one, of the excess of blocks on the fullest
        multiprocessor, of the empty part of the last wave, and of a pass at the edge.
    """

    start: float = 1e-6
    start_of_many: float = 4e-7
    memory_rate: float = 4.6e12
    cache_rate: float = 6e12
    memory_latency: float = 5e-7
    cache_latency: float = 3e-7
    load: float = 2e-9
    line: float = 2e-10
    x_load: float = 1e-9
    multiply_add: float = 5e-10
    narrow: float = 1e-11
    block_start: float = 4e-7
    end_step: float = 1.5e-8
    collect: float = 4e-7
    meet: float = 6e-7
    code: float = 2e-9
    stores: float = 1.4
    imbalance: float = 0.2
    partial_wave: float = 1.0
    edge: float = 0.5


class Counts(NamedTuple):
    """What the formula reads: arrays with one element for each measurement.

    `kernel` is the index of the kernel in the list of all. `is_hot` says that A is in the L2 cache,
    and `is_narrow` that elements have 2 bytes. `warps` are the warps of a block. `resident` is the
    number of blocks that fit on a multiprocessor together. `terms` is the number of real
    multiply-adds in one pass of a thread. The others are counts of
    :class:`gemv.kernels.work.Work`.
    """

    kernel: np.ndarray
    is_hot: np.ndarray
    is_narrow: np.ndarray
    blocks: np.ndarray
    warps: np.ndarray
    resident: np.ndarray
    bytes: np.ndarray
    written: np.ndarray
    scratch: np.ndarray
    passes: np.ndarray
    edge_passes: np.ndarray
    loads: np.ndarray
    warp_lines: np.ndarray
    x_loads: np.ndarray
    multiply_adds: np.ndarray
    terms: np.ndarray
    end_steps: np.ndarray
    collects: np.ndarray
    has_splits: np.ndarray


def resident_blocks(threads: int, registers: int, shared: int) -> int:
    """The blocks that fit on a multiprocessor together, by threads, registers and shared memory."""
    each = -(-registers // REGISTER_UNIT) * REGISTER_UNIT * (-(-threads // 32) * 32)
    of_shared = SHARED // (shared + SHARED_OF_BLOCK)
    return max(1, min(THREADS // threads, REGISTERS // max(each, 1), of_shared, BLOCKS))


def parts(
    machine: Machine, factors: np.ndarray, counts: Counts, multiprocessors: int
) -> dict[str, np.ndarray]:
    """The terms of the formula, in seconds.

    `factors` has two numbers for each kernel: the factor of its start and that of its issue.
    """
    m, c = machine, counts
    start_factor, issue_factor = factors[c.kernel].T
    start = start_factor * (m.start + np.where(c.blocks > FEW_BLOCKS, m.start_of_many, 0))
    most = np.ceil(c.blocks / multiprocessors)
    excess = most * multiprocessors / c.blocks - 1
    rate = np.where(c.is_hot, m.cache_rate, m.memory_rate)
    moved = c.bytes + m.stores * c.written + 2 * c.scratch
    waves = np.maximum(c.blocks / (multiprocessors * c.resident), 1)
    waves = waves + m.partial_wave * (np.ceil(waves) - waves)
    latency = np.where(c.is_hot, m.cache_latency, m.memory_latency)
    passes = c.passes + m.edge * c.edge_passes
    multiply_add = m.multiply_add + np.where(c.is_narrow, m.narrow, 0)
    instructions = m.load * c.loads + m.x_load * c.x_loads + multiply_add * c.multiply_adds
    looked_up = m.line * c.loads * c.warp_lines
    return {
        "start": start + m.code * c.terms,
        "bytes": moved / rate * (1 + m.imbalance * excess),
        "waits": waves * (m.block_start + passes * latency + c.end_steps * m.end_step),
        "issue": most * c.warps * (issue_factor * instructions + looked_up),
        "splits": c.collects * m.collect + np.where(c.has_splits, m.meet, 0),
    }


def seconds(
    machine: Machine, factors: np.ndarray, counts: Counts, multiprocessors: int
) -> np.ndarray:
    """The time of each launch."""
    p = parts(machine, factors, counts, multiprocessors)
    together = np.sqrt(p["bytes"] ** 2 + p["waits"] ** 2 + p["issue"] ** 2)
    return p["start"] + together + p["splits"]
