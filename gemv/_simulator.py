"""Runs a kernel on the CPU, one CUDA thread at a time, so that races show up without a GPU.

Every CUDA thread is a greenlet: a function that can be left and resumed. A thread runs alone until
it reaches a switch point (a barrier, a warp operation, an atomic, a fence, a post, or its end);
then the scheduler resumes another one, in the order that the :class:`Schedule` asks for. A kernel
whose result depends on that order has a race, so tests run each kernel under several schedules.

The memory model is weak on purpose:

* A plain store to global memory (through a :class:`Pointer`) is at first seen by its own thread
  only. ``syncwarp`` shows it to the warp; a block barrier or ``threadfence_block`` to the block;
  ``threadfence`` to every block, together with what the thread had been shown by a barrier
  before. What was never fenced reaches memory at the end of the grid, so a protocol between
  blocks that lacks a fence reads old values every time and not once in a blue moon.
* Atomics on global memory work on memory itself, and carry along what their own thread, warp or
  block still held back for that one element.
* What is posted (``gemv._arrivals``) is in memory at once; whoever takes it lets others run until
  it is there.
* Stores to shared memory are seen at once: a missing barrier shows under one order or another.
  Shared and local arrays start as NaN or as a bit pattern that is no sensible integer, and they
  refuse indices out of range, negative ones too.

Barriers and warp operations that can't complete end the launch with a :class:`SimulatorError`.

Importing this module adds the names that kernels use (``cuda.threadIdx``, ``cuda.shfl_xor_sync``
and so on) to Numba's simulator module, which lacks them; each looks up the thread that is running
right now. Kernels launched through Numba's own simulator don't see them and work as before.

What is not simulated: time, true concurrency (two threads never run between two switch points of
each other), caches, a post of which only some words have arrived, fused multiply-add (see
``fma``), a thread that spins on plain loads (it never reaches a switch point, so it can't be
stopped), dynamic shared memory, and mixed views: a plain store to memory that another argument
sees with another data type is refused.
"""

from __future__ import annotations

import atexit
import functools
import math
import os
import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from itertools import product
from operator import attrgetter
from operator import index as as_index
from types import CodeType, SimpleNamespace
from typing import Any, NoReturn

import numpy as np
from greenlet import GreenletExit, getcurrent, greenlet
from numba import cuda, types
from numba.cuda.core import config

if not config.ENABLE_CUDASIM:
    raise RuntimeError(
        "gemv._simulator needs Numba's CUDA simulator: "
        "set NUMBA_ENABLE_CUDASIM=1 before numba is imported"
    )

from numba.cuda.np.numpy_support import as_dtype

from gemv._twofold import number_of
from gemv.core.dtypes import BFLOAT16, NARROW
from gemv.core.narrow import cast

__all__ = [
    "Pointer",
    "Schedule",
    "SimulatorError",
    "atomic_add",
    "atomic_inc",
    "is_empty",
    "launch",
    "make_empty",
    "pointer_to",
    "post",
    "scheduled",
    "take_one",
    "threadfence",
    "vector_load",
    "vector_store",
]

_WARP = 32
_FULL_MASK = 0xFFFFFFFF
_MAX_BLOCK = (1024, 1024, 64)
_MAX_GRID = (2**31 - 1, 65535, 65535)
_MAX_THREADS = 1024
_MAX_SHARED_BYTES = 48 * 1024
_MAX_RESIDENT_BLOCKS = 4

# Global stores held back: byte address -> (flat array, position in it, value).
_Stores = dict[int, tuple[np.ndarray, int, Any]]


class SimulatorError(RuntimeError):
    """A kernel did something that is wrong or undefined on a GPU; names the block and thread."""


@dataclass(frozen=True)
class Schedule:
    """The order in which the simulator resumes threads and starts blocks.

    Parameters
    ----------
    order : {"forward", "reversed", "random"}
        Ascending, descending or shuffled ids. Under "random" up to four blocks are interleaved;
        otherwise each block ends before the next one starts.
    seed : int
        Seed of the "random" order.
    max_switches : int
        The launch is stopped after this many resumptions during which no thread ended: the kernel
        spins.
    """

    order: str = "forward"
    seed: int = 0
    max_switches: int = 1_000_000

    def __post_init__(self) -> None:
        if self.order not in ("forward", "reversed", "random"):
            raise ValueError(f"order must be forward, reversed or random, not {self.order!r}")


_default_schedule: ContextVar[Schedule | None] = ContextVar("gemv_schedule", default=None)


