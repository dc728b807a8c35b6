"""Plain kernels that only move bytes: every other time is compared with theirs.

The *reader* reads buffers front to back; its best rate is the read ceiling of the ladder. The
*mover* reads and writes as many bytes as a call of the grid has to; its time is that call's floor,
unless our call or a peer was faster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gemv.core.geometry import LOAD_BYTES, ceil_div

#: Enqueues a launch or a call on the stream whose handle it gets.
Enqueue = Callable[[int], None]


def loaded(engine: Any, kernel: Callable, dtype: np.dtype, early_start: bool = True) -> Any:
    """A kernel of our own, compiled and loaded on the engine's device.

    It is launched as the kernels of the package are (`early_start`), so that a floor owes nothing
    to a slower start.
    """
    from gemv.engines.loading import load
    from gemv.language.numba_cuda.compile import compile_function

    capability = engine.device().compute_capability
    return load(compile_function(kernel, dtype, capability, early_start=early_start), dtype)


def launcher(
    engine: Any,
    function: Any,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    values: Mapping[str, Any],
) -> Enqueue:
    """A launch of a loaded kernel with these values of its parameters."""

    def enqueue(stream: int) -> None:
        engine.launch(function, grid, block, stream, values)

    return enqueue


def reader() -> Callable:
    """A kernel that reads `vectors` times 16 bytes and adds them up, four loads in flight."""
    from numba import cuda

    from gemv.language import vector_load

    zero, impossible = np.float32(0), np.float32(3e38)

    def read(vectors, a, y):
        step = cuda.gridsize(1)
        i = cuda.grid(1)
        total = zero
        while i + 3 * step < vectors:
            p = vector_load(a, 4 * i, 4)
            q = vector_load(a, 4 * (i + step), 4)
            r = vector_load(a, 4 * (i + 2 * step), 4)
            s = vector_load(a, 4 * (i + 3 * step), 4)
            total += (p[0] + p[1] + p[2] + p[3]) + (q[0] + q[1] + q[2] + q[3])
            total += (r[0] + r[1] + r[2] + r[3]) + (s[0] + s[1] + s[2] + s[3])
            i += 4 * step
        while i < vectors:
            p = vector_load(a, 4 * i, 4)
            total += p[0] + p[1] + p[2] + p[3]
            i += step
        if total == impossible:
            y[0] = total  # never true, but the compiler cannot drop the loads

    return read


def mover() -> Callable:
    """A kernel that reads `read` times 16 bytes and writes `written` times 8.

    It does so in `segments` turns: reading and writing are mixed as in the call it stands for.
    """
    from numba import cuda

    from gemv.language import vector_load

    zero = np.float64(0)

    def move(read, written, segments, a, y):
        step = cuda.gridsize(1)
        total = zero
        for segment in range(segments):
            i = segment * read // segments + cuda.grid(1)
            end = (segment + 1) * read // segments
            while i + 3 * step < end:
                p = vector_load(a, 2 * i, 2)
                q = vector_load(a, 2 * (i + step), 2)
                r = vector_load(a, 2 * (i + 2 * step), 2)
                s = vector_load(a, 2 * (i + 3 * step), 2)
                total += (p[0] + p[1] + q[0] + q[1]) + (r[0] + r[1] + s[0] + s[1])
                i += 4 * step
            while i < end:
                p = vector_load(a, 2 * i, 2)
                total += p[0] + p[1]
                i += step
            i = segment * written // segments + cuda.grid(1)
            end = (segment + 1) * written // segments
            while i < end:
                y[i] = total
                i += step

    return move


#: Blocks, threads a block, and segments of a launch of the mover.
MoverGrid = tuple[int, int, int]
#: For each call the address that it reads from, and the one that it writes to.
Places = Sequence[tuple[int, int]]


class Mover:
    """The mover on its two best grids for each number of bytes."""

    def __init__(self, engine: Any, clock: Any) -> None:
        self._engine = engine
        self._clock = clock
        self._function: Any = None
        self._best: dict[tuple[int, int, bool], list[MoverGrid]] = {}

    def calls(
        self, places: Places, read: int, written: int, hot: bool = False
    ) -> list[list[Enqueue]]:
        """For each of the two grids a call for each place; `read` and `written` are bytes.

        `hot` says that there is one place, whose bytes the L2 cache may hold.
        """
        key = (read, written, hot)
        if key not in self._best:
            self._best[key] = self._best_grids(places, read, written)
        return [self._calls(places, read, written, grid) for grid in self._best[key]]

    def _best_grids(self, places: Places, read: int, written: int) -> list[MoverGrid]:
        grids = set()
        vectors = read // LOAD_BYTES
        multiprocessors = self._engine.device().multiprocessors
        for threads in (128, 256, 512):
            for blocks_per_multiprocessor in (1, 2, 4, 8, 16):
                for segments in (1,) if 16 * written < read else (1, 8, 64):
                    most = multiprocessors * blocks_per_multiprocessor
                    grids.add((min(most, ceil_div(vectors, threads)), threads, segments))
        timed = [
            (self._clock.time(self._calls(places, read, written, grid), 1), grid)
            for grid in sorted(grids)
        ]
        return [grid for _, grid in sorted(timed)[:2]]

    def _calls(self, places: Places, read: int, written: int, grid: MoverGrid) -> list[Enqueue]:
        return [self._call(a, y, read, written, grid) for a, y in places]

    def _call(self, a: int, y: int, read: int, written: int, grid: MoverGrid) -> Enqueue:
        if self._function is None:
            self._function = loaded(self._engine, mover(), np.dtype(np.float64))
        blocks, threads, segments = grid
        values = {
            "read": read // LOAD_BYTES,
            "written": written // 8,
            "segments": segments,
            "a": a,
            "y": y,
        }
        return launcher(self._engine, self._function, (blocks, 1, 1), (threads, 1, 1), values)
