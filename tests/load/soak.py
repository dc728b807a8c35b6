"""Many calls from many threads on many streams, each result compared bit for bit.

    python tests/load/soak.py --calls 1000000 --seconds 600 --state soak.json

The products are single ones, batches, several vectors of one matrix, and lists of matrices of
different sizes (``soak_cases.py``). Every result must have the bits that the same product had when
it was made alone, before the load began, and those are held against a reference in wider precision.
Calls are made in batches: of one product, on one stream, in one of several ways (a call, a call
that makes y, a plan, a replayed graph), with two copies of A at two addresses and two sets of x,
alpha and beta that alternate, so that a sum left over from the call before would be seen.

Memory is looked at while no thread has a batch on its way: once each has made each of its products
in each way (until then code is loaded, and plans and graphs get their scratch memory), and then
ten times. What counts is the growth from the first look to the last. Results of a megabyte and more
are given back to the system when they are freed, so that pieces of memory which the C library keeps
between them are not taken for a leak.

The run is bounded in calls and in time. It keeps a file of how far it came, and goes on from there:
status 0 is a finished run without a fault, 1 a fault, 3 a run that time or Ctrl-C has ended. The
signal of Ctrl-C is heard in the background as well, where a shell has its programs ignore it.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import itertools
import json
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

import gemv
from gemv.core.dtypes import DTYPES as _DTYPES
from gemv.core.files import write_text

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from load.soak_cases import List, Product

#: m, n, trans, order, kernel and, if not plain, accumulate: every access, columns
#: split over blocks, two launches, sums of float64 and of two float64.
SHAPES = [
    (64, 64, 0, "C", None),
    (257, 1025, 0, "C", None),
    (1000, 1000, 1, "C", None),
    (3, 100_000, 0, "C", None),
    (20_000, 5, 0, "C", None),
    (5, 20_000, 1, "C", None),
    (300, 700, 2, "F", None),
    (1, 50_000, 0, "F", None),
    (33, 5_000, 0, "C", "last_block"),
    (100, 3_000, 1, "C", "coalesced"),
    (1001, 3001, 1, "C", None),
    (37, 30_001, 0, "C", "phased_rows"),
    (200_001, 3, 1, "C", "short_columns"),
    (500, 3_000, 0, "C", None, "wide"),
    (3_000, 900, 1, "C", None, "wide"),
]
#: The same with the number of items, and whether they share the matrix: batches and vectors.
BATCHES = [
    (5, 7, 0, "C", None, "plain", 300, False),
    (32, 32, 1, "C", None, "plain", 40, False),
    (33, 65, 0, "C", None, "plain", 24, False),
    (129, 130, 1, "C", None, "plain", 20, False),
    (256, 64, 2, "C", None, "plain", 16, False),
    (600, 900, 0, "C", None, "plain", 8, True),
    (700, 300, 1, "C", None, "plain", 3, True),
    (9, 9, 0, "C", None, "wide", 30, False),
]
#: Shapes of the matrices of lists, and trans.
LISTS = [
    ([(5, 9), (70, 33), (4, 300), (129, 64), (31, 31), (1, 1), (250, 3)], 0),
    ([(40, 40), (7, 500), (90, 12), (5, 5)], 1),
]
#: Small enough for a thread of a block to be simulated one after the other.
SHAPES_SIMULATED = [
    (5, 9, 0, "C", None),
    (3, 70, 0, "C", None),
    (9, 4, 1, "F", None),
    (6, 40, 0, "C", "last_block"),
    (4, 33, 1, "C", None, "wide"),
]
BATCHES_SIMULATED = [
    (3, 5, 0, "C", None, "plain", 4, False),
    (5, 9, 1, "C", None, "plain", 2, True),
]
LISTS_SIMULATED = [([(3, 5), (9, 4), (1, 7)], 0)]
#: All but bfloat16, which NumPy and so the comparison on the host lacks.
DTYPES = {prefix: dtype for prefix, dtype in _DTYPES.items() if prefix != "b"}
MODES = ("call", "new", "plan", "graph")
#: Arrays from this size on get memory of their own: without that, six threads that made and
#: dropped copies of such results kept some 100 MB between them, and with it 2.
LARGE, M_MMAP_THRESHOLD = 1 << 20, -3
#: All threads take memory from one arena of the C library. With an arena for each, which is its
#: default, eight threads on a GPU kept 26 MB more once warm, and with one they kept 0.3 MB.
ARENAS, M_ARENA_MAX = 1, -8
#: Looks at memory after the first, and bytes that a run may take more from the first to the last.
LOOKS = 10
HOST_SLACK, DEVICE_SLACK = 16 << 20, 4 << 20
#: What the kernel counts page by page when it is read.
RESIDENT = Path("/proc/self/smaps_rollup")


class NumbaArrays:
    """Numba's device arrays, simulated or not; the stream is named in each call."""

    graphs = False

    def __init__(self):
        from numba import cuda

        self.cuda = cuda
        self.array = cuda.to_device
        self.synchronize = cuda.synchronize

    def stream(self):
        return self.cuda.stream() if gemv.backend() == "cuda" else None

    def on(self, stream):
        return contextlib.nullcontext()

    def pool(self):
        return 0

    def in_use(self):
        return 0

    def named(self, stream):
        return {} if stream is None else {"stream": stream}

    def rows(self, batch):
        return [batch[i] for i in range(batch.shape[0])]

    def fill(self, batch, y0, stream):
        # from memory that is not pinned: returns when it is done
        batch.copy_to_device(np.ascontiguousarray(np.broadcast_to(y0, batch.shape)))

    def host(self, array):
        return array.copy_to_host()

    def joined(self, arrays, stream):
        """One array of them, one behind the other."""
        if stream is not None:
            stream.synchronize()
        return self.cuda.to_device(np.concatenate([each.copy_to_host() for each in arrays]))

    def landing(self, batch):
        """Memory of the host for the results of a batch."""
        return np.empty(batch.shape, batch.dtype)

    def land(self, results, landing, stream):
        """Bring ``results``, a batch or its rows one by one, there once the stream has come to
        them; what is there then."""
        if stream is not None:
            stream.synchronize()
        if isinstance(results, list):
            for y, row in zip(results, landing, strict=True):
                y.copy_to_host(row)
        else:
            results.copy_to_host(landing)
        return landing


