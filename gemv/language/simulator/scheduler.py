"""Which thread of which block runs next, and a launch as a whole.

:func:`launch` makes a :class:`GridRun`, which makes a :class:`BlockRun` for each block in turn.
:meth:`BlockRun.step` resumes the threads of a block that can run; where none can, all of them must
wait at the same barrier, and it releases that. Blocks of a cluster run in turns, because they wait
for each other.
"""

from __future__ import annotations

import atexit
import math
import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from itertools import product
from operator import attrgetter
from operator import index as as_index
from types import CodeType
from typing import Any, NoReturn

import numpy as np
from greenlet import GreenletExit, getcurrent

from gemv.language.simulator.clusters import FROM_OTHERS, Box, ClusterRun, check_end
from gemv.language.simulator.memory import Pointer, write_back
from gemv.language.simulator.shared import Memory, SharedArray
from gemv.language.simulator.thread import WARP, SimulatorError, Stores, Thread, Warp, release
from gemv.language.simulator.warp import BLOCK_VOTES


@dataclass(frozen=True)
class Schedule:
    """The order in which the simulator resumes threads and starts blocks.

    Parameters
    ----------
    order : {"forward", "reversed", "warps", "random"}
        Ascending, descending or shuffled ids. Under "warps" a warp runs as far as it can before
        another one does, those with higher ids first: a missing barrier shows that keeps a warp
        from running ahead, but a warp that waits for what another one posts spins. Under "random"
        up to four blocks run in turns, or the blocks of a cluster; otherwise each block, or
        cluster, ends before the next one starts.
    seed : int
        Seed of the "random" order.
    max_switches : int
        The launch ends with an error after this many resumptions during which no thread ended: then
        the kernel spins.
    late : bool
        Whether other threads see what one has stored in shared memory only behind a barrier, a
        ``syncwarp`` or a fence, which is as late as they may; else they do at once.
    """

    order: str = "forward"
    seed: int = 0
    max_switches: int = 1_000_000
    late: bool = False

    def __post_init__(self) -> None:
        if self.order not in ("forward", "reversed", "warps", "random"):
            raise ValueError(
                f"order must be forward, reversed, warps or random, not {self.order!r}"
            )


_default_schedule: ContextVar[Schedule | None] = ContextVar("gemv_schedule", default=None)


@contextmanager
def scheduled(schedule: Schedule) -> Iterator[None]:
    """Make `schedule` the default of all launches inside the ``with`` block."""
    token = _default_schedule.set(schedule)
    try:
        yield
    finally:
        _default_schedule.reset(token)


