"""Device time of kernels, the read ceiling beside it, and the ladder they are shown on.

Times are device times: the calls are captured into a CUDA graph on a stream of their own and the
graph is replayed between two events, so the host's cost of a call is not in them. Calls go round
several copies of A that together exceed the L2 cache, so A comes from memory each time. Under the
simulator results are checked and no time is claimed.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np

from gemv._reference import error_in_bounds, reference
from gemv.core.dtypes import DTYPES, NARROW
from gemv.core.geometry import LOAD_BYTES, ceil_div
from gemv.core.narrow import cast
from gemv.core.problem import Problem
from gemv.engines import backend as engines_backend
from gemv.kernels import REGISTRY, get
from gemv.selection.select import select

ALPHA, BETA = 1.25, -0.75

#: Copies of A go round until they exceed this many times the L2 cache.
_L2_TIMES = 3
#: But so many at most: a matrix that small is read from the L2 cache, whatever is done.
_MOST_COPIES = 512
#: A single call longer than this is timed on its own.
_LONG_S = 0.05
#: Device time that one replay of a captured graph should take.
_REPLAY_S = 0.003


@dataclass(slots=True)
class LadderRow:
    """One kernel on the ladder.

    Attributes
    ----------
    time_s, gb_per_s, share : float or None
        Median device time; bytes a perfect gemv moves over it, in 1e9 bytes a second; that over
        the ceiling. None under the simulator, and for a kernel that refuses the shape.
    error : float or None
        Largest error, in units of the bound.
    refused : str or None
        Why the kernel does not accept this problem.
    """

    name: str
    rung: int
    teaching: bool
    time_s: float | None = None
    gb_per_s: float | None = None
    share: float | None = None
    error: float | None = None
    refused: str | None = None


@dataclass(slots=True)
class Ladder:
    """All kernels on one problem, and the ceiling of the same run."""

    m: int
    n: int
    dtype: str
    order: str
    op: str
    backend: str
    device: str
    bytes_moved: int
    versions: dict[str, str] = field(default_factory=dict)
    ceiling_gb_per_s: float | None = None
    rows: list[LadderRow] = field(default_factory=list)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Ladder:
        data = json.loads(text)
        rows = [LadderRow(**row) for row in data.pop("rows")]
        return cls(**data, rows=rows)


@dataclass(frozen=True, slots=True)
class _Array:
    """The little of an operand that an engine asks for."""

    owner: Any
    pointer: int


def _operand(array: Any) -> _Array:
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        interface = array.__array_interface__
    return _Array(array, int(interface["data"][0]))


def make_problem(m: int, n: int, dtype: np.dtype, order: str, op: str) -> Problem:
    """The problem of a contiguous (m, n) matrix in `order` "C" or "F" and `op` "N", "T" or "C"."""
    strides = (n, 1) if order == "C" else (1, m)
    trans = "NTC".index(op)
    rows, cols, row_stride, col_stride = m, n, *strides
    if trans:
        rows, cols, row_stride, col_stride = n, m, *strides[::-1]
    conj = trans == 2 and dtype.kind == "c"
    return Problem(dtype, m, n, trans, rows, cols, conj, row_stride, col_stride)


def random_array(rng: np.random.Generator, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Uniform numbers in (-1, 1), real and imaginary part alike."""
    if dtype in NARROW:
        return cast(random_array(rng, shape, np.dtype(np.float32)), dtype)
    real = np.dtype(dtype.type(0).real.dtype)
    last = shape[-1] * (2 if dtype.kind == "c" else 1)
    values = rng.random((*shape[:-1], last), dtype=real)
    values *= 2
    values -= 1
    return values.view(dtype)


