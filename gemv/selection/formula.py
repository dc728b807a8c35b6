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

The formula reads the counts of a kernel (:class:`gemv.kernels.work.Work`) and the registers that
the compiler gave it. Two factors belong to each kernel, one for the start and one for the issue;
they stand for instructions that are in no count.

All functions here take numbers, for a choice, or NumPy arrays, for a fit. They only add, multiply,
divide and take square roots, in a fixed order, so every machine computes the same bits.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from gemv.core.geometry import Device, ceil_div
from gemv.core.problem import Problem
from gemv.kernels.work import Work

#: The most blocks of a launch that still fit on the GPU beside the launch before.
FEW_BLOCKS = 64
#: A thread gets registers in units of so many.
_REGISTER_UNIT = 8
#: Bytes of shared memory that the system takes for each block.
_SHARED_OF_BLOCK = 1024
#: What can bound a launch: the terms of the formula, and the words that name them.
BOUNDS = {
    "bytes": "the rate of the memory",
    "waits": "the latency of the memory",
    "issue": "the issue of instructions",
    "start": "the launch",
    "splits": "the splits of its sums",
}


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
    collect, meet, cluster : float
        Time of a round of partial sums, and the time that any split costs once per launch: if it is
        posted through the memory, and if it is sent within a cluster of blocks.
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
    cluster: float = 3e-7
    code: float = 2e-9
    stores: float = 1.4
    imbalance: float = 0.2
    partial_wave: float = 1.0
    edge: float = 0.5


class Counts(NamedTuple):
    """What the formula reads of a launch: numbers, or arrays with an element for each launch.

    Attributes
    ----------
    is_hot, is_narrow, is_many, has_splits, in_cluster : 0 or 1
        Whether A is in the L2 cache, whether elements have 2 bytes, whether there are more than 64
        blocks, and whether blocks share rows through the memory or within a cluster.
    most : float
        Blocks of the multiprocessor that has the most.
    excess : float
        How much more that is than the mean, divided by the mean.
    waves, full_waves : float
        Blocks divided by those that the GPU holds together, at least 1; and the same rounded up.
    warps : int
        Of a block.
    moved, written, scratch, passes, edge_passes, loads, looked_up, x_loads : int
        As :class:`~gemv.kernels.work.Work` counts them; `moved` are its bytes, and `looked_up` are
        cache lines of all loads of a warp.
    multiply_adds, terms : float
        Multiply-adds of a thread in all its passes, and those of one pass. One of float64 counts as
        many as its instruction takes times that of float64 on a GPU with half the rate.
    end_steps, collects : int
        As Work counts them.
    """

    is_hot: Any
    is_narrow: Any
    is_many: Any
    has_splits: Any
    in_cluster: Any
    most: Any
    excess: Any
    waves: Any
    full_waves: Any
    warps: Any
    moved: Any
    written: Any
    scratch: Any
    passes: Any
    edge_passes: Any
    loads: Any
    looked_up: Any
    x_loads: Any
    multiply_adds: Any
    terms: Any
    end_steps: Any
    collects: Any


class Parts(NamedTuple):
    """The terms of the formula, in seconds."""

    start: Any
    bytes: Any
    waits: Any
    issue: Any
    splits: Any

    @property
    def seconds(self) -> Any:
        """The time of the launch."""
        squares = self.bytes * self.bytes + self.waits * self.waits + self.issue * self.issue
        root = math.sqrt(squares) if isinstance(squares, float) else np.sqrt(squares)
        return self.start + root + self.splits

    @property
    def bound(self) -> str:
        """The longest term, a key of :data:`BOUNDS`."""
        return max(BOUNDS, key=lambda name: getattr(self, name))


def resident_blocks(device: Device, threads: int, registers: int, shared: int) -> int:
    """The blocks that fit on a multiprocessor together, by threads, registers and shared memory."""
    chip = device.chip
    each = ceil_div(registers, _REGISTER_UNIT) * _REGISTER_UNIT * (ceil_div(threads, 32) * 32)
    return max(
        1,
        min(
            chip.threads // threads,
            chip.registers // max(each, 1),
            chip.shared_bytes // (shared + _SHARED_OF_BLOCK),
            chip.blocks,
        ),
    )


def counted(
    work: Work, problem: Problem, device: Device, registers: int, is_hot: bool = False
) -> Counts:
    """What the formula reads of a launch with this work, compiled to so many registers."""
    blocks, multiprocessors = work.blocks, device.multiprocessors
    resident = resident_blocks(device, work.threads, registers, work.shared_bytes)
    most = ceil_div(blocks, multiprocessors)
    together = multiprocessors * resident
    size = problem.dtype.itemsize
    parts = 4 if problem.dtype.kind == "c" else 1
    double = size == 8 * (1 + (parts == 4)) or problem.accumulate == "wide" and size > 2
    slower = max(device.float64_ratio, 2) / 2 if double else 1.0
    return Counts(
        is_hot=int(is_hot),
        is_narrow=int(size == 2),
        is_many=int(blocks > FEW_BLOCKS),
        has_splits=int(work.splits > 1 and work.cluster == 1),
        in_cluster=int(work.cluster > 1),
        most=most,
        excess=most * multiprocessors / blocks - 1,
        waves=max(blocks / together, 1.0),
        full_waves=float(ceil_div(blocks, together)),
        warps=ceil_div(work.threads, 32),
        moved=work.bytes,
        written=work.written,
        scratch=work.scratch,
        passes=work.passes,
        edge_passes=work.edge_passes,
        loads=work.loads,
        looked_up=work.loads * work.warp_lines,
        x_loads=work.x_loads,
        multiply_adds=work.multiply_adds * slower,
        terms=work.flight // size * parts * slower,
        end_steps=work.end_steps,
        collects=work.collects,
    )


def parts(machine: Machine, start: Any, issue: Any, c: Counts) -> Parts:
    """The terms of the formula; `start` and `issue` are the two factors of the kernel."""
    m = machine
    rate = m.memory_rate + c.is_hot * (m.cache_rate - m.memory_rate)
    latency = m.memory_latency + c.is_hot * (m.cache_latency - m.memory_latency)
    moved = c.moved + m.stores * c.written + 2 * c.scratch
    waves = c.waves + m.partial_wave * (c.full_waves - c.waves)
    passes = c.passes + m.edge * c.edge_passes
    multiply_add = m.multiply_add + c.is_narrow * m.narrow
    instructions = m.load * c.loads + m.x_load * c.x_loads + multiply_add * c.multiply_adds
    return Parts(
        start=start * (m.start + c.is_many * m.start_of_many) + m.code * c.terms,
        bytes=moved / rate * (1 + m.imbalance * c.excess),
        waits=waves * (m.block_start + passes * latency + c.end_steps * m.end_step),
        issue=c.most * c.warps * (issue * instructions + m.line * c.looked_up),
        splits=c.collects * m.collect + c.has_splits * m.meet + c.in_cluster * m.cluster,
    )
