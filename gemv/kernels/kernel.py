"""The Kernel record, which every kernel file ends with, and helpers for its fields.

A kernel file is one lesson and one complete gemv. ``build(spec)`` makes the kernel functions,
``geometry(problem, device, knobs)`` lays out the grid, and the file ends with
``KERNEL = Kernel(...)``.

The launch fills in the arguments of a kernel function by their names. A function takes any of
``rows, cols`` (lengths of y and x), ``alpha, a, row_stride, col_stride, x, incx, beta, y, incy``
(strides in elements; pointers to the first element used), ``scratch``, ``counters``, and the 64-bit
integers that its geometry puts into ``sizes``.

A kernel function takes alpha and beta as numbers, wherever they come from: :func:`fetching` puts a
function around it that reads them from another home. In the same way :func:`of_items` makes a
function for the items of a batch, and :func:`of_table` one for items of different sizes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gemv.core.batch import Batch
from gemv.core.dtypes import dtype_name
from gemv.core.geometry import LOAD_BYTES, MAX_GRID_X, Device, Geometry
from gemv.core.problem import Problem
from gemv.core.splits import StepsOfSums, split_by_split
from gemv.core.values import typed
from gemv.kernels.fetching import fetching
from gemv.kernels.grids import GeometryOf
from gemv.kernels.items import of_items
from gemv.kernels.list_shares import Tiles
from gemv.kernels.old_y import with_old_y
from gemv.kernels.spec import Spec
from gemv.kernels.tables import of_table
from gemv.kernels.work import Work

#: Rows of the largest problem that a kernel accepts whatever its sizes are: see `Kernel.prepared`.
MOST_PREPARED = MAX_GRID_X - LOAD_BYTES

#: Constants that may be zero: for no splits, a single load, no limit of factors, the first home,
#: any number of columns, and no to a question.
_MAY_BE_ZERO = (
    "STAGED", "SPLIT_A", "PACKED_X", "FULL", "PAST_L1", "KEPT", "STAGES", "AS_STORED",
    "BLOCKS_PER_SM", "VECTORS", "FACTORS", "X_HOME", "COLS", "DOWN", "WHOLE", "GAPS", "COPIED",
    "X_VECTORS", "Y_PACKED",
)  # fmt: skip


#: Constants, and a function that says of a problem whether it gets them: see `Kernel.far_apart`.
FarApart = tuple[dict[str, int], Callable[[Problem], bool]]


def attach(function: Callable, **facts: Any) -> Callable:
    """Give `function` attributes for compiler and engine, ``launch_bounds`` for instance."""
    function.__dict__.update(facts)
    return function


def no_twofold(problem: Problem) -> str | None:
    """Why a kernel that cannot add sums of two numbers refuses `problem`, or None."""
    if problem.precision.sums.fields is not None:
        return (
            f"accumulate={problem.accumulate!r} in {dtype_name(problem.dtype)} has sums of two"
            " numbers each"
        )
    return None


def accepts_all(problem: Problem) -> str | None:
    """None: the kernel refuses no problem."""
    return None


def wide_loads_object(problem: Problem, access: str, most_rows: int = MAX_GRID_X) -> str | None:
    """Why a kernel with wide loads refuses `problem`, or None.

    It needs memory that runs as `access` says, aligned elements, and a block for each tile of rows.
    """
    if problem.access != access:
        along = {"dot": "along the rows", "axpy": "down the columns"}[access]
        return f"wide loads {along} need memory to run there with a unit stride"
    if problem.splits_elements:
        return "an element of A is not aligned to its own size"
    if problem.rows > most_rows:
        return f"a block for each tile needs at most {most_rows} rows, not {problem.rows}"
    return None


def _left_to_right(problem: Problem, geometry: Geometry, knobs: Mapping[str, int]) -> int:
    """The depth of a sum by one thread that takes the columns in order; no order is deeper."""
    return max(problem.cols - 1, 0)


def _pointer(knobs: Mapping[str, int]) -> str:
    return "pointer"


@dataclass(frozen=True, eq=False)
class Kernel:
    """One rung of the ladder, or a kernel beside it.

    Attributes
    ----------
    name : str
        The name that ``kernel=`` takes, and that tables, tests and errors use.
    rung : int
        Place on the ladder. It only sets the order of reading.
    build : callable
        ``build(spec)`` gives the kernel functions, plain Python, in launch order.
    geometry : callable
        ``geometry(problem, device, knobs)`` gives the :class:`~gemv.core.geometry.Geometry`.
    prepared : callable or None
        ``prepared(problem, device, knobs)`` gives a function: the geometry of any other problem
        with the dtypes, the access and the widths of loads of this accepted one, and with lines
        that are whole vectors if its own are, and with the same :attr:`narrow`. What follows from
        these, and whether the constants go together, is found out once. The kernel accepts each of
        them that has at most :data:`MOST_PREPARED` rows. None for a kernel that has to look at
        more.
    tile : callable
        ``tile(knobs)`` gives the rows and columns that one block handles in one step. Tests take
        sizes around these, because tails go wrong there.
    knobs : mapping of str to int
        Defaults of the compile-time constants.
    small_knobs : mapping of str to int
        The smallest sensible constants, for tests on the simulator.
    teaching : bool
        True for a kernel that selection never takes, because it is there to be read: rungs that
        later ones overtake, and all kernels beside the ladder.
    beside : bool
        True for a kernel beside the ladder, False for a rung.
    same_bits : bool
        False if the order of its sums may change from run to run.
    wide : bool
        True for a kernel that moves several elements by one load, if their alignment allows it.
    narrow : callable or None
        ``narrow(problem, knobs)`` gives the loads of a column that stand for each one of 16 bytes,
        1, 2 or 4, which the lanes of a column and so the order of sums follow from. None for a
        kernel in which that does not depend on the number of rows.
    phased : bool
        True for a kernel that loads 16 bytes at a time wherever lines of A begin. The order of its
        sums depends on the addresses of lines modulo 16 bytes, or on the distance between lines as
        well. If its grid depends on :attr:`~gemv.core.problem.Problem.phases`, their number is in
        ``sizes``.
    splits_apart : bool
        True for a kernel of one function in which the last block of a tile adds up the splits:
        ``blockIdx.y`` is the split, its sums go to scratch memory, and each block increments a
        counter. Some splits can then run in a launch of their own before the others.
    steps_of_sums : callable
        The steps of rows and of splits there: see :mod:`gemv.core.splits`.
    accepts : callable
        ``accepts(problem)`` gives None, or the reason why this kernel refuses the problem.
    depth : callable
        ``depth(problem, geometry, knobs)``: additions on the longest way from a product to its
        row's sum, in the row where it is longest; adding a zero in place of a product that is not
        there does not count. The error bound follows from it. Where the order follows what a
        :class:`~gemv.core.problem.Problem` does not tell, it is the depth of the deepest of these
        orders: of all addresses of A with the alignment that is known, or of all orders of arrival.
    work : callable or None
        ``work(problem, geometry, knobs)`` counts the :class:`~gemv.kernels.work.Work` of its one
        launch; None for teaching kernels, which selection never considers.
    capability : (int, int)
        The least compute capability of a GPU that has what the kernel needs. ``geometry`` raises a
        ValueError for an older one, with what :meth:`~gemv.core.geometry.Device.lacks` says.
    block_bytes : int
        The least shared memory that a GPU must give a block which asks for it; as `capability`.
    x_home : callable
        ``x_home(knobs)`` says how x reaches the kernel: ``"pointer"``, or ``"constant"`` and
        ``"value"`` for a contiguous copy in the constant symbol ``gemv_x`` or in the parameters.
    constants_of : callable or None
        ``constants_of(problem)`` gives the constants that follow from the problem alone.
    constants_of_batch : callable or None
        ``constants_of_batch(problem, batch, knobs, device)`` gives constants with the same sums,
        beside ``of_batch``, for the places of the items in memory.
    for_items : callable or None
        ``for_items(problem, knobs)`` gives the constants for the items of a batch, with the order
        of sums that the kernel for one product has with `knobs`; None where there are none.
    for_vectors : callable or None
        ``for_vectors(problem, knobs, vectors)`` gives the constants for so many vectors, with the
        order of sums that the kernel for one vector has with `knobs`; None where there are none.
    without_copies : callable or None
        ``without_copies(problem, knobs)`` gives constants in place of those of `for_vectors` for a
        GPU that has no copies to shared memory; None if the constants need none.
    of_batch : callable or None
        ``of_batch(problem, device, knobs, batch)`` gives the geometry for the items of a batch of
        one dimension, where the kernel finds them by itself; None for the function around it. Such
        a kernel's `geometry` takes a batch: see :mod:`gemv.kernels.several`.
    in_batches : callable or None
        ``in_batches(problem, knobs)`` gives other constants for the items of a large batch, which
        lead to the same order of sums where no columns are split.
    repeats : callable or None
        ``repeats(problem, knobs)`` gives two numbers, blocks and rows, where the grid repeats along
        x: block ``b + blocks`` does with its rows what block b does with those `rows` before. So
        blocks may be counted from any multiple of `blocks`, with rows counted as far on. None where
        the problem does not allow it; the whole field is None if no problem does.
    in_tables : callable or None
        ``in_tables(problem, knobs)`` gives other constants for items of different sizes, which lead
        to the same order of sums where no columns are split, and to fewer launches: they are the
        same for as many problems as can be.
    far_apart : callable or None
        ``far_apart(knobs)`` gives constants in place of `knobs`, with the same sums, for lines of A
        that are so far apart that these would read it several times, and a function that says of
        an accepted problem if they are; None where `knobs` never do. None for a kernel that does
        not.
    in_lists : callable or None
        ``in_lists(problem, knobs)`` gives the name of a kernel that computes items of different
        sizes in one launch, with the order of sums that this one has with `knobs` where no columns
        are split, and the words of its table that follow from `knobs`; None for a problem that it
        does not compute. There may be words of several items, which have parts of the rows.
    words : tuple of str
        Of such a kernel, the words that its table has for each item.
    tiles_of : callable or None
        ``tiles_of(columns, spec)`` gives the :class:`~gemv.kernels.list_shares.Tiles` of all items
        from the columns of their table.
    doc : str
        The lesson: the docstring of the kernel's file.
    """

    name: str
    rung: int
    build: Callable[[Spec], tuple[Callable, ...]]
    geometry: Callable[[Problem, Device, Mapping[str, int]], Geometry]
    tile: Callable[[Mapping[str, int]], tuple[int, int]]
    doc: str
    prepared: Callable[[Problem, Device, Mapping[str, int]], GeometryOf] | None = None
    knobs: Mapping[str, int] = field(default_factory=dict)
    small_knobs: Mapping[str, int] = field(default_factory=dict)
    teaching: bool = False
    beside: bool = False
    same_bits: bool = True
    wide: bool = False
    narrow: Callable[[Problem, Mapping[str, int]], int] | None = None
    phased: bool = False
    splits_apart: bool = False
    steps_of_sums: StepsOfSums = split_by_split
    accepts: Callable[[Problem], str | None] = accepts_all
    depth: Callable[[Problem, Geometry, Mapping[str, int]], int] = _left_to_right
    work: Callable[[Problem, Geometry, Mapping[str, int]], Work] | None = None
    capability: tuple[int, int] = (0, 0)
    block_bytes: int = 0
    x_home: Callable[[Mapping[str, int]], str] = _pointer
    constants_of: Callable[[Problem], dict[str, int]] | None = None
    constants_of_batch: (
        Callable[[Problem, Batch, Mapping[str, int], Device], Mapping[str, int]] | None
    ) = None
    in_batches: Callable[[Problem, Mapping[str, int]], dict[str, int]] | None = None
    for_items: Callable[[Problem, Mapping[str, int]], dict[str, int] | None] | None = None
    for_vectors: Callable[[Problem, Mapping[str, int], int], dict[str, int] | None] | None = None
    without_copies: Callable[[Problem, Mapping[str, int]], dict[str, int]] | None = None
    of_batch: Callable[[Problem, Device, Mapping[str, int], Batch], Geometry] | None = None
    repeats: Callable[[Problem, Mapping[str, int]], tuple[int, int] | None] | None = None
    in_tables: Callable[[Problem, Mapping[str, int]], dict[str, int]] | None = None
    far_apart: Callable[[Mapping[str, int]], FarApart | None] | None = None
    in_lists: (
        Callable[[Problem, Mapping[str, int]], tuple[str, list[dict[str, int]]] | None] | None
    ) = None
    words: tuple[str, ...] = ()
    tiles_of: Callable[[Mapping[str, np.ndarray], Spec], Tiles] | None = None

    @property
    def idea(self) -> str:
        """First sentence of the lesson."""
        return (self.doc or "").strip().splitlines()[0]

    def objection(self, knobs: Mapping[str, Any]) -> str | None:
        """Why `knobs` are no constants of this kernel, or None.

        Names and ranges are checked here; ``geometry`` checks how constants combine.
        """
        unknown = set(knobs) - set(self.knobs)
        if unknown:
            known = ", ".join(self.knobs) or "none"
            names = ", ".join(sorted(unknown))
            return f"kernel {self.name!r} has no knob {names}; it has: {known}"
        for name, value in knobs.items():
            least = 0 if name in _MAY_BE_ZERO else 1
            if type(value) is not int or not least <= value <= MAX_GRID_X:
                return (
                    f"{self.name}: {name} must be an integer from {least} to {MAX_GRID_X}, got"
                    f" {typed(value)}"
                )
        return None

    def spec(
        self,
        problem: Problem,
        knobs: Mapping[str, int] | None = None,
        homes: tuple[str, str] = ("arguments", "arguments"),
        literals: tuple[Any, ...] = (),
    ) -> Spec:
        """The Spec for `problem`, with `knobs` in place of the kernel's defaults."""
        objection = self.objection(knobs or {})
        if objection:
            raise ValueError(objection)
        constants = {**self.knobs, **(knobs or {})}
        return Spec(
            problem.dtype,
            problem.conj,
            problem.access,
            tuple(sorted(constants.items())),
            homes,
            # Values that are not compiled in must not make machine code of their own.
            literals if "literal" in homes else (),
            self._widths(problem),
            problem.result,
            problem.accumulate,
            self.wide and not self.phased and problem.whole,
            narrow=1 if self.narrow is None else self.narrow(problem, constants),
            sparse=problem.sparse,
        )

    def _widths(self, problem: Problem) -> tuple[int, int]:
        """Elements of A and of x that one load moves: see :attr:`Spec.widths`."""
        if self.phased:
            return LOAD_BYTES // problem.dtype.itemsize, 0
        return problem.widths if self.wide else (1, 0)

    def functions(self, spec: Spec) -> tuple[Callable, ...]:
        """The kernel functions for `spec`, built once."""
        return _functions(self.build, spec)


@functools.lru_cache(maxsize=1024)
def _functions(build: Callable[[Spec], tuple[Callable, ...]], spec: Spec) -> tuple[Callable, ...]:
    own = (with_old_y(function, spec) for function in build(spec))
    made = tuple(of_items(fetching(function, spec), spec) for function in own)
    return of_table(made, spec)