class TorchArrays:
    """PyTorch's tensors; the current stream decides."""

    graphs = True

    def __init__(self):
        import torch

        self.torch = torch
        self.synchronize = torch.cuda.synchronize

    def array(self, host):
        # the strides of a column-major A stay as they are
        made = self.torch.empty_strided(
            host.shape, [s // host.itemsize for s in host.strides],
            dtype=self.torch.from_numpy(host[:0].copy()).dtype, device="cuda",
        )  # fmt: skip
        made.copy_(self.torch.from_numpy(host))
        return made

    def stream(self):
        return self.torch.cuda.Stream()

    def on(self, stream):
        return self.torch.cuda.stream(stream)

    def pool(self):
        """Bytes that PyTorch has taken from the device, to serve each stream from: it grows by
        chance, when many results are made on a stream."""
        return self.torch.cuda.memory_reserved()

    def in_use(self):
        """Those that some tensor has."""
        return self.torch.cuda.memory_allocated()

    def named(self, stream):
        return {}

    def rows(self, batch):
        return list(batch)

    def fill(self, batch, y0, stream):
        batch.copy_(y0)  # as many times as there are rows

    def host(self, array):
        return array.cpu().numpy()

    def joined(self, arrays, stream):
        return self.torch.cat(arrays)

    def landing(self, batch):
        # Pinned, so that the driver needs no memory of its own for the copy.
        return self.torch.empty(batch.shape, dtype=batch.dtype, pin_memory=True)

    def land(self, results, landing, stream):
        if isinstance(results, list):
            for y, row in zip(results, landing, strict=True):
                row.copy_(y, non_blocking=True)
        else:
            landing.copy_(results, non_blocking=True)
        self.torch.cuda.current_stream().synchronize()
        return landing.numpy()


def array_maker():
    """PyTorch where it is installed and there is a GPU, else Numba."""
    if gemv.backend() == "cuda":
        with contextlib.suppress(ImportError):
            return TorchArrays()
    return NumbaArrays()


class Batch:
    """What one thread needs to make many calls of one case: rows of results, plans, a graph."""

    def __init__(self, arrays, case, size, rng, streams):
        self.arrays, self.case, self.size = arrays, case, size
        self.results = arrays.array(np.zeros((size, *case.y0.shape), case.y0.dtype))
        # Numba fills from the host, PyTorch on the device.
        self.y0 = case.y0 if isinstance(arrays, NumbaArrays) else arrays.array(case.y0)
        self.rows, self.landing = arrays.rows(self.results), arrays.landing(self.results)
        # Of plans and graphs these are fixed when they are made.
        self.variants = np.arange(size) % 2
        self.copies = rng.integers(0, 2, size)
        self.plans = [
            case.plan(c, v, y)
            for c, v, y in zip(self.copies, self.variants, self.rows, strict=True)
        ]
        self.graph = None
        if arrays.graphs:
            case.call(0, 0, self.rows[0])
            arrays.synchronize()
            self.graph = arrays.torch.cuda.CUDAGraph()
            with arrays.torch.cuda.graph(self.graph, stream=streams[0]):
                if case.capturable:
                    self._calls(self.variants, self.copies, {})
                else:
                    for plan in self.plans:
                        plan()

    def _calls(self, variants, copies, named):
        for v, c, y in zip(variants, copies, self.rows, strict=True):
            self.case.call(c, v, y, **named)

    def run(self, mode, stream, rng):
        """Make the calls; indices of results with other bits than expected."""
        case, arrays = self.case, self.arrays
        variants, copies = self.variants, self.copies
        named = arrays.named(stream)
        with arrays.on(stream):
            arrays.fill(self.results, self.y0, stream)
            if mode == "new":
                variants = np.zeros(self.size, int)
                made = [case.new(c, **named) for c in copies]
                got = arrays.land(made, self.landing, stream)
            else:
                if mode == "call":
                    # 0 and 1 in turn, from either
                    variants = (self.variants + rng.integers(2)) % 2
                    copies = rng.integers(0, 2, self.size)
                    self._calls(variants, copies, named)
                elif mode == "plan":
                    for plan in self.plans:
                        plan(**named)
                else:
                    self.graph.replay()
                got = arrays.land(self.results, self.landing, stream)
        wanted = case.expected[variants]
        if got.tobytes() == wanted.tobytes():
            return []
        return [i for i in range(self.size) if got[i].tobytes() != wanted[i].tobytes()]


@dataclass
class Progress:
    """How far a run has come; what the file keeps."""

    seed: int = 0
    calls: int = 0
    seconds: float = 0.0
    modes: dict = field(default_factory=dict)
    faults: list = field(default_factory=list)
    watched: bool = False
    host_growth: int = 0
    device_growth: int = 0
    #: Bytes more than at the first look, at each.
    host_looks: list = field(default_factory=list)

    def save(self, path):
        if path is not None:
            write_text(path, json.dumps(asdict(self), indent=1) + "\n")


def memory(arrays):
    """Bytes in host memory (Linux), and of the device outside the library's pool."""
    host = device = 0
    if gemv.backend() == "cuda":
        from numba import cuda  # first: it takes 90 MB of the host itself, where nobody has it yet

        free, total = cuda.current_context().get_memory_info()
        device = total - free - arrays.pool()
    gc.collect()
    with contextlib.suppress(OSError, AttributeError, TypeError):
        # What the C library keeps of freed memory, some for each thread, is no leak.
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):
        # Not ``statm``, which proc(5) calls inexact: it grew by 54 MB once where pages did by 5.
        lines = RESIDENT.read_text(encoding="ascii").splitlines()
        (kib,) = (line.split()[1] for line in lines if line.startswith("Rss:"))
        host = int(kib) << 10
    return host, device


