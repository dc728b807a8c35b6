"""The work of many problems counted at once: numbers of a problem that are arrays.

A kernel counts its work by plain integer arithmetic on the sizes of a problem. So the same
functions count for many problems together if sizes are arrays with an element for each problem:
one pass of Python then does what took one pass a problem. Two things are needed for that.

Where the way through the code depends on a size (an ``if``, a loop), all problems have to go the
same way. An array that is asked whether it is true, and is so for a part of the problems only,
raises :class:`Differ`. Then the problems are divided into those for which it is true and the
others, and each group begins anew (:meth:`Gathered.in_groups`).

And ``max`` and ``min`` of Python compare, so each of them would divide the problems. While
:func:`arrays` lasts, the modules that count have functions of these names that take arrays as well.
"""

from __future__ import annotations

import builtins
import functools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar

import numpy as np

from gemv.core.problem import Problem

T = TypeVar("T")

#: The fields of a problem that may be arrays; problems that differ elsewhere are apart.
SIZES = ("m", "n", "rows", "cols", "row_stride", "col_stride")
_NO_SIZES = dict.fromkeys(SIZES, 0)
#: Modules that count, beside those of kernels.
_MODULES = (
    "gemv.core.geometry", "gemv.core.problem", "gemv.selection.formula", "gemv.selection.items",
    "gemv.selection.ranking", "benchmarks.fit.candidates",
)  # fmt: skip


class Differ(Exception):
    """Problems go different ways from here on.

    Parameters
    ----------
    which : array of bool
        The problems that go one of these ways.
    """

    def __init__(self, which: np.ndarray) -> None:
        super().__init__("problems go different ways")
        self.which = which


class Many(np.ndarray):
    """An integer or a truth value for each of several problems."""

    def __bool__(self) -> bool:
        which = self.view(np.ndarray)
        count = np.count_nonzero(which)  # faster than `all` and `any`
        if count == which.size:
            return True
        if not count:
            return False
        raise Differ(which.astype(bool))

    def __index__(self) -> int:
        values = self.view(np.ndarray)
        same = values == values.flat[0]
        if not same.all():
            raise Differ(same)
        return int(values.flat[0])

    def __format__(self, spec: str) -> str:
        return "one of several numbers"  # in the text of an error, which nobody reads

    def bit_length(self) -> Many:
        """As of an int; of numbers below 2**53, which float64 holds."""
        return np.frexp(self.astype(float))[1].astype(np.int64)


class Gathered:
    """Problems that differ in their sizes alone, to be counted together."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self._template = problems[0]
        rows = [tuple(getattr(each, name) for name in SIZES) for each in problems]
        self._sizes = np.array(rows, np.int64).T
        if len({each._replace(**_NO_SIZES) for each in problems}) > 1:
            raise ValueError("problems that are counted together differ in their sizes alone")

    def in_groups(
        self, make: Callable[[Problem], T], which: np.ndarray
    ) -> Iterator[tuple[np.ndarray, T]]:
        """What `make` gives for each group of the problems `which` that go the same way."""
        left = [which] if len(which) else []
        while left:
            places = left.pop()
            columns = (column[places].view(Many) for column in self._sizes)
            try:
                found = make(self._template._replace(**dict(zip(SIZES, columns, strict=True))))
            except Differ as ways:
                left += [places[~ways.which], places[ways.which]]
                continue
            yield places, found


@contextmanager
def arrays() -> Iterator[None]:
    """While this lasts, what counts work takes arrays as well as numbers."""
    found = [
        module
        for name, module in list(sys.modules.items())
        if name in _MODULES or name.startswith("gemv.kernels.")
    ]
    before = [(module, name, vars(module).get(name)) for module in found for name in _own(module)]
    for module, name, _ in before:
        setattr(module, name, _FOR_ARRAYS[name])
    try:
        yield
    finally:
        for module, name, value in before:
            if value is None:
                delattr(module, name)
            else:
                setattr(module, name, value)


def _own(module: ModuleType) -> list[str]:
    """The names that a module needs for arrays: those of builtins, and what it has imported."""
    return [name for name in _FOR_ARRAYS if hasattr(builtins, name) or name in vars(module)]


def _extreme(usual: Callable, of_two: np.ufunc) -> Callable:
    """``max`` or ``min``, of arrays as well."""

    def extreme(*values: Any, **options: Any) -> Any:
        if len(values) == 1:
            values = tuple(values[0])
        if not options:
            for each in values:
                if isinstance(each, Many):
                    return functools.reduce(of_two, values)
        return usual(values, **options)

    return extreme


def _number(usual: type) -> Callable:
    """``int`` or ``float``, of arrays as well."""

    def number(value: Any = 0) -> Any:
        return value.astype(usual) if isinstance(value, Many) else usual(value)

    return number


def _gcd(*values: Any) -> Any:
    if any(isinstance(each, Many) for each in values):
        return functools.reduce(np.gcd, values)
    return math.gcd(*values)


_FOR_ARRAYS: dict[str, Any] = {
    "max": _extreme(max, np.maximum),
    "min": _extreme(min, np.minimum),
    "int": _number(int),
    "float": _number(float),
    "gcd": _gcd,
    "math": SimpleNamespace(**{**vars(math), "gcd": _gcd}),
}
