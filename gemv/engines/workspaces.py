"""Scratch memory and counters, of streams and of captured graphs."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from cuda.bindings import driver

from gemv.driver import capture as driver_capture
from gemv.driver import streams
from gemv.driver.library import check as _check


class DeviceBytes:
    """An array of device memory of the engine's own, freed with this object."""

    def __init__(self, size: int, dtype: Any) -> None:
        self.size, self.nbytes = size, size * np.dtype(dtype).itemsize
        pointer = int(_check(driver.cuMemAlloc(self.nbytes)))
        self.__cuda_array_interface__ = {"data": (pointer, False)}
        # Not a __del__: when Python ends, the driver may be gone, and frees everything by itself.
        weakref.finalize(self, _free, pointer).atexit = False


def _free(pointer: int) -> None:
    with driver_capture.outside_of_captures():
        driver.cuMemFree(pointer)  # waits for what uses it


class Workspace:
    """Scratch memory and counters of one (device, stream): launches on a stream never overlap.

    `lock` is held while the launches of one call are enqueued: those of two threads on one stream
    must not come between each other.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.scratch: Any = None
        self.posts: Any = None
        self.counters: Any = None

    def reserve(
        self, scratch_bytes: int, counters: int, stream: int, posts: bool = False
    ) -> tuple[int, int]:
        """Addresses of at least so many bytes, all ones for `posts`, and zeroed counters."""
        scratch = self.posts if posts else self.scratch
        if scratch_bytes and (scratch is None or scratch.nbytes < scratch_bytes):
            scratch = DeviceBytes(max(scratch_bytes, 1 << 20), np.uint8)
            if posts:  # once, as for counters below
                _check(driver.cuMemsetD8Async(address_of(scratch), 0xFF, scratch.nbytes, stream))
                self.posts = scratch
            else:
                self.scratch = scratch
        if counters and (self.counters is None or self.counters.size < counters):
            made = DeviceBytes(max(counters, 4096), np.uint32)
            # Kernels leave them zero again, so this happens once, ahead of the launch.
            _check(driver.cuMemsetD8Async(address_of(made), 0, made.nbytes, stream))
            self.counters = made
        return (
            address_of(scratch) if scratch_bytes else 0,
            address_of(self.counters) if counters else 0,
        )


class CapturedWorkspace:
    """Scratch memory and counters of one (device, stream) within one captured graph.

    The calls captured on a stream follow each other in the graph, and one executable of it never
    overlaps itself; two graphs may run at once, so each has its own. Scratch memory comes from the
    allocator of the library that owns A where that may be asked inside a capture, else from the
    driver. Memory for posts, which must keep its ones between two replays, always comes from the
    driver. Counters have to be zero before the graph is first replayed, and nothing can clear them
    in a capture, so they are a part of an array that was cleared long before.
    """

    def __init__(self, arena: Callable[[], Arena], life: Any) -> None:
        self.lock = threading.Lock()
        self.life = life
        self._arena = arena
        self._scratch: list[tuple[int, Any]] = []
        self._posts: list[tuple[int, Any]] = []
        self._parts: list[tuple[int, int]] = []

    def reserve(
        self, scratch_bytes: int, counters: int, a: Any, posts: bool = False
    ) -> tuple[int, int]:
        """Addresses of at least so many bytes, all ones for `posts`, and zeroed counters."""
        scratch = counter = 0
        if scratch_bytes:
            # Earlier calls of the graph keep theirs: their addresses are part of it.
            kept = self._posts if posts else self._scratch
            if not kept or kept[-1][0] < scratch_bytes:
                made = _posts_in_capture if posts else partial(_scratch_in_capture, a)
                kept.append((scratch_bytes, made(scratch_bytes)))
            scratch = address_of(kept[-1][1])
        if counters:
            if not self._parts or self._parts[-1][1] < counters:
                self._parts.append((self._arena().take(counters), counters))
            counter = self._arena().address(self._parts[-1][0])
        return scratch, counter

    def release(self) -> None:
        """The graph is gone: what it used may be used again."""
        for first, count in self._parts:
            self._arena().give(first, count)
        self._parts.clear()
        self._scratch.clear()
        self._posts.clear()


def _posts_in_capture(nbytes: int) -> Any:
    with driver_capture.outside_of_captures():
        memory = DeviceBytes(nbytes, np.uint8)
        # Of no interest to any other stream, not even to the one that all others wait for.
        stream = _check(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
        try:
            _check(driver.cuMemsetD8Async(address_of(memory), 0xFF, nbytes, stream))
            _check(driver.cuStreamSynchronize(stream))
        finally:
            driver.cuStreamDestroy(stream)
    return memory


def _scratch_in_capture(a: Any, nbytes: int) -> Any:
    library = getattr(a, "exporter", None)
    if library is not None and library.allocates_in_capture:
        return library.empty(a.origin, nbytes, np.dtype(np.uint8), a.device)
    with driver_capture.outside_of_captures():
        return DeviceBytes(nbytes, np.uint8)


class Arena:
    """Counters for captured graphs, all zero whenever no kernel runs that uses them."""

    SIZE = 1 << 18

    def __init__(self) -> None:
        self._array = DeviceBytes(self.SIZE, np.uint32)
        _check(driver.cuMemsetD8(address_of(self._array), 0, self._array.nbytes))
        self._free: list[tuple[int, int]] = [(0, self.SIZE)]
        self._lock = threading.Lock()

    def take(self, count: int) -> int:
        """Where `count` counters begin that nobody else has."""
        with self._lock:
            for place, (first, length) in enumerate(self._free):
                if length >= count:
                    del self._free[place]
                    if length > count:
                        self._free.insert(place, (first + count, length - count))
                    return first
            raise RuntimeError(
                f"the {self.SIZE} counters for captured graphs are all in use: destroy graphs"
                " that are no longer replayed"
            )

    def give(self, first: int, count: int) -> None:
        """Take counters back, and join them to the free ones beside them."""
        with self._lock:
            joined: list[tuple[int, int]] = []
            for part in sorted([*self._free, (first, count)]):
                if joined and sum(joined[-1]) == part[0]:
                    joined[-1] = (joined[-1][0], joined[-1][1] + part[1])
                else:
                    joined.append(part)
            self._free = joined

    def address(self, first: int) -> int:
        return address_of(self._array) + 4 * first


#: How many streams keep scratch memory; beyond, the one that got its own first loses it.
MAX_WORKSPACES = 256


_thread = threading.local()
_names = itertools.count(1)


def stream_name(stream: int) -> int:
    """What tells a stream from all others: a default stream per thread needs the thread too."""
    if stream != streams.PER_THREAD:
        return stream
    try:
        return _thread.name
    except AttributeError:
        _thread.name = -next(_names)
        return _thread.name


def address_of(array: Any) -> int:
    return int(array.__cuda_array_interface__["data"][0])
