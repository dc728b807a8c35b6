"""Runs a kernel in the simulator and writes down which thread touches which element, and when.

The figures of the course and the checks of its exercises are made from these records, so they
show what a kernel does and not what somebody thinks it does. No GPU is needed.
"""

from __future__ import annotations

import functools
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType, SimpleNamespace

os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")  # before Numba is imported

import numpy as np
from greenlet import getcurrent

from gemv.core.dtypes import DTYPES
from gemv.core.geometry import CACHE_LINE_BYTES, SECTOR_BYTES, Device, Geometry
from gemv.core.problem import Problem
from gemv.engines.simulator import SimulatorEngine
from gemv.kernels import REGISTRY
from gemv.kernels.kernel import Kernel
from gemv.language.simulator import atomics, intrinsics, memory, scheduler, shared
from gemv.measure.inputs import ALPHA, BETA, make_problem, random_array
from gemv.measure.reference import error_in_bounds, reference
from gemv.selection.select import select

#: The banks of shared memory, 4 bytes wide each.
BANKS = 32
BANK_BYTES = 4

#: Files between the instruction of a kernel and the note of it. The simulator's ``vectors.py`` is
#: none of them: each load of a tile is an instruction of its own.
_INSIDE = (
    __file__, memory.__file__, atomics.__file__, scheduler.__file__, intrinsics.__file__,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Access:
    """One element that one thread read or wrote.

    Attributes
    ----------
    launch : int
        Which of the kernel's functions.
    block : tuple of int
        ``(x, y, z)``.
    tid : int
        Number of the thread in its block.
    array : str
        ``"a"``, ``"x"``, ``"y"``, ``"scratch"`` or ``"shared"``.
    write : bool
    site : tuple
        The instruction: equal for two threads that execute the same one.
    visit : int
        How often this thread had executed it before.
    element : int
        Place in the array, counted from its first element.
    itemsize : int
    """

    launch: int
    block: tuple[int, int, int]
    tid: int
    array: str
    write: bool
    site: tuple
    visit: int
    element: int
    itemsize: int

    @property
    def request(self) -> tuple:
        """What the accesses of one warp have in common that go out together."""
        return (self.launch, self.block, self.tid // 32, self.array, self.write, self.site,
                self.visit)  # fmt: skip


@dataclass
class Record:
    """All that one call of a kernel did."""

    kernel: Kernel
    problem: Problem
    geometry: Geometry
    #: Of each element of y: what the kernel wrote, what is right, and the error in units of its
    #: bound, which is above 1 where the element is wrong.
    got: np.ndarray = field(default_factory=lambda: np.empty(0))
    expected: np.ndarray = field(default_factory=lambda: np.empty(0))
    errors: list[float] = field(default_factory=list)
    accesses: list[Access] = field(default_factory=list)
    barriers: int = 0
    atomics: int = 0

    @property
    def error(self) -> float:
        """The largest error, in units of its bound."""
        return max(self.errors, default=0.0)

    def first_wrong(self) -> str | None:
        """The first element of y that is wrong, with what it should be; None if all are right."""
        wrong = [i for i, error in enumerate(self.errors) if error > 1]
        if not wrong:
            return None
        i = wrong[0]
        got, expected = complex(self.got[i]), complex(self.expected[i])
        if self.got.dtype.kind != "c":
            got, expected = got.real, expected.real
        many = f"{len(wrong)} of {len(self.errors)} are wrong"
        return f"y[{i}]: expected {expected:.7g}, got {got:.7g}; {many}"

    def of(self, array: str, write: bool = False) -> list[Access]:
        return [one for one in self.accesses if one.array == array and one.write == write]

    def requests(self, array: str, write: bool = False) -> list[list[Access]]:
        """The accesses of each warp instruction, in the order of the first of them."""
        groups: dict[tuple, list[Access]] = defaultdict(list)
        for one in self.of(array, write):
            groups[one.request].append(one)
        return list(groups.values())

    def lines(self, array: str = "a") -> float:
        """Lines of the caches that a request for `array` touches, on average."""
        requests = self.requests(array)
        return sum(len(lines_of(request)) for request in requests) / max(1, len(requests))

    def sectors(self, array: str = "a") -> float:
        """Sectors that a request for `array` moves, on average."""
        requests = self.requests(array)
        return sum(len(sectors_of(request)) for request in requests) / max(1, len(requests))

    def useful(self, array: str = "a") -> float:
        """Share of the bytes in those sectors that the same request asked for."""
        asked = moved = 0
        for request in self.requests(array):
            asked += len({one.element for one in request}) * request[0].itemsize
            moved += len(sectors_of(request)) * SECTOR_BYTES
        return asked / moved if moved else 0.0

    def worst_bank_request(self) -> list[Access]:
        """The shared-memory request in which most different words lie in one bank."""
        both = self.requests("shared") + self.requests("shared", write=True)
        return max(both, key=bank_ways, default=[])

    @property
    def bank_ways(self) -> int:
        """Steps that the worst shared-memory request takes; 1 is free of conflicts."""
        return bank_ways(self.worst_bank_request())

    @property
    def blocks(self) -> int:
        """Blocks of the first launch."""
        x, y, z = self.geometry.launches[0].grid
        return x * y * z


def lines_of(request: list[Access]) -> set[int]:
    """Numbers of the lines that a request touches; arrays start at the beginning of a line."""
    return {one.element * one.itemsize // CACHE_LINE_BYTES for one in request}


def sectors_of(request: list[Access]) -> set[int]:
    """Numbers of the sectors that a request moves."""
    return {one.element * one.itemsize // SECTOR_BYTES for one in request}


def banks_of(request: list[Access]) -> dict[int, set[int]]:
    """The different words of a request by the bank they lie in.

    Numbers of 8 bytes go out for half a warp at a time and of 16 for a quarter; the first part
    stands for all.
    """
    words: dict[int, set[int]] = defaultdict(set)
    if not request:
        return words
    width = max(1, request[0].itemsize // BANK_BYTES)
    for one in request:
        if one.tid % 32 < 32 // width:
            for part in range(width):
                word = one.element * width + part
                words[word % BANKS].add(word)
    return words


def bank_ways(request: list[Access]) -> int:
    return max((len(words) for words in banks_of(request).values()), default=0)


class _Watched(memory.Pointer):
    """A pointer that notes who reads and writes."""

    __slots__, one_by_one = ("note",), True

    def _copied(self):
        other = super()._copied()
        other.note = self.note
        return other

    def __getitem__(self, i):
        self.note(self.name, False, int(i), self.itemsize)
        return super().__getitem__(i)

    def elements(self, i, count):
        """One by one, so that each is noted; by the local k :func:`_site` knows the first."""
        values = []
        for k in range(count):
            values.append(self[i + k])
        return values

    def stored(self, i, count):
        for k in range(count):
            self.note(self.name, False, int(i) + k, self.itemsize)
        return super().stored(i, count)

    def __setitem__(self, i, value):
        self.note(self.name, True, int(i), self.itemsize)
        super().__setitem__(i, value)


def _site() -> tuple[tuple, bool]:
    """The instruction of the kernel that is being executed, and whether it starts here.

    A vector load comes as several elements; only its first one starts the instruction.
    """
    frame = sys._getframe(2)
    starts, below = True, 0
    while frame is not None and frame.f_code.co_filename in _INSIDE:
        if frame.f_code.co_name in ("vector_load", "vector_store", "stored"):
            # a store or a copy keeps its place in a local of this frame, a load in `elements`
            starts = bool(frame.f_locals.get("k", below) == 0)
        below = frame.f_locals.get("k", 0)
        frame = frame.f_back
    return (frame.f_code.co_name, _places(frame.f_code)[frame.f_lasti // 2]), starts


@functools.cache
def _places(code: CodeType) -> list[tuple]:
    """Place in the source of each instruction; the interpreter may move inside one as it warms."""
    return list(code.co_positions())


def watch(
    kernel: Kernel,
    m: int,
    n: int,
    *,
    order: str = "C",
    op: str = "N",
    dtype: str = "s",
    knobs: Mapping[str, int] | None = None,
    multiprocessors: int = 1,
    schedule: scheduler.Schedule | None = None,
) -> Record:
    """Run `kernel` on random numbers and write down what it does; the result is checked too."""
    element = DTYPES[dtype]
    problem = make_problem(m, n, element, order, op)
    rng = np.random.default_rng(m * 1000 + n)
    flat = at_line(random_array(rng, (m * n,), element))
    a = flat.reshape(m, n) if order == "C" else flat.reshape(n, m).T
    x = at_line(random_array(rng, (problem.cols,), element))
    y = random_array(rng, (problem.rows,), element)
    op_a = {"N": a, "T": a.T, "C": a.T.conj()}[op]
    alpha, beta = element.type(ALPHA), element.type(BETA)
    exact, magnitude = reference(alpha, op_a, x, beta, y)

    problem = problem.at(*(array.__array_interface__["data"][0] for array in (flat, x)))
    with _registered(kernel):
        choice = select(problem, Device("simulator", (0, 0), multiprocessors), kernel.name, knobs)
    record = Record(kernel, problem, choice.geometry)

    operands = [SimpleNamespace(owner=array, pointer=0) for array in (flat, x, y)]
    with noting(record), scheduler.scheduled(schedule or scheduler.Schedule()):
        SimulatorEngine().run(choice, problem, alpha, operands[0], operands[1], beta, operands[2])
    record.got, record.expected = y, exact
    for i in range(len(y)):
        one = slice(i, i + 1)
        error = error_in_bounds(y[one], exact[one], magnitude[one], problem.cols, alpha)
        record.errors.append(error)
    return record


def at_line(array: np.ndarray) -> np.ndarray:
    """A copy that begins at the beginning of a line, as memory from a GPU's driver does."""
    room = np.empty(array.nbytes + CACHE_LINE_BYTES, np.uint8)
    skip = -room.__array_interface__["data"][0] % CACHE_LINE_BYTES
    copy = room[skip : skip + array.nbytes].view(array.dtype)
    copy[:] = array
    return copy


@contextmanager
def _registered(kernel: Kernel) -> Iterator[None]:
    """`kernel` among the known ones for a moment: an exercise is not in the folder of kernels."""
    known = REGISTRY.get(kernel.name)
    try:
        REGISTRY[kernel.name] = kernel
        yield
    finally:
        if known is None:
            del REGISTRY[kernel.name]
        else:
            REGISTRY[kernel.name] = known


@contextmanager
def noting(record: Record) -> Iterator[None]:
    """Have the accesses, barriers and atomic operations of all launches written into `record`."""
    visits: Counter = Counter()
    launch = 0

    def note(array: str, write: bool, index: int, itemsize: int) -> None:
        thread = getcurrent()
        if not hasattr(thread, "block"):
            return
        site, starts = _site()
        key = (launch, thread.block.where, thread.tid, array, write, site)
        visits[key] += starts
        record.accesses.append(
            Access(launch, thread.block.where, thread.tid, array, write, site, visits[key] - 1,
                   index, itemsize)
        )  # fmt: skip

    pointer_to, simulate = memory.pointer_to, scheduler.launch

    def watched_pointer(array, offset=0, name="", writable=None, number=None, exact=False):
        plain = pointer_to(array, offset, name, writable)
        assert number in (None, array.dtype), "nothing is converted on the way"
        if name not in ("a", "x", "y", "scratch"):
            return plain
        watched = _Watched(plain.flat, plain.origin, plain.writable, name)
        watched.note = note
        return watched

    def counted_launch(*arguments, **options):
        nonlocal launch
        simulate(*arguments, **options)
        launch += 1

    with _watching(note, record):
        try:
            memory.pointer_to, scheduler.launch = watched_pointer, counted_launch
            yield
        finally:
            memory.pointer_to, scheduler.launch = pointer_to, simulate


@contextmanager
def _watching(note, record: Record) -> Iterator[None]:
    """Have the simulator's shared arrays, barriers and atomics noted as well."""
    arrays, blocks = shared.SharedArray, scheduler.BlockRun
    old = (arrays.__getitem__, arrays.__setitem__, blocks.release_barrier, atomics._atomic)
    get, put, release, atomic = old

    def place(array, i) -> int | None:
        """Flat place of an index, for an array in shared memory."""
        thread = getcurrent()
        known = getattr(getattr(thread, "block", None), "shared", {})
        if not any(array is other for _, other in known.values()):
            return None
        index = tuple(map(int, i)) if isinstance(i, tuple) else (int(i),)
        if len(index) != array.ndim or not all(
            0 <= k < size for k, size in zip(index, array.shape, strict=True)
        ):
            return None
        return int(np.ravel_multi_index(index, array.shape))

    def noted_get(self, i):
        where = place(self, i)
        if where is not None:
            note("shared", False, where, self.dtype.itemsize)
        return get(self, i)

    def noted_put(self, i, value):
        where = place(self, i)
        if where is not None:
            note("shared", True, where, self.dtype.itemsize)
        put(self, i, value)

    def noted_release(self):
        record.barriers += 1
        release(self)

    def noted_atomic(*arguments):
        record.atomics += 1
        return atomic(*arguments)

    try:
        arrays.__getitem__, arrays.__setitem__, arrays.one_by_one = noted_get, noted_put, True
        blocks.release_barrier, atomics._atomic = noted_release, noted_atomic
        yield
    finally:
        arrays.__getitem__, arrays.__setitem__, blocks.release_barrier, atomics._atomic = old
        arrays.one_by_one = False
