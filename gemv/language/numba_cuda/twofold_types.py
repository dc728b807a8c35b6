"""The types of numbers that are summed twofold, and what Numba has to know of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.cuda.cudaimpl import registry as _registry
from numba.cuda.extending import models, register_model, typeof_impl

from gemv.core.dtypes import COMPLEX_PAIR, COMPLEX_TWOFOLD, PAIR, TWOFOLD
from gemv.language.twofold import NUMBERS, ComplexTwofold, Twofold


class _Type(types.Type):
    """A number that is a struct of real ones.

    Attributes
    ----------
    real : numba type
        Of the real numbers.
    parts : int
        1 for a real number, 2 for a complex one.
    plain : numba type
        The type that it is loaded from and rounded to.
    """

    def __init__(self, real: types.Float, parts: int) -> None:
        self.real, self.parts = real, parts
        #: What it is loaded from and rounded to.
        self.plain = (real, types.Complex(f"complex{2 * real.bitwidth}", real))[parts - 1]
        super().__init__(f"{type(self).__name__}({real}, {parts})")


class ExactType(_Type):
    """An element of A or x: `parts` real numbers."""


class TwofoldType(_Type):
    """A sum of two numbers: ``2 * parts`` real numbers, high and low in turns."""


_KINDS = {
    TWOFOLD: (types.float64, 1),
    COMPLEX_TWOFOLD: (types.float64, 2),
    PAIR: (types.float32, 1),
    COMPLEX_PAIR: (types.float32, 2),
}
#: Types of elements of A and x, and types of sums, by the dtype of sums.
EXACTS = {sums: ExactType(*kind) for sums, kind in _KINDS.items()}
SUMS = {sums: TwofoldType(*kind) for sums, kind in _KINDS.items()}


@register_model(ExactType)
class _ExactModel(models.StructModel):
    def __init__(self, manager, kind):
        members = [(f"part{k}", kind.real) for k in range(kind.parts)]
        super().__init__(manager, kind, members)


@register_model(TwofoldType)
class _TwofoldModel(models.StructModel):
    def __init__(self, manager, kind):
        members = [(f"part{k}", kind.real) for k in range(2 * kind.parts)]
        super().__init__(manager, kind, members)


@typeof_impl.register(Twofold)
@typeof_impl.register(ComplexTwofold)
def _typeof(value, c):
    return next(SUMS[sums] for sums, kind in NUMBERS.items() if type(value) is kind)


@_registry.lower_constant(TwofoldType)
def _constant(context, builder, kind, value):
    return ir.Constant(context.get_value_type(kind), None)


def element_of_arrays(sums: np.dtype) -> Any:
    return SUMS[sums]


def exact_of_arrays(sums: np.dtype) -> Any:
    return EXACTS[sums]
