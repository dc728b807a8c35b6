"""Device times of one call after another on places in turn, so that each finds A in memory.

Candidates of a cell share one ring of frames, and each replay goes on where the last one stopped:
a frame is met again only after three times the L2 cache was read.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence

from cuda.bindings import driver

from gemv.driver.libcuda import check
from gemv.measure.frames import Place

#: Enqueues a call on a place and a stream.
At = Callable[[Place, int], None]

#: Device time of one replay, the fewest calls in it and the most.
_REPLAY_S, _FEWEST, _MOST = 3e-4, 4, 96
#: A candidate so many times slower than expected is timed without a graph. What the host takes to
#: launch is then within its time, so the excess must be beyond doubt: 1 ms as well.
_HOPELESS, _HOPELESS_S = 12, 1e-3


class Ring:
    """The places of a cell, and a clock for calls on them."""

    def __init__(self, places: Sequence[Place], expected_s: float) -> None:
        self._places: Iterator[Place] = itertools.cycle(places)
        self._expected_s = expected_s
        self._count = max(_FEWEST, min(_MOST, round(_REPLAY_S / expected_s)))
        self._stream = check(driver.cuStreamCreate(1))  # 1: does not wait for stream 0
        self._events = [check(driver.cuEventCreate(0)) for _ in range(2)]

    def close(self) -> None:
        for event in self._events:
            check(driver.cuEventDestroy(event))
        check(driver.cuStreamDestroy(self._stream))

    @property
    def stream(self) -> int:
        return int(self._stream)

    def time(self, at: At, rounds: int = 3) -> float:
        """Median seconds of a call."""
        at(next(self._places), self.stream)  # loads the code
        once = self._elapsed(lambda: at(next(self._places), self.stream))
        if once > _HOPELESS * self._expected_s + _HOPELESS_S:
            return min(once, self._elapsed(lambda: at(next(self._places), self.stream)))
        return statistics.median(self._replay(at) for _ in range(rounds)) / self._count

    def _replay(self, at: At) -> float:
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        check(driver.cuStreamBeginCapture(self._stream, mode))
        try:
            for place in itertools.islice(self._places, self._count):
                at(place, self.stream)
        finally:
            graph = check(driver.cuStreamEndCapture(self._stream))
        executable = check(driver.cuGraphInstantiate(graph, 0))
        try:
            check(driver.cuGraphUpload(executable, self._stream))
            return self._elapsed(lambda: check(driver.cuGraphLaunch(executable, self._stream)))
        finally:
            check(driver.cuGraphExecDestroy(executable))
            check(driver.cuGraphDestroy(graph))

    def _elapsed(self, work: Callable[[], object]) -> float:
        check(driver.cuEventRecord(self._events[0], self._stream))
        work()
        check(driver.cuEventRecord(self._events[1], self._stream))
        check(driver.cuEventSynchronize(self._events[1]))
        return check(driver.cuEventElapsedTime(*self._events)) * 1e-3
