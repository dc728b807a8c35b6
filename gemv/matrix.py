""":class:`gemv.Matrix`, which stays on the GPU: a linear operator for SciPy and CuPy."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from gemv import blas as gemv_blas
from gemv.arrays import adopt, host, libraries
from gemv.calls import batched
from gemv.calls.host_vectors import HostVectors
from gemv.calls.operators import (
    AS_IT_IS,
    CONJUGATE,
    TRANSPOSED,
    KeptOperator,
    device_vector,
    precision_of,
)
from gemv.calls.plan_batch import BoundBatch
from gemv.core.batch import MOST_VECTORS, aligned_step
from gemv.core.dtypes import PREFIXES
from gemv.core.operand import where
from gemv.core.rules import coefficient, transposition
from gemv.core.values import is_word
from gemv.engines import backend
from gemv.engines.host import known_kernel, refuse_kernel
from gemv.shards.make import spread

#: The default of beta, compared by identity: only with it does a product without y read no y.
_NO_BETA = 0


class Matrix(KeptOperator):
    """A matrix that is moved to the GPU once, so that only vectors move in a product.

    It is a :class:`scipy.sparse.linalg.LinearOperator`: SciPy's iterative solvers take it in place
    of a matrix. ``A @ x``, ``A.matvec(x)`` and ``A.rmatvec(x)`` take a vector in host memory and
    give one back; a vector on the GPU gives one of its own library. ``A.H`` and ``A.T`` are views
    of it. Of many columns (``A @ X``, ``A.matmat(X)``), up to 16 are multiplied by one launch.

    Parameters
    ----------
    a : array of shape (m, n)
        In host memory, it is copied to the GPU, and whatever happens to it later has no effect. On
        the GPU, it is used as it lies there.
    dtype : data type, optional
        Of a copied matrix: float32, float64, complex64 or complex128. By default that of `a`, where
        integers and booleans count as float64 and float16 as float32.
    kernel : str, optional
        Name of the kernel to use; by default one is selected.
    devices : "all" or list of int, optional
        Ordinals of GPUs, each of which gets a part of `a`; `a` is then in host memory. A GPU may
        be named several times. By default the current GPU gets all of `a`. A matrix with `devices`
        has the method `plan` in place of :meth:`gemv`, and no attribute `array`.
    split : {"rows", "columns", None}
        Whether each GPU gets some rows or some columns. None means rows, unless only columns can be
        cut evenly.
    gather : {"x", "all", None} or int
        Where the result of a vector on a GPU goes if there are `devices`: to the GPU of that
        vector, to each of them (a list of arrays), to none (a list of the parts where they are
        computed), or to the GPU with this ordinal.
    reproducible : bool, optional
        With `devices`, a product has the bits that it has on one GPU, and raises a ValueError if
        the cuts do not allow that. With False it does not raise, but adds the sums of the parts in
        the order of the parts.

    Attributes
    ----------
    shape : (int, int)
    dtype : numpy.dtype
        The precision of all products. Vectors are converted to it; a complex vector times a real
        matrix is two products.
    array : array
        The matrix as it is kept: a device array, or a NumPy array under the host backend.

    Raises
    ------
    ValueError, TypeError
        As :func:`gemv.gemv` does.
    MemoryError
        If the matrix does not fit; see :func:`gemv.gemv` for products that stream it instead.

    Notes
    -----
    Each product has the bits of :func:`gemv.gemv` with the same operands. Threads may share a
    matrix; products of vectors in host memory then wait for each other.

    Examples
    --------
    >>> import gemv, numpy as np
    >>> from scipy.sparse.linalg import cg
    >>> with gemv.Matrix([[4.0, 1.0], [1.0, 3.0]]) as a:
    ...     x, info = cg(a, np.array([6.0, 7.0]))
    >>> bool(np.allclose(x, [1.0, 2.0])), info
    (True, 0)
    """

    def __new__(
        cls,
        a: Any,
        dtype: Any = None,
        *,
        kernel: str | None = None,
        devices: Any = None,
        split: str | None = None,
        gather: Any = "x",
        reproducible: bool = True,
    ) -> Any:
        if devices is not None:
            return spread(a, dtype, kernel, devices, split, gather, reproducible)
        for name, given in (("split", split is not None), ("gather", not is_word(gather, ("x",)))):
            if given:
                raise ValueError(f"Matrix: {name} only applies with devices")
        return super().__new__(cls)

    def __init__(
        self,
        a: Any,
        dtype: Any = None,
        *,
        kernel: str | None = None,
        devices: None = None,
        split: None = None,
        gather: Any = "x",
        reproducible: bool = True,
    ) -> None:
        operand = adopt.adopt("Matrix", "a", a, None, backend.HOME)
        wanted = precision_of(operand, dtype)
        self._backend = backend.backend()
        if self._backend == "host":
            refuse_kernel("Matrix", kernel)
        elif kernel is not None:
            known_kernel("Matrix", kernel)
        self._kernel = kernel
        self._lock = threading.Lock()
        #: Vectors on the GPU and the plan bound to them, by ``trans``; those of several products
        #: at once and their launch, by ``trans`` and their number.
        self._bound: dict[Any, Any] = {}
        #: The same matrix as an array of another library, by the library's name.
        self._views: dict[str, Any] = {}
        #: If it is set, it is called while the GPU computes the product of a vector in host memory.
        self.meanwhile: Callable[[], object] | None = None
        self.array: Any
        if not operand.on_host:
            if self._backend == "host":
                raise TypeError(
                    f"Matrix: a is {where(operand)}, but the backend is host, which takes"
                    " host arrays only"
                )
            self.array = a
        elif self._backend == "host":
            self.array = np.array(host.host_copy(operand, wanted))
        else:
            self.array = backend.engine().matrix(operand, wanted)
        #: Ordinal of the GPU that keeps it and computes, whichever is current in a product.
        self._device = adopt.adopt("Matrix", "a", self.array, None, backend.HOME).device
        super().__init__(wanted, operand.shape)

    # Products ------------------------------------------------------------------------------------

    def gemv(self, alpha: Any, x: Any, beta: Any = _NO_BETA, y: Any = None, trans: Any = 0) -> Any:
        """``alpha*op(A)*x + beta*y`` for vectors in host memory.

        Parameters
        ----------
        alpha, beta : number
        x : array of shape (cols,)
        y : array of shape (rows,), optional
        trans : {0, 1, 2, "N", "T", "C"}, optional

        Returns
        -------
        numpy.ndarray of shape (rows,)
            A new array; y is not changed.
        """
        trans = transposition("Matrix.gemv", trans)
        rows, cols = self.shape if trans == 0 else self.shape[::-1]
        x = self._vector("x", x, cols)
        y = None if y is None else self._vector("y", y, rows)
        for name, value in (("alpha", alpha), ("beta", beta)):
            coefficient("Matrix.gemv", name, value, self.dtype)  # beta itself says if it was given
        return self._product(trans, alpha, x, beta, y)

    def _products(self, trans: int, x: np.ndarray) -> np.ndarray:
        """A product for each row of `x`, in host memory; some of them by one launch."""
        rows, cols = self.shape if trans == 0 else self.shape[::-1]
        step = MOST_VECTORS if rows and cols and self._backend != "host" else 1
        parts = []
        for first in range(0, len(x), step):
            some = x[first : first + step]
            if len(some) == 1:
                parts.append(self._product(trans, 1, some[0]).reshape(1, rows))
            else:
                parts.append(self._at_once(trans, some))
        if len(parts) == 1:  # a new array, which needs no copy
            return parts[0]
        return np.concatenate(parts) if parts else np.empty((0, rows), self.dtype)

    def _at_once(self, trans: int, x: np.ndarray) -> np.ndarray:
        """The products of a few vectors, which are the items of a batch that shares the matrix."""
        array = self._kept()
        if trans == 2 and self.dtype.kind != "c":
            trans = 1
        count, (rows, cols) = len(x), self.shape if trans == 0 else self.shape[::-1]
        padded = np.zeros((count, aligned_step(cols)), self.dtype)
        padded[:, :cols] = x  # each vector is aligned as a single one
        backend.require_device("Matrix")
        engine = backend.engine()
        with self._lock, engine.on(self._device):
            self._kept()
            bound = self._bound.get((trans, count))
            if bound is None:
                vectors = HostVectors(array, self._device, padded.size, count * rows, self.dtype)
                on_device = vectors.x.reshape(padded.shape)[:, :cols]
                y = vectors.y.reshape(count, rows)

                def check(alpha: Any, beta: Any, x: Any, y: Any) -> Any:
                    options = (0, 1, 0, 1), trans, 1, "plain", None
                    return batched.bind_blas(alpha, array, x, beta, y, *options)

                batch = BoundBatch(check, on_device, y, self._kernel)
                launch = functools.partial(batch, 1, 0, on_device, y)
                bound = self._bound[trans, count] = (vectors, launch)
            vectors, launch = bound
            return vectors.product(padded.reshape(-1), None, launch).reshape(count, rows)

    def _product(
        self, trans: int, alpha: Any, x: Any, beta: Any = _NO_BETA, y: Any = None
    ) -> np.ndarray:
        """One product of vectors in host memory; on a GPU, only they are copied."""
        array = self._kept()
        if trans == 2 and self.dtype.kind != "c":
            trans = 1
        rows, cols = self.shape if trans == 0 else self.shape[::-1]
        if rows == 0 or cols == 0:  # as gemv.gemv does: y is as it was
            return np.zeros(rows, self.dtype) if y is None else y.copy()
        if self._backend == "host":
            routine = getattr(gemv_blas, PREFIXES[self.dtype] + "gemv")
            return routine(alpha, array, np.asarray(x, self.dtype), beta, y, trans=trans)
        backend.require_device("Matrix")
        engine = backend.engine()
        with self._lock, engine.on(self._device):
            self._kept()  # another thread may have freed it in the meantime
            bound = self._bound.get(trans)
            if bound is None:
                vectors = HostVectors(array, self._device, cols, rows, self.dtype)
                plan = gemv_blas.plan(array, vectors.x, vectors.y, trans=trans, kernel=self._kernel)
                bound = self._bound[trans] = (vectors, plan)
            vectors, plan = bound
            y = 0 if y is None and beta is not _NO_BETA else y
            return vectors.product(
                x, y, lambda stream: plan(alpha, beta, stream=stream), self.meanwhile
            )

    def _on_device(self, op: int, x: Any) -> Any:
        array = self._kept()
        if op != AS_IT_IS and self.dtype.kind != "c":
            op = AS_IT_IS if op == CONJUGATE else TRANSPOSED
        if op == CONJUGATE:
            raise TypeError(
                "Matrix: the conjugate of a complex matrix takes vectors in host memory only"
            )
        library = device_vector(x, self.shape[1 if op == AS_IT_IS else 0])
        return gemv_blas.gemv(1, self._array_of(library, array), x, trans=op, kernel=self._kernel)

    def _array_of(self, library: Any, array: Any) -> Any:
        """The matrix as an array of `library`, sharing its memory."""
        view = self._views.get(library.name)
        if view is None:
            view = array
            if libraries.device_library(array) is not library:
                view = library.shared(array, self._device or 0)
            self._views[library.name] = view
        return view

    def _vector(self, name: str, vector: Any, length: int) -> np.ndarray:
        """A checked vector in host memory, contiguous and in the matrix's dtype."""
        operand = adopt.adopt("Matrix.gemv", name, vector, self.dtype, backend.HOME)
        if not operand.on_host:
            raise TypeError(
                f"Matrix.gemv: {name} is {where(operand)}; this product takes vectors in"
                " host memory, and gemv.gemv those beside the matrix's array"
            )
        if operand.shape[0] != length:
            raise ValueError(
                f"Matrix.gemv: {name} must have {length} elements, got {operand.shape[0]}"
            )
        return host.host_copy(operand, self.dtype)

    # The matrix itself -----------------------------------------------------------------------

    def free(self) -> None:
        """Give the memory back now; the matrix cannot be used afterwards.

        If the matrix was made from an array on the GPU, that array is not freed; only the reference
        to it is dropped. A second call does nothing.
        """
        with self._lock:
            self.array = None
            self._bound.clear()
            self._views.clear()
            if self._backend != "host":
                engine = backend.engine_of(self._backend)
                with engine.on(self._device):
                    engine.release()

    def __enter__(self) -> Matrix:
        self._kept()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.free()

    def _kept(self) -> Any:
        """The matrix as it is kept; an error once it was freed."""
        if self.array is None:
            raise ValueError("Matrix: the matrix was freed and cannot be used any more")
        return self.array

    def __reduce__(self) -> Any:
        raise TypeError(
            "a gemv.Matrix can be neither pickled nor copied: its memory belongs to this process."
            " Send the array, and make another gemv.Matrix where it is needed;"
            " gemv.dask.Matrix does so"
        )

    def __repr__(self) -> str:
        m, n = self.shape
        state = " (freed)" if self.array is None else ""
        return f"<{m}x{n} gemv.Matrix of {self.dtype} on the {self._backend} backend{state}>"