@contextmanager
def scheduled(schedule: Schedule) -> Iterator[None]:
    """Make `schedule` the default of all launches inside the ``with`` block."""
    token = _default_schedule.set(schedule)
    try:
        yield
    finally:
        _default_schedule.reset(token)


# --- Memory ---------------------------------------------------------------------------------------


class Pointer:
    """What a kernel gets for a device pointer: bounds-checked access to a flat array.

    Parameters
    ----------
    flat : ndarray
        One-dimensional contiguous array: all the memory that may be touched.
    origin : int
        Position in `flat` of the element with index 0.
    writable : bool
        Whether the kernel may store; never true for a read-only `flat`.
    name : str
        Name for error messages.
    """

    __slots__ = ("address", "flat", "itemsize", "name", "origin", "scalar", "size", "writable")

    def __init__(
        self, flat: np.ndarray, origin: int = 0, writable: bool = True, name: str = ""
    ) -> None:
        if flat.ndim != 1 or (flat.size > 1 and flat.strides[0] != flat.itemsize):
            raise ValueError("a pointer needs a one-dimensional contiguous array")
        self.flat = flat
        self.origin = as_index(origin)
        self.writable = bool(writable and flat.flags.writeable)
        self.name = name or "pointer"
        self.size = flat.size
        self.itemsize = flat.itemsize
        self.scalar = flat.dtype.type
        self.address = flat.__array_interface__["data"][0]

    def __repr__(self) -> str:
        return f"<Pointer {self.name}: {self.flat.dtype}, {self._valid()}>"

    def _valid(self) -> str:
        return f"valid {-self.origin} .. {self.size - 1 - self.origin}" if self.size else "empty"

    def _position(self, i: int, action: str) -> int:
        position = self.origin + as_index(i)
        if not 0 <= position < self.size:
            raise SimulatorError(f"{action} out of range: {self.name}[{i}], {self._valid()}")
        return position

    @property
    def nothing(self) -> Any:
        """The zero that a load gives in place of an element that is not there."""
        return self.scalar(0)

    def _storable(self, i: int) -> int:
        position = self._position(i, "write")
        if not self.writable:
            raise SimulatorError(f"write to read-only memory: {self.name}[{i}]")
        return position

    def __getitem__(self, i: int) -> Any:
        # _position written out: this is the hot path of every kernel.
        position = self.origin + as_index(i)
        if not 0 <= position < self.size:
            self._position(i, "read")
        thread = getcurrent()
        if type(thread) is _Thread and thread.block.has_stores:
            key = self.address + position * self.itemsize
            for stores in (thread.stores, thread.warp.stores, thread.block.stores):
                if key in stores:
                    return stores[key][2]
        return self.flat[position]

    def __setitem__(self, i: int, value: Any) -> None:
        position = self._storable(i)
        value = self.scalar(value)
        thread = getcurrent()
        if type(thread) is not _Thread:
            self.flat[position] = value
            return
        if self in thread.block.grid.mixed:
            raise SimulatorError(f"{self.name} overlaps an argument of another data type")
        thread.block.has_stores = True
        thread.stores[self.address + position * self.itemsize] = (self.flat, position, value)


@functools.cache
def _all_numbers(storage: np.dtype, number: np.dtype) -> np.ndarray:
    """What each pattern of 16 bits is: casts, one number at a time, were most of a simulation."""
    return cast(np.arange(1 << 16, dtype=np.uint16).view(storage), number)


class _Converting(Pointer):
    """A pointer to numbers of one format that are computed with in another."""

    __slots__ = ("format", "is_half", "number", "numbers")

    def __init__(self, pointer: Pointer, storage: np.dtype, number: np.dtype) -> None:
        super().__init__(pointer.flat, pointer.origin, pointer.writable, pointer.name)
        self.format, self.number = storage, number
        self.numbers = _all_numbers(storage, number) if storage in NARROW else None
        self.is_half = pointer.flat.dtype == np.float16  # else bits already, where it matters

    @property
    def nothing(self) -> Any:
        return self.number.type(0)

    def __getitem__(self, i: int) -> Any:
        value = super().__getitem__(i)
        if self.numbers is None:
            return cast(value, self.number)[()]
        return self.numbers[value.view(np.uint16) if self.is_half else value]

    def __setitem__(self, i: int, value: Any) -> None:
        super().__setitem__(i, cast(self.number.type(value), self.format).view(self.flat.dtype)[()])