def ladder(
    m: int,
    n: int,
    dtype: str = "s",
    order: str = "C",
    op: str = "N",
    kernels: Iterable[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Ladder:
    """Run, check and time every kernel on one problem.

    Parameters
    ----------
    m, n : int
        Shape of A.
    dtype : {"s", "d", "c", "z", "h", "b"}
    order : {"C", "F"}
        Storage of A.
    op : {"N", "T", "C"}
    kernels : iterable of str, optional
        Names; the whole registry by default.
    progress : callable, optional
        Called with the name of each kernel before it runs.

    Raises
    ------
    ValueError
        For an unknown kernel, dtype, order or op, or a shape without elements.
    BackendError
        On the host backend, which has no kernels.
    """
    if dtype not in DTYPES:
        raise ValueError(f"ladder: dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    if order not in ("C", "F") or op not in ("N", "T", "C"):
        raise ValueError(f"ladder: order must be C or F, op N, T or C; got {order!r}, {op!r}")
    if m < 1 or n < 1:
        raise ValueError(f"ladder: m and n must be at least 1, got {m} and {n}")
    chosen = list(REGISTRY.values()) if kernels is None else [get(name) for name in kernels]
    element = DTYPES[dtype]
    engine = engines_backend.engine()
    device = engine.device()
    problem = make_problem(m, n, element, order, op)
    rng = np.random.default_rng(20240501)
    a = random_array(rng, (m, n) if order == "C" else (n, m), element)
    a = a if order == "C" else a.T
    x = random_array(rng, (problem.cols,), element)
    y = random_array(rng, (problem.rows,), element)
    op_a = a if op == "N" else a.T
    op_a = op_a.conj() if problem.conj else op_a
    factor = problem.precision.factors.type
    alpha, beta = factor(ALPHA), factor(BETA)
    exact, magnitude = reference(alpha, op_a, x, beta, y)

    result = Ladder(
        m, n, dtype, order, op, engine.name, device.name, problem.bytes_moved(beta_is_zero=False)
    )
    clock = None
    if engine.name == "cuda":
        clock = Clock(engine)
        result.versions = clock.versions()
        copies = min(max(2, ceil_div(_L2_TIMES * clock.l2_bytes, a.nbytes)), _MOST_COPIES)
    else:
        copies = 1
    all_a = [_operand(engine.to_device(a)) for _ in range(copies)]
    device_x = _operand(engine.to_device(x))
    problem = problem.at(all_a[0].pointer, device_x.pointer)
    if clock is not None:
        result.ceiling_gb_per_s = clock.read_ceiling([each.pointer for each in all_a], a.nbytes)

    for kernel in chosen:
        if progress is not None:
            progress(kernel.name)
        row = LadderRow(kernel.name, kernel.rung, kernel.beside)
        result.rows.append(row)
        row.refused = kernel.accepts(problem)
        if row.refused:
            continue
        choice = select(problem, device, kernel.name)
        device_y = _operand(engine.to_device(y))
        engine.run(choice, problem, alpha, all_a[0], device_x, beta, device_y)
        row.error = error_in_bounds(engine.to_host(device_y.owner), exact, magnitude, problem.cols)
        if clock is not None:

            def call(stream, each, choice=choice, device_y=device_y):
                # |beta| < 1 keeps y from growing over thousands of calls.
                engine.run(choice, problem, alpha, each, device_x, beta, device_y, stream)

            row.time_s = clock.time([partial(call, each=each) for each in all_a])
            row.gb_per_s = result.bytes_moved / row.time_s / 1e9
    if result.ceiling_gb_per_s is not None:
        # A kernel that reads faster than the plain read kernel raises the ceiling.
        best = max((row.gb_per_s for row in result.rows if row.gb_per_s), default=0.0)
        result.ceiling_gb_per_s = max(result.ceiling_gb_per_s, best)
        for row in result.rows:
            if row.gb_per_s is not None:
                row.share = row.gb_per_s / result.ceiling_gb_per_s
    return result


class Clock:
    """Device times on the current CUDA device, by events around a replayed graph."""

    def __init__(self, engine: Any) -> None:
        from cuda.bindings import driver

        from gemv.driver.library import check as _check

        self._engine = engine
        self._driver = driver
        self._check = _check
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
        driver, check = self._driver, self._check
        check(driver.cuEventRecord(self._events[0], self._stream))
        work()
        check(driver.cuEventRecord(self._events[1], self._stream))
        check(driver.cuEventSynchronize(self._events[1]))
        return check(driver.cuEventElapsedTime(*self._events)) * 1e-3

    def time(self, calls: Sequence[Callable[[int], None]], rounds: int = 7) -> float:
        """Median device time of one call, in seconds.

        Parameters
        ----------
        calls : sequence of callable
            Each enqueues one call on the stream whose handle it gets; they are timed in turn.
        rounds : int
            Replays of which the median is taken.
        """
        once = self._once(calls[0])
        if once > _LONG_S:
            return once
        with self._recorded(calls) as (replay, count):
            return statistics.median(self._elapsed(replay) for _ in range(rounds)) / count

    def race(
        self, contenders: Mapping[str, Sequence[Callable[[int], None]]], rounds: int = 5
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

    def _each(self, calls: Sequence[Callable[[int], None]]) -> None:
        for call in calls:
            call(self.stream)

    def _once(self, call: Callable[[int], None]) -> float:
        """About the time of a call, after one that compiles, loads and reserves memory."""
        call(self.stream)
        once = self._elapsed(lambda: call(self.stream))
        if once > _LONG_S:
            return once
        return statistics.median(self._elapsed(lambda: call(self.stream)) for _ in range(3))

    @contextmanager
    def _recorded(
        self, calls: Sequence[Callable[[int], None]]
    ) -> Iterator[tuple[Callable[[], None], int]]:
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

    def call_time(self, call: Callable[[int], None], count: int = 200, rounds: int = 5) -> float:
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
        from gemv.engines.loading import load
        from gemv.language.numba_cuda.compile import compile_function

        engine, device = self._engine, self._engine.device()
        single = np.dtype(np.float32)
        capability = device.compute_capability
        # launched as our kernels are, so that the ceiling owes nothing to a slower start
        read = load(compile_function(_reader(), single, capability, early_start=True), single)
        target = engine.zeros(1, single, self.stream)
        best = 0.0
        vectors = nbytes // LOAD_BYTES
        for threads in (256, 512):
            for blocks_per_multiprocessor in (2, 4, 8, 16):
                blocks = min(
                    device.multiprocessors * blocks_per_multiprocessor, ceil_div(vectors, threads)
                )

                def call(stream, pointer, blocks=blocks, threads=threads):
                    values = {"vectors": vectors, "a": pointer, "y": _operand(target).pointer}
                    engine._submit(read, (max(blocks, 1), 1, 1), (threads, 1, 1), stream, values)

                seconds = self.time([partial(call, pointer=pointer) for pointer in pointers], 3)
                best = max(best, vectors * 16 / seconds / 1e9)
        return best


def _reader() -> Callable:
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
