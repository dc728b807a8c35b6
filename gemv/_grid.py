"""Our calls, the floor and the peers over a grid of shapes, in one run.

A *cell* is one problem: shape, dtype, op, storage, view. Its operands lie in *frames* of one large
buffer, A, x and y behind each other. Cold, the frames used in turn exceed the L2 cache together;
hot, there is one. Every result is checked before it is timed, on small whole numbers, whose sums
are exact in any order; the time is taken on random numbers with full mantissas.

The *floor* of a cell is the time of the fastest that moved as many bytes in the same run: a plain
kernel that only reads and writes them, and whoever was faster. Bytes are 32-byte sectors, the unit
in which memory answers. Under the simulator results are checked and no time is claimed.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from gemv import _peers
from gemv._measure import Clock, _Array, random_array
from gemv._peers import Peer, Place
from gemv.core import files
from gemv.core.dtypes import DTYPES
from gemv.core.geometry import SECTOR_BYTES as SECTOR
from gemv.core.geometry import ceil_div
from gemv.core.narrow import cast
from gemv.core.problem import Problem
from gemv.engines import backend as engines_backend
from gemv.selection.select import Choice, select
from gemv.selection.table import tables

SHAPES = tuple(
    (int(m), int(n))
    for m, n in (
        shape.split("x")
        for shape in (
            "16384x16384 8192x8192 4096x4096 2048x2048 1024x1024 512x512 256x256 16x4194304"
            " 4194304x16 128x1048576 1048576x128 1x67108864 67108864x1 4x16777216 16777216x4"
            " 1000x100000 100000x1000 10000x10000 9999x9973 333x77777 77777x333 14336x4096"
            " 4096x14336 128256x4096"
        ).split()
    )
)
#: What a solver holds on to: they fit into the L2 cache of a large GPU.
HOT_SHAPES = ((256, 256), (512, 512), (1024, 1024), (1536, 1536), (2048, 2048), (3072, 3072))
#: Tails in both directions, and few threads to simulate.
SIMULATED_SHAPES = ((5, 70), (70, 5), (33, 17))

#: Where A, x and y of a frame may start, as memory of their own would.
_ALIGNED = 256
#: Frames together exceed the L2 cache this many times over.
_L2_TIMES = 3
_MOST_FRAMES = 2048
ROUNDS = 5
#: Elements of the pattern that memory is filled with: no multiple of a usual length of a row.
_PATTERN = (1 << 22) - 192
#: A small problem is checked against NumPy as well.
_HOST_CHECK = 1 << 20
#: A kernel of another build, for checking all others.
_SECOND_OPINION = "coalesced"


# --- Cells ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cell:
    """One problem of the grid.

    Attributes
    ----------
    m, n : int
        Shape of A, the view.
    dtype : str
        Its prefix in :data:`gemv.core.dtypes.DTYPES`.
    op, order : str
        "N", "T" or "C"; storage "C" or "F".
    view : str
        How A is cut out of a larger matrix, ``":, 1:"`` for instance; "" for a matrix of its own.
    hot : bool
        Whether the same frame is used each time, so that the L2 cache may hold it.
    beta : int
        0, or -1, with which y stays bounded over many calls; alpha is 1.
    """

    m: int
    n: int
    dtype: str
    op: str = "N"
    order: str = "C"
    view: str = ""
    hot: bool = False
    beta: int = 0


def cells(
    shapes: Iterable[tuple[int, int]],
    dtypes: Iterable[str],
    ops: Iterable[str] = ("N", "T"),
    orders: Iterable[str] = ("C",),
    views: Iterable[str] = ("",),
    hot: bool = False,
    beta: int = 0,
) -> list[Cell]:
    """All combinations, dtype by dtype.

    Raises
    ------
    ValueError
        For an unknown dtype, op or order, a view that is none, or a shape without elements.
    """
    shapes, ops, orders = list(shapes), list(ops), list(orders)
    views = [normal_view(view) for view in views]
    found = []
    for dtype in dtypes:
        for m, n in shapes:
            if m < 1 or n < 1:
                raise ValueError(f"bench: m and n must be at least 1, got {m} and {n}")
            for op in ops:
                for order in orders:
                    _check_names(dtype, op, order)
                    found += [Cell(m, n, dtype, op, order, view, hot, beta) for view in views]
    return found


def _check_names(dtype: str, op: str, order: str) -> None:
    if dtype not in DTYPES:
        raise ValueError(f"bench: dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    if op not in ("N", "T", "C") or order not in ("C", "F"):
        raise ValueError(f"bench: op must be N, T or C and order C or F, got {op!r}, {order!r}")


#: Bytes of A of a random cell: from the smallest launch that is more than its own start, to what
#: memory holds several of.
RANDOM_BYTES = (1 << 17, 1 << 30)
RANDOM_SIDE = 1 << 24
#: Without a new cell among so many, there are hardly any left.
_MOST_DRAWS = 10000
_RANDOM_VIEWS = ("", "", "", ":, 1:", ":, 4:")


def random_cells(
    count: int,
    seed: int = 0,
    dtypes: Sequence[str] = "sdczhb",
    ops: Sequence[str] = "NT",
    orders: Sequence[str] = "CF",
    beta: int = 0,
    sizes: tuple[int, int] = RANDOM_BYTES,
) -> list[Cell]:
    """Cells that nobody chose; two of five without the first column, or four, of a larger matrix.

    m and n are independent and log-uniform up to 2**24, and pairs for which A has fewer or more
    bytes than `sizes` says are drawn again. The same seed gives the same cells.

    Raises
    ------
    ValueError
        For a count below 1, or more than there are; a negative seed; an unknown dtype, op or order.
    """
    if count < 1 or seed < 0:
        raise ValueError(
            "bench: the number of random cells must be at least 1 and their seed at least 0, got"
            f" {count} and {seed}"
        )
    for names in itertools.product(dtypes, ops, orders):
        _check_names(*names)
    number = random.Random(seed).random  # the one method whose sequence never changes

    def one_of(values: Sequence[str]) -> str:
        return values[int(number() * len(values))]

    found: dict[Cell, None] = {}
    in_vain = 0
    while len(found) < count:
        in_vain += 1
        if in_vain > _MOST_DRAWS:
            raise ValueError(f"bench: there are no {count} random cells, only about {len(found)}")
        m, n = (int(RANDOM_SIDE ** number()) for _ in "mn")
        dtype, op, order = one_of(dtypes), one_of(ops), one_of(orders)
        cell = Cell(m, n, dtype, op, order, one_of(_RANDOM_VIEWS), beta=beta)
        if sizes[0] <= m * n * DTYPES[dtype].itemsize <= sizes[1] and cell not in found:
            found[cell], in_vain = None, 0
    return list(found)


_SLICE = re.compile(r"(\d*):(-\d+)?(?::(\d+))?")


def _cut(view: str) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Start, elements left over at the end, and step of a view, for rows and for columns."""
    parts = [part.strip() for part in (view.strip().strip("[]") or ":, :").split(",")]
    matches = [_SLICE.fullmatch(part) for part in parts]
    if len(parts) != 2 or not all(matches):
        raise ValueError(
            f"bench: a view is two slices START:-LEFT_OVER:STEP, [:, 1:] for instance, not {view!r}"
        )
    cut = []
    for start, stop, step in (match.groups() for match in matches if match):
        cut.append((int(start or 0), -int(stop or 0), int(step or 1)))
        if cut[-1][2] < 1:
            raise ValueError(f"bench: the steps of a view must be positive, got {view!r}")
    return cut[0], cut[1]


