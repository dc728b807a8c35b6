"""What SciPy sees of a :class:`gemv.Matrix`: a linear operator, its transpose and its adjoint.

SciPy's class asks for products of vectors in host memory. These classes read such vectors by the
rules of :func:`gemv.gemv`, take vectors on the GPU as well, and leave the products to three methods
that :class:`gemv.Matrix` has: ``_vectors``, ``_on_device`` and ``_turned``. A sharded matrix has
``_several_on_device`` as well.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator

from gemv.arrays import adopt, host, libraries
from gemv.core.dtypes import DTYPES, NARROW, dtype_name
from gemv.core.narrow import cast
from gemv.core.operand import Operand
from gemv.core.rules import type_error, value_error
from gemv.core.values import typed
from gemv.engines import backend

#: Which form of the matrix a product uses: itself, its transpose, its conjugate transpose (BLAS's
#: codes for ``trans``) or its conjugate. Transposing a form flips bit 0 of its code, taking the
#: adjoint flips bit 1.
AS_IT_IS, TRANSPOSED, ADJOINT, CONJUGATE = range(4)


#: Linear operators compute in BLAS's own precisions.
_KNOWN = tuple(DTYPES[letter] for letter in "sdcz")


class Operator(LinearOperator):
    """SciPy's operator, with vectors read by the rules of :func:`gemv.gemv`.

    SciPy itself reads them with :func:`numpy.asarray`, which drops the mask of a masked array.
    """

    #: The form of the matrix that this operator is.
    _op = AS_IT_IS

    def matvec(self, x: Any) -> Any:
        """``A @ x`` for a vector in host memory or on the GPU.

        Parameters
        ----------
        x : array of shape (n,)

        Returns
        -------
        array of shape (m,)
            A NumPy array, or one of the library of `x`.
        """
        if adopt.is_device_array(x):
            return self._on_device(self._op, x)
        return super().matvec(_vector(x, self.shape[1]))

    def rmatvec(self, x: Any) -> Any:
        """``A.H @ x`` for a vector in host memory or on the GPU.

        Parameters
        ----------
        x : array of shape (m,)

        Returns
        -------
        array of shape (n,)
            A NumPy array, or one of the library of `x`.
        """
        if adopt.is_device_array(x):
            return self._on_device(self._op ^ ADJOINT, x)
        return super().rmatvec(_vector(x, self.shape[0]))

    def matmat(self, X: Any) -> Any:
        """``A @ X``, up to 16 columns by one launch, each with the bits of ``A @ x``.

        Parameters
        ----------
        X : array of shape (n, k)
            In host memory; for a sharded matrix, in host memory or on a GPU.

        Returns
        -------
        array of shape (m, k)
            A NumPy array, or one of the library of `X`.
        """
        if adopt.is_device_array(X):
            return self._several_on_device(self._op, X)
        return super().matmat(_columns(X, self.shape[1]))

    def rmatmat(self, X: Any) -> Any:
        """``A.H @ X``, as :meth:`matmat`.

        Parameters
        ----------
        X : array of shape (m, k)
            As in :meth:`matmat`.

        Returns
        -------
        array of shape (n, k)
            As in :meth:`matmat`.
        """
        if adopt.is_device_array(X):
            return self._several_on_device(self._op ^ ADJOINT, X)
        return super().rmatmat(_columns(X, self.shape[0]))

    def dot(self, x: Any) -> Any:
        """``A @ x`` for a vector, for the columns of an array, or for another operator.

        Parameters
        ----------
        x : array of shape (n,) or (n, k), or LinearOperator

        Returns
        -------
        array of shape (m,) or (m, k), or LinearOperator
            An array in the place that `x` is in. On the GPU, a matrix on one device takes a vector
            only; a sharded matrix takes columns as well.
        """
        if isinstance(x, LinearOperator) or _is_factor(x):
            return super().dot(x)
        if adopt.is_device_array(x):
            return self._on_device(self._op, x)
        array = np.asarray(_one_or_more(x))
        return self.matvec(array) if array.ndim == 1 else self.matmat(array)

    def rdot(self, x: Any) -> Any:
        """``x @ A`` for a vector, for the rows of an array, or for another operator.

        Parameters
        ----------
        x : array of shape (m,) or (k, m), or LinearOperator

        Returns
        -------
        array of shape (n,) or (k, n), or LinearOperator
            An array in the place that `x` is in. On the GPU, `x` is one vector.
        """
        if isinstance(x, LinearOperator):
            return x.dot(self)
        if _is_factor(x):
            return super().dot(x)
        if adopt.is_device_array(x):  # SciPy would copy it to the host
            # The rows of a two-dimensional x are its vectors; `_on_device` would take its columns.
            device_vector(x, self.shape[0])
            return self._on_device(self._op ^ TRANSPOSED, x)
        array = np.asarray(_one_or_more(x))
        return self.T.matvec(array) if array.ndim == 1 else self.T.matmat(array.T).T

    # SciPy's own, from version 1.18 on, look at shapes first and have other words for them.

    def __matmul__(self, x: Any) -> Any:
        return super().__matmul__(x) if _is_factor(x) else self.dot(x)

    def __rmatmul__(self, x: Any) -> Any:
        return super().__rmatmul__(x) if _is_factor(x) else self.rdot(x)

    def __rmul__(self, x: Any) -> Any:
        return self.rdot(x)

    def _matvec(self, x: np.ndarray) -> np.ndarray:
        return self._vectors(self._op, x)

    def _rmatvec(self, x: np.ndarray) -> np.ndarray:
        return self._vectors(self._op ^ ADJOINT, x)

    def _matmat(self, x: np.ndarray) -> np.ndarray:
        return self._columns(self._op, x)

    def _rmatmat(self, x: np.ndarray) -> np.ndarray:
        return self._columns(self._op ^ ADJOINT, x)

    def _columns(self, op: int, x: np.ndarray) -> np.ndarray:
        result = np.swapaxes(self._vectors(op, np.swapaxes(x, -1, -2), True), -1, -2)
        return np.asmatrix(result) if isinstance(x, np.matrix) else result

    def _adjoint(self) -> LinearOperator:
        return self._turned(self._op ^ ADJOINT)

    def _transpose(self) -> LinearOperator:
        return self._turned(self._op ^ TRANSPOSED)

    def _turned(self, op: int) -> LinearOperator:
        """The operator of another form of the same matrix."""
        raise NotImplementedError

    def _vectors(self, op: int, x: Any, several: bool = False) -> np.ndarray:
        """A product for each vector along the last axis of `x`; `several` even for one vector."""
        raise NotImplementedError

    def _on_device(self, op: int, x: Any) -> Any:
        """One product of a vector on the GPU, as an array of that vector's library."""
        raise NotImplementedError

    def _several_on_device(self, op: int, x: Any) -> Any:
        """A product for each column of an array on the GPU; an error where that is not offered."""
        raise type_error(
            "Matrix",
            "x",
            f"x is a device array, {type(x).__name__}; several columns are taken from host memory,"
            " and A @ x takes one vector on the device",
        )