def keep_little():
    """Have the C library keep little of what is freed, so that growth is what nobody frees."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, LARGE)
        library.mallopt(M_ARENA_MAX, ARENAS)


class Soak:
    """Threads that work until there are enough calls, too many faults, or no more time."""

    MAX_FAULTS = 10

    def __init__(
        self, progress, *, calls, seconds, threads, batch, state=None, shared=False, every=1
    ):
        self.progress, self.calls, self.state = progress, calls, state
        self.shared = shared
        self.seconds = seconds
        self.lock, self.stop = threading.Lock(), threading.Event()
        self.ready = threading.Barrier(threads + 1)
        #: Where threads wait for each other, once each has made everything and at each tenth of the
        #: calls that come after, and what memory there was then.
        self.rest = threading.Barrier(threads, action=self._look)
        self.looks, self.next_look = [], 0.0
        keep_little()
        self.arrays = array_maker()
        simulated = gemv.backend() != "cuda"
        shapes = [
            *(SHAPES_SIMULATED if simulated else SHAPES),
            *(BATCHES_SIMULATED if simulated else BATCHES),
        ]
        lists = LISTS_SIMULATED if simulated else LISTS
        self.cases = [
            make(self.arrays, prefix, *own)
            for make, all_ in ((Product, shapes), (List, lists))
            for prefix, own in list(itertools.product(DTYPES, all_))[::every]
        ]
        self.threads = [
            threading.Thread(target=self._guarded, args=(number, batch), daemon=True)
            for number in range(threads)
        ]
        # A graph of a run before this one that Python frees during a capture would break it.
        gc.collect()
        # One after the other: capturing a graph is nothing to do beside other threads' calls.
        self.batches = []
        for number in range(threads):
            rng = np.random.default_rng([progress.seed, number])
            streams = [self.arrays.stream() for _ in range(2)]
            # Each thread has a part of the cases, each case two threads of eight.
            mine = [c for k, c in enumerate(self.cases) if (k + number) % 4 == 0 or threads < 4]
            self.batches.append(
                (streams, [Batch(self.arrays, case, batch, rng, streams) for case in mine])
            )
        self.arrays.synchronize()

    def _guarded(self, number, batch):
        try:
            self._work(number, batch)
        except BaseException as error:
            self._fault(f"thread {number}: {type(error).__name__}: {error}")
            self.ready.abort()
            self._end()

    def _end(self):
        """Let all threads come to their end."""
        self.stop.set()
        self.rest.abort()

    def _look(self):
        """Remember what memory there is, and when to look again."""
        self.looks.append(memory(self.arrays))
        if len(self.looks) == 1:
            self.tenth = (self.calls - self.progress.calls) / LOOKS
        self.next_look = self.progress.calls + self.tenth

    def _fault(self, text):
        with self.lock:
            self.progress.faults.append(text)
            if len(self.progress.faults) >= self.MAX_FAULTS:
                self._end()

    def _work(self, number, size):
        rng = np.random.default_rng([self.progress.seed, self.progress.calls, number])
        streams, batches = self.batches[number]
        # None is the default stream, which the threads share.
        streams = [*streams, None]
        modes = [mode for mode in MODES if self.arrays.graphs or mode != "graph"]
        every = iter([(batch, mode) for batch in batches for mode in modes])
        self.ready.wait()
        while not self.stop.is_set():
            batch, mode = next(every, (None, None))
            if batch is None:
                # Calls only become more, and the next look is set where all wait: none goes past.
                if self.progress.calls >= self.next_look:
                    with contextlib.suppress(threading.BrokenBarrierError):
                        self.rest.wait()
                batch = batches[rng.integers(len(batches))]
                mode = modes[rng.integers(len(modes))]
            stream = streams[rng.integers(len(streams))]
            for i in batch.run(mode, stream, rng):
                self._fault(f"{batch.case.name}: other bits ({mode}, row {i}, thread {number})")
            with self.lock:
                self.progress.calls += size
                self.progress.modes[mode] = self.progress.modes.get(mode, 0) + size
                if self.progress.calls >= self.calls:
                    self._end()

    def run(self, report=lambda line: None):
        """Status of the run, as the command exits with."""
        progress, begun = self.progress, time.monotonic()
        deadline = begun + self.seconds
        before, tensors = progress.seconds, self.arrays.in_use()
        for thread in self.threads:
            thread.start()
        interrupted = False
        try:
            with contextlib.suppress(threading.BrokenBarrierError):
                self.ready.wait()
            while not self.stop.wait(1.0) and time.monotonic() < deadline:
                progress.seconds = before + time.monotonic() - begun
                with self.lock:
                    progress.save(self.state)
                report(f"{progress.calls} calls, {progress.seconds:.0f} s")
        except KeyboardInterrupt:
            interrupted = True
        self._end()
        for thread in self.threads:
            thread.join()
        self.arrays.synchronize()
        progress.seconds = before + time.monotonic() - begun
        kept = self.arrays.in_use() - tensors
        if kept > 1 << 20:
            progress.faults.append(f"{kept} bytes more in tensors than before the run")
        progress.watched = bool(self.looks)
        if progress.watched:
            looks = np.array([*self.looks, memory(self.arrays)])
            progress.host_looks = (looks[:, 0] - looks[0, 0]).tolist()
            progress.host_growth, progress.device_growth = map(int, looks[-1] - looks[0])
            # What the driver counts is of all processes together.
            progress.device_growth *= not self.shared
            for place, grown, slack in (
                ("host", progress.host_growth, HOST_SLACK),
                ("device", progress.device_growth, DEVICE_SLACK),
            ):
                if grown > slack:
                    progress.faults.append(f"{grown} bytes more {place} memory than once warm")
        progress.save(self.state)
        if progress.faults:
            return 1
        return 3 if interrupted or progress.calls < self.calls else 0


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=1_000_000, help="in all, with earlier runs")
    parser.add_argument("--seconds", type=float, default=600.0, help="at most, of this run")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--batch", type=int, default=32, help="calls between two comparisons")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--state", type=Path, help="file to keep, and to go on from")
    parser.add_argument(
        "--shared", action="store_true", help="others use the GPU: do not watch its memory"
    )
    parser.add_argument(
        "--every", type=int, default=1, help="5: a fifth of the products, to compile less"
    )
    options = parser.parse_args(argv)
    progress = Progress(seed=options.seed)
    if options.state is not None and options.state.exists():
        progress = Progress(**json.loads(options.state.read_text(encoding="utf-8")))
    status = 0
    if progress.calls < options.calls and not progress.faults:
        soak = Soak(
            progress, calls=options.calls, seconds=options.seconds, threads=options.threads,
            batch=options.batch, state=options.state, shared=options.shared, every=options.every,
        )  # fmt: skip
        if sys.stdout.isatty():
            status = soak.run(lambda line: print(f"\r{line}", end="", flush=True))
            print()
        else:
            status = soak.run()
    print(
        f"{progress.calls} calls in {progress.seconds:.0f} s on {gemv.backend()}: "
        + ", ".join(f"{count} {mode}" for mode, count in sorted(progress.modes.items()))
    )
    growth = (
        f"host {progress.host_growth / 2**20:+.1f} MiB,"
        f" device {progress.device_growth / 2**20:+.1f} MiB"
        if progress.watched
        else "not watched, the run was too short for that"
    )
    print(f"memory once warm: {growth}; faults: {len(progress.faults)}")
    if progress.host_looks:
        steps = ", ".join(f"{more / 2**20:+.1f}" for more in progress.host_looks)
        print(f"host memory at each look, MiB: {steps}")
    print(*progress.faults, sep="\n", end="\n" if progress.faults else "")
    return 1 if progress.faults else status


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