def normal_view(view: str) -> str:
    """The one way to write a view; "" for all of a matrix."""
    words = []
    for start, left, step in _cut(view):
        text = f"{start or ''}:{-left if left else ''}"
        words.append(f"{text}:{step}" if step > 1 else text)
    return "" if words == [":", ":"] else ", ".join(words)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the operands of a cell lie in a frame.

    `elements` are those of the matrix that A is a view of, `first` where the view begins in it;
    `x_at`, `y_at` and `nbytes` are bytes.
    """

    problem: Problem
    elements: int
    first: int
    x_at: int
    y_at: int
    nbytes: int


def lay_out(cell: Cell) -> Layout:
    dtype = DTYPES[cell.dtype]
    (r0, r_left, r_step), (c0, c_left, c_step) = _cut(cell.view)
    base_rows, base_cols = r0 + cell.m * r_step + r_left, c0 + cell.n * c_step + c_left
    down, along = (base_cols, 1) if cell.order == "C" else (1, base_rows)
    strides = (down * r_step, along * c_step)
    trans = "NTC".index(cell.op)
    rows, cols = (cell.m, cell.n) if trans == 0 else (cell.n, cell.m)
    row_stride, col_stride = strides if trans == 0 else strides[::-1]
    conj = trans == 2 and dtype.kind == "c"
    problem = Problem(dtype, cell.m, cell.n, trans, rows, cols, conj, row_stride, col_stride)
    elements = base_rows * base_cols
    x_at = _aligned(elements * dtype.itemsize)
    y_at = _aligned(x_at + cols * dtype.itemsize)
    return Layout(
        problem, elements, r0 * down + c0 * along, x_at, y_at,
        _aligned(y_at + rows * dtype.itemsize),
    )  # fmt: skip


def _aligned(nbytes: int) -> int:
    return ceil_div(nbytes, _ALIGNED) * _ALIGNED


# --- Bytes ----------------------------------------------------------------------------------------


def sectors(first: int, nbytes: int, pieces: Sequence[tuple[int, int]] = ()) -> int:
    """32-byte sectors that an array touches.

    Parameters
    ----------
    first : int
        Address of its first byte.
    nbytes : int
        Of one contiguous piece.
    pieces : sequence of (count, distance), optional
        How often that is repeated, at how many bytes from one to the next, the smallest distance
        first: ``[(cols, 8), (rows, 4096)]`` for a matrix. Pieces do not overlap.
    """
    pieces = [(count, distance) for count, distance in pieces if count > 1]
    while pieces and pieces[0][1] <= nbytes + SECTOR - 1 and _seamless(first, nbytes, pieces[0]):
        count, distance = pieces.pop(0)
        nbytes += (count - 1) * distance
    if not pieces:
        return (first + nbytes - 1) // SECTOR - first // SECTOR + 1
    *inner, (count, distance) = pieces
    # The pattern of addresses repeats after so many pieces.
    period = SECTOR // math.gcd(SECTOR, distance)
    total = sectors(first, nbytes, inner)
    reach = nbytes + sum((number - 1) * step for number, step in inner)
    for phase in range(1, min(period, count - 1) + 1):
        start = first + phase * distance
        before = start - distance
        shared = (before + reach - 1) // SECTOR == start // SECTOR
        total += (sectors(start, nbytes, inner) - shared) * ((count - 1 - phase) // period + 1)
    return total


def _seamless(first: int, nbytes: int, piece: tuple[int, int]) -> bool:
    """Whether the gaps between pieces are too short to leave a sector untouched."""
    count, distance = piece
    period = SECTOR // math.gcd(SECTOR, distance)
    return all(
        (first + k * distance) // SECTOR - (first + (k - 1) * distance + nbytes - 1) // SECTOR <= 1
        for k in range(1, min(period, count - 1) + 1)
    )


def traffic(layout: Layout, beta: int) -> tuple[int, int]:
    """Bytes that a call has to read and to write, in whole sectors."""
    problem = layout.problem
    size = problem.dtype.itemsize
    steps = sorted(
        [(problem.rows, problem.row_stride * size), (problem.cols, problem.col_stride * size)],
        key=lambda piece: piece[1],
    )
    a = sectors(layout.first * size, size, steps)
    x = sectors(layout.x_at, problem.cols * size)
    y = sectors(layout.y_at, problem.rows * size)
    return SECTOR * (a + x + (y if beta else 0)), SECTOR * y


def _plain() -> Callable:
    """A kernel that reads and writes as many bytes as it is told, and does nothing with them.

    It takes `segments` turns, so that reading and writing are mixed as in the work it stands for.
    """
    from numba import cuda

    from gemv.language import vector_load

    zero = np.float64(0)

    def plain(read, written, segments, a, y):
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

    return plain


# --- Memory ---------------------------------------------------------------------------------------


class Memory:
    """One large buffer, and patterns of numbers to fill it with."""

    def __init__(self, engine: Any, nbytes: int) -> None:
        self._engine = engine
        self._patterns: dict[tuple[str, np.dtype], np.ndarray] = {}
        self.array = self._allocated(nbytes)
        self.base = self._address(self.array)

    def pattern(self, kind: str, dtype: np.dtype) -> np.ndarray:
        """Whole numbers in -2..2 ("whole") or uniform ones in (-1, 1) ("random")."""
        key = (kind, dtype)
        if key not in self._patterns:
            rng = np.random.default_rng(20240501)
            wide = np.dtype(np.complex64 if dtype.kind == "c" else np.float32)
            if kind == "random":
                values = random_array(rng, (_PATTERN,), dtype)
            else:
                parts = rng.integers(-2, 3, _PATTERN * (wide.itemsize // 4)).astype(np.float32)
                values = parts.view(wide)
            self._patterns[key] = cast(values, dtype)
        return self._patterns[key]

    # The simulator's: memory of the host.

    def _allocated(self, nbytes: int) -> Any:
        return np.zeros(nbytes + _ALIGNED, np.uint8)

    def _address(self, array: Any) -> int:
        return _aligned(array.ctypes.data)

    def _part(self, address: int, nbytes: int) -> np.ndarray:
        start = address - self.array.ctypes.data
        return self.array[start : start + nbytes]

    def fill(self, kind: str, dtype: np.dtype, address: int, count: int) -> None:
        """Put `count` elements of a pattern, over and over, at an address."""
        values = np.resize(self.pattern(kind, dtype), count)
        self._part(address, values.nbytes)[:] = values.view(np.uint8)

    def spoil(self, address: int, nbytes: int) -> None:
        """Fill with ones in every bit, which is NaN for all floating-point types."""
        self._part(address, nbytes)[:] = 0xFF

    def read(self, address: int, dtype: np.dtype, count: int) -> np.ndarray:
        """A copy for the host."""
        return self._part(address, count * dtype.itemsize).view(dtype).copy()

    def operand(self, address: int, dtype: np.dtype, count: int) -> _Array:
        """What an engine takes."""
        return _Array(self._part(address, count * dtype.itemsize).view(dtype), address)


class DeviceMemory(Memory):
    """The same on the GPU. The host makes a pattern once; copies on the device spread it."""

    def __init__(self, engine: Any, nbytes: int) -> None:
        from cuda.bindings import driver

        from gemv.driver.library import check

        self._driver, self._check = driver, check
        self._uploaded: dict[tuple[str, np.dtype], Any] = {}
        super().__init__(engine, nbytes)

    def _allocated(self, nbytes: int) -> Any:
        return self._engine.empty(nbytes, np.dtype(np.uint8))

    def _address(self, array: Any) -> int:
        return int(array.__cuda_array_interface__["data"][0])  # aligned to 256 bytes and more

    def fill(self, kind: str, dtype: np.dtype, address: int, count: int) -> None:
        key = (kind, dtype)
        if key not in self._uploaded:
            self._uploaded[key] = self._engine.to_device(self.pattern(kind, dtype).view(np.uint8))
        pattern = self._uploaded[key]
        nbytes = count * dtype.itemsize
        done = min(nbytes, pattern.nbytes)
        self._copy(address, self._address(pattern), done)
        while done < nbytes:
            more = min(done, nbytes - done)
            self._copy(address + done, address, more)
            done += more
        self._check(self._driver.cuCtxSynchronize())

    def _copy(self, to: int, source: int, nbytes: int) -> None:
        self._check(self._driver.cuMemcpyDtoD(to, source, nbytes))

    def spoil(self, address: int, nbytes: int) -> None:
        self._check(self._driver.cuMemsetD8(address, 0xFF, nbytes))
        self._check(self._driver.cuCtxSynchronize())

    def read(self, address: int, dtype: np.dtype, count: int) -> np.ndarray:
        host = np.empty(count, dtype)
        self._check(self._driver.cuCtxSynchronize())
        self._check(self._driver.cuMemcpyDtoH(host.ctypes.data, address, host.nbytes))
        return host

    def operand(self, address: int, dtype: np.dtype, count: int) -> _Array:
        return _Array(self.array, address)


# --- Results --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Row:
    """What was measured of a cell.

    Attributes
    ----------
    nbytes : int
        Sectors touched in A, x and y (y twice when beta is not 0), times 32.
    frames : int
        Copies of the operands that were used in turn.
    kernel, knobs
        What selection chose.
    time_s, plain_s : float or None
        Medians of our calls and of the plain kernel; None where nothing is timed.
    spread : float or None
        Largest less smallest of our rounds, over the median.
    peers : dict of str to float
        Median time of each peer.
    refused : dict of str to str
        Why a peer has no time.
    wrong : str or None
        What is wrong with our result; then nothing was timed.
    """

    m: int
    n: int
    dtype: str
    op: str
    order: str
    view: str
    hot: bool
    beta: int
    nbytes: int
    frames: int
    kernel: str
    knobs: dict[str, int]
    time_s: float | None = None
    plain_s: float | None = None
    spread: float | None = None
    peers: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    wrong: str | None = None

    @property
    def cell(self) -> Cell:
        return Cell(**{each.name: getattr(self, each.name) for each in fields(Cell)})

    @property
    def floor_s(self) -> float | None:
        """The fastest that anyone moved these bytes in this run."""
        times = [self.time_s, self.plain_s, *self.peers.values()]
        return min((each for each in times if each is not None), default=None)

    @property
    def share(self) -> float | None:
        """Floor over our time: 1 cannot be improved."""
        return None if self.time_s is None else (self.floor_s or 0.0) / self.time_s

    @property
    def peer(self) -> str | None:
        """The fastest peer."""
        return min(self.peers, key=self.peers.__getitem__, default=None)

    @property
    def ratio(self) -> float | None:
        """Time of the fastest peer over ours: how many times as fast we are."""
        if self.time_s is None or self.peer is None:
            return None
        return self.peers[self.peer] / self.time_s

    def rate(self, seconds: float) -> float:
        """GB/s, at this number of bytes."""
        return self.nbytes / seconds / 1e9


@dataclass(slots=True)
class Grid:
    """All rows of a file and where they were measured."""

    device: str
    backend: str
    versions: dict[str, str] = field(default_factory=dict)
    rounds: int = ROUNDS
    rows: list[Row] = field(default_factory=list)

    def to_json(self) -> str:
        """One line a row, so that two files compare line by line."""
        data = asdict(self)
        rows = data.pop("rows")
        head = json.dumps(data, indent=1)[:-2]
        lines = ",\n  ".join(json.dumps(row) for row in rows)
        return f'{head},\n "rows": [\n  {lines}\n ]\n}}\n'

    @classmethod
    def from_json(cls, text: str) -> Grid:
        data = json.loads(text)
        return cls(rows=[Row(**row) for row in data.pop("rows")], **data)

    @classmethod
    def load(cls, path: str | Path) -> Grid:
        return cls.from_json(Path(path).read_text(encoding="utf-8"))

    def store(self, path: Path) -> None:
        """Write the file as a whole or not at all."""
        files.write_text(path, self.to_json())


@dataclass(frozen=True, slots=True)
class Summary:
    """Geometric means over some rows.

    Attributes
    ----------
    cells, against : int
        How many were timed, and how many of them beside a peer.
    share, ratio : float or None
        Geometric means of floor over our time, and of the peer's time over ours.
    peer_share : float or None
        Geometric mean of floor over the peer's time.
    least_share, least_ratio : float or None
    behind, ahead : int
        Cells under 0.98 of the peer, and cells at 1 or more.
    """

    cells: int
    against: int
    share: float | None
    ratio: float | None
    peer_share: float | None
    least_share: float | None
    least_ratio: float | None
    behind: int
    ahead: int


def summary(rows: Iterable[Row]) -> Summary:
    rows = list(rows)
    shares = [row.share for row in rows if row.share is not None]
    ratios = [row.ratio for row in rows if row.ratio is not None]
    theirs = [
        row.share / row.ratio for row in rows if row.share is not None and row.ratio is not None
    ]
    return Summary(
        len(shares), len(ratios), _mean(shares), _mean(ratios), _mean(theirs),
        min(shares, default=None), min(ratios, default=None),
        sum(ratio < 0.98 for ratio in ratios), sum(ratio >= 1 for ratio in ratios),
    )  # fmt: skip


def _mean(values: Sequence[float]) -> float | None:
    return statistics.geometric_mean(values) if values else None


def groups(rows: Iterable[Row]) -> dict[tuple, list[Row]]:
    """Rows that belong together, by temperature, dtype, order, view and beta, in their order.

    Conjugates are apart: a library may have no kernel for them, and a mean would hide which it is.
    """
    found: dict[tuple, list[Row]] = {}
    for row in rows:
        key = (row.hot, row.dtype, row.order, row.view, row.beta, row.op == "C")
        found.setdefault(key, []).append(row)
    return found


def worst(rows: Iterable[Row], by: str, count: int = 5) -> list[Row]:
    """The rows with the lowest "share" or "ratio"."""
    timed = [row for row in rows if getattr(row, by) is not None]
    return sorted(timed, key=lambda row: getattr(row, by))[:count]


# --- Measuring ------------------------------------------------------------------------------------


class Bench:
    """Checks and times cells; a GPU's memory is taken once, for the largest of them."""

    def __init__(
        self,
        wanted: Sequence[Cell],
        libraries: Sequence[str] = (),
        engine: Any = None,
        clock: Any = None,
    ) -> None:
        self.engine = engines_backend.engine() if engine is None else engine
        self.device = self.engine.device()
        self.libraries = tuple(libraries)
        self.clock = clock
        if clock is None and self.engine.name == "cuda":
            self.clock = Clock(self.engine)
        self._plain_times: dict[tuple[int, int, bool], list[tuple[int, int, int]]] = {}
        self._plain_function: Any = None
        self._room = self._free_bytes()
        needs = [self._frames(cell, lay_out(cell)) * lay_out(cell).nbytes for cell in wanted]
        nbytes = max((need for need in needs if need <= self._room), default=_ALIGNED)
        kind = DeviceMemory if self.engine.name == "cuda" else Memory
        self.memory = kind(self.engine, nbytes)

    def _free_bytes(self) -> int:
        """What a buffer may take: some is left for modules, workspaces and other libraries."""
        if self.engine.name != "cuda":
            return 1 << 30
        from numba import cuda

        return int(0.85 * cuda.current_context().get_memory_info().free)

    def versions(self) -> dict[str, str]:
        import gemv
        from gemv.engines.fingerprint import Unknown, imported_source

        try:
            source = imported_source()[:12]
        except Unknown as why:
            source = f"unknown: {why}"
        ours = f"{gemv.__version__} (source {source}, table {tables(self.device).hash[:12]})"
        timed = {} if self.clock is None else self.clock.versions()
        return {"gemv": ours, **timed, **_peers.versions(self.libraries)}

    def _frames(self, cell: Cell, layout: Layout) -> int:
        if cell.hot or self.clock is None:
            return 1
        past_l2 = ceil_div(_L2_TIMES * self.clock.l2_bytes, layout.nbytes) + 1
        return max(1, min(past_l2, _MOST_FRAMES, self._room // layout.nbytes))

    def row(self, cell: Cell) -> Row:
        """One cell: checked, then timed where there is a GPU."""
        layout = lay_out(cell)
        if layout.nbytes > self._room:
            read, written = traffic(layout, cell.beta)
            row = Row(**asdict(cell), nbytes=read + written, frames=0, kernel="", knobs={})
            row.refused["gemv"] = f"{layout.nbytes} bytes do not fit into the {self._room} free"
            return row
        frames = self._frames(cell, layout)
        places = [self._place(layout, k) for k in range(frames)]
        problem = layout.problem.at(places[0].a, places[0].x)
        choice = select(problem, self.device)
        read, written = traffic(layout, cell.beta)
        row = Row(
            **asdict(cell), nbytes=read + written, frames=frames, kernel=choice.kernel.name,
            knobs=choice.knobs,
        )  # fmt: skip
        others: list[Peer] = []
        for library in self.libraries:
            found, refused = _peers.peers(library, problem, cell.beta, self.memory.array)
            others += found
            row.refused |= refused
        self._check(row, layout, problem, choice, places[0], others)
        if row.wrong is None and self.clock is not None:
            self._time(row, layout, problem, choice, places, others, (read, written))
        return row

    def _place(self, layout: Layout, number: int) -> Place:
        base = self.memory.base + number * layout.nbytes
        a = base + layout.first * layout.problem.dtype.itemsize
        return Place(a, base + layout.x_at, base + layout.y_at)

    def _ours(
        self, layout: Layout, problem: Problem, choice: Choice, beta: int, place: Place
    ) -> Callable[[int], None]:
        """A function that enqueues our call on a stream."""
        dtype, operand = problem.dtype, self.memory.operand
        a = operand(place.a, dtype, layout.elements - layout.first)
        x, y = operand(place.x, dtype, problem.cols), operand(place.y, dtype, problem.rows)
        one, times = (_factor(problem)(value) for value in (1, beta))

        def call(stream: int) -> None:
            self.engine.run(choice, problem, one, a, x, times, y, stream)

        return call

    # Checking.

    def _check(
        self,
        row: Row,
        layout: Layout,
        problem: Problem,
        choice: Choice,
        place: Place,
        others: list[Peer],
    ) -> None:
        """Compare all results on whole numbers; peers that are wrong leave `others`."""
        dtype = problem.dtype
        frame = place.a - layout.first * dtype.itemsize
        stream = 0 if self.clock is None else self.clock.stream
        self.memory.fill("whole", dtype, frame, layout.nbytes // dtype.itemsize)

        def result(call: Callable[[int], None]) -> np.ndarray:
            if row.beta:
                self.memory.fill("whole", dtype, place.y, problem.rows)
            else:
                self.memory.spoil(place.y, problem.rows * dtype.itemsize)
            call(stream)
            return self.memory.read(place.y, dtype, problem.rows)

        expected = self._expected(row, layout, problem, result, place)
        ours = result(self._ours(layout, problem, choice, row.beta, place))
        if not _equal(ours, expected):
            row.wrong = f"{choice.kernel.name} differs from what it should be"
            return
        for peer in list(others):
            try:
                if not _nearly(result(peer.checked(place)), expected):
                    raise ArithmeticError("its result is wrong")
            except Exception as error:  # whatever another library raises
                row.refused[peer.name] = f"{type(error).__name__}: {error}"[:200]
                others.remove(peer)

    def _expected(
        self,
        row: Row,
        layout: Layout,
        problem: Problem,
        result: Callable[[Callable[[int], None]], np.ndarray],
        place: Place,
    ) -> np.ndarray:
        """By NumPy if the problem is small, by another kernel if not."""
        if problem.rows * problem.cols > _HOST_CHECK:
            second = select(problem, self.device, _SECOND_OPINION)
            return result(self._ours(layout, problem, second, row.beta, place))
        dtype, pattern = problem.dtype, self.memory.pattern("whole", problem.dtype)
        count = layout.nbytes // dtype.itemsize
        whole = _wide(np.resize(pattern, count))
        steps = (problem.row_stride * whole.itemsize, problem.col_stride * whole.itemsize)
        op_a = np.lib.stride_tricks.as_strided(
            whole[layout.first :], (problem.rows, problem.cols), steps
        )
        op_a = op_a.conj() if problem.conj else op_a
        x = whole[layout.x_at // dtype.itemsize :][: problem.cols]
        y = op_a @ x
        if row.beta:
            y = y + row.beta * _wide(np.resize(pattern, problem.rows))
        return cast(y, dtype)

    # Timing.

    def _time(
        self,
        row: Row,
        layout: Layout,
        problem: Problem,
        choice: Choice,
        places: list[Place],
        others: list[Peer],
        moved: tuple[int, int],
    ) -> None:
        dtype = problem.dtype
        count = len(places) * layout.nbytes // dtype.itemsize
        self.memory.fill("random", dtype, self.memory.base, count)
        contenders: dict[str, list[Callable[[int], None]]] = {
            "ours": [self._ours(layout, problem, choice, row.beta, place) for place in places]
        }
        for number, calls in enumerate(self._plain(layout, row.hot, places, *moved)):
            contenders[f"plain {number}"] = calls
        contenders |= {peer.name: [peer.at(place) for place in places] for peer in others}
        times = self.clock.race(contenders, ROUNDS)
        medians = {name: statistics.median(each) for name, each in times.items()}
        row.time_s = medians.pop("ours")
        row.spread = (max(times["ours"]) - min(times["ours"])) / row.time_s
        plain = [name for name in medians if name.startswith("plain ")]
        row.plain_s = min(medians.pop(name) for name in plain)
        row.peers = medians

    def _plain(
        self, layout: Layout, hot: bool, places: list[Place], read: int, written: int
    ) -> list[list[Callable[[int], None]]]:
        """Calls of the plain kernel, on its two best grids for these bytes."""
        key = (read, written, hot)
        if key not in self._plain_times:
            self._plain_times[key] = self._best_grids(layout, places, read, written)
        return [
            [self._plain_call(layout, place, read, written, *grid) for place in places]
            for grid in self._plain_times[key]
        ]

    def _best_grids(
        self, layout: Layout, places: list[Place], read: int, written: int
    ) -> list[tuple[int, int, int]]:
        grids = set()
        vectors = read // 16
        for threads in (128, 256, 512):
            for blocks_of_one in (1, 2, 4, 8, 16):
                for segments in (1,) if 16 * written < read else (1, 8, 64):
                    most = self.device.multiprocessors * blocks_of_one
                    grids.add((min(most, ceil_div(vectors, threads)), threads, segments))
        timed = []
        for grid in sorted(grids):
            calls = [self._plain_call(layout, place, read, written, *grid) for place in places]
            timed.append((self.clock.time(calls, 1), grid))
        return [grid for _, grid in sorted(timed)[:2]]

    def _plain_call(
        self,
        layout: Layout,
        place: Place,
        read: int,
        written: int,
        blocks: int,
        threads: int,
        segments: int,
    ) -> Callable[[int], None]:
        if self._plain_function is None:
            from gemv.engines.loading import load
            from gemv.language.numba_cuda.compile import compile_function

            double = np.dtype(np.float64)
            capability = self.device.compute_capability
            # launched as our kernels are, so that the floor owes nothing to a slower start
            binary = compile_function(_plain(), double, capability, early_start=True)
            self._plain_function = load(binary, double)
        values = {
            "read": read // 16,
            "written": written // 8,
            "segments": segments,
            "a": place.a - layout.first * layout.problem.dtype.itemsize,
            "y": place.y,
        }

        def call(stream: int) -> None:
            self.engine._submit(
                self._plain_function, (blocks, 1, 1), (threads, 1, 1), stream, values
            )

        return call


def _factor(problem: Problem) -> type:
    """Of alpha and beta."""
    return problem.precision.factors.type


def _wide(values: np.ndarray) -> np.ndarray:
    return cast(values, np.dtype(np.complex128 if values.dtype.kind == "c" else np.float64))


def _epsilon(dtype: np.dtype) -> float:
    """Distance from 1 to the next number."""
    step = 1.0
    while _wide(cast(np.array([1 + step / 2]), dtype))[0] != 1:
        step /= 2
    return step


def _equal(ours: np.ndarray, expected: np.ndarray) -> bool:
    """Bit by bit, which is quick, or at least as numbers: a zero may have either sign."""
    same = np.array_equal(ours.view(np.uint8), expected.view(np.uint8))
    return same or np.array_equal(_wide(ours), _wide(expected))


def _nearly(theirs: np.ndarray, expected: np.ndarray) -> bool:
    """Equal, or as near as a library comes that rounds partial sums of a narrow type."""
    if _equal(theirs, expected):
        return True
    exact = _wide(expected)
    allowed = 8 * _epsilon(expected.dtype) * float(np.max(np.abs(exact)))
    # NaN is not within anything
    return bool(np.max(np.abs(_wide(theirs) - exact)) <= allowed)


def measure(
    wanted: Sequence[Cell],
    libraries: Sequence[str] = (),
    grid: Grid | None = None,
    seconds: float = math.inf,
    progress: Callable[[int, int, Cell], None] | None = None,
    bench: Bench | None = None,
) -> Iterator[Grid]:
    """Measure cell by cell, and give the grid after each of them.

    Parameters
    ----------
    wanted : sequence of Cell
    libraries : sequence of {"torch", "cupy"}
        The peers.
    grid : Grid, optional
        What there is already: its cells are skipped, and new ones are added.
    seconds : float
        No cell is begun later than that.

    Raises
    ------
    ValueError
        If `grid` is of another device.
    BackendError
        On the host backend, which has no kernels.
    """
    done = set() if grid is None else {row.cell for row in grid.rows}
    open_cells = [cell for cell in dict.fromkeys(wanted) if cell not in done]
    end = time.monotonic() + seconds
    bench = Bench(open_cells, libraries) if bench is None else bench
    fresh = Grid(bench.device.name, bench.engine.name, bench.versions())
    if grid is None:
        grid = fresh
    elif (grid.device, grid.backend) != (fresh.device, fresh.backend):
        raise ValueError(f"the file was measured on {grid.device}, and this is {fresh.device}")
    yield grid
    for number, cell in enumerate(open_cells):
        if time.monotonic() > end:
            return
        if progress is not None:
            progress(number, len(open_cells), cell)
        grid.rows.append(bench.row(cell))
        if number == 0:
            _add_versions(grid, fresh.versions)
        yield grid


def _add_versions(grid: Grid, fresh: dict[str, str]) -> None:
    """Say of a grid that goes on what it goes on with: it is not all of one version any more."""
    for name, version in fresh.items():
        had = grid.versions.get(name, "none")
        if version not in had.split(", later "):
            grid.versions[name] = f"{had}, later {version}"