class KeptOperator(Operator):
    """A matrix that is kept where it is multiplied: vectors by its rules, products by a subclass.

    A subclass has ``_products``, for vectors in host memory, ``_on_device`` and ``_kept``.
    """

    def _turned(self, op: int) -> LinearOperator:
        return self if op == AS_IT_IS else Turned(self, op)

    def _vectors(self, op: int, x: Any, several: bool = False) -> np.ndarray:
        if op == CONJUGATE:
            return np.conj(self._vectors(AS_IT_IS, np.conj(x), several))
        rows, cols = self.shape if op == AS_IT_IS else self.shape[::-1]
        x = np.asarray(x)
        single = not several and x.size == cols and x.ndim <= 2
        shape = (rows,) if single else (*x.shape[:-1], rows)
        parts = x.reshape(1 if single else math.prod(x.shape[:-1]), cols)
        if x.dtype.kind == "c" and self.dtype.kind != "c":
            result = np.empty((len(parts), rows), np.result_type(self.dtype, np.complex64))
            result.real = self._products(op, parts.real)
            result.imag = self._products(op, parts.imag)
        else:
            result = self._products(op, parts)
        return result.reshape(shape)

    def _products(self, trans: int, x: np.ndarray) -> np.ndarray:
        """A product for each row of `x`, in host memory."""
        raise NotImplementedError

    def _kept(self) -> Any:
        """What is kept; an error once it was freed."""
        raise NotImplementedError

    def cupy_operator(self) -> Any:
        """The same matrix for ``cupyx.scipy.sparse.linalg``, whose solvers keep all on the GPU.

        Returns
        -------
        cupyx.scipy.sparse.linalg.LinearOperator
            For CuPy's vectors. It keeps the matrix in use.
        """
        from cupyx.scipy.sparse import linalg

        self._kept()
        return linalg.LinearOperator(
            self.shape,
            matvec=lambda x: self._on_device(AS_IT_IS, x.reshape(-1)),
            rmatvec=lambda x: self._on_device(ADJOINT, x.reshape(-1)),
            dtype=self.dtype,
        )


