"""Device times of calls, without what the host adds to them.

The calls are captured into a CUDA graph on a stream of their own, and the graph is replayed between
two events. A call comes from memory each time if the calls of a graph work on copies of A that
together exceed the L2 cache (:func:`copies_past_l2`).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np

from gemv.core.geometry import LOAD_BYTES, ceil_div
from gemv.measure.inputs import as_buffer
from gemv.measure.plain import Enqueue, launcher, loaded, reader

#: Copies of A together exceed the L2 cache this many times over.
_L2_TIMES = 3
#: A single call longer than this is timed on its own.
_LONG_S = 0.05
#: Device time that one replay of a captured graph should take.
_REPLAY_S = 0.003


def copies_past_l2(nbytes: int, l2_bytes: int, most: int = 512) -> int:
    """How many copies of `nbytes` are used in turn so that each comes from memory.

    With `most` copies a matrix of a few bytes is still read from the L2 cache.
    """
    return min(ceil_div(_L2_TIMES * l2_bytes, nbytes) + 1, most)


class Clock:
    """Device times on the current CUDA device, by events around a replayed graph."""

    def __init__(self, engine: Any) -> None:
        from cuda.bindings import driver

        from gemv.driver.libcuda import check

        self._engine = engine
        self._driver = driver
        self._check = check
        engine.device()  # makes the device's context current
        self._stream = self._check(driver.cuStreamCreate(1))  # 1: does not wait for stream 0
        self._events = [self._check(driver.cuEventCreate(0)) for _ in range(2)]
        attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
        current = self._check(driver.cuCtxGetDevice())
        self.l2_bytes: int = self._check(driver.cuDeviceGetAttribute(attribute, current))

    @property
    def stream(self) -> int:
        """Handle of the stream that everything here is timed on."""
        return int(self._stream)

    def versions(self) -> dict[str, str]:
        """Driver and libraries, as the results should name them."""
        from importlib.metadata import version

        number = self._check(self._driver.cuDriverGetVersion())
        return {
            "CUDA driver API": f"{number // 1000}.{number % 1000 // 10}",
            **{name: version(name) for name in ("numba-cuda", "numba", "numpy")},
        }

    def _elapsed(self, work: Callable[[], None]) -> float:
        """Seconds on the stream from before `work` is enqueued until it is done."""
        driver, check = self._driver, self._check
        check(driver.cuEventRecord(self._events[0], self._stream))
        work()
        check(driver.cuEventRecord(self._events[1], self._stream))
        check(driver.cuEventSynchronize(self._events[1]))
        return check(driver.cuEventElapsedTime(*self._events)) * 1e-3

    def time(self, calls: Sequence[Enqueue], rounds: int = 7) -> float:
        """Median device time of one call, in seconds.

        Parameters
        ----------
        calls : sequence of callable
            Each enqueues one call on the stream whose handle it gets; they are called in turn.
        rounds : int
            Replays of which the median is taken.
        """
        once = self._once(calls[0])
        if once > _LONG_S:
            return once
        with self._recorded(calls) as (replay, count):
            return statistics.median(self._elapsed(replay) for _ in range(rounds)) / count

    def race(
        self, contenders: Mapping[str, Sequence[Enqueue]], rounds: int = 5
    ) -> dict[str, list[float]]:
        """Device times of one call of each contender, one for each round.

        In a round all contenders have their turn, so that a slow moment of the GPU hits them all.
        What cannot be captured into a graph is enqueued call by call instead.
        """
        times: dict[str, list[float]] = {name: [] for name in contenders}
        with ExitStack() as open_graphs:
            works: dict[str, tuple[Callable[[], None], int]] = {}
            for name, calls in contenders.items():
                try:
                    works[name] = open_graphs.enter_context(self._recorded(calls))
                except Exception:  # whatever another library raises inside a capture
                    works[name] = (partial(self._each, calls), len(calls))
                    self._elapsed(works[name][0])
            for _ in range(rounds):
                for name, (work, count) in works.items():
                    times[name].append(self._elapsed(work) / count)
        return times

    def _each(self, calls: Sequence[Enqueue]) -> None:
        for call in calls:
            call(self.stream)

    def _once(self, call: Enqueue) -> float:
        """About the time of a call, after one that compiles, loads and reserves memory."""
        call(self.stream)
        once = self._elapsed(lambda: call(self.stream))
        if once > _LONG_S:
            return once
        return statistics.median(self._elapsed(lambda: call(self.stream)) for _ in range(3))

    @contextmanager
    def _recorded(self, calls: Sequence[Enqueue]) -> Iterator[tuple[Callable[[], None], int]]:
        """A graph of the calls, in turn until they take long enough: its replay, and how many."""
        driver, check = self._driver, self._check
        once = self._once(calls[0])
        for call in calls[1:]:
            call(self.stream)
        repeats = max(1, min(2000, int(_REPLAY_S / (once * len(calls)))))
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        check(driver.cuStreamBeginCapture(self._stream, mode))
        try:
            for _ in range(repeats):
                for call in calls:
                    call(self.stream)
        finally:
            graph = check(driver.cuStreamEndCapture(self._stream))
        try:
            executable = check(driver.cuGraphInstantiate(graph, 0))
            try:
                replay = lambda: check(driver.cuGraphLaunch(executable, self._stream))  # noqa: E731
                self._elapsed(replay)
                yield replay, repeats * len(calls)
            finally:
                check(driver.cuGraphExecDestroy(executable))
        finally:
            check(driver.cuGraphDestroy(graph))

    def call_time(self, call: Enqueue, count: int = 200, rounds: int = 5) -> float:
        """Median time of one of `count` calls that are enqueued one after the other, no graph.

        Between the first and the last the stream waits for Python as often as Python is slower
        than the GPU: the time is that of whichever limits, with everything a call enqueues.
        """
        call(self.stream)

        def all_calls() -> None:
            for _ in range(count):
                call(self.stream)

        return statistics.median(self._elapsed(all_calls) for _ in range(rounds)) / count

    def read_ceiling(self, pointers: Sequence[int], nbytes: int) -> float:
        """Best rate, in GB/s, at which a plain kernel reads buffers of `nbytes`, over its grids."""
        if any(pointer % LOAD_BYTES for pointer in pointers):
            raise ValueError(f"read_ceiling: buffers must be aligned to {LOAD_BYTES} bytes")
        engine, single = self._engine, np.dtype(np.float32)
        read = loaded(engine, reader(), single)
        target = as_buffer(engine.zeros(1, single, self.stream))
        best = 0.0
        vectors = nbytes // LOAD_BYTES
        for threads in (256, 512):
            for blocks_per_multiprocessor in (2, 4, 8, 16):
                most = engine.device().multiprocessors * blocks_per_multiprocessor
                grid = max(min(most, ceil_div(vectors, threads)), 1), 1, 1
                calls = [
                    launcher(
                        engine, read, grid, (threads, 1, 1),
                        {"vectors": vectors, "a": pointer, "y": target.pointer},
                    )
                    for pointer in pointers
                ]  # fmt: skip
                seconds = self.time(calls, 3)
                best = max(best, vectors * LOAD_BYTES / seconds / 1e9)
        return best
