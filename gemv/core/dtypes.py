"""The dtypes of operands, sums and factors, and what each letter of a BLAS name stands for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

#: bfloat16, the upper half of a float32, which NumPy lacks: its bits, under its name.
BFLOAT16 = np.dtype([("bfloat16", np.uint16)], align=True)

#: A letter for every dtype computed in: the four prefixes of BLAS and two for the narrow ones.
DTYPES: dict[str, np.dtype] = {
    "s": np.dtype(np.float32),
    "d": np.dtype(np.float64),
    "c": np.dtype(np.complex64),
    "z": np.dtype(np.complex128),
    "h": np.dtype(np.float16),
    "b": BFLOAT16,
}
PREFIXES: dict[np.dtype, str] = {dtype: prefix for prefix, dtype in DTYPES.items()}

#: Dtypes that only lie in memory: they are computed with in float32.
NARROW: tuple[np.dtype, ...] = (DTYPES["h"], DTYPES["b"])

#: How products are added up: in the precision of their factors, in one twice as wide, or in sums of
#: two numbers of that precision.
ACCUMULATE = ("plain", "wide", "pairs")

#: A sum of two float64, the second one what the first has lost; and two such for a complex one.
TWOFOLD = np.dtype([("high", np.float64), ("low", np.float64)])
COMPLEX_TWOFOLD = np.dtype([("real", TWOFOLD), ("imag", TWOFOLD)])
#: The same of float32.
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
    """The name of a dtype in words for people."""
    return "bfloat16" if dtype == BFLOAT16 else str(dtype)


class Precision(NamedTuple):
    """The dtypes of one product: what lies in memory, and what is computed in.

    Attributes
    ----------
    data : numpy.dtype
        Of A and x.
    y : numpy.dtype
        Of y.
    factors : numpy.dtype
        Of alpha and beta.
    sums : numpy.dtype
        Of an element once it is loaded, and of every product and sum.
    """

    data: np.dtype
    y: np.dtype
    factors: np.dtype
    sums: np.dtype

    @staticmethod
    def of(
        dtype: np.dtype, y_dtype: np.dtype | None = None, accumulate: str = "plain"
    ) -> Precision:
        """Narrow numbers are multiplied and added in float32, others as what they are."""
        factors = DTYPES["s"] if dtype in NARROW else dtype
        sums = factors
        if accumulate != "plain":
            sums = (_WIDER if accumulate == "wide" else _PAIRS)[factors]
        return Precision(dtype, dtype if y_dtype is None else y_dtype, factors, sums)
