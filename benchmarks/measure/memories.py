"""One product with its matrix in each kind of memory: what a call takes, and what limits it.

Times are wall times from the call until the result is there, medians of a few rounds, everything
in one run. Rates count the bytes of A.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import gemv
from gemv.engines import backend

#: Order of the square float32 matrix: 1 GiB.
ORDER = 16384
ROUNDS = 5
#: Orders for which the host's BLAS is compared with a call, and with a matrix that stays.
THRESHOLDS = (64, 256, 1024, 4096, 8192, 16384)


@dataclass(slots=True)
class MemoryRow:
    """One place of A and one way to it.

    Attributes
    ----------
    group : str
        ``"link"``, ``"call"``, ``"in place"`` or ``"host"``.
    memory : str
        Where A is.
    way : str
        What reads or copies it.
    time_s : float or None
        None where it cannot be had here.
    gb_per_s : float or None
        Bytes of A in that time.
    same_bits : bool or None
        Whether the result is that of A on the device, bit for bit.
    note : str
        Why there is no time, or what else is to be said.
    """

    group: str
    memory: str
    way: str
    time_s: float | None = None
    gb_per_s: float | None = None
    same_bits: bool | None = None
    note: str = ""


@dataclass(slots=True)
class Size:
    """One square product with A in host memory, by each way to compute it."""

    n: int
    call_s: float
    kept_s: float
    host_s: float


@dataclass(slots=True)
class MemoryResults:
    """All rows of a run, and where it was made."""

    device: str
    order: int
    cpus: int
    stage_threads: int
    stage_bytes: int
    versions: dict[str, str] = field(default_factory=dict)
    rows: list[MemoryRow] = field(default_factory=list)
    sizes: list[Size] = field(default_factory=list)

    def row(self, memory: str, way: str) -> MemoryRow:
        """The row of a memory and a way; a KeyError where there is none."""
        for row in self.rows:
            if (row.memory, row.way) == (memory, way):
                return row
        raise KeyError(f"no row {memory!r}, {way!r}")

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> MemoryResults:
        data = json.loads(text)
        data["rows"] = [MemoryRow(**row) for row in data["rows"]]
        data["sizes"] = [Size(**size) for size in data["sizes"]]
        return cls(**data)


def measure(
    order: int = ORDER,
    rounds: int = ROUNDS,
    sizes: tuple[int, ...] = THRESHOLDS,
    progress: Callable[[str], None] = lambda what: None,
) -> MemoryResults:
    """Measure everything on the current GPU.

    Raises
    ------
    ValueError
        Without a GPU: a simulator's times say nothing.
    """
    if backend.backend() != "cuda":
        raise ValueError("memories are measured on a GPU, and there is none here")
    with backend.using("cuda"):  # the calls on host arrays are those that are copied
        return _Run(order, rounds, progress).all(sizes)


class _Run:
    """A matrix, and the rows that are measured with it."""

    def __init__(self, order: int, rounds: int, progress: Callable[[str], None]) -> None:
        from numba import cuda

        from gemv.driver import stages
        from gemv.driver.libcuda import check
        from gemv.measure.clock import Clock

        self.cuda, self.check = cuda, check
        self.engine = backend.engine()
        clock = Clock(self.engine)
        self.n, self.rounds, self.progress = order, rounds, progress
        self.table = MemoryResults(
            device=self.engine.device().name,
            order=order,
            cpus=os.cpu_count() or 0,
            stage_threads=stages.THREADS,
            stage_bytes=stages.PIECE_BYTES,
            versions=clock.versions(),
        )
        rng = np.random.default_rng(0)
        self.a = rng.random((order, order), np.float32)
        self.x = rng.random(order, np.float32)
        self.x_device = cuda.to_device(self.x)
        self.y_device = cuda.device_array(order, np.float32)
        self.expected = b""

    def time(self, work: Callable[[], Any], rounds: int | None = None) -> float:
        """Median wall time, with everything that was enqueued done."""
        work()
        self.cuda.synchronize()
        times = []
        for _ in range(rounds or self.rounds):
            start = time.perf_counter()
            work()
            self.cuda.synchronize()
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    def add(
        self,
        group: str,
        memory: str,
        way: str,
        work: Callable[[], Any],
        nbytes: int | None = None,
        note: str = "",
        rounds: int | None = None,
    ) -> None:
        """Measure one row; what cannot be had here says why."""
        self.progress(f"{memory}, {way}")
        row = MemoryRow(group, memory, way, note=note)
        self.table.rows.append(row)
        try:
            result = work()
            self.cuda.synchronize()
            row.time_s = self.time(work, rounds)
        except Exception as error:
            row.note = f"{type(error).__name__}: {' '.join(str(error).split())}"
            return
        row.gb_per_s = (nbytes or self.a.nbytes) / row.time_s / 1e9
        if result is not None and group != "host":
            got = result.copy_to_host() if hasattr(result, "copy_to_host") else result
            row.same_bits = np.asarray(got).tobytes() == self.expected

    def all(self, sizes: tuple[int, ...]) -> MemoryResults:
        """Measure every kind of memory, then every size."""
        cuda, a, x = self.cuda, self.a, self.x
        with gemv.Matrix(a) as kept:
            self.expected = gemv.gemv(1, kept.array, self.x_device).copy_to_host().tobytes()
            self.add("in place", "device", "kernel", lambda: self.product(kept.array))
            self.add("in place", "device", "Matrix @ host vector", lambda: kept @ x)
        self.link()
        for memory, array in self.hosts():
            self.add("call", memory, "gemv.gemv", partial(gemv.gemv, 1, array, x))
        limit = a.nbytes // 4
        self.add(
            "call",
            "pageable",
            "gemv.gemv, limited",
            lambda: gemv.gemv(1, a, x, device_memory_limit=limit),
            note=f"device_memory_limit={limit}",
        )
        with gemv.Matrix(np.asfortranarray(a)) as kept:
            self.expected = gemv.gemv(1, kept.array, self.x_device).copy_to_host().tobytes()
        for memory, array in (
            ("pageable, Fortran order", np.asfortranarray(a)),
            ("pageable, every second row", np.repeat(a, 2, 0)[::2]),
            ("pageable, float64 to float32", a.astype(np.float64)),
        ):
            fortran = "Fortran" in memory
            if not fortran:
                self.expected = gemv.gemv(1, a, x).tobytes()
            self.add("call", memory, "gemv.sgemv", partial(gemv.sgemv, 1, array, x))
        self.expected = gemv.gemv(1, a, x).tobytes()
        self.places()
        self.peer()
        from scipy.linalg import blas

        f_order = a.T  # what BLAS takes without a copy
        self.add("host", "pageable", "SciPy", lambda: blas.sgemv(1, f_order, x, trans=1))
        self.thresholds(sizes)
        cuda.current_context().deallocations.clear()
        return self.table

    def product(self, array: Any) -> Any:
        """With A where it is, x and y on the device."""
        return gemv.gemv(1, array, self.x_device, y=self.y_device, overwrite_y=1)

    def link(self) -> None:
        """What the driver's own copies reach."""
        from cuda.bindings import driver

        check = self.check
        cuda, a = self.cuda, self.a
        target = cuda.device_array(a.size, np.float32)
        pointer = int(target.__cuda_array_interface__["data"][0])

        def copy(source: np.ndarray) -> None:
            check(driver.cuMemcpyHtoD(pointer, source.ctypes.data, source.nbytes))

        pinned = cuda.pinned_array(a.shape, np.float32)
        pinned[...] = a
        self.add("link", "pinned", "driver's copy", lambda: copy(pinned))
        self.add("link", "pageable", "driver's copy", lambda: copy(a))

    def hosts(self) -> Iterator[tuple[str, np.ndarray]]:
        """A in kinds of host memory, each as long as it is used."""
        yield "pageable", self.a
        pinned = self.cuda.pinned_array(self.a.shape, np.float32)
        pinned[...] = self.a
        yield "pinned", pinned
        del pinned
        with self.registered(np.array(self.a)) as array:
            yield "registered", array
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "a.npy"
            np.save(path, self.a)
            yield "memory map, in the page cache", np.load(path, mmap_mode="r")

    @contextmanager
    def registered(self, array: np.ndarray) -> Iterator[np.ndarray]:
        """Memory that is pinned after it was allocated."""
        from cuda.bindings import driver

        self.check(driver.cuMemHostRegister(array.ctypes.data, array.nbytes, 0))
        try:
            yield array
        finally:
            self.check(driver.cuMemHostUnregister(array.ctypes.data))

    def places(self) -> None:
        """A that a kernel reads where it is, whoever's memory that is."""
        self.mapped()
        if self.a.nbytes <= self.engine.free_memory() // 2:
            self.managed()
            return
        note = "not measured: managed memory is never asked for beyond what is free"
        self.table.rows.append(MemoryRow("in place", "managed", "kernel", note=note))

    def mapped(self) -> None:
        """Pinned memory that has an address on the GPU."""
        array = self.cuda.mapped_array(self.a.shape, np.float32)
        array[...] = self.a
        self.add("in place", "mapped", "kernel", lambda: self.product(array))

    def managed(self) -> None:
        """Memory whose pages move to whoever touches them."""
        array = self.cuda.managed_array(self.a.shape, np.float32)
        times: list[float] = []

        def first() -> Any:
            array[...] = self.a  # back on the host
            start = time.perf_counter()
            result = self.product(array)
            self.cuda.synchronize()
            times.append(time.perf_counter() - start)
            return result

        self.add("in place", "managed", "kernel, after the host wrote", first, rounds=2)
        row = self.table.rows[-1]
        if row.time_s is not None:
            row.time_s = statistics.median(times[1:])
            row.gb_per_s = self.a.nbytes / row.time_s / 1e9
            row.note = "pages move as the kernel touches them"
        self.add("in place", "managed", "kernel again", lambda: self.product(array))

    def peer(self) -> None:
        """Memory of another GPU: what a copy from there takes, and x and y that stay there."""
        from cuda.bindings import driver

        cuda, here = self.cuda, self.engine.device().index
        others = [index for index in range(len(cuda.gpus)) if index != here]
        if not others:
            note = "not measured: there is one GPU"
            self.table.rows.append(
                MemoryRow("in place", "peer", "kernel, x and y there", note=note)
            )
            return
        with cuda.gpus[others[0]]:
            a, x = cuda.to_device(self.a), cuda.to_device(self.x)
            y = cuda.device_array(self.n, np.float32)
        mine = cuda.device_array(self.a.shape, np.float32)
        target, source = (int(each.__cuda_array_interface__["data"][0]) for each in (mine, a))

        def copy() -> None:
            self.check(driver.cuMemcpy(target, source, self.a.nbytes))

        self.add("link", "peer", "driver's copy", copy)
        self.add(
            "in place",
            "peer",
            "kernel, x and y there",
            lambda: gemv.gemv(1, mine, x, y=y, overwrite_y=1, peer=True),
        )

    def thresholds(self, sizes: tuple[int, ...]) -> None:
        """Where the host's BLAS is ahead of a call, and of a matrix that stays."""
        from scipy.linalg import blas

        for n in sizes:
            self.progress(f"{n} x {n}")
            a, x = self.a[:n, :n].copy(), self.x[:n]
            rounds = 20 if n <= 1024 else self.rounds
            with gemv.Matrix(a) as kept:
                kept_s = self.time(lambda: kept @ x, rounds)  # noqa: B023
            call_s = self.time(lambda: gemv.gemv(1, a, x), rounds)  # noqa: B023
            host_s = self.time(lambda: blas.sgemv(1, a.T, x, trans=1), rounds)  # noqa: B023
            self.table.sizes.append(Size(n, call_s, kept_s, host_s))
