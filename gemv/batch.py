""":class:`Batch`: matrices of different sizes that stay where they are, multiplied together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gemv.arrays.adopt import on_device, rank_of
from gemv.calls import ragged, ragged_host, ragged_run, ragged_together
from gemv.calls.plan_ragged import BatchPlan
from gemv.calls.ragged import Product
from gemv.core.rules import flag, type_error
from gemv.engines import backend as engines_backend

if TYPE_CHECKING:
    from gemv.calls.explain_list import ListExplanation


class Batch:
    """Matrices of different sizes, checked and laid out once, for many products.

    Device arrays stay where they are; the batch keeps references to them. Matrices in host memory
    are copied to the GPU once, and vectors are then in host memory, too. Without a GPU nothing is
    copied, and SciPy's BLAS computes item by item.

    Parameters
    ----------
    arrays : sequence of arrays of shape (m, n)
        The matrices, of any sizes and strides, all of one dtype and in one place. Their shapes,
        strides and memory must not change while the batch is used. Values of device arrays may
        change, and the next product uses the new ones. Values of host arrays must not change.
    trans : {0, 1, 2, "N", "T", "C"} or a sequence of these, optional
        A, its transpose or its conjugate transpose, for all items or for each.
    accumulate, out_dtype
        As in :func:`gemv.gemv`.

    Attributes
    ----------
    dtype : numpy.dtype
        Of the matrices and of x.
    shapes : list of (int, int)
        The lengths of y and of x, for each item.

    Raises
    ------
    TypeError, ValueError
        As :func:`gemv.gemv_batched` does.
    MemoryError
        If matrices in host memory do not fit into the memory of the GPU.

    See Also
    --------
    gemv_batched : For a single call.
    Matrix : For one matrix that stays.

    Examples
    --------
    >>> import gemv, numpy as np
    >>> batch = gemv.Batch([np.eye(2), np.array([[1.0, 2.0, 3.0]])])
    >>> batch @ [[1.0, 2.0], [1.0, 1.0, 1.0]]
    [array([1., 2.]), array([6.])]
    >>> batch @ np.array([1.0, 2.0, 1.0, 1.0, 1.0])
    array([1., 2., 6.])
    """

    #: ``array @ batch`` is Python's TypeError: NumPy does not take a batch for an array of objects.
    __array_ufunc__ = None

    def __init__(
        self,
        arrays: Sequence[Any],
        trans: Any = 0,
        *,
        accumulate: str = "plain",
        out_dtype: Any = None,
    ) -> None:
        listed = ragged.sequence("Batch", "a", arrays)
        self._matrices = ragged.bind_matrices("Batch", listed, trans, accumulate, out_dtype)
        self._known: dict[Any, Any] = {}
        self._copies: list[Any] | None = None
        if self._matrices.on_host and engines_backend.backend() != "host":
            self._copies = self._copied()

    def _copied(self) -> list[Any]:
        """The matrices on the device, as operands."""
        engine, data = engines_backend.engine(), self._matrices.precision.data
        copies = []
        try:
            for a in self._matrices.a:
                empty = 0 in a.shape
                there = a if empty else on_device(engine.matrix(a, data), engines_backend.HOME)
                copies.append(there)
        except MemoryError:
            nbytes = sum(a.shape[0] * a.shape[1] for a in self._matrices.a) * data.itemsize
            raise MemoryError(
                f"Batch: the {len(self)} matrices take {nbytes} bytes, more than the GPU's memory"
                " has left; gemv.gemv_batched copies those of one call"
            ) from None
        return copies

    @property
    def dtype(self) -> np.dtype:
        return self._matrices.precision.data

    @property
    def shapes(self) -> list[tuple[int, int]]:
        return [(problem.rows, problem.cols) for problem in self._matrices.problems]

    def __len__(self) -> int:
        return len(self._matrices.a)

    def __reduce__(self) -> Any:
        raise TypeError(
            "a gemv.Batch can be neither pickled nor copied: its memory belongs to this process."
            " Send the arrays, and make another gemv.Batch where it is needed"
        )

    def __repr__(self) -> str:
        rows, cols = (sum(each) for each in zip((0, 0), *self.shapes, strict=True))
        return f"<gemv.Batch of {len(self)} matrices, {rows} rows and {cols} columns, {self.dtype}>"

    def __matmul__(self, xs: Any) -> Any:
        """``op(A) @ x`` for each item: a list, or one vector if `xs` is one.

        One vector holds the x of all items, one after the other, and the result holds their y: the
        batch is then a block-diagonal matrix.
        """
        if not isinstance(xs, (list, tuple)) and rank_of(xs) == 1:
            return self._block_diagonal(xs)
        return self.gemv(1, xs)

    def gemv(
        self,
        alpha: Any,
        xs: Sequence[Any],
        beta: Any = 0,
        ys: Sequence[Any] | None = None,
        *,
        overwrite_y: Any = 0,
        stream: Any = None,
    ) -> list[Any]:
        """``alpha*op(A)*x + beta*y`` for each item.

        Parameters
        ----------
        alpha, xs, beta, ys, overwrite_y, stream
            As in :func:`gemv.gemv_batched`.

        Returns
        -------
        list of arrays
            For each item its y of `ys` if that was overwritten, else a new array.
        """
        routine, count = "Batch.gemv", len(self)
        matrices = self._matrices._replace(routine=routine)
        x = ragged.adopted(routine, "x", xs, count)
        y: list[Any] = [None] * count if ys is None else ragged.adopted(routine, "y", ys, count)
        overwrite = flag(routine, "overwrite_y", overwrite_y)
        product = ragged.bind_product(matrices, alpha, x, beta, y, overwrite)
        return self._execute(product, stream)

    def plan(
        self,
        xs: Sequence[Any],
        ys: Sequence[Any],
        alpha: Any = 1,
        beta: Any = 0,
        *,
        stream: Any = None,
    ) -> BatchPlan:
        """The product bound to vectors on the device, for calls that check and copy nothing.

        Parameters
        ----------
        xs, ys : sequence of arrays
            Device arrays; each call overwrites all of `ys`. The plan keeps references to them.
        alpha, beta : number or sequence of numbers, optional
            Factors, for all items or for each.
        stream : stream, optional
            The stream of all calls that are not given another one.

        Returns
        -------
        BatchPlan
            ``plan()`` launches the product. A captured graph may contain such calls.

        Raises
        ------
        TypeError, ValueError
            As :meth:`gemv` does, and for vectors in host memory.
        RuntimeError
            While a stream is being captured.
        """
        routine, count = "Batch.plan", len(self)
        matrices = self._matrices._replace(routine=routine)
        if matrices.on_host:
            raise type_error(
                routine, "x", "the matrices were in host memory, and a plan needs device arrays"
            )
        xs, ys = ragged.sequence(routine, "x", xs), ragged.sequence(routine, "y", ys)
        x = ragged.adopted(routine, "x", xs, count)
        y = ragged.adopted(routine, "y", ys, count)
        product = ragged.bind_product(matrices, alpha, x, beta, y, True)
        return BatchPlan(product, xs, ys, self._known, stream)

    def explain(self) -> ListExplanation:
        """How the products with contiguous, aligned vectors are launched; nothing is computed.

        Returns
        -------
        ListExplanation
            As data; ``str()`` of it has a line for each launch.
        """
        from gemv.calls import explain_list

        return explain_list.of_matrices(self._matrices, self._copies_in_use())

    def _execute(self, product: Product, stream: Any) -> list[Any]:
        if product.matrices.on_host:
            return ragged_host.in_host_memory(product, stream, self._copies_in_use())
        return ragged_run.execute(product, stream, self._known)

    def _copies_in_use(self) -> list[Any] | None:
        """The copies on the device, unless the backend is host by now."""
        return self._copies if engines_backend.backend() != "host" else None

    def _block_diagonal(self, x: Any) -> Any:
        matrices = self._matrices._replace(routine="Batch.gemv")
        if not matrices.on_host:
            return ragged_together.execute(matrices, x, self._known)
        parts = ragged.parts(matrices, ragged.whole(matrices, x))
        y: list[Any] = [None] * len(self)
        product = ragged.bind_product(matrices, 1, parts, 0, y, False)
        return ragged_host.in_host_memory(product, None, self._copies_in_use(), together=True)[0]
