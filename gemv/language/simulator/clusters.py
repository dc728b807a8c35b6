"""Blocks of one cluster: they run side by side, have a barrier, and send each other sums."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from gemv.language.simulator.shared import SharedArray
from gemv.language.simulator.thread import SimulatorError, Thread, current

#: What a thread waits for that happens in another block.
WAIT, TAKE = "cluster_wait", "cluster_take"
FROM_OTHERS = (WAIT, TAKE)


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
        if self.arrived == self.threads:
            self.arrived, self.phase = 0, self.phase + 1
            for block in self.blocks:
                _release(block, WAIT)


class Box:
    """Sums that a block expects, and those that have arrived."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.arrived = 0


def _release(block: Any, operation: str) -> None:
    for thread in block.threads:
        if thread.operation == operation:
            thread.release(None)


def _site(block: Any, shared: SharedArray) -> tuple:
    """What a block knows its array by, and other blocks theirs."""
    return next(key for key, (_, array) in block.shared.items() if array is shared)


def check_end(block: Any) -> None:
    """Raise if sums are still to come to a block that ends: its memory ends with it."""
    for box in block.boxes.values():
        if box.arrived != box.expected:
            raise SimulatorError(
                f"block {block.where} ends with {box.arrived} of {box.expected} sums that it"
                " expects"
            )


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


def cluster_expect(box: SharedArray, shared: SharedArray, count: int) -> None:
    block = current().block
    site = _site(block, box)
    if site in block.boxes:
        raise SimulatorError("cluster_expect: this box expects sums already")
    block.boxes[site] = Box(count)


def cluster_post(
    box: SharedArray,
    shared: SharedArray,
    slot: int,
    row: int,
    values: Sequence[Any],
    distance: int,
    width: int,
    each: int,
    limit: int,
) -> None:
    """Refuses a launch without clusters, and a block that expects no sums yet, or has ended."""
    block = current().block
    blocks = block.cluster.blocks
    if len(blocks) == 1:
        raise SimulatorError(
            "cluster_post: this launch has no clusters, so a GPU would end it with"
            " CUDA_ERROR_ILLEGAL_INSTRUCTION"
        )
    for k, value in enumerate(values):
        r = row + k // width * distance + k % width
        if r >= limit:
            continue
        rank, place = divmod(r, each)
        if rank >= len(blocks):
            raise SimulatorError(f"cluster_post: no block {rank} in a cluster of {len(blocks)}")
        other = blocks[rank]
        theirs = other.boxes.get(_site(block, box))
        if theirs is None:
            raise SimulatorError(f"cluster_post: block {other.where} expects no sums yet")
        if theirs.arrived == theirs.expected:
            raise SimulatorError(f"cluster_post: block {other.where} has all sums that it expects")
        _array_of(other, _site(block, shared)).put_for_all((place, slot), value)
        theirs.arrived += 1
        if theirs.arrived == theirs.expected:
            _release(other, TAKE)


def _array_of(block: Any, site: tuple) -> SharedArray:
    if site not in block.shared:
        raise SimulatorError(f"cluster_post: block {block.where} has not made its array yet")
    array: SharedArray = block.shared[site][1]
    return array


def cluster_take(box: SharedArray) -> None:
    thread = current()
    mine = thread.block.boxes.get(_site(thread.block, box))
    if mine is None:
        raise SimulatorError("cluster_take: this block expects no sums")
    if mine.arrived < mine.expected:
        frame = sys._getframe(1)
        thread.block_on(TAKE, None, (frame.f_code, frame.f_lasti))