class _Twofold(Pointer):
    """A pointer to numbers that are added up in sums of two."""

    __slots__ = ("exact", "format", "sums")

    def __init__(self, pointer: Pointer, storage: np.dtype, sums: np.dtype, exact: bool) -> None:
        super().__init__(pointer.flat, pointer.origin, pointer.writable, pointer.name)
        self.format, self.sums, self.exact = storage, sums, exact

    @property
    def nothing(self) -> Any:
        return number_of(self.sums, 0, self.exact)

    def __getitem__(self, i: int) -> Any:
        value = super().__getitem__(i)
        if self.format in NARROW:
            value = _all_numbers(self.format, np.dtype(np.float32))[value.view(np.uint16)]
        return number_of(self.sums, value.item(), self.exact)

    def __setitem__(self, i: int, value: Any) -> None:
        number = value.rounded()
        if self.format in NARROW:
            number = cast(np.float64(number), self.format).view(self.flat.dtype)[()]
        super().__setitem__(i, number)


def pointer_to(
    array: np.ndarray,
    offset: int = 0,
    name: str = "",
    writable: bool | None = None,
    number: np.dtype | None = None,
    exact: bool = False,
) -> Pointer:
    """Point to an element of an array, however the array is strided.

    Parameters
    ----------
    array : ndarray
        The pointer covers exactly the memory from the lowest to the highest byte of this view.
        Strides may be negative or zero, but must be multiples of the item size.
    offset : int
        Distance in elements from element ``[0, ..., 0]`` to the target of the pointer.
    name : str
        Name for error messages.
    writable : bool, optional
        Whether the kernel may store; as the array's own flag if not given.
    number : numpy.dtype, optional
        What the kernel computes with, if the array is of another dtype.
    exact : bool
        Whether elements are factors of products, where sums are twofold.

    Returns
    -------
    Pointer
        Shares the memory of `array`.
    """
    if number is not None and number != array.dtype:
        storage = BFLOAT16 if array.dtype.kind == "V" else array.dtype
        bits = array.view(np.uint16) if storage == BFLOAT16 else array
        pointer = pointer_to(bits, offset, name, writable)
        if number.fields is not None:
            return _Twofold(pointer, storage, number, exact)
        return _Converting(pointer, storage, number)
    itemsize = array.itemsize
    if array.size and any(stride % itemsize for stride in array.strides):
        raise ValueError("strides must be multiples of the item size")
    writable = array.flags.writeable if writable is None else writable
    if not array.size:
        return Pointer(np.empty(0, array.dtype), offset, writable, name)
    spans = [
        (length - 1) * (stride // itemsize)
        for length, stride in zip(array.shape, array.strides, strict=True)
    ]
    below = -sum(span for span in spans if span < 0)
    above = sum(span for span in spans if span > 0)
    # Reversing the axes that run backwards brings the lowest element to the front. The ellipsis
    # keeps a zero-dimensional array an array.
    forward: list[Any] = [slice(None, None, -1 if span < 0 else 1) for span in spans]
    lowest = array[(*forward, ...)]
    flat = np.lib.stride_tricks.as_strided(lowest, (below + above + 1,), (itemsize,))
    return Pointer(flat, below + offset, writable, name)


def _aligned(pointer: Pointer, i: int, count: int, action: str) -> None:
    position = pointer._position(i, action)
    pointer._position(i + count - 1, action)
    address, width = pointer.address + position * pointer.itemsize, count * pointer.itemsize
    if address % width:
        raise SimulatorError(
            f"misaligned vector {action}: {pointer.name}[{i}] is {address % width} bytes past "
            f"a multiple of {width} bytes"
        )


def vector_load(pointer: Pointer, index: int, count: int) -> tuple:
    """Load `count` consecutive elements, the first at an address that is a multiple of the width.

    Raises
    ------
    SimulatorError
        If the address is misaligned or an element is out of range.
    """
    _aligned(pointer, index, count, "read")
    return tuple([pointer[index + k] for k in range(count)])


def vector_store(pointer: Pointer, index: int, values: Sequence[Any]) -> None:
    """Store consecutive elements; alignment and range are checked as in :func:`vector_load`."""
    _aligned(pointer, index, len(values), "write")
    for k, value in enumerate(values):
        pointer[index + k] = value


class _CheckedArray:
    """A shared or local array: poisoned at first, and no index wraps around or is clipped."""

    __slots__ = ("data", "dtype", "ndim", "shape", "size")

    def __init__(self, data: np.ndarray) -> None:
        self.data = data
        self.dtype, self.ndim, self.shape, self.size = data.dtype, data.ndim, data.shape, data.size

    @classmethod
    def poisoned(cls, shape: Any, dtype: Any) -> _CheckedArray:
        data = np.empty(shape, dtype)
        if data.size == 0:
            raise SimulatorError("an array of a kernel needs a positive size")
        if data.dtype.kind == "c":
            data.fill(complex(math.nan, math.nan))
        elif data.dtype.kind == "f":
            data.fill(math.nan)
        elif data.dtype.kind == "O":
            data.fill(None)  # nothing can be added to it
        else:
            data.view(np.uint8).fill(0xA5)
        return cls(data)

    def __len__(self) -> int:
        return self.shape[0]

    def _checked(self, i: Any) -> Any:
        if type(i) is int and 0 <= i < self.shape[0]:
            return i
        indices = tuple(map(as_index, i if isinstance(i, tuple) else (i,)))
        inside = all(0 <= k < n for k, n in zip(indices, self.shape, strict=False))
        if len(indices) > self.ndim or not inside:
            raise SimulatorError(f"index {i} out of range for an array of shape {self.shape}")
        return indices if len(indices) > 1 else indices[0]

    def __getitem__(self, i: Any) -> Any:
        value = self.data[self._checked(i)]
        return _CheckedArray(value) if type(value) is np.ndarray else value

    def __setitem__(self, i: Any, value: Any) -> None:
        self.data[self._checked(i)] = value


# --- Scheduler ------------------------------------------------------------------------------------


class _Warp:
    """32 threads with consecutive ids, and the operations that they are gathering for."""

    __slots__ = ("groups", "present", "stores", "threads")

    def __init__(self, threads: list[_Thread]) -> None:
        self.threads = threads
        self.present = (1 << len(threads)) - 1
        self.stores: _Stores = {}
        # (operation, mask, call site) -> values of the lanes that arrived.
        self.groups: dict[tuple, dict[int, Any]] = {}


class _Thread(greenlet):
    """One CUDA thread."""

    warp: _Warp

    def __init__(self, block: _Block, tid: int, where: tuple[int, int, int], hub: greenlet) -> None:
        super().__init__(None, hub)
        self.block = block
        self.hub = hub
        self.tid = tid
        self.lane = tid % _WARP
        self.where = where
        self.stores: _Stores = {}
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


class _Block:
    """The threads of one block, and the memory that they share."""

    def __init__(self, grid: _Grid, where: tuple[int, int, int]) -> None:
        self.grid = grid
        self.where = where
        self.has_stores = False
        self.stores: _Stores = {}
        self.shared: dict[tuple, tuple[CodeType, _CheckedArray]] = {}
        self.shared_bytes = 0
        hub = getcurrent()
        nx, ny, nz = grid.block_shape
        places = product(range(nz), range(ny), range(nx))
        self.threads = [_Thread(self, tid, p[::-1], hub) for tid, p in enumerate(places)]
        for first in range(0, len(self.threads), _WARP):
            warp = _Warp(self.threads[first : first + _WARP])
            for thread in warp.threads:
                thread.warp = warp
                thread.gr_context = grid.context.copy()
        self.ready = list(self.threads)
        self.alive = len(self.threads)

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
        self.show_to_block()
        return True

    def name(self, thread: _Thread) -> str:
        return f"block {self.where}, thread {thread.where}"

    def show_to_block(self) -> None:
        """Make the stores of all threads visible to the block."""
        if self.has_stores:
            warps = dict.fromkeys(thread.warp for thread in self.threads)
            for stores in (*(w.stores for w in warps), *(t.stores for t in self.threads)):
                self.stores.update(stores)
                stores.clear()

    def release_barrier(self) -> None:
        """Let all threads pass the barrier at which, with nobody runnable, they should all be."""
        for thread in self.threads:
            if thread.mask is not None and thread.operation:
                self.report_warp(thread)
        first = next(thread for thread in self.threads if not thread.dead)
        place = (False, first.operation, first.site)
        if any((t.dead, t.operation, t.site) != place for t in self.threads):
            raise SimulatorError(
                f"{self.name(first)}: divergent barrier: {_states(self.threads, 'where')}"
            )
        self.show_to_block()
        result = _BLOCK_VOTES[first.operation]([thread.value for thread in self.threads])
        for thread in self.threads:
            thread.release(result)

    def report_warp(self, thread: _Thread) -> NoReturn:
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
        for thread in self.threads:
            if thread and not thread.dead:
                thread.throw(GreenletExit)


def _states(threads: Iterable[_Thread], label: str) -> str:
    """Say what each thread does, threads that do the same together."""
    groups: dict[str, list[str]] = {}
    for thread in threads:
        groups.setdefault(thread.state(), []).append(str(getattr(thread, label)))
    parts = []
    for state, names in groups.items():
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        parts.append(f"{', '.join(names[:8])}{more}: {state}")
    return "; ".join(parts)


class _Grid:
    """One launch."""

    def __init__(
        self,
        function: Callable[..., Any],
        grid_shape: tuple[int, int, int],
        block_shape: tuple[int, int, int],
        args: tuple,
        schedule: Schedule,
    ) -> None:
        self.function, self.args, self.schedule = function, args, schedule
        self.grid_shape, self.block_shape = grid_shape, block_shape
        self.rng = random.Random(schedule.seed) if schedule.order == "random" else None
        self.switches = 0
        self.context = copy_context()
        self.mixed = _mixed([arg for arg in args if isinstance(arg, Pointer)])

    def run(self) -> None:
        nx, ny, nz = self.grid_shape
        order: Any = range(nx * ny * nz)
        if self.rng is not None:
            order = self.rng.sample(order, len(order))
        elif self.schedule.order == "reversed":
            order = reversed(order)
        coming = iter(order)
        resident: list[_Block] = []
        unfenced: list[_Stores] = []
        try:
            while True:
                while len(resident) < (_MAX_RESIDENT_BLOCKS if self.rng else 1):
                    block_id = next(coming, None)
                    if block_id is None:
                        break
                    where = (block_id % nx, block_id // nx % ny, block_id // (nx * ny))
                    resident.append(_Block(self, where))
                if not resident:
                    break
                block = self.rng.choice(resident) if self.rng else resident[0]
                if block.step():
                    resident.remove(block)
                    unfenced.append(block.stores)
                    block.threads.clear()  # threads and block refer to each other
        finally:
            for block in resident:
                block.kill()
        for stores in unfenced:
            _write_back(stores)


def _mixed(pointers: list[Pointer]) -> set[Pointer]:
    """Pointers to memory that another one sees with other element type or boundaries.

    Stores are held back per element, so they would be invisible through the other pointer.
    """
    return {
        a
        for a in pointers
        for b in pointers
        if a.address < b.address + b.size * b.itemsize
        and b.address < a.address + a.size * a.itemsize
        and (a.flat.dtype != b.flat.dtype or (a.address - b.address) % a.itemsize)
    }


def _write_back(stores: _Stores) -> None:
    for flat, position, value in stores.values():
        flat[position] = value
    stores.clear()


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
) -> None:
    """Run a kernel to its end.

    Parameters
    ----------
    function : callable
        The kernel as a plain Python function.
    grid, block : int or tuple of int
        Numbers of blocks and of threads in a block, up to three dimensions each.
    args : sequence
        Python or NumPy scalars and :class:`Pointer` objects.
    schedule : Schedule, optional
        Order of threads and blocks; by default that of :func:`scheduled`, else "forward".

    Raises
    ------
    SimulatorError
        If the kernel raises or does something undefined. Memory is then left half-written.
    """
    grid_shape = _shape("grid", grid, _MAX_GRID)
    block_shape = _shape("block", block, _MAX_BLOCK)
    if math.prod(block_shape) > _MAX_THREADS:
        raise ValueError(f"block {block_shape} has more than {_MAX_THREADS} threads")
    if any(isinstance(arg, np.ndarray) for arg in args):
        raise TypeError("arrays are passed as pointers: use pointer_to")
    schedule = schedule or _default_schedule.get() or Schedule()
    # A GPU raises no floating-point exceptions. The setting is part of the context that the
    # threads copy, since a greenlet doesn't inherit the context of its parent.
    with _turn, np.errstate(all="ignore"):
        _Grid(function, grid_shape, block_shape, tuple(args), schedule).run()


def _current() -> _Thread:
    thread = getcurrent()
    if type(thread) is not _Thread:
        raise SimulatorError("this function works in a simulated kernel only")
    return thread


# --- What kernels call: barriers, fences and atomics ----------------------------------------------

_BLOCK_VOTES: dict[str, Callable[[list], Any]] = {
    "syncthreads": lambda values: None,
    "syncthreads_count": lambda values: sum(map(bool, values)),
    "syncthreads_and": lambda values: int(all(values)),
    "syncthreads_or": lambda values: int(any(values)),
}


def _block_barrier(operation: str) -> Callable[..., Any]:
    def barrier(value: Any = None) -> Any:
        thread = _current()
        frame = sys._getframe(1)
        thread.value = value
        return thread.block_on(operation, None, (frame.f_code, frame.f_lasti))

    return barrier


def threadfence() -> None:
    """Make what the thread stored, and what barriers showed it before, visible to all blocks."""
    thread = _current()
    # Oldest first: what the thread itself stored last has to win.
    for stores in (thread.block.stores, thread.warp.stores, thread.stores):
        _write_back(stores)
    thread.pause()


def _threadfence_block() -> None:
    thread = _current()
    for stores in (thread.warp.stores, thread.stores):
        thread.block.stores.update(stores)
        stores.clear()
    thread.pause()


def _atomic(target: Any, i: Any, update: Callable[[Any, Any], Any], value: Any) -> Any:
    """Replace an element by ``update(old, value)`` in one step; return the old one."""
    thread = _current()
    thread.pause()
    if not isinstance(target, Pointer):
        value = target.dtype.type(value)
        old = target[i]
        target[i] = update(old, value)
        return old
    position = target._storable(i)
    if thread.block.has_stores:
        key = target.address + position * target.itemsize
        for stores in (thread.block.stores, thread.warp.stores, thread.stores):
            if key in stores:
                target.flat[position] = stores.pop(key)[2]
    old = target.flat[position]
    target.flat[position] = update(old, target.scalar(value))
    return old


def atomic_add(pointer_or_array: Any, index: Any, value: Any) -> Any:
    """Add to an element of a pointer or shared array and return the old value.

    A complex value is added whole, though a GPU moves its two parts one after the other.
    """
    return _atomic(pointer_or_array, index, lambda old, value: old + value, value)


def atomic_inc(pointer_or_array: Any, index: Any, limit: Any) -> Any:
    """Return the old value of an element, which becomes old + 1, or 0 if it has reached `limit`."""

    def update(old: Any, limit: Any) -> Any:
        return old + 1 if old < limit else 0

    return _atomic(pointer_or_array, index, update, limit)


def is_empty(memory: np.ndarray) -> bool:
    """Whether nothing is posted there: all bits are ones, or there are no objects."""
    if memory.dtype.hasobject:
        return all(each is None for each in memory)
    return bool((memory.view(np.uint8) == 0xFF).all())


def make_empty(memory: np.ndarray) -> None:
    """The way memory for posts is before and after a launch."""
    if memory.dtype.hasobject:
        memory[...] = None
    else:
        memory.view(np.uint8)[...] = 0xFF


def post(pointer: Pointer, index: Any, value: Any) -> None:
    """The twin of a store to a place where nothing is, seen whole and by all blocks at once."""
    _current().pause()
    position = pointer._storable(index)
    place = pointer.flat[position : position + 1]
    if not is_empty(place):
        raise SimulatorError(f"post: nobody has taken what is in {pointer.name}[{index}]")
    pointer.flat[position] = value
    if is_empty(place):
        pointer.flat[position] = np.nan


def take_one(pointer: Pointer, index: Any) -> Any:
    """The twin of a wait for what somebody posts; nothing is there again afterwards."""
    position = pointer._storable(index)
    thread = _current()
    thread.pause()
    place = pointer.flat[position : position + 1]
    while is_empty(place):
        thread.pause()
    value = pointer.flat[position]
    make_empty(place)
    return value


def _real_atomic(update: Callable[[Any, Any], Any]) -> staticmethod:
    def atomic(target: Any, i: Any, value: Any) -> Any:
        dtype = target.flat.dtype if isinstance(target, Pointer) else target.dtype
        if dtype.kind == "c":
            raise TypeError("Numba has no atomics for complex numbers")
        return _atomic(target, i, update, value)

    return staticmethod(atomic)


class _AtomicNamespace:
    add = _real_atomic(lambda old, value: old + value)
    sub = _real_atomic(lambda old, value: old - value)
    max = _real_atomic(lambda old, value: value if value > old else old)
    min = _real_atomic(lambda old, value: value if value < old else old)
    and_ = _real_atomic(lambda old, value: old & value)
    or_ = _real_atomic(lambda old, value: old | value)
    xor = _real_atomic(lambda old, value: old ^ value)
    exch = _real_atomic(lambda old, value: value)
    inc = staticmethod(atomic_inc)

    @staticmethod
    def cas(target: Any, i: Any, expected: Any, value: Any) -> Any:
        return _atomic(target, i, lambda old, new: new if old == expected else old, value)


# --- What kernels call: warp operations -----------------------------------------------------------


def _gather(operation: str, mask: int, value: Any) -> dict[int, Any]:
    """Wait for all lanes of `mask`; return what each of them brought."""
    thread = _current()
    warp, mask = thread.warp, as_index(mask) & _FULL_MASK
    if not mask >> thread.lane & 1:
        raise SimulatorError(f"wrong mask 0x{mask:08x} for {operation}: lacks lane {thread.lane}")
    if mask & ~warp.present:
        raise SimulatorError(
            f"wrong mask 0x{mask:08x} for {operation}: the warp has {len(warp.threads)} lanes"
        )
    frame = sys._getframe(2)
    site = (frame.f_code, frame.f_lasti)
    # By id, because the hash of a code object is slow; the threads keep it alive.
    key = (operation, mask, id(site[0]), site[1])
    group = warp.groups.setdefault(key, {})
    group[thread.lane] = value
    if len(group) < mask.bit_count():
        return thread.block_on(operation, mask, site)
    del warp.groups[key]
    for member in [warp.threads[lane] for lane in group]:
        if operation == "syncwarp":
            warp.stores.update(member.stores)
            member.stores.clear()
        member.release(group)
    thread.hub.switch()
    return group


def _syncwarp(mask: int = _FULL_MASK) -> None:
    _gather("syncwarp", mask, None)


def _movable(value: Any) -> Any:
    if type(value) not in (int, float, np.int32, np.int64, np.float32, np.float64):
        raise TypeError(
            f"warps exchange 32- and 64-bit integers and floats only, not {type(value).__name__}"
        )
    return value


def _shuffle(operation: str, source: Callable[[int, int], int]) -> Callable[..., Any]:
    def shuffle(mask: int, value: Any, other: int) -> Any:
        group = _gather(operation, mask, _movable(value))
        lane = _current().lane
        # A GPU looks at the low five bits of the lane, distance or lane mask only.
        wanted = source(lane, as_index(other) % _WARP)
        if not 0 <= wanted < _WARP:
            return value
        if wanted not in group:
            raise SimulatorError(f"{operation}: lane {lane} reads lane {wanted}, not in the mask")
        return group[wanted]

    return shuffle


_SHUFFLES = {
    "shfl_sync": lambda lane, source: source,
    "shfl_up_sync": lambda lane, delta: lane - delta,
    "shfl_down_sync": lambda lane, delta: lane + delta,
    "shfl_xor_sync": lambda lane, lane_mask: lane ^ lane_mask,
}


def _lanes(group: dict[int, Any], wanted: Any) -> int:
    """Mask of the lanes that brought `wanted`; negative with lane 31, as Numba types it int32."""
    bits = sum(1 << lane for lane, value in group.items() if value == wanted)
    return bits - (1 << _WARP) if bits >> (_WARP - 1) else bits


def _vote(operation: str, count: Callable[[dict[int, bool]], Any]) -> Callable[..., Any]:
    return lambda mask, predicate: count(_gather(operation, mask, bool(predicate)))


_VOTES: dict[str, Callable[[dict[int, bool]], Any]] = {
    "all_sync": lambda group: all(group.values()),
    "any_sync": lambda group: any(group.values()),
    "eq_sync": lambda group: len(set(group.values())) == 1,
    "ballot_sync": lambda group: _lanes(group, True),
}


def _match_any_sync(mask: int, value: Any) -> int:
    # A GPU compares bits: NaN matches NaN, and 0.0 doesn't match -0.0.
    own = np.asarray(_movable(value)).tobytes()
    return _lanes(_gather("match_any_sync", mask, own), own)


def _activemask() -> int:
    """Lanes that neither ended nor wait: an approximation, as it is on a GPU."""
    lanes = _current().warp.threads
    return sum(1 << thread.lane for thread in lanes if not thread.dead and not thread.operation)


def _lanemask_lt() -> int:
    return (1 << _current().lane) - 1


# --- What kernels call: indices, arrays and arithmetic --------------------------------------------


def _triple(get: Callable[[_Thread], tuple[int, int, int]], name: str) -> Any:
    """An object whose x, y and z are those of the thread that reads them."""
    members = {
        axis: property(lambda self, k=k: get(_current())[k])  # type: ignore[misc]
        for k, axis in enumerate("xyz")
    }
    return type(name, (), {"__slots__": (), **members})()


def _per_dimension(dimensions: int, values: list[int]) -> Any:
    if dimensions not in (1, 2, 3):
        raise ValueError(f"a grid has 1 to 3 dimensions, not {dimensions}")
    return values[0] if dimensions == 1 else tuple(values[:dimensions])


def _grid(dimensions: int) -> Any:
    thread = _current()
    places = zip(thread.block.where, thread.block.grid.block_shape, thread.where, strict=True)
    return _per_dimension(dimensions, [block * size + own for block, size, own in places])


def _gridsize(dimensions: int) -> Any:
    grid = _current().block.grid
    shapes = zip(grid.grid_shape, grid.block_shape, strict=True)
    return _per_dimension(dimensions, [blocks * size for blocks, size in shapes])


def _numpy_dtype(dtype: Any) -> np.dtype:
    return as_dtype(dtype) if isinstance(dtype, types.Type) else np.dtype(dtype)


def _shared_array(shape: Any, dtype: Any, alignment: int | None = None) -> _CheckedArray:
    """The block's array of this call site, made by the first thread that comes."""
    block = _current().block
    frame = sys._getframe(1)
    code = frame.f_code
    # Shape and type tell apart closures, which share their code. The code stays referenced so
    # that its id is not used again.
    key = (id(code), frame.f_lasti, shape, dtype)
    if key not in block.shared:
        array = _CheckedArray.poisoned(shape, _numpy_dtype(dtype))
        block.shared_bytes += array.data.nbytes
        if block.shared_bytes > _MAX_SHARED_BYTES:
            raise SimulatorError(
                f"{block.shared_bytes} bytes of shared memory: a block has {_MAX_SHARED_BYTES}"
            )
        block.shared[key] = code, array
    return block.shared[key][1]


def _local_array(shape: Any, dtype: Any, alignment: int | None = None) -> _CheckedArray:
    _current()
    return _CheckedArray.poisoned(shape, _numpy_dtype(dtype))


def _bits(value: Any) -> tuple[int, int]:
    """The bits of an integer and their number; 32 for a Python integer that fits."""
    if isinstance(value, np.integer):
        width = 8 * value.itemsize
    else:
        width = 32 if -(1 << 31) <= value < 1 << 32 else 64
    return int(value) & ((1 << width) - 1), width


def _popc(value: Any) -> int:
    return _bits(value)[0].bit_count()


def _clz(value: Any) -> int:
    bits, width = _bits(value)
    return width - bits.bit_length()


def _ffs(value: Any) -> int:
    bits = _bits(value)[0]
    return (bits & -bits).bit_length()


def _fma(a: Any, b: Any, c: Any) -> Any:
    """In double precision for float32, hence all but correctly rounded; plain for float64."""
    if isinstance(a, np.float32) and isinstance(b, np.float32) and isinstance(c, np.float32):
        return np.float32(np.float64(a) * np.float64(b) + np.float64(c))
    return a * b + c


def _selp(condition: Any, a: Any, b: Any) -> Any:
    return a if condition else b


def _install() -> None:
    """Add the kernel vocabulary to Numba's module, once and for all threads and kernels."""
    names: dict[str, Any] = {
        "threadIdx": _triple(lambda thread: thread.where, "threadIdx"),
        "blockIdx": _triple(lambda thread: thread.block.where, "blockIdx"),
        "blockDim": _triple(lambda thread: thread.block.grid.block_shape, "blockDim"),
        "gridDim": _triple(lambda thread: thread.block.grid.grid_shape, "gridDim"),
        "warpsize": _WARP,
        "shared": SimpleNamespace(array=_shared_array),
        "local": SimpleNamespace(array=_local_array),
        "atomic": _AtomicNamespace(),
        "threadfence": threadfence,
        "threadfence_system": threadfence,
    }
    for function in (
        _threadfence_block, _syncwarp, _match_any_sync, _activemask, _lanemask_lt, _grid,
        _gridsize, _popc, _clz, _ffs, _fma, _selp,
    ):  # fmt: skip
        names[function.__name__[1:]] = function
    names |= {name: _block_barrier(name) for name in _BLOCK_VOTES}
    names |= {name: _shuffle(name, source) for name, source in _SHUFFLES.items()}
    names |= {name: _vote(name, count) for name, count in _VOTES.items()}
    for name, value in names.items():
        setattr(cuda, name, value)

    # `cuda.laneid` is a bare number, so the module itself has to be asked each time.
    fallback = vars(cuda).get("__getattr__")

    def lookup(name: str) -> Any:
        if name == "laneid" and type(getcurrent()) is _Thread:
            return _current().lane
        if fallback is not None:
            return fallback(name)
        raise AttributeError(f"module {cuda.__name__!r} has no attribute {name!r}")

    vars(cuda)["__getattr__"] = lookup


_install()