class BlockRun:
    """One block while it runs: the threads of one block, and the memory that they share."""

    def __init__(self, grid: GridRun, where: tuple[int, int, int], cluster: ClusterRun) -> None:
        self.grid = grid
        self.cluster = cluster
        self.where = where
        self.has_stores = False
        self.stores: Stores = {}
        self.shared: dict[tuple, tuple[CodeType, SharedArray]] = {}
        #: The same arrays, for the threads that ask again.
        self.arrays: dict[tuple, tuple[Any, SharedArray]] = {}
        self.shared_bytes = 0
        # The dynamic shared memory; then that of each array. NaN in every format.
        self.memories = [Memory(np.full(grid.shared, 0xFF, np.uint8), grid.schedule.late)]
        self.boxes: dict[tuple, Box] = {}
        hub = getcurrent()
        nx, ny, nz = grid.block_shape
        places = product(range(nz), range(ny), range(nx))
        self.threads = [Thread(self, tid, p[::-1], hub) for tid, p in enumerate(places)]
        for first in range(0, len(self.threads), WARP):
            warp = Warp(self.threads[first : first + WARP])
            for thread in warp.threads:
                thread.warp = warp
                thread.gr_context = grid.context.copy()
        self.ready = list(self.threads)
        self.alive = len(self.threads)

    def dynamic_array(self, dtype: np.dtype) -> SharedArray:
        """The block's dynamic shared memory as numbers of a type; others see the same bytes."""
        return SharedArray.of(self.memories[0], dtype)

    def can_run(self) -> bool:
        """Whether nothing has to happen in another block of the cluster first."""
        return bool(self.ready) or all(each.operation not in FROM_OTHERS for each in self.threads)

    def step(self) -> bool:
        """Resume every runnable thread once; return whether the block has ended."""
        if not self.ready:
            self.release_barrier()
        grid, batch = self.grid, self.ready
        self.ready = []
        if grid.rng is not None:
            grid.rng.shuffle(batch)
            # Let some threads run ahead of the others.
            cut = grid.rng.randint(1, len(batch))
            self.ready = batch[cut:]
            del batch[cut:]
        elif grid.schedule.order == "warps":
            ahead = max(thread.tid // WARP for thread in batch)
            self.ready = [thread for thread in batch if thread.tid // WARP != ahead]
            batch = [thread for thread in batch if thread.tid // WARP == ahead]
        else:
            batch.sort(key=attrgetter("tid"), reverse=grid.schedule.order == "reversed")
        for thread in batch:
            try:
                thread.switch()
            except SimulatorError as error:
                raise SimulatorError(f"{self.name(thread)}: {error}") from error
            except Exception as error:
                text = f"{self.name(thread)}: {type(error).__name__}: {error}"
                raise SimulatorError(text) from error
            if thread.dead:
                if thread.arrivals != thread.waits:
                    raise SimulatorError(
                        f"{self.name(thread)}: it ended between cluster_arrive and cluster_wait"
                    )
                self.alive -= 1
                grid.switches = 0
        grid.switches += len(batch)
        if grid.switches > grid.schedule.max_switches:
            raise SimulatorError(
                f"{self.name(batch[-1])}: the kernel spins: no thread has ended during the last "
                f"{grid.schedule.max_switches} switches"
            )
        if self.alive:
            return False
        check_end(self)
        self.show_to_block()
        return True

    def name(self, thread: Thread) -> str:
        return f"block {self.where}, thread {thread.where}"

    def show_to_block(self) -> None:
        """Make the stores of all threads visible to the block."""
        for memory in self.memories:
            memory.show_to_block()
        if self.has_stores:
            warps = dict.fromkeys(thread.warp for thread in self.threads)
            for stores in (*(w.stores for w in warps), *(t.stores for t in self.threads)):
                self.stores.update(stores)
                stores.clear()

    def release_barrier(self) -> None:
        """Let all threads pass their barrier; an error if they do not all wait at the same one."""
        for thread in self.threads:
            if thread.mask is not None and thread.operation:
                self.report_warp(thread)
        first = next(thread for thread in self.threads if not thread.dead)
        place = (False, first.operation, first.site)
        if any([(t.dead, t.operation, t.site) != place for t in self.threads]):
            raise SimulatorError(
                f"{self.name(first)}: divergent barrier: {_states(self.threads, 'where')}"
            )
        self.show_to_block()
        result = BLOCK_VOTES[first.operation]([thread.value for thread in self.threads])
        release(self.threads, result)

    def report_warp(self, thread: Thread) -> NoReturn:
        """Raise the error for a warp operation that waits for lanes which can't arrive."""
        assert thread.mask is not None
        same = (thread.operation, thread.mask, thread.site)
        missing = [
            other
            for other in thread.warp.threads
            if thread.mask >> other.lane & 1
            and (other.dead or (other.operation, other.mask, other.site) != same)
        ]
        raise SimulatorError(
            f"{self.name(thread)}: {thread.operation} at {thread.line()} with mask "
            f"0x{thread.mask:08x} never completes: missing lanes: {_states(missing, 'lane')}"
        )

    def kill(self) -> None:
        """End all threads, so that no greenlet outlives the launch."""
        for thread in self.threads:
            if thread and not thread.dead:
                thread.throw(GreenletExit)


def _states(threads: Iterable[Thread], label: str) -> str:
    """Say what each thread does, threads that do the same together."""
    groups: dict[str, list[str]] = {}
    for thread in threads:
        groups.setdefault(thread.state(), []).append(str(getattr(thread, label)))
    parts = []
    for state, names in groups.items():
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        parts.append(f"{', '.join(names[:8])}{more}: {state}")
    return "; ".join(parts)


#: Blocks that run in turns under a random schedule.
_MAX_RESIDENT_BLOCKS = 4


class GridRun:
    """One launch while it runs."""

    def __init__(
        self,
        function: Callable[..., Any],
        grid_shape: tuple[int, int, int],
        block_shape: tuple[int, int, int],
        args: tuple,
        schedule: Schedule,
        cluster: int = 1,
        shared: int = 0,
    ) -> None:
        self.cluster, self.shared = cluster, shared
        self.function, self.args, self.schedule = function, args, schedule
        self.grid_shape, self.block_shape = grid_shape, block_shape
        self.rng = random.Random(schedule.seed) if schedule.order == "random" else None
        self.switches = 0
        self.context = copy_context()
        self.mixed = _mixed([arg for arg in args if isinstance(arg, Pointer)])

    def run(self) -> None:
        nx, ny, nz = self.grid_shape
        ny //= self.cluster  # clusters; below, their places stand for those of blocks
        order: Any = range(nx * ny * nz)
        if self.rng is not None:
            order = self.rng.sample(order, len(order))
        elif self.schedule.order == "reversed":
            order = reversed(order)
        coming = iter(order)
        resident: list[BlockRun] = []
        unfenced: list[Stores] = []
        try:
            while True:
                while len(resident) < (_MAX_RESIDENT_BLOCKS if self.rng else 1):
                    cluster_id = next(coming, None)
                    if cluster_id is None:
                        break
                    x, y, z = cluster_id % nx, cluster_id // nx % ny, cluster_id // (nx * ny)
                    resident += self.blocks_of(x, y, z)
                if not resident:
                    break
                runnable = [block for block in resident if block.can_run()]
                if not runnable:
                    self.report_cluster(resident[0])
                block = self.rng.choice(runnable) if self.rng else runnable[0]
                if block.step():
                    resident.remove(block)
                    unfenced.append(block.stores)
                    # threads refer to their warp and to the block, and both to them
                    for thread in block.threads[::WARP]:
                        thread.warp.threads.clear()
                    block.threads.clear()
                    if not any(each.alive for each in block.cluster.blocks):
                        block.cluster.blocks.clear()
        finally:
            for block in resident:
                block.kill()
        for stores in unfenced:
            write_back(stores)

    def blocks_of(self, x: int, y: int, z: int) -> list[BlockRun]:
        """The blocks of a cluster, first those that are to run first."""
        cluster = ClusterRun(self.cluster * math.prod(self.block_shape))
        places = [(x, y * self.cluster + rank, z) for rank in range(self.cluster)]
        cluster.blocks += [BlockRun(self, where, cluster) for where in places]
        return cluster.blocks[:: -1 if self.schedule.order == "reversed" else 1]

    def report_cluster(self, block: BlockRun) -> NoReturn:
        """Raise the error for a cluster in which no thread can go on."""
        states = [
            f"block {each.where}: {_states(each.threads, 'where') or 'ended'}"
            for each in block.cluster.blocks
        ]
        raise SimulatorError(f"no thread of a cluster can go on: {'; '.join(states)}")


def _mixed(pointers: list[Pointer]) -> set[Pointer]:
    """Pointers to memory that another pointer covers with another dtype or other boundaries.

    The simulator holds stores back by element, so the other pointer would not see them.
    """
    return {
        a
        for a in pointers
        for b in pointers
        if a.address < b.address + b.size * b.itemsize
        and b.address < a.address + a.size * a.itemsize
        and (a.flat.dtype != b.flat.dtype or (a.address - b.address) % a.itemsize)
    }


#: Threads of a block and blocks of a grid in each dimension, and threads of a block altogether.
_MAX_BLOCK = (1024, 1024, 64)
_MAX_GRID = (2**31 - 1, 65535, 65535)
_MAX_THREADS = 1024
#: Dynamic shared memory of a block, as a GPU with compute capability 9.0 gives it.
_MAX_DYNAMIC_BYTES = 227 * 1024


def _shape(name: str, shape: Any, limits: tuple[int, int, int]) -> tuple[int, int, int]:
    dimensions = tuple(map(as_index, shape if isinstance(shape, tuple | list) else (shape,)))
    if not 1 <= len(dimensions) <= 3:
        raise ValueError(f"{name} must have 1 to 3 dimensions, not {len(dimensions)}")
    x, y, z = dimensions + (1,) * (3 - len(dimensions))
    if not all(1 <= n <= limit for n, limit in zip((x, y, z), limits, strict=True)):
        raise ValueError(f"{name} {dimensions} out of range: at least 1, at most {limits}")
    return x, y, z


#: Held while a grid runs, and for ever once Python ends: it kills daemon threads where they wait
#: next, and one that is killed inside a greenlet takes the process with it.
_turn = threading.RLock()
atexit.register(lambda: _turn.acquire())


def _after_fork() -> None:
    global _turn
    _turn = threading.RLock()  # another thread may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def launch(
    function: Callable[..., Any],
    grid: int | tuple[int, ...],
    block: int | tuple[int, ...],
    args: Sequence[Any],
    schedule: Schedule | None = None,
    shared: int = 0,
) -> None:
    """Run a kernel to its end.

    Parameters
    ----------
    function : callable
        The kernel as a plain Python function; its attribute ``cluster`` is the number of blocks of
        a cluster.
    grid, block : int or tuple of int
        Numbers of blocks and of threads in a block, up to three dimensions each.
    args : sequence
        Python or NumPy scalars and :class:`Pointer` objects.
    schedule : Schedule, optional
        Order of threads and blocks; by default that of :func:`scheduled`, else "forward".
    shared : int
        Bytes of dynamic shared memory of a block.

    Raises
    ------
    SimulatorError
        If the kernel raises or does something undefined. Memory is then left half-written.
    """
    grid_shape = _shape("grid", grid, _MAX_GRID)
    block_shape = _shape("block", block, _MAX_BLOCK)
    if math.prod(block_shape) > _MAX_THREADS:
        raise ValueError(f"block {block_shape} has more than {_MAX_THREADS} threads")
    if not 0 <= shared <= _MAX_DYNAMIC_BYTES:
        raise ValueError(f"{shared} bytes of dynamic shared memory: at most {_MAX_DYNAMIC_BYTES}")
    if any(isinstance(arg, np.ndarray) for arg in args):
        raise TypeError("arrays are passed as pointers: use pointer_to")
    cluster = getattr(function, "cluster", 1)
    if grid_shape[1] % cluster:
        raise ValueError(f"grid {grid_shape} has no whole clusters of {cluster} blocks along y")
    schedule = schedule or _default_schedule.get() or Schedule()
    # A GPU raises no floating-point exceptions. The setting is part of the context that the
    # threads copy, since a greenlet doesn't inherit the context of its parent.
    with _turn, np.errstate(all="ignore"):
        GridRun(function, grid_shape, block_shape, tuple(args), schedule, cluster, shared).run()