def _read(x: Any) -> np.ndarray:
    """One or more vectors in host memory as a NumPy array; narrow dtypes as float32."""
    array = host.host_numbers("Matrix", "x", x, libraries.exporter_of(x)[0])
    return cast(array, DTYPES["s"]) if array.dtype in NARROW else array


def device_vector(x: Any, length: int) -> Any:
    """The library of a vector on the GPU; an error unless it has so many elements."""
    try:
        library, shape = libraries.device_library(x), tuple(x.shape)
    except Exception:  # it has an interface and nothing else, or its attributes raise
        library = None
    if library is None:
        operand = adopt.adopt("Matrix", "x", x, None, backend.HOME)
        library, shape = operand.exporter, operand.shape
    if len(shape) != 1:
        raise ValueError(f"Matrix: x must have one dimension, got shape {shape}")
    if shape[0] != length:
        raise ValueError(f"Matrix: x must have {length} elements, got {shape[0]}")
    return library


def _is_factor(x: Any) -> bool:
    """Whether `x` is what SciPy multiplies an operator by; it takes text for a number."""
    return np.isscalar(x) and not isinstance(x, (str, bytes))


def _one_or_more(x: Any) -> np.ndarray:
    """A vector, or the columns of an array; SciPy's own error would write all elements."""
    array = _read(x)
    if array.ndim not in (1, 2):
        raise value_error(
            "Matrix", "x", f"x must have one or two dimensions, got shape {array.shape}"
        )
    return array


def _vector(x: Any, length: int) -> np.ndarray:
    """A vector in host memory, or a single column."""
    array = _read(x)
    if array.shape[-1:] != (length,) and array.shape != (length, 1):
        raise value_error("Matrix", "x", f"x must have {length} elements, got shape {array.shape}")
    return array


def _columns(x: Any, length: int) -> np.ndarray:
    """Several vectors in host memory, the columns of an array."""
    array = _read(x)
    if array.shape[-2:-1] != (length,):
        raise value_error(
            "Matrix",
            "x",
            f"x must have two dimensions and {length} rows, got shape {array.shape}",
        )
    return array


class Turned(Operator):
    """``A.H``, ``A.T`` or ``A.H.T`` of a :class:`gemv.Matrix`: a form without memory of its own."""

    def __init__(self, matrix: Operator, op: int) -> None:
        self._matrix = matrix
        self._op = op
        shape = matrix.shape if op == CONJUGATE else matrix.shape[::-1]
        super().__init__(matrix.dtype, shape)

    def __repr__(self) -> str:
        m, n = self.shape
        how = ("matrix", "transpose", "conjugate transpose", "conjugate")[self._op]
        return f"<{m}x{n} {how} of {self._matrix!r}>"

    def _turned(self, op: int) -> LinearOperator:
        return self._matrix._turned(op)

    def _vectors(self, op: int, x: Any, several: bool = False) -> np.ndarray:
        return self._matrix._vectors(op, x, several)

    def _on_device(self, op: int, x: Any) -> Any:
        return self._matrix._on_device(op, x)

    def _several_on_device(self, op: int, x: Any) -> Any:
        return self._matrix._several_on_device(op, x)


def precision_of(operand: Operand, asked: Any) -> np.dtype:
    """The dtype of all products with a matrix, by the rules of :func:`gemv.gemv`."""
    if asked is not None:
        known = ", ".join(map(str, _KNOWN))
        try:
            dtype = np.dtype(asked)
        except Exception:  # NumPy's own errors are of several types
            raise TypeError(f"Matrix: dtype must be one of {known}, got {typed(asked)}") from None
        if dtype not in _KNOWN:
            raise TypeError(f"Matrix: dtype must be one of {known}, got {dtype}")
        if operand.dtype.kind == "c" and dtype.kind != "c":
            raise TypeError(
                f"Matrix: a of dtype {operand.dtype} would lose its imaginary part in {dtype}"
            )
    elif operand.dtype.kind in "biu":
        dtype = DTYPES["d"]
    elif operand.dtype in NARROW and operand.on_host:
        dtype = DTYPES["s"]
    else:
        dtype = operand.dtype.newbyteorder("=")
    if not operand.on_host:
        dtype = operand.dtype if asked is None else dtype
        if dtype != operand.dtype:
            raise TypeError(
                f"Matrix: a has dtype {operand.dtype}, and device arrays are never converted"
            )
    if dtype not in _KNOWN:
        known = ", ".join(map(str, _KNOWN))
        raise TypeError(
            f"Matrix: a has dtype {dtype_name(operand.dtype)}; products are computed in {known}"
        )
    return dtype
