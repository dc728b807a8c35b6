"""Device times of calls that use the frames of a cell in turn, so that A comes from memory.

All candidates of a cell use one ring of frames, and each replay continues with the frame after the
last one. So between two uses of a frame the GPU reads three times the size of the L2 cache.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence

from cuda.bindings import driver

from gemv.driver.libcuda import check
from gemv.measure.frames import Place

#: A function that enqueues a call on a place and a stream.
At = Callable[[Place, int], None]

#: The intended device time of a replay, and the fewest and the most calls in it.
_REPLAY_S, _FEWEST, _MOST = 3e-4, 4, 96
#: A candidate is timed without a graph if one call takes longer than _HOPELESS times the expected
#: time plus _HOPELESS_S. Without a graph the time includes the host's time for the launch; it is
#: small beside such a long call.
_HOPELESS, _HOPELESS_S = 12, 1e-3


class Ring:
    """The places of a cell in turn, and a clock for calls on them."""

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
        """Seconds of a call: the median over `rounds` replays."""
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
