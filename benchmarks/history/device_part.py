"""What one commit is measured by for the backfill of the history, in a process of its own.

    echo go | PYTHONPATH=TREE python -P benchmarks/history/device_part.py TREE

It calls only what the package has had from its first public function on, ``gemv.gemv`` on device
arrays, so it measures any commit in the same way. It imports nothing else of this repository. Each
figure is one line of JSON on the standard output as soon as it is there: name, parameters, value,
and the reason where there is no value. A run that is ended early keeps the figures before.

First it prepares everything: it compiles, fills the memory of the GPU, and compares results with
NumPy's. Then it says that it is ready, and waits for a line. Only after that it takes times, and
nothing that it times is compiled any more. So several commits can be prepared beside each other,
and timed one after the other. At the end of the input it ends instead.

The names of the figures are those of ``benchmarks/suites``. Here a time is that between two events
around calls that wait behind a kernel that only sleeps, so that the host's time is no part of it;
the floor is the time of the fastest of our call, of a plain kernel that reads A, and of the peers.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

#: Dtype and shape as in benchmarks/suites/kernels.py; those that matter most come first. All shapes
#: have as many elements, so those of a dtype share their memory.
DTYPES = ("float32", "float64", "float16")
SHAPES = ("8192x8192", "1048576x64", "64x1048576")
ELEMENTS = 1 << 26
ROUNDS, CALLS = 5, 10
#: Calls of a batch, batches and size of the matrix, for the host's time.
BATCH, BATCHES, SMALL = 200, 9, 64
#: New processes that import, and that make a first call.
IMPORTS, FIRST_CALLS = 3, 3
#: Elements of x that are not 0, so that the sums of small whole numbers are exact in float16.
ONES = 64
#: Rows whose results are compared.
CHECKED = 16
#: How often and how long the kernel sleeps: longer than the host takes to enqueue the calls.
SLEEPS, SLEEP_NS = 8, 250_000
#: Seconds of reading before the first time, since a GPU that had nothing to do has a slow clock.
AWAKE_S = 0.1
#: Nothing is begun to be prepared after so many seconds.
PREPARE_S = 45.0
#: What is printed when all is prepared.
READY = "ready"
#: Under the simulator results are compared, on this shape, and no times are taken.
SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM", "0") == "1"
SHAPE_SIMULATED = "9x72"
RIGHT = "right under the simulator, where no time is taken"
FIRST_CALL = (
    "import numpy as np, gemv;"
    "y = gemv.sgemv(1.0, np.ones((8, 8), np.float32), np.ones(8, np.float32));"
    "assert (y == 8).all()"
)

#: What takes the times of one figure or several, and gives them by name, or the only one.
Measure = Callable[[], "dict[str, float | None] | float"]


def say(name: str, params: tuple[str, ...], value: float | None, why: str = "") -> None:
    print(json.dumps({"name": name, "params": params, "value": value, "why": why}), flush=True)


class Steps:
    """What is prepared, in the order in which its times are taken."""

    def __init__(self) -> None:
        self.found: list[tuple[str, tuple[str, ...], Measure]] = []
        self.end = time.monotonic() + PREPARE_S

    def prepare(self, name: str, params: tuple[str, ...], make: Callable[[], Measure]) -> None:
        """Prepare a figure, or say why it will have no value."""
        try:
            if time.monotonic() > self.end:
                raise TimeoutError(f"{PREPARE_S:g} seconds had passed before it was prepared")
            measure = make()
            if SIMULATED and name.split(".")[1] != "Start":
                raise NotImplementedError(RIGHT)
        except Exception as error:
            say(name, params, None, f"{type(error).__name__}: {error}")
        else:
            self.found.append((name, params, measure))

    def measure(self) -> None:
        for name, params, measure in self.found:
            try:
                found = measure()
            except Exception as error:
                say(name, params, None, f"{type(error).__name__}: {error}")
                continue
            for each, value in (found if isinstance(found, dict) else {name: found}).items():
                say(each, params, value)


# --- The host -------------------------------------------------------------------------------------


def in_new_process(code: str) -> float:
    """Seconds that some code takes in a new interpreter."""
    program = f"import time; s = time.perf_counter()\n{code}\nprint(time.perf_counter() - s)"
    command = [sys.executable, "-P", "-c", program]
    # Arrays so small would stay on the host of themselves.
    environment = os.environ if SIMULATED else {**os.environ, "GEMV_BACKEND": "cuda"}
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment
    )
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or "failed").splitlines()[-1])
    return float(done.stdout.splitlines()[-1])


def imports() -> Measure:
    """The imports of NumPy and of this package, in turn: a ratio is of times that were alike."""
    names = {"api.Start.timeraw_import_with_numpy": "numpy", "api.Start.timeraw_import": "gemv"}
    for module in names.values():  # whose bytecode is now on the disk
        in_new_process(f"import {module}")

    def measure():
        found: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(IMPORTS):
            for name, module in names.items():
                found[name].append(in_new_process(f"import {module}"))
        return {name: statistics.median(each) for name, each in found.items()}

    return measure


def first_call() -> Measure:
    """The first call of a process, with what earlier ones have left on the disk."""
    in_new_process(FIRST_CALL)
    return lambda: statistics.median(in_new_process(FIRST_CALL) for _ in range(FIRST_CALLS))


def small_call(gemv, to_device, finish) -> Measure:
    """Microseconds of the host for one call on a small matrix."""
    import numpy as np

    a = to_device(np.ones((SMALL, SMALL), np.float32))
    x, y = (to_device(np.ones(SMALL, np.float32)) for _ in range(2))

    def batch(count: int = BATCH) -> float:
        start = time.perf_counter()
        for _ in range(count):
            gemv(1.0, a, x, y=y, overwrite_y=True)
        taken = time.perf_counter() - start
        finish()
        return taken / count

    batch(3)  # which compiles
    return lambda: 1e6 * statistics.median([batch() for _ in range(BATCHES + 1)][1:])


def kinds():
    """The kinds of device arrays: how one is made, and how to wait for all work."""
    from numba import cuda

    yield "numba", lambda: (cuda.to_device, cuda.synchronize)

    def of_cupy():
        import cupy

        return cupy.asarray, cupy.cuda.Device().synchronize

    def of_torch():
        import torch

        return lambda array: torch.from_numpy(array).cuda(), torch.cuda.synchronize

    yield "cupy", of_cupy
    yield "torch", of_torch


# --- The GPU --------------------------------------------------------------------------------------


def kernels() -> tuple:
    """Two functions to compile: one that only sleeps, and one that only reads."""
    from numba import cuda

    def sleep(count):
        for _ in range(count):
            cuda.nanosleep(SLEEP_NS)

    def read(words, count, out):
        step = cuda.gridsize(1)
        k = cuda.grid(1)
        p = q = r = s = words[0]
        while k + 3 * step < count:
            p ^= words[k]
            q ^= words[k + step]
            r ^= words[k + 2 * step]
            s ^= words[k + 3 * step]
            k += 4 * step
        while k < count:
            p ^= words[k]
            k += step
        if p ^ q ^ r ^ s == 1234567891011:  # never, but the compiler cannot know that
            out[0] = 1

    return sleep, read


class Clock:
    """Times calls on the GPU, and reads as many bytes as they do by a plain kernel."""

    def __init__(self) -> None:
        import numpy as np
        from numba import cuda

        self.cuda = cuda
        self.sleep, self.read = map(cuda.jit, kernels())
        self.out = cuda.to_device(np.zeros(1, np.uint64))
        self.multiprocessors = cuda.get_current_device().MULTIPROCESSOR_COUNT
        self.sleep[1, 1](1)

    def seconds(self, calls) -> float:
        """Mean device time of calls that are enqueued behind a kernel that sleeps."""
        start, stop = self.cuda.event(), self.cuda.event()
        self.sleep[1, 1](SLEEPS)
        start.record()
        for call in calls:
            call()
        stop.record()
        stop.synchronize()
        return self.cuda.event_elapsed_time(start, stop) / 1e3 / len(calls)

    def wake(self, call) -> None:
        """Calls until the GPU has the clock that it keeps."""
        end = time.monotonic() + AWAKE_S
        while time.monotonic() < end:
            self.seconds([call] * CALLS)

    def plain(self, words, blocks: int):
        """A call that reads all words."""
        count = len(words)
        return lambda: self.read[blocks * self.multiprocessors, 256](words, count, self.out)


def peers(a, x, y) -> dict:
    """Calls of other libraries on the same memory: those that are installed and have the dtype."""
    found = {}

    def of_torch():
        import torch

        ta, tx, ty = (torch.as_tensor(each, device="cuda") for each in (a, x, y))
        return lambda: torch.mv(ta, tx, out=ty)

    def of_cupy():
        import cupy
        from cupy import cublas

        ca, cx, cy = (cupy.asarray(each) for each in (a, x, y))
        return lambda: cublas.gemv("N", 1.0, ca, cx, 0.0, cy)

    for name, make in (("torch.mv", of_torch), ("cupy.cublas.gemv", of_cupy)):
        try:
            call = make()
            call()
        except Exception as error:
            print(f"{name}: {error}", file=sys.stderr)
        else:
            found[name] = call
    return found


class Matrices:
    """Numbers on the host and, past the L2 cache, copies of them on the GPU, which shapes share."""

    def __init__(self, dtype: str) -> None:
        import numpy as np
        from numba import cuda

        pattern = np.random.default_rng(0).integers(-4, 5, 1_000_003).astype(dtype)
        self.host = np.resize(pattern, 9 * 72 if SIMULATED else ELEMENTS)
        room = 0 if SIMULATED else 3 * cuda.get_current_device().L2_CACHE_SIZE
        copies = max(2, math.ceil(room / self.host.nbytes))
        self.copies = [cuda.to_device(self.host) for _ in range(copies)]


def cell(gemv, clock: Clock | None, of: Matrices, dtype: str, shape: str) -> Measure:
    """Share of the floor, and ratio to the fastest peer, of one product with A in memory."""
    import numpy as np
    from numba import cuda

    m, n = map(int, (SHAPE_SIMULATED if SIMULATED else shape).split("x"))
    host = of.host.reshape(m, n)
    rng = np.random.default_rng(1)
    x_host = np.zeros(n, dtype)
    x_host[rng.permutation(n)[:ONES]] = 1
    frames = [
        (each.reshape(m, n), cuda.to_device(x_host), cuda.to_device(np.full(m, np.nan, dtype)))
        for each in of.copies
    ]
    calls = [lambda a=a, x=x, y=y: gemv(1.0, a, x, y=y, overwrite_y=True) for a, x, y in frames]
    rows = [*range(min(m, CHECKED)), *range(max(0, m - CHECKED), m)]
    expected = host[rows].astype(np.float64) @ x_host.astype(np.float64)
    full = rng.integers(1, 5, n).astype(dtype)
    for call, (_, x, y) in zip(calls, frames, strict=True):
        call()
        if not np.array_equal(y.copy_to_host()[rows].astype(np.float64), expected):
            raise AssertionError("the result differs from NumPy's")
        x.copy_to_device(full)  # no zeros are timed
    if clock is None:  # under the simulator, where nothing is timed
        return dict
    words = [each.view(np.uint64) for each in of.copies]
    ways = {"gemv": calls}
    for blocks in (4, 8, 16):
        ways[f"plain {blocks}"] = [clock.plain(each, blocks) for each in words]
        ways[f"plain {blocks}"][0]()
    theirs = [peers(*frame) for frame in frames]
    for name in theirs[0]:
        ways[name] = [each[name] for each in theirs]
    cuda.synchronize()

    def measure():
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS + 1):  # the first one warms up
            for name, each in ways.items():
                chosen = [each[k % len(each)] for k in range(CALLS)]
                times[name].append(clock.seconds(chosen))
        taken = {name: statistics.median(each[1:]) for name, each in times.items()}
        fastest = min((taken[name] for name in theirs[0]), default=None)
        return {
            "kernels.Floor.track_share": 100 * min(taken.values()) / taken["gemv"],
            "kernels.Neighbour.track_ratio": fastest and fastest / taken["gemv"],
        }

    return measure


def main(arguments: list[str]) -> int:
    tree = Path(arguments[0]).resolve()
    steps = Steps()
    import gemv

    if tree not in Path(gemv.__file__ or "").resolve().parents:
        raise RuntimeError(f"gemv comes from {gemv.__file__}, not from {tree}")
    clock = None if SIMULATED else Clock()
    matrices: Matrices | None = None
    for dtype in DTYPES:
        matrices = Matrices(dtype)
        for shape in SHAPES:
            steps.prepare(
                "kernels.Floor.track_share", (dtype, shape),
                lambda of=matrices, dtype=dtype, shape=shape: cell(
                    gemv.gemv, clock, of, dtype, shape
                ),
            )  # fmt: skip
    for kind, library in kinds():
        if kind == "numba" or not SIMULATED:
            steps.prepare(
                "api.Call.track_call", (kind,),
                lambda library=library: small_call(gemv.gemv, *library()),
            )  # fmt: skip
    steps.prepare("api.Start.timeraw_import", (), imports)
    steps.prepare("api.FirstCall.timeraw_first_call", (), first_call)
    print(READY, flush=True)
    if not sys.stdin.readline():
        return 0
    if clock is not None:
        clock.wake(clock.plain(matrices.copies[0].view(dtype="uint64"), 8))
    steps.measure()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
