"""Blocks of one cluster: they run side by side, have a barrier, and read each other's memory."""

from __future__ import annotations

import sys
from typing import Any

from gemv.language.simulator.memory import CheckedArray
from gemv.language.simulator.thread import SimulatorError, Thread, current

#: What a thread waits for at the barrier of its cluster.
WAIT = "cluster_wait"


class ClusterRun:
    """The blocks of one cluster while they run, in the order of their ranks."""

    def __init__(self, threads: int) -> None:
        self.blocks: list[Any] = []
        self.threads = threads  # of all blocks
        self.arrived = 0
        self.phase = 0  # barriers that all threads have arrived at

    def arrive(self, thread: Thread) -> None:
        if thread.arrivals != thread.waits:
            raise SimulatorError("cluster_arrive: this thread has not waited since it arrived")
        thread.arrivals += 1
        self.arrived += 1
        if self.arrived < self.threads:
            return
        self.arrived, self.phase = 0, self.phase + 1
        for block in self.blocks:
            block.show_to_block()
            for each in block.threads:
                if each.operation == WAIT:
                    each.release(None)


def cluster_rank() -> int:
    block = current().block
    return block.cluster.blocks.index(block)


def cluster_arrive() -> None:
    thread = current()
    thread.block.cluster.arrive(thread)


def cluster_wait() -> None:
    thread = current()
    if thread.arrivals == thread.waits:
        raise SimulatorError("cluster_wait: this thread has not arrived")
    thread.waits += 1
    if thread.block.cluster.phase < thread.waits:
        frame = sys._getframe(1)
        thread.block_on(WAIT, None, (frame.f_code, frame.f_lasti))


def cluster_load(
    shared: CheckedArray, rank: int, row: int, column: int, step: int, count: int
) -> tuple:
    """Refuses a block that has ended, and one that has not come to its array."""
    block = current().block
    blocks = block.cluster.blocks
    if not 0 <= rank < len(blocks):
        raise SimulatorError(f"cluster_load: no block {rank} in a cluster of {len(blocks)}")
    other = blocks[rank]
    if other.alive == 0:
        raise SimulatorError(f"cluster_load: block {other.where} has ended, and so has its memory")
    site = next(key for key, (_, array) in block.shared.items() if array is shared)
    if site not in other.shared:
        raise SimulatorError(f"cluster_load: block {other.where} has not made its array yet")
    theirs = other.shared[site][1]
    theirs[row, column]  # within the array, in both directions
    flat, first = theirs.data.reshape(-1), row * theirs.shape[1] + column
    places = [first + k * step for k in range(count)]
    if not all(0 <= place < flat.size for place in places):
        raise SimulatorError(
            f"cluster_load: {count} elements {step} apart from [{row}, {column}] on are not in an"
            f" array of shape {theirs.shape}"
        )
    return tuple(flat[place] for place in places)
