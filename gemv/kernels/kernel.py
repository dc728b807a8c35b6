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

from gemv.core.dtypes import dtype_name
from gemv.core.geometry import LOAD_BYTES, MAX_GRID_X, Device, Geometry
from gemv.core.problem import Problem
from gemv.core.rules import typed
from gemv.kernels.spec import COEFFICIENTS, SLOTS, Spec

#: Constants that may be zero: no split, a single load, no table of factors, and the first home.
_ZERO_MEANS_NONE = ("BLOCKS_PER_SM", "VECTORS", "FACTORS", "X_HOME", "COLS")


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
    from gemv.language import constant_array, global_load, inlined, read_only_load

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
        ``geometry(problem, device, knobs)`` gives the :class:`~gemv.core.geometry.Geometry`.
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
        well. Where its grid takes :attr:`~gemv.core.problem.Problem.phases` into account, their
        number is in ``sizes``.
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
        :class:`~gemv.core.problem.Problem` does not tell, it is the depth of the deepest of these
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
