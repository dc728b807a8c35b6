"""SciPy's ``get_blas_funcs`` with this package's gemv in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gemv import blas as gemv_blas
from gemv.arrays import libraries
from gemv.arrays.base import Refusal


def get_blas_funcs(
    names: str | Sequence[str], arrays: Sequence[Any] = (), dtype: Any = None, **options: Any
) -> Any:
    """:func:`scipy.linalg.blas.get_blas_funcs` with our gemv in it.

    Parameters
    ----------
    names : str or sequence of str
        Names of routines without the letter for their dtype.
    arrays : sequence of array, optional
        Whose dtypes decide the letter; device arrays count as well.
    dtype : data type, optional
        The same, if there are no arrays.
    **options
        Passed on to SciPy.

    Returns
    -------
    function, or list of functions
        :func:`gemv.sgemv`, :func:`gemv.dgemv`, :func:`gemv.cgemv` or :func:`gemv.zgemv` for
        ``"gemv"``, SciPy's function for all others.

    Examples
    --------
    >>> import gemv, numpy as np
    >>> product, norm = gemv.get_blas_funcs(("gemv", "nrm2"), (np.eye(2, dtype=np.float32),))
    >>> product is gemv.sgemv, norm.typecode
    (True, 's')
    """
    from scipy.linalg import blas

    stand_ins = [_stand_in(array) for array in arrays]
    wanted = (names,) if isinstance(names, str) else tuple(names)
    functions = []
    for name in wanted:
        function = blas.get_blas_funcs(name, stand_ins, np.dtype(dtype), **options)
        if name == "gemv":
            ours = getattr(gemv_blas, function.typecode + "gemv")
            # What SciPy's own code reads from a function that it got this way.
            for attribute in ("typecode", "prefix", "dtype", "int_dtype"):
                setattr(ours, attribute, getattr(function, attribute))
            ours.module_name = "gemv"
            function = ours
        functions.append(function)
    return functions[0] if isinstance(names, str) else functions


def _stand_in(array: Any) -> np.ndarray:
    """An empty array of the same dtype and order: all that SciPy asks for."""
    if isinstance(array, np.ndarray):
        return array
    operand_dtype = getattr(array, "dtype", None)
    try:
        library, place = libraries.exporter_of(array)
        view = library.read(array) if place == "device" else None
    except Refusal as refusal:
        raise TypeError(f"get_blas_funcs: an array {refusal}") from None
    if view is not None:
        operand_dtype = view.dtype
    elif not isinstance(operand_dtype, np.dtype):
        operand_dtype = np.asarray(library.as_numpy(array)).dtype
    return np.empty((0, 0), operand_dtype)
