"""Which call gets which scratch memory and counters: found out without a GPU and its driver.

test_workspaces.py runs this in a process of its own, where stand-ins replace the modules that
load the driver's library. It prints what the tests compare, as JSON.
"""

from __future__ import annotations

import json
import sys
import threading
import weakref
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace

import numpy as np


class Life:
    """Of a graph; this one ends when it is told to."""

    ended_graphs: set = set()

    def __init__(self, graph):
        self.graph = graph

    def ended(self):
        return self.graph in self.ended_graphs


def stand_in(module, **names):
    """A module of the driver's, which cannot be imported where there is no driver."""
    made = ModuleType(module)
    vars(made).update(names)
    sys.modules[module] = made


stand_in("gemv.driver.libcuda", check=lambda answer: answer, OutOfMemory=MemoryError)
stand_in("gemv.driver.devices")
stand_in(
    "gemv.driver.capture",
    Capture=None,
    GraphLife=Life,
    outside_of_captures=nullcontext,
    capture_of=lambda stream: None,
)
stand_in(
    "gemv.driver.streams",
    PER_THREAD=2,
    name=lambda stream: -threading.get_ident() if stream == 2 else stream,
    identity=lambda stream: identities.get(stream) or streams.name(stream),
)
streams = sys.modules["gemv.driver.streams"]
#: Of streams that are no default streams, by handle.
identities = {7: 1, 0x5000: 2}

from gemv.driver import memory  # noqa: E402
from gemv.engines import workspaces  # noqa: E402


class Array:
    """Device memory that nobody follows."""

    made = 0

    def __init__(self, size, dtype):
        Array.made += 1
        self.size, self.nbytes = size, size * np.dtype(dtype).itemsize
        self.__cuda_array_interface__ = {"data": (4096 * Array.made, False)}


#: What was filled: address, value of each byte, how many, stream.
fills = []

workspaces.DeviceBytes = Array
memory.driver = workspaces.driver = SimpleNamespace(
    cuMemsetD8=lambda *_: None,
    cuMemsetD8Async=lambda *fill: fills.append(fill),
    cuStreamCreate=lambda flags: f"own {flags}",
    cuStreamSynchronize=lambda stream: fills.append(("waited for", stream)),
    cuStreamDestroy=lambda stream: fills.append(("destroyed", stream)),
    CUstream_flags=SimpleNamespace(CU_STREAM_NON_BLOCKING="and alone"),
)


def per_thread():
    """Workspaces of three streams, as seen by two threads: which of them are the same."""
    mine, device = workspaces.Workspaces(), SimpleNamespace(index=0)
    streams = (0, 2, 0x5000)
    here = [mine.of_stream(device, stream) for stream in streams]
    again = [mine.of_stream(device, stream) for stream in streams]
    there = []
    thread = threading.Thread(
        target=lambda: there.extend(mine.of_stream(device, stream) for stream in streams)
    )
    thread.start()
    thread.join()
    return [[one is two for one, two in zip(here, each, strict=True)] for each in (again, there)]


def same_handle():
    """Workspaces of streams with one handle, each made as the one before was destroyed.

    Which of 40 are new to all before, whether a stream keeps its own, how many are alive after
    each, and whether a stream of another handle kept its own.
    """
    mine, device = workspaces.Workspaces(), SimpleNamespace(index=0)
    other = mine.of_stream(device, 7)
    seen, new, kept, alive = [], [], [], []
    for number in range(40):
        identities[0x5000] = 100 + number
        made = mine.of_stream(device, 0x5000)
        new.append(all(made is not each() for each in seen))
        kept.append(made is mine.of_stream(device, 0x5000))
        seen.append(weakref.ref(made))
        del made
        alive.append(sum(each() is not None for each in seen))
    return {"new": new, "kept": kept, "alive": alive, "other": other is mine.of_stream(device, 7)}


def captures():
    """How many captured workspaces there are after many captures, each graph soon destroyed."""
    mine, device = workspaces.Workspaces(), SimpleNamespace(index=0)
    arena = mine.arena(device)
    for identity in range(1, 1000):
        capture = SimpleNamespace(identity=identity, graph=identity)
        workspace = mine.of_capture(device, 0x5000, capture)
        workspace.reserve(0, 1000 + identity, None)
        Life.ended_graphs.add(identity)
    mine.release_captured()
    return [len(mine.captured), arena._free == [(0, arena.SIZE)]]


def arena():
    """Places of counters taken, and what is free when all are back in another order."""
    mine = workspaces.Arena()
    places = [mine.take(count) for count in (10, 20, 30)]
    mine.give(places[1], 20)
    places += [mine.take(5), mine.take(25)]
    for place, count in zip(places, (10, None, 30, 5, 25), strict=True):
        if count is not None:
            mine.give(place, count)
    try:
        mine.take(mine.SIZE + 1)
    except RuntimeError as error:
        text = str(error)
    # One counter that somebody has lies between two that are free.
    apart = workspaces.Arena()
    first, _, last = (apart.take(count) for count in (10, 1, 10))
    apart.give(first, 10)
    apart.give(last, 10)
    return [places, mine._free == [(0, mine.SIZE)], text, apart.take(12)]


def counters():
    """Places of the counters of one stream, for calls that need more and fewer; what was filled."""
    mine = workspaces.Workspace(7)
    fills.clear()
    places = [mine.reserve(0, count, 7)[1] for count in (10, 4096, 5000, 100)]
    return [places, list(fills)]


def posts():
    """Memory for posts beside other scratch memory, on a stream and in a capture; all fills."""
    mine, device = workspaces.Workspaces(), SimpleNamespace(index=0)
    here = mine.of_stream(device, 7)
    fills.clear()
    plain, first, again, larger = (
        here.reserve(size, 0, 7, posts)[0]
        for size, posts in ((100, False), (100, True), (1000, True), (2 << 20, True))
    )
    kept = here.reserve(100, 0, 7, False)[0]
    on_stream = list(fills)
    fills.clear()
    life = SimpleNamespace(ended=lambda: False)
    captured = workspaces.CapturedWorkspace(lambda: None, life)
    library = SimpleNamespace(
        allocates_in_capture=True, empty=lambda *_: Array(1, np.uint8), origin=None, device=0
    )
    a = SimpleNamespace(exporter=library, origin=None, device=0)
    places = [captured.reserve(100, 0, a, posts)[0] for posts in (True, False, True)]
    captured.release()
    return {
        "stream": [plain, first, again, larger, kept], "fills": on_stream,
        "capture": places, "captured fills": list(fills), "left": len(captured._posts),
    }  # fmt: skip


if __name__ == "__main__":
    answers = {"per_thread": per_thread(), "captures": captures(), "arena": arena()}
    answers["same_handle"] = same_handle()
    print(json.dumps({**answers, "posts": posts(), "counters": counters()}))
