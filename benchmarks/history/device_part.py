"""What one commit is measured by for the backfill of the history, in a process of its own.

    PYTHONPATH=TREE python -P benchmarks/history/device_part.py TREE

It calls only what the package has had from its first public function on, ``gemv.gemv`` on device
arrays, so it measures any commit in the same way. It imports nothing else of this repository. Each
figure is one line of JSON on the standard output as soon as it is there: name, parameters, value,
and the reason where there is no value. A run that is ended early keeps the figures before.

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
from pathlib import Path

#: Dtype and shape as in benchmarks/suites/kernels.py; those that matter most come first.
DTYPES = ("float32", "float64", "float16")
SHAPES = ("8192x8192", "1048576x64", "64x1048576")
ROUNDS, CALLS = 5, 10
#: Calls of a batch, batches and size of the matrix, for the host's time.
BATCH, BATCHES, SMALL = 200, 9, 64
#: Elements of x that are not 0, so that the sums of small whole numbers are exact in float16.
ONES = 64
#: Rows whose results are compared.
CHECKED = 16
#: How often and how long the kernel sleeps: longer than the host takes to enqueue the calls.
SLEEPS, SLEEP_NS = 8, 500_000
#: Under the simulator results are compared, on this shape, and no times are taken.
SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM", "0") == "1"
SHAPE_SIMULATED = "9x72"
FIRST_CALL = (
    "import numpy as np, gemv;"
    "y = gemv.sgemv(1.0, np.ones((8, 8), np.float32), np.ones(8, np.float32));"
    "assert (y == 8).all()"
)


def say(name: str, params: tuple[str, ...], value: float | None, why: str = "") -> None:
    print(json.dumps({"name": name, "params": params, "value": value, "why": why}), flush=True)


def attempt(name: str, params: tuple[str, ...], measure) -> None:
    """Say the figures of `measure`, a dict by name or one number, or why there are none."""
    try:
        found = measure()
    except Exception as error:
        say(name, params, None, f"{type(error).__name__}: {error}")
        return
    for each, value in (found if isinstance(found, dict) else {name: found}).items():
        say(each, params, value)


# --- The host -------------------------------------------------------------------------------------


def in_new_process(code: str, repeats: int) -> float:
    """Median of the seconds that some code takes in a new interpreter."""
    program = f"import time; s = time.perf_counter()\n{code}\nprint(time.perf_counter() - s)"
    command = [sys.executable, "-P", "-c", program]
    found = []
    # Arrays so small would stay on the host of themselves.
    environment = os.environ if SIMULATED else {**os.environ, "GEMV_BACKEND": "cuda"}
    for _ in range(repeats):
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            raise RuntimeError((done.stderr.strip() or "failed").splitlines()[-1])
        found.append(float(done.stdout.splitlines()[-1]))
    return statistics.median(found)


def small_call(gemv, to_device, finish) -> float:
    """Microseconds of the host for one call on a small matrix."""
    import numpy as np

    a = to_device(np.ones((SMALL, SMALL), np.float32))
    x, y = (to_device(np.ones(SMALL, np.float32)) for _ in range(2))
    batches = []
    for _ in range(BATCHES + 1):  # the first one compiles
        start = time.perf_counter()
        for _ in range(BATCH):
            gemv(1.0, a, x, y=y, overwrite_y=True)
        batches.append((time.perf_counter() - start) / BATCH)
        finish()
    return 1e6 * statistics.median(batches[1:])


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


def cell(gemv, clock: Clock | None, dtype: str, shape: str) -> dict[str, float | None]:
    """Share of the floor, and ratio to the fastest peer, of one product with A in memory."""
    import numpy as np
    from numba import cuda

    m, n = map(int, (SHAPE_SIMULATED if SIMULATED else shape).split("x"))
    rng = np.random.default_rng(0)
    pattern = rng.integers(-4, 5, 1_000_003).astype(dtype)
    host = np.resize(pattern, (m, n))
    x_host = np.zeros(n, dtype)
    x_host[rng.permutation(n)[:ONES]] = 1
    room = 3 * l2_bytes()
    copies = max(2, math.ceil(room / host.nbytes))
    frames = [
        (cuda.to_device(host), cuda.to_device(x_host), cuda.to_device(np.zeros(m, dtype)))
        for _ in range(copies)
    ]
    calls = [lambda a=a, x=x, y=y: gemv(1.0, a, x, y=y, overwrite_y=True) for a, x, y in frames]
    calls[0]()
    got = frames[0][2].copy_to_host()
    rows = [*range(min(m, CHECKED)), *range(max(0, m - CHECKED), m)]
    expected = host[rows].astype(np.float64) @ x_host.astype(np.float64)
    if not np.array_equal(got[rows].astype(np.float64), expected):
        raise AssertionError("the result differs from NumPy's")
    if SIMULATED:
        raise NotImplementedError("right under the simulator, where no time is taken")
    words = [each[0].ravel().view(np.uint64) for each in frames]
    ways = {"gemv": calls}
    for blocks in (4, 8, 16):
        ways[f"plain {blocks}"] = [clock.plain(each, blocks) for each in words]
    theirs = [peers(*frame) for frame in frames]
    for name in theirs[0]:
        ways[name] = [each[name] for each in theirs]
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS + 1):  # the first one warms up
        for name, each in ways.items():
            times[name].append(clock.seconds([each[k % copies] for k in range(CALLS)]))
    taken = {name: statistics.median(each[1:]) for name, each in times.items()}
    fastest = min((taken[name] for name in theirs[0]), default=None)
    return {
        "kernels.Floor.track_share": 100 * min(taken.values()) / taken["gemv"],
        "kernels.Neighbour.track_ratio": fastest and fastest / taken["gemv"],
    }


def l2_bytes() -> int:
    from numba import cuda

    return 0 if SIMULATED else cuda.get_current_device().L2_CACHE_SIZE


def main(arguments: list[str]) -> int:
    tree = Path(arguments[0]).resolve()
    times = 1 if SIMULATED else 5
    for name, module in (("timeraw_import_with_numpy", "numpy"), ("timeraw_import", "gemv")):
        code = f"import {module}"
        attempt(f"api.Start.{name}", (), lambda code=code: in_new_process(code, times))
    import gemv

    if tree not in Path(gemv.__file__ or "").resolve().parents:
        raise RuntimeError(f"gemv comes from {gemv.__file__}, not from {tree}")
    from numba import cuda

    clock = None if SIMULATED else Clock()
    for dtype in DTYPES:
        for shape in SHAPES:
            attempt(
                "kernels.Floor.track_share", (dtype, shape),
                lambda dtype=dtype, shape=shape: cell(gemv.gemv, clock, dtype, shape),
            )  # fmt: skip
    if SIMULATED:
        return 0
    for kind, library in kinds():
        attempt(
            "api.Call.track_call", (kind,),
            lambda library=library: small_call(gemv.gemv, *library()),
        )  # fmt: skip
    attempt("api.FirstCall.timeraw_first_call", (), lambda: in_new_process(FIRST_CALL, 3))
    cuda.synchronize()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
