"""What every kernel file is made of: the Kernel record and the Spec it is built for.

A kernel file is one lesson and one complete gemv. It holds device code in ``build(spec)``, the
grid in ``geometry(problem, device, knobs)`` and ends with ``KERNEL = Kernel(...)``.

Arguments are named, and the launch path fills them by name. A kernel function takes any of
``rows, cols`` (lengths of y and x), ``alpha, a, row_stride, col_stride, x, incx, beta, y, incy``
(strides in elements; pointers to the first element used), ``scratch``, ``counters`` and the
64-bit integers its geometry puts into ``sizes``.

Where alpha and beta come from is no business of a kernel file: it takes them as numbers, and
:func:`fetching` puts a function around it that reads them from another home if it is asked to.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gemv._check import describe
from gemv._problem import (
    CONSTANT_BYTES,
    LOAD_BYTES,
    MAX_GRID_X,
    MAX_GRID_Y,
    Device,
    Geometry,
    Precision,
    Problem,
    ceil_div,
    dtype_name,
    one_launch,
)

#: Constants that may be zero: no split, a single load, no table of factors, and the first home.
_ZERO_MEANS_NONE = ("BLOCKS_PER_SM", "VECTORS", "FACTORS", "X_HOME", "COLS")


@dataclass(frozen=True)
class Spec:
    """What a kernel is compiled for; two calls with equal Specs share machine code.

    Attributes
    ----------
    dtype : numpy.dtype
        Of A and x.
    conj : bool
        Whether elements of A are conjugated as they are read.
    access : str
        ``"dot"``, ``"axpy"`` or ``"strided"``: see :attr:`gemv._problem.Problem.access`.
    knobs : tuple of (str, int)
        The kernel's compile-time constants.
    homes : (str, str)
        Where alpha and beta are read, each one of :data:`HOMES`.
    literals : (number, number) or ()
        Their values, where the home is ``"literal"``.
    widths : (int, int)
        Elements of A and of x that one load moves, for kernels with wide loads: see
        :attr:`gemv._problem.Problem.widths`.
    y_dtype : numpy.dtype
        Of y, if it is not that of A and x.
    accumulate : {"plain", "wide", "pairs"}
        The precision of products and sums: see :meth:`gemv._problem.Precision.of`.
    whole : bool
        Whether lines of A are whole vectors, so that no code is needed for what fills none: see
        :attr:`gemv._problem.Problem.whole`.
    """

    dtype: np.dtype
    conj: bool
    access: str
    knobs: tuple[tuple[str, int], ...]
    homes: tuple[str, str] = ("arguments", "arguments")
    literals: tuple[Any, ...] = ()
    widths: tuple[int, int] = (1, 0)
    y_dtype: np.dtype | None = None
    accumulate: str = "plain"
    whole: bool = False

    def __getitem__(self, knob: str) -> int:
        return dict(self.knobs)[knob]

    @property
    def precision(self) -> Precision:
        """The dtypes in memory, and those of factors and sums."""
        return Precision.of(self.dtype, self.y_dtype, self.accumulate)

    @property
    def number(self) -> Any:
        """What is computed with: elements once they are loaded, sums, shared and local arrays."""
        sums = self.precision.sums
        if sums.fields is None:
            return sums.type
        from gemv._twofold import element_of_arrays

        return element_of_arrays(sums)

    @property
    def zero(self) -> Any:
        """Where a sum starts; typed, so that sums stay in their precision."""
        sums = self.precision.sums
        if sums.fields is None:
            return sums.type(0)
        from gemv._twofold import zero

        return zero(sums)

    @property
    def min_blocks(self) -> int:
        """Blocks to fit on a multiprocessor: fewer where wider sums take more registers.

        A vector of eight narrow numbers, unpacked, is too long for 64 registers a thread.
        """
        blocks = self["MIN_BLOCKS"]
        if self.accumulate == "plain":
            return blocks // 2 if self.widths[0] > 4 and blocks > 4 else blocks
        precision = self.precision
        return max(1, blocks // (precision.sums.itemsize // max(precision.data.itemsize, 1)))

    @property
    def constant_bytes(self) -> int:
        """Constant memory that is left for symbols of the kernel's own."""
        taken = 2 * SLOTS * self.precision.factors.itemsize if "constant" in self.homes else 0
        return CONSTANT_BYTES - taken

    @property
    def op(self) -> Callable:
        """Applied to each element of A: the identity or the complex conjugate."""
        from gemv.kernels import _device

        return _device.conjugate if self.conj else _device.same

    @property
    def shfl_xor(self) -> Callable:
        """``shfl_xor(value, lane_mask)``: the value of lane ``lane ^ lane_mask`` of a full warp."""
        from gemv.kernels import _device

        return _device.shfl_xor_complex if self.dtype.kind == "c" else _device.shfl_xor_real


