"""What a kernel is compiled for, and the homes of alpha and beta."""

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
        Whether every line of A is a whole number of vectors, so that the kernel needs no code for
        elements that fill none: see :attr:`gemv.core.problem.Problem.whole`.
    levels : int
        Dimensions of the batch whose items are computed; 0 for a single product.
    conjugate_x : bool
        Whether elements of x are conjugated as they are read, in a batch.
    table : {"", "grid", "block"}
        How blocks find their item of a list, whose sizes are in a table: see
        :mod:`gemv.kernels.tables`. Empty for one product, and for a batch.
    narrow : int
        Loads of a column that stand for each one of 16 bytes, for kernels in which that depends on
        the rows: see :attr:`gemv.kernels.kernel.Kernel.narrow`. Else 1.
    sparse : bool
        Whether loads bring nothing but their own bytes to the L2 cache: see
        :attr:`gemv.core.problem.Problem.sparse`.
    helpers : int
        Blocks that finish a tile whose columns are split, for several vectors: see
        :mod:`gemv.kernels.helpers_of_ends`. Else 1.
    old_y : bool
        Whether the old y is read from memory of its own: see :mod:`gemv.kernels.old_y`.
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
    levels: int = 0
    conjugate_x: bool = False
    table: str = ""
    narrow: int = 1
    sparse: bool = False
    helpers: int = 1
    old_y: bool = False

    def __getitem__(self, knob: str) -> int:
        return dict(self.knobs)[knob]

    @property
    def precision(self) -> Precision:
        """The dtypes in memory, and those of factors and sums."""
        return Precision.of(self.dtype, self.y_dtype, self.accumulate)

    @property
    def number(self) -> Any:
        """The type of elements once they are loaded, of sums, and of shared and local arrays."""
        sums = self.precision.sums
        if sums.fields is None:
            return sums.type
        from gemv.language import element_of_arrays

        return element_of_arrays(sums)

    @property
    def zero(self) -> Any:
        """The number that a sum starts from; typed, so that sums keep their precision."""
        sums = self.precision.sums
        if sums.fields is None:
            return sums.type(0)
        from gemv.language.twofold import zero

        return zero(sums)

    @property
    def min_blocks(self) -> int:
        """Blocks that must fit on a multiprocessor, which limits the registers of a thread.

        The knob ``MIN_BLOCKS`` is for plain sums. Wider sums take more registers, so fewer blocks
        have to fit. Vectors of eight narrow numbers take more as well: unpacked, they need more
        than 64 registers a thread.
        """
        blocks = self["MIN_BLOCKS"]
        if self.accumulate == "plain":
            return blocks // 2 if self.widths[0] > 4 and blocks > 4 else blocks
        precision = self.precision
        return max(1, blocks // (precision.sums.itemsize // max(precision.data.itemsize, 1)))

    @property
    def constant_bytes(self) -> int:
        """Bytes of constant memory that are left for symbols of the kernel's own."""
        taken = 2 * SLOTS * self.precision.factors.itemsize if "constant" in self.homes else 0
        return CONSTANT_BYTES - taken

    @property
    def op(self) -> Callable:
        """The function applied to each element of A: the identity or the complex conjugate."""
        from gemv.language import conjugate, same

        return conjugate if self.conj else same

    @property
    def shfl_xor(self) -> Callable:
        """``shfl_xor(value, lane_mask)``: the value of lane ``lane ^ lane_mask`` of a full warp."""
        from gemv.language import shfl_xor_complex, shfl_xor_real

        return shfl_xor_complex if self.dtype.kind == "c" else shfl_xor_real


#: The homes of alpha and beta: where a kernel can find them. Calls use the first three. A plain
#: global load and a number fixed at compile time exist only to be measured against these.
HOMES = ("arguments", "constant", "pointer", "global", "literal")

_HOME_TEXTS = {
    "arguments": "kernel arguments",
    "constant": "constant memory",
    "pointer": "device memory through the read-only cache",
    "global": "device memory by plain loads",
    "literal": "the machine code",
}


def describe_homes(homes: tuple[str, str]) -> str:
    """Where alpha and beta are, in words that follow "alpha and beta from"."""
    alpha, beta = (_HOME_TEXTS[home] for home in homes)
    return alpha if alpha == beta else f"{alpha} (alpha) and {beta} (beta)"


#: The symbol in constant memory that holds alpha and beta: an array of slots, each with one of
#: both.
COEFFICIENTS = "gemv_coefficients"
#: The symbol in constant memory that holds x, for a kernel that reads x from there.
X_SYMBOL = "gemv_x"
#: Slots of that symbol. A driver queues about as many launches, and each of them can have alpha and
#: beta of its own. A slot takes 32 bytes at most, so half of the 64 KB is left.
SLOTS = 1024
