"""Workspaces: scratch memory and counters, of streams and of captured graphs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from cuda.bindings import driver

from gemv.core.geometry import Device, Geometry
from gemv.driver import capture as driver_capture
from gemv.driver import streams
from gemv.driver.libcuda import check
from gemv.driver.memory import DeviceBytes, address_of

#: How many streams keep a workspace; beyond, the one that got its own first loses it.
MAX_WORKSPACES = 256
#: How many workspaces of destroyed streams are kept before their memory is freed. To free it waits
#: for all work of the GPU, so it is not done for each of them.
MAX_LEFT = 16


class Workspace:
    """Scratch memory and counters of one stream of one GPU: launches on a stream never overlap.

    `lock` is held while the launches of one call are enqueued: those of two threads on one stream
    must not come between each other.

    Parameters
    ----------
    stream : int
        The stream's handle, which another stream has once this one is destroyed.
    """

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.lock = threading.Lock()
        self.scratch: Any = None
        self.posts: Any = None
        self.counters: Any = None

    def reserve(
        self, scratch_bytes: int, counters: int, stream: int, posts: bool = False
    ) -> tuple[int, int]:
        """Addresses of at least `scratch_bytes` and of as many counters, which are zero.

        For `posts` all bits of the scratch memory are ones; kernels leave both as they found them.
        """
        scratch = self.posts if posts else self.scratch
        if scratch_bytes and (scratch is None or scratch.nbytes < scratch_bytes):
            scratch = DeviceBytes(max(scratch_bytes, 1 << 20), np.uint8)
            if posts:  # filled once, as the counters below
                check(driver.cuMemsetD8Async(address_of(scratch), 0xFF, scratch.nbytes, stream))
                self.posts = scratch
            else:
                self.scratch = scratch
        if counters and (self.counters is None or self.counters.size < counters):
            made = DeviceBytes(max(counters, 4096), np.uint32)
            # Once, ahead of the launch: kernels leave them zero again.
            check(driver.cuMemsetD8Async(address_of(made), 0, made.nbytes, stream))
            self.counters = made
        return (
            address_of(scratch) if scratch_bytes else 0,
            address_of(self.counters) if counters else 0,
        )


class CapturedWorkspace:
    """Scratch memory and counters of one stream within one captured graph.

    The calls captured on a stream follow each other in the graph, and one executable of it never
    overlaps itself; two graphs may run at once, so each has its own. Scratch memory comes from the
    allocator of the library that owns A where that may be asked inside a capture, else from the
    driver. Memory for posts, which must keep its ones between two replays, always comes from the
    driver. Counters have to be zero before the graph is first replayed, and nothing can clear them
    in a capture, so they are a part of an arena, which was cleared before.
    """

    def __init__(self, arena: Callable[[], Arena], life: driver_capture.GraphLife) -> None:
        self.lock = threading.Lock()
        self.life = life
        self._arena = arena
        self._scratch: list[tuple[int, Any]] = []
        self._posts: list[tuple[int, Any]] = []
        self._parts: list[tuple[int, int]] = []

    def reserve(
        self, scratch_bytes: int, counters: int, a: Any, posts: bool = False
    ) -> tuple[int, int]:
        """As of a :class:`Workspace`, with the operand A in place of the stream."""
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
        """Give everything back, once the graph is gone."""
        for first, count in self._parts:
            self._arena().give(first, count)
        self._parts.clear()
        self._scratch.clear()
        self._posts.clear()


def _posts_in_capture(nbytes: int) -> Any:
    """Memory of ones, filled while another stream is being captured."""
    with driver_capture.outside_of_captures():
        memory = DeviceBytes(nbytes, np.uint8)
        # A stream that no other waits for, not even the legacy default stream.
        stream = check(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
        try:
            check(driver.cuMemsetD8Async(address_of(memory), 0xFF, nbytes, stream))
            check(driver.cuStreamSynchronize(stream))
        finally:
            driver.cuStreamDestroy(stream)
    return memory


def _scratch_in_capture(a: Any, nbytes: int) -> Any:
    """Memory for a graph, from the library of the operand A if that allows it."""
    library = getattr(a, "exporter", None)
    if library is not None and library.allocates_in_capture:
        return library.empty(a.origin, nbytes, np.dtype(np.uint8), a.device)
    with driver_capture.outside_of_captures():
        return DeviceBytes(nbytes, np.uint8)


class Arena:
    """The counters of one GPU for captured graphs; zero whenever no kernel runs that uses them."""

    SIZE = 1 << 18

    def __init__(self) -> None:
        self._array = DeviceBytes(self.SIZE, np.uint32)
        check(driver.cuMemsetD8(address_of(self._array), 0, self._array.nbytes))
        self._free: list[tuple[int, int]] = [(0, self.SIZE)]
        self._lock = threading.Lock()

    def take(self, count: int) -> int:
        """Reserve `count` counters; the number of the first one."""
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
        """Free counters again, and join them to the free ones beside them."""
        with self._lock:
            joined: list[tuple[int, int]] = []
            for part in sorted([*self._free, (first, count)]):
                if joined and sum(joined[-1]) == part[0]:
                    joined[-1] = (joined[-1][0], joined[-1][1] + part[1])
                else:
                    joined.append(part)
            self._free = joined

    def address(self, first: int) -> int:
        """The address of a counter."""
        return address_of(self._array) + 4 * first


class Workspaces:
    """The workspaces of all streams and of all captured graphs of the process."""

    def __init__(self) -> None:
        #: By ordinal of the GPU and identity of the stream.
        self._of_streams: dict[tuple[int, int], Workspace] = {}
        #: Those of streams that are destroyed, though their work may still be running.
        self._left: list[Workspace] = []
        #: By ordinal of the GPU, the capture's identity and name of the stream.
        self.captured: dict[tuple[int, int, int], CapturedWorkspace] = {}
        #: By ordinal of the GPU.
        self._arenas: dict[int, Arena] = {}
        self._lock = threading.Lock()

    @contextmanager
    def reserved(
        self, geometry: Geometry, scratch_bytes: int, device: Device, stream: int, a: Any
    ) -> Iterator[tuple[int, int]]:
        """Addresses of scratch memory and counters for the launches enqueued inside the block.

        `a` is the operand A, whose library may have to allocate: see :class:`CapturedWorkspace`.
        """
        counters, posts = geometry.counters, geometry.posts
        if not scratch_bytes and not counters:
            yield 0, 0
            return
        capture = driver_capture.capture_of(stream)
        if capture is None:
            workspace = self.of_stream(device, stream)
            with workspace.lock:
                yield workspace.reserve(scratch_bytes, counters, stream, posts)
        else:
            captured = self.of_capture(device, stream, capture)
            with captured.lock:
                yield captured.reserve(scratch_bytes, counters, a, posts)

    def of_stream(self, device: Device, stream: int) -> Workspace:
        """The workspace of the calls on a stream that is not being captured."""
        key = (device.index, streams.identity(stream))
        workspace = self._of_streams.get(key)
        if workspace is None:
            with self._lock:
                if stream > streams.PER_THREAD:
                    self._leave_older(stream, key)
                workspace = self._of_streams.setdefault(key, Workspace(stream))
                if len(self._of_streams) > MAX_WORKSPACES:
                    del self._of_streams[next(iter(self._of_streams))]
                self.release_captured()
        return workspace

    def _leave_older(self, stream: int, key: tuple[int, int]) -> None:
        """Take their workspaces from the streams that had this handle before the one of `key`.

        Nothing tells when their work is done, so no other stream can have these workspaces.
        """
        for other, workspace in list(self._of_streams.items()):
            if workspace.stream == stream and other != key:
                self._left.append(self._of_streams.pop(other))
        if len(self._left) > MAX_LEFT:
            self._left.clear()

    def of_capture(
        self, device: Device, stream: int, capture: driver_capture.Capture
    ) -> CapturedWorkspace:
        """The workspace of the calls on a stream within the graph that is being captured."""
        key = (device.index, capture.identity, streams.name(stream))
        with self._lock:
            workspace = self.captured.get(key)
            if workspace is None:
                # A program that captures again and again needs what its old graphs have left.
                with driver_capture.outside_of_captures():
                    self.release_captured()
                life = driver_capture.GraphLife(capture.graph)
                workspace = CapturedWorkspace(partial(self.arena, device, stream), life)
                self.captured[key] = workspace
        return workspace

    def release_captured(self) -> None:
        """Free the workspaces of the graphs that are gone."""
        for key, workspace in list(self.captured.items()):
            if workspace.life.ended():
                del self.captured[key]
                workspace.release()

    def arena(self, device: Device, stream: int | None = None) -> Arena:
        """The counters of a GPU for captured graphs, made at first use.

        Raises
        ------
        RuntimeError
            If they have to be made now and `stream` is being captured.
        """
        arena = self._arenas.get(device.index)
        if arena is None:
            if stream is not None and driver_capture.capture_of(stream) is not None:
                raise RuntimeError(
                    "a kernel whose blocks count each other is captured before any of its kind has"
                    " run: call gemv.precompile with the same arguments before the capture"
                )
            arena = self._arenas.setdefault(device.index, Arena())
        return arena
