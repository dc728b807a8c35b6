"""One CUDA thread as a greenlet, and the warp it belongs to."""

from __future__ import annotations

from types import CodeType
from typing import Any

import numpy as np
from greenlet import getcurrent, greenlet

WARP = 32

# Global stores held back: byte address -> (flat array, position in it, value).
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

    def run(self) -> None:
        grid = self.block.grid
        grid.function(*grid.args)

    def block_on(self, operation: str, mask: int | None, site: tuple[CodeType, int]) -> Any:
        self.operation, self.mask, self.site = operation, mask, site
        self.hub.switch()
        return self.result

    def release(self, result: Any) -> None:
        self.operation, self.result = "", result
        self.block.ready.append(self)

    def pause(self) -> None:
        """Let the others run; stay runnable."""
        self.block.ready.append(self)
        self.hub.switch()

    def line(self) -> str:
        """Where it waits, as file:line; worked out late because it is slow and seldom needed."""
        assert self.site is not None
        code, instruction = self.site
        lines = [position[0] for position in code.co_positions()]
        return f"{code.co_filename}:{lines[instruction // 2]}"

    def state(self) -> str:
        if self.dead:
            return "returned"
        return f"waits in {self.operation} at {self.line()}" if self.operation else "runs"


def current() -> Thread:
    thread = getcurrent()
    if type(thread) is not Thread:
        raise SimulatorError("this function works in a simulated kernel only")
    return thread
