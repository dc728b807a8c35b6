"""What a kernel is compiled for, and where alpha and beta can be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemv.core.dtypes import Precision
from gemv.core.geometry import CONSTANT_BYTES


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
        ``"dot"``, ``"axpy"`` or ``"strided"``: see :attr:`gemv.core.problem.Problem.access`.
    knobs : tuple of (str, int)
        The kernel's compile-time constants.
    homes : (str, str)
        Where alpha and beta are read, each one of :data:`HOMES`.
    literals : (number, number) or ()
        Their values, where the home is ``"literal"``.
    widths : (int, int)
        Elements of A and of x that one load moves, for kernels with wide loads: see
        :attr:`gemv.core.problem.Problem.widths`.
    y_dtype : numpy.dtype
        Of y, if it is not that of A and x.
    accumulate : {"plain", "wide", "pairs"}
        The precision of products and sums: see :meth:`gemv.core.dtypes.Precision.of`.
    whole : bool
        Whether lines of A are whole vectors, so that no code is needed for what fills none: see
        :attr:`gemv.core.problem.Problem.whole`.
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
        from gemv.language import element_of_arrays

        return element_of_arrays(sums)

    @property
    def zero(self) -> Any:
        """Where a sum starts; typed, so that sums stay in their precision."""
        sums = self.precision.sums
        if sums.fields is None:
            return sums.type(0)
        from gemv.language.twofold import zero

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
        from gemv.language import common

        return common.conjugate if self.conj else common.same

    @property
    def shfl_xor(self) -> Callable:
        """``shfl_xor(value, lane_mask)``: the value of lane ``lane ^ lane_mask`` of a full warp."""
        from gemv.language import common

        return common.shfl_xor_complex if self.dtype.kind == "c" else common.shfl_xor_real


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