#: Where a kernel can find alpha or beta. The first three are for every call; a plain global load
#: and a number fixed at compile time exist to be raced against them.
HOMES = ("arguments", "constant", "pointer", "global", "literal")

_HOME_TEXTS = {
    "arguments": "kernel arguments",
    "constant": "constant memory",
    "pointer": "device memory through the read-only cache",
    "global": "device memory by plain loads",
    "literal": "the machine code",
}


def describe_homes(homes: tuple[str, str]) -> str:
    """Where alpha and beta are, in words that fit behind "alpha and beta from"."""
    alpha, beta = (_HOME_TEXTS[home] for home in homes)
    return alpha if alpha == beta else f"{alpha} (alpha) and {beta} (beta)"


#: The symbol in constant memory, a row of slots of one alpha and one beta each.
COEFFICIENTS = "gemv_coefficients"
#: The symbol that a kernel reads x from, if it wants x in constant memory.
X_SYMBOL = "gemv_x"
#: Slots of the symbol of coefficients: about as many launches as a driver queues can be in flight
#: with coefficients of their own, and at 32 bytes or less a slot half of the 64 KB is left.
SLOTS = 1024


def attach(function: Callable, **facts: Any) -> Callable:
    """`function` with attributes that compiler and engine read: ``launch_bounds`` for one."""
    function.__dict__.update(facts)
    return function


def fetching(function: Callable, spec: Spec) -> Callable:
    """`function` with its alpha and beta read from their homes, or itself if they are arguments.

    The function around it has other parameters in their place: ``slot`` for the constant symbol,
    ``alpha_pointer`` and ``beta_pointer`` for a load, nothing for a literal. The kernel becomes
    part of it, so that a kernel file is one source for all homes and the machine code holds
    nothing but another load.
    """
    from gemv._intrinsics import constant_array, inlined, read_only_load
    from gemv.kernels._device import global_load

    homes = dict(zip(("alpha", "beta"), spec.homes, strict=True))
    names = list(inspect.signature(function).parameters)
    if all(homes.get(name, "arguments") == "arguments" for name in names):
        return function
    scope: dict[str, Any] = {
        "body": inlined(function),
        "pointer_load": read_only_load,
        "global_load": global_load,
    }
    parameters, arguments = [], []
    for name in names:
        place = int(name == "beta")
        match homes.get(name, "arguments"):
            case "arguments":
                parameters.append(name)
                arguments.append(name)
            case "constant":
                if "constant" not in scope:
                    scope["constant"] = constant_array(
                        COEFFICIENTS, spec.precision.factors, 2 * SLOTS
                    )
                    parameters.append("slot")
                arguments.append(f"constant(2 * slot + {place})")
            case "literal":
                scope[f"{name}_literal"] = spec.precision.factors.type(spec.literals[place])
                arguments.append(f"{name}_literal")
            case home:
                parameters.append(f"{name}_pointer")
                arguments.append(f"{home}_load({name}_pointer, 0)")
    # Numba reads the parameters from a def, and these are known at run time only.
    source = f"def {function.__name__}({', '.join(parameters)}):\n"
    source += f"    body({', '.join(arguments)})\n"
    exec(source, scope)
    around = scope[function.__name__]
    around.__dict__.update(function.__dict__)  # launch bounds
    around.coefficients = scope.get("constant")
    return around


def tile_shape(access: str, block_x: int, block_y: int) -> tuple[int, int]:
    """Rows of a block's tile and threads on each of them, threadIdx.x along the memory."""
    return (block_x, block_y) if access == "axpy" else (block_y, block_x)


