"""From counted work to seconds: one formula for all kernels.

A launch takes its start, the largest part of three times that overlap, and the end of its splits::

    T = start + sqrt(bytes**2 + waits**2 + issue**2) + splits

    start    until the first load and after the last store: longer for more than 64 blocks, which
             find no room beside the kernel ahead, and for longer code, which has to be fetched
    bytes    of A, y and partial sums, over the rate of the memory or of the L2 cache; more where
             some multiprocessors have more blocks than others
    waits    waves of blocks that are resident together, each with its start, as many latencies as
             its threads wait one after the other, and the steps at its end
    issue    instructions of the warps of a multiprocessor: loads of A and x, multiply-adds, and the
             lines of the L1 cache that loads look up one after the other
    splits   what blocks that share rows take to meet, and the rounds in which the last one adds up

Everything that a kernel does is in its counts (:class:`gemv.kernels.work.Work`) and in what the
compiler made of it; but for a factor of the start and of the issue for each kernel, which stand for
instructions that no count has.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

#: Threads, registers, blocks and bytes of shared memory of a multiprocessor, the bytes that a block
#: takes besides its own, and the unit in which a thread's registers are handed out.
THREADS, REGISTERS, BLOCKS, SHARED, SHARED_OF_BLOCK, REGISTER_UNIT = (
    2048, 65536, 32, 227 * 1024, 1024, 8,
)  # fmt: skip
#: Blocks of a launch that still find room beside the one ahead of it.
FEW_BLOCKS = 64


class Machine(NamedTuple):
    """Numbers of a GPU: times in seconds, rates in bytes a second, the others are shares.

    Attributes
    ----------
    start, start_of_many : float
        Of a launch; further time where it has more than 64 blocks.
    memory_rate, cache_rate : float
        Of the memory, and of the L2 cache.
    memory_latency, cache_latency : float
        Of a pass.
    load, line, x_load, multiply_add, narrow : float
        Of one instruction of a warp; `line` for each line of the cache that a load touches, and
        `narrow` is what a multiply-add of 2-byte numbers takes more.
    block_start, end_step : float
        Of a block, and of a step at its end.
    collect, meet : float
        Of a round of partial sums, and of splits as such.
    code : float
        For each multiply-add of a pass.
    stores, imbalance, partial_wave, edge : float
        How much of a stored byte, of the fullest multiprocessor's excess, of a wave that is not
        full, and of a pass at the edge, counts.
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
    """Arrays with an element for each measurement: what the formula reads.

    The first is the place of the kernel in a list of all; `resident` are the blocks that fit on a
    multiprocessor together, by threads, registers and shared memory; `terms` are real
    multiply-adds of one pass of a thread; `is_hot` says that A is in the L2 cache.
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
    """Blocks of so many threads that fit on a multiprocessor together."""
    each = -(-registers // REGISTER_UNIT) * REGISTER_UNIT * (-(-threads // 32) * 32)
    of_shared = SHARED // (shared + SHARED_OF_BLOCK)
    return max(1, min(THREADS // threads, REGISTERS // max(each, 1), of_shared, BLOCKS))


def parts(
    machine: Machine, factors: np.ndarray, counts: Counts, multiprocessors: int
) -> dict[str, np.ndarray]:
    """The terms of the formula, in seconds.

    `factors` has two numbers for each kernel: of its start and of its issue.
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
