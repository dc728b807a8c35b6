"""The dtypes of operands, sums and factors, and the letters of BLAS for them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

#: bfloat16 is the upper half of a float32. NumPy lacks it, so this is a struct of its 16 bits.
BFLOAT16 = np.dtype([("bfloat16", np.uint16)], align=True)

#: A letter for every dtype of operands: the four prefixes of BLAS, and two for the narrow ones.
DTYPES: dict[str, np.dtype] = {
    "s": np.dtype(np.float32),
    "d": np.dtype(np.float64),
    "c": np.dtype(np.complex64),
    "z": np.dtype(np.complex128),
    "h": np.dtype(np.float16),
    "b": BFLOAT16,
}
PREFIXES: dict[np.dtype, str] = {dtype: prefix for prefix, dtype in DTYPES.items()}

#: Dtypes of 16 bits. They are used in memory only; kernels compute with float32 instead.
NARROW: tuple[np.dtype, ...] = (DTYPES["h"], DTYPES["b"])

#: How products are added up: in the precision of their factors, in one twice as wide, or as sums of
#: two numbers in the precision of their factors.
ACCUMULATE = ("plain", "wide", "pairs")
#: The usual one, which public functions compare by identity: that takes no time, and an array that
#: is passed in its place is no error before it is checked.
PLAIN = ACCUMULATE[0]

#: A sum of two float64: the rounded sum, and what rounding has lost. A complex sum is two of these.
TWOFOLD = np.dtype([("high", np.float64), ("low", np.float64)])
COMPLEX_TWOFOLD = np.dtype([("real", TWOFOLD), ("imag", TWOFOLD)])
#: The same with two float32.
PAIR = np.dtype([("high", np.float32), ("low", np.float32)])
COMPLEX_PAIR = np.dtype([("real", PAIR), ("imag", PAIR)])
_PAIRS = {
    DTYPES["s"]: PAIR,
    DTYPES["c"]: COMPLEX_PAIR,
    DTYPES["d"]: TWOFOLD,
    DTYPES["z"]: COMPLEX_TWOFOLD,
}
_WIDER = {**_PAIRS, DTYPES["s"]: DTYPES["d"], DTYPES["c"]: DTYPES["z"]}


def dtype_name(dtype: np.dtype) -> str:
    """The name of a dtype for people to read; NumPy has none for bfloat16."""
    return "bfloat16" if dtype == BFLOAT16 else str(dtype)


class Precision(NamedTuple):
    """The dtypes of one product: those in memory, and those that it is computed in.

    Attributes
    ----------
    data : numpy.dtype
        Of A and x.
    y : numpy.dtype
        Of y.
    factors : numpy.dtype
        Of alpha and beta.
    sums : numpy.dtype
        Of elements once they are loaded, and of every product and sum.
    """

    data: np.dtype
    y: np.dtype
    factors: np.dtype
    sums: np.dtype

    @staticmethod
    def of(
        dtype: np.dtype, y_dtype: np.dtype | None = None, accumulate: str = "plain"
    ) -> Precision:
        """The precision for A and x of `dtype`.

        Narrow numbers are computed with in float32, others in their own dtype. `accumulate` "wide"
        adds up in a dtype twice as wide, "pairs" in sums of two numbers.
        """
        factors = DTYPES["s"] if dtype in NARROW else dtype
        sums = factors
        if accumulate != "plain":
            sums = (_WIDER if accumulate == "wide" else _PAIRS)[factors]
        return Precision(dtype, dtype if y_dtype is None else y_dtype, factors, sums)