def split_columns(
    cols: int, step: int, row_tiles: int, threads_per_block: int, device: Device
) -> tuple[int, int]:
    """How many blocks share a row, and the columns that each of them takes.

    Enough blocks for every multiprocessor to hold its 2048 threads, as long as each thread still
    has several columns to add; `step` columns are what one pass of the block covers.
    """
    wanted = ceil_div(device.multiprocessors * (2048 // threads_per_block), row_tiles)
    most = max(1, cols // (4 * step))
    splits = max(1, min(wanted, most, MAX_GRID_Y))
    cols_per_split = ceil_div(ceil_div(cols, splits), step) * step
    return ceil_div(cols, cols_per_split), cols_per_split


def split_evenly(
    problem: Problem, tiles: int, threads_per_block: int, step: int, wanted: int
) -> Geometry:
    """One launch: a block for each tile of rows, or up to `wanted` that share the tile's columns.

    Each of these splits has a whole number of `step` columns, so that vectors stay aligned; the
    last one to begin with a tile adds up what all of them post in the scratch array.
    """
    cols, block = problem.cols, (threads_per_block, 1, 1)
    if wanted <= 1 or cols < 2 * step:
        whole = {"splits": 1, "cols_per_split": ceil_div(cols, step) * step}
        return one_launch((tiles, 1, 1), block, whole)
    splits = min(wanted, cols // step, MAX_GRID_Y)
    cols_per_split = ceil_div(ceil_div(cols, splits), step) * step
    splits = ceil_div(cols, cols_per_split)
    sizes = {"splits": splits, "cols_per_split": cols_per_split}
    return one_launch((tiles, splits, 1), block, sizes, splits * problem.rows, tiles, posts=True)


@functools.cache
def loads_for_one(width: int, itemsize: int) -> int:
    """Loads of `width` elements that move as many bytes as one of the widest: 1, 2 or 4.

    Never more: loads of 2 bytes would want more registers than a thread has.
    """
    return min(4, max(1, LOAD_BYTES // (width * itemsize)))


def no_twofold(problem: Problem) -> str | None:
    """The answer of kernels that take a number to be one or two words."""
    if problem.precision.sums.fields is not None:
        return (
            f"accumulate={problem.accumulate!r} in {dtype_name(problem.dtype)} has sums of two"
            " numbers each"
        )
    return None


def accepts_all(problem: Problem) -> str | None:
    """The usual answer: no objection, whatever the problem."""
    return None


def wide_loads_object(problem: Problem, access: str, most_rows: int = MAX_GRID_X) -> str | None:
    """Why a kernel of wide loads along ``access`` with a block a tile can't have it, or None."""
    if problem.access != access:
        along = {"dot": "along the rows", "axpy": "down the columns"}[access]
        return f"wide loads {along} need memory to run there with a unit stride"
    if problem.splits_elements:
        return "an element of A is not aligned to its own size"
    if problem.rows > most_rows:
        return f"a block for each tile needs at most {most_rows} rows, not {problem.rows}"
    return None


# How deep sums are ------------------------------------------------------------------------------
#
# The depth of a sum is the number of additions on the longest way from one of its products to the
# sum. A sum of n products one after the other has n - 1; one of no products has -1. Kernels find
# theirs by adding up depths instead of numbers, in the order in which they add up numbers.


def shared_out(count: int, parties: int) -> np.ndarray:
    """How many of `count` things each of `parties` gets that takes every `parties`-th."""
    return np.maximum(count - np.arange(parties) + parties - 1, 0) // parties


def joined(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Depths of sums of two: to add to a sum of no products rounds nothing."""
    return np.maximum(left, right) + ((left >= 0) & (right >= 0))


def in_order(depths: np.ndarray) -> np.ndarray:
    """Depth of what is added up from first to last, along the first axis."""
    return functools.reduce(joined, depths)


def in_halves(depths: np.ndarray) -> np.ndarray:
    """The same for a tree that adds the second half to the first, of a power of two."""
    while len(depths) > 1:
        half = len(depths) // 2
        depths = joined(depths[:half], depths[half:])
    return depths[0]


def of_splits(problem: Problem, geometry: Geometry, depth_of: Callable[[int], Any]) -> np.ndarray:
    """Depth of each split of a row, by a function of how many columns it has."""
    splits, most = (geometry.sizes[name] for name in ("splits", "cols_per_split"))
    last = depth_of(problem.cols - (splits - 1) * most)
    return np.array([depth_of(most)] * (splits - 1) + [last])  # all but the last are alike


def of_finishers(depths: np.ndarray, finishers: int, batch: int) -> np.ndarray:
    """Depths of splits once `finishers` threads have shared them, `batch` of a thread at a time."""
    turns = ceil_div(len(depths), finishers * batch)
    padded = np.full((turns * batch * finishers, *depths.shape[1:]), -1)
    padded[: len(depths)] = depths
    several = padded.reshape(turns, batch, finishers, *depths.shape[1:])
    return in_order(in_halves(several.swapaxes(0, 1)))


def _left_to_right(problem: Problem, geometry: Geometry, knobs: Mapping[str, int]) -> int:
    """For one thread that takes all columns of a row in their order; no order is deeper."""
    return max(problem.cols - 1, 0)


def _pointer(knobs: Mapping[str, int]) -> str:
    return "pointer"


@dataclass(frozen=True, eq=False)
class Kernel:
    """One rung of the ladder, or a kernel beside it.

    Attributes
    ----------
    name : str
        What ``kernel=`` takes, and tables, tests and errors use.
    rung : int
        Place on the ladder; only the order of reading.
    build : callable
        ``build(spec)`` gives the kernel functions, plain Python, in launch order.
    geometry : callable
        ``geometry(problem, device, knobs)`` gives the :class:`~gemv._problem.Geometry`.
    tile : callable
        ``tile(knobs)`` gives the rows and columns that one block handles in one step: the sizes
        around which tails go wrong, so tests are built from them.
    knobs : mapping of str to int
        Defaults of the compile-time constants.
    small_knobs : mapping of str to int
        The smallest sensible constants, for tests on the simulator.
    teaching : bool
        True for a kernel that is there to show something and is never selected by itself: the
        rungs that later ones overtake, and all kernels beside the ladder.
    beside : bool
        True for a kernel beside the ladder, False for a rung.
    same_bits : bool
        False when the order of the sum changes from run to run.
    wide : bool
        True for a kernel that moves several elements by one load, if their alignment allows it.
    phased : bool
        True for a kernel whose loads are the widest there are wherever lines of A begin. The order
        of its sums follows the addresses of lines modulo 16 bytes, or the distance between lines as
        well. Where its grid takes :attr:`~gemv._problem.Problem.phases` into account, their number
        is in ``sizes``.
    splits_apart : bool
        True for a kernel of one function where one block adds the splits up: ``blockIdx.y`` is
        the split, its sums go to ``scratch[split*rows + row]``, and one of ``splits`` numbers is
        drawn for each. Some splits can then run in a launch of their own, ahead of the others.
    accepts : callable
        ``accepts(problem)`` gives None, or the reason why this kernel refuses the problem.
    depth : callable
        ``depth(problem, geometry, knobs)``: additions on the longest way from a product to its
        row's sum, in the row where it is longest; adding a zero in place of a product that is not
        there does not count. The error bound follows from it. Where the order follows what a
        :class:`~gemv._problem.Problem` does not tell, it is the depth of the deepest of these
        orders: of all addresses of A with the alignment that is known, or of all orders of arrival.
    x_home : callable
        ``x_home(knobs)`` says how x reaches the kernel: ``"pointer"``, or ``"constant"`` and
        ``"value"`` for a contiguous copy in the constant symbol ``gemv_x`` or in the parameters.
    doc : str
        The lesson: the docstring of the kernel's file.
    """

    name: str
    rung: int
    build: Callable[[Spec], tuple[Callable, ...]]
    geometry: Callable[[Problem, Device, Mapping[str, int]], Geometry]
    tile: Callable[[Mapping[str, int]], tuple[int, int]]
    doc: str
    knobs: Mapping[str, int] = field(default_factory=dict)
    small_knobs: Mapping[str, int] = field(default_factory=dict)
    teaching: bool = False
    beside: bool = False
    same_bits: bool = True
    wide: bool = False
    phased: bool = False
    splits_apart: bool = False
    accepts: Callable[[Problem], str | None] = accepts_all
    depth: Callable[[Problem, Geometry, Mapping[str, int]], int] = _left_to_right
    x_home: Callable[[Mapping[str, int]], str] = _pointer

    @property
    def idea(self) -> str:
        """First sentence of the lesson."""
        return (self.doc or "").strip().splitlines()[0]

    def objection(self, knobs: Mapping[str, Any]) -> str | None:
        """Why these are no constants of this kernel, or None; `geometry` knows how they combine."""
        unknown = set(knobs) - set(self.knobs)
        if unknown:
            known = ", ".join(self.knobs) or "none"
            names = ", ".join(sorted(unknown))
            return f"kernel {self.name!r} has no knob {names}; it has: {known}"
        for name, value in knobs.items():
            least = 0 if name in _ZERO_MEANS_NONE else 1
            if type(value) is not int or not least <= value <= MAX_GRID_X:
                return (
                    f"{self.name}: {name} must be an integer from {least} to {MAX_GRID_X}, got"
                    f" {describe(value)}"
                )
        return None

    def spec(
        self,
        problem: Problem,
        knobs: Mapping[str, int] | None = None,
        homes: tuple[str, str] = ("arguments", "arguments"),
        literals: tuple[Any, ...] = (),
    ) -> Spec:
        """The Spec of `problem`, with `knobs` over this kernel's defaults."""
        objection = self.objection(knobs or {})
        if objection:
            raise ValueError(objection)
        return Spec(
            problem.dtype,
            problem.conj,
            problem.access,
            tuple(sorted({**self.knobs, **(knobs or {})}.items())),
            homes,
            # Values that are not compiled in must not make machine code of their own.
            literals if "literal" in homes else (),
            self._widths(problem),
            problem.result,
            problem.accumulate,
            self.wide and not self.phased and problem.whole,
        )

    def _widths(self, problem: Problem) -> tuple[int, int]:
        if self.phased:
            return LOAD_BYTES // problem.dtype.itemsize, 0
        return problem.widths if self.wide else (1, 0)

    def functions(self, spec: Spec) -> tuple[Callable, ...]:
        """The kernel functions for `spec`, built once."""
        return _functions(self.build, spec)


@functools.lru_cache(maxsize=1024)
def _functions(build: Callable[[Spec], tuple[Callable, ...]], spec: Spec) -> tuple[Callable, ...]:
    return tuple(fetching(function, spec) for function in build(spec))
