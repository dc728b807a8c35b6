"""One CUDA thread as a greenlet, and the warp that it belongs to.

A thread gives control to its *hub*, the scheduler, when it waits (:meth:`Thread.block_on`) or lets
others run first (:meth:`Thread.pause`).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import CodeType
from typing import Any

import numpy as np
from greenlet import getcurrent, greenlet

WARP = 32

#: Stores to global memory that are held back: byte address -> (flat array, position in it, value).
Stores = dict[int, tuple[np.ndarray, int, Any]]


class SimulatorError(RuntimeError):
    """A kernel did something that is wrong or undefined on a GPU; names the block and thread."""


class Warp:
    """32 threads with consecutive ids, and the operations that they are gathering for."""

    __slots__ = ("groups", "present", "stores", "threads")

    def __init__(self, threads: list[Thread]) -> None:
        self.threads = threads
        self.present = (1 << len(threads)) - 1
        self.stores: Stores = {}
        # (operation, mask, call site) -> values of the lanes that arrived.
        self.groups: dict[tuple, dict[int, Any]] = {}


class Thread(greenlet):
    """One CUDA thread."""

    warp: Warp
    #: How often it came to both halves of the barrier of its cluster.
    arrivals = 0
    waits = 0

    def __init__(self, block: Any, tid: int, where: tuple[int, int, int], hub: greenlet) -> None:
        super().__init__(None, hub)
        self.block = block
        self.hub = hub
        self.tid = tid
        self.lane = tid % WARP
        self.where = where
        self.stores: Stores = {}
        # What a blocked thread waits for: the operation, its warp mask or None, the call site.
        self.operation = ""
        self.mask: int | None = None
        self.site: tuple[CodeType, int] | None = None
        self.value: Any = None  # what it brings to a block vote
        self.result: Any = None  # what the barrier or warp operation hands out
        # Groups of copies on their way: where each goes, and what it brings. The last is open.
        self.copies: list[list[tuple[Any, slice, np.ndarray]]] = [[]]

    def run(self) -> None:
        grid = self.block.grid
        grid.function(*grid.args)

    def block_on(self, operation: str, mask: int | None, site: tuple[CodeType, int]) -> Any:
        """Wait at a barrier or warp operation until somebody releases this thread."""
        self.operation, self.mask, self.site = operation, mask, site
        self.hub.switch()
        return self.result

    def release(self, result: Any) -> None:
        """End the wait: the operation returns `result` when the thread is next resumed."""
        self.operation, self.result = "", result
        self.block.ready.append(self)

    def pause(self) -> None:
        """Let the others run; stay runnable."""
        self.block.ready.append(self)
        self.hub.switch()

    def line(self) -> str:
        """Where it waits, as file:line; found only for an error text, because it is slow."""
        assert self.site is not None
        code, instruction = self.site
        lines = [position[0] for position in code.co_positions()]
        return f"{code.co_filename}:{lines[instruction // 2]}"

    def state(self) -> str:
        if self.dead:
            return "returned"
        return f"waits in {self.operation} at {self.line()}" if self.operation else "runs"


def release(threads: Sequence[Thread], result: Any) -> None:
    """:meth:`Thread.release` for several threads of one block."""
    for thread in threads:
        thread.operation, thread.result = "", result
    threads[0].block.ready += threads


def current() -> Thread:
    """The CUDA thread that is running right now."""
    thread = getcurrent()
    if type(thread) is not Thread:
        raise SimulatorError("this function works in a simulated kernel only")
    return thread
