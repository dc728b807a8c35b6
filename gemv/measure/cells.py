"""The problems of a grid: shapes, dtypes, operations, storage orders and views."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gemv.core.dtypes import DTYPES

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
#: Matrices that fit into the L2 cache of a large GPU, as in a solver.
HOT_SHAPES = ((256, 256), (512, 512), (1024, 1024), (1536, 1536), (2048, 2048), (3072, 3072))
#: Of the items of a batch. Lines of 5, 17 and 33 numbers begin at odd places.
BATCH_SHAPES = tuple((n, n) for n in (4, 5, 8, 16, 17, 32, 33, 64, 128, 256))
#: For the simulator: tails in both directions, and few threads.
SIMULATED_SHAPES = ((5, 70), (70, 5), (33, 17))


@dataclass(frozen=True, slots=True)
class Cell:
    """One problem to measure.

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
    batch : int
        How many such matrices there are, one behind the other, each with an x and a y of its own.
    vectors : int
        How many x and y there are for one matrix. Either this or `batch` is 1.
    """

    m: int
    n: int
    dtype: str
    op: str = "N"
    order: str = "C"
    view: str = ""
    hot: bool = False
    beta: int = 0
    batch: int = 1
    vectors: int = 1

    @property
    def items(self) -> int:
        """The number of products."""
        return self.batch * self.vectors


def cells(
    shapes: Iterable[tuple[int, int]],
    dtypes: Iterable[str],
    ops: Iterable[str] = ("N", "T"),
    orders: Iterable[str] = ("C",),
    views: Iterable[str] = ("",),
    hot: bool = False,
    beta: int = 0,
    batch: int = 1,
    vectors: int = 1,
) -> list[Cell]:
    """All combinations, dtype by dtype.

    Raises
    ------
    ValueError
        For an unknown dtype, op or order, a view that is none, a shape without elements, or for
        several vectors of each of several matrices.
    """
    if min(batch, vectors) != 1:
        raise ValueError(
            f"bench: a batch has one vector for each matrix, got {batch} matrices and {vectors}"
            " vectors"
        )
    shapes, ops, orders = list(shapes), list(ops), list(orders)
    views = [normal_view(view) for view in views]
    found = []
    for dtype in dtypes:
        for m, n in shapes:
            if m < 1 or n < 1:
                raise ValueError(f"bench: m and n must be at least 1, got {m} and {n}")
            for op in ops:
                for order in orders:
                    check_names(dtype, op, order)
                    found += [
                        Cell(m, n, dtype, op, order, view, hot, beta, batch, vectors)
                        for view in views
                    ]
    return found


def check_names(dtype: str, op: str, order: str) -> None:
    """Raise ValueError for a dtype, op or order that cannot be measured."""
    if dtype not in DTYPES:
        raise ValueError(f"bench: dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    if op not in ("N", "T", "C") or order not in ("C", "F"):
        raise ValueError(f"bench: op must be N, T or C and order C or F, got {op!r}, {order!r}")


#: Bytes of A of a random cell. Less takes hardly longer than starting a kernel; of more, a GPU's
#: memory may not hold two.
RANDOM_BYTES = (1 << 17, 1 << 30)
RANDOM_SIDE = 1 << 24
#: After so many draws without a new cell there are hardly any left.
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
        check_names(*names)
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


def cut(view: str) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
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
    for start, left, step in cut(view):
        text = f"{start or ''}:{-left if left else ''}"
        words.append(f"{text}:{step}" if step > 1 else text)
    return "" if words == [":", ":"] else ", ".join(words)
