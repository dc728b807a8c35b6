"""A matrix whose shards lie on several devices of this process, as a linear operator."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from gemv.calls.operators import AS_IT_IS, CONJUGATE, TRANSPOSED, KeptOperator
from gemv.core import memo
from gemv.core.batch import MOST_VECTORS
from gemv.core.operand import Operand
from gemv.engines import backend
from gemv.shards.cut import Whole
from gemv.shards.from_host import FromHost
from gemv.shards.groups import Groups, groups_apart
from gemv.shards.places import Fabric, Gather
from gemv.shards.plan import ShardedPlan, vectors_of
from gemv.shards.products import Products
from gemv.shards.remembered import Layouts
from gemv.shards.steps import Shard, Target, as_vectors
from gemv.shards.streams import exported, hold, stream_of
from gemv.shards.vectors import NewVector, readable, rows_of


class ShardedMatrix(KeptOperator):
    """One matrix on several GPUs; ``gemv.Matrix(a, devices=...)`` and ``gemv.sharded`` make one.

    It is a :class:`scipy.sparse.linalg.LinearOperator`, as :class:`gemv.Matrix` is.

    Attributes
    ----------
    split : str
        ``"rows"`` or ``"columns"``: what a shard has some of.
    bounds : tuple of int
        The first row or column of each shard, and the end of the last one.
    places : tuple of str
        The device of each shard.
    """

    def __init__(
        self,
        whole: Whole,
        fabric: Fabric,
        shards: tuple[Shard, ...],
        gather: Gather,
        reproducible: bool,
        objection: str | None = None,
    ) -> None:
        self._whole, self._fabric, self._gather = whole, fabric, gather
        self._shards: tuple[Shard, ...] | None = shards
        self._reproducible, self._objection = reproducible, objection
        self._lock = threading.RLock()
        self._generation = memo.generation()
        #: By ``trans``.
        self._products_of: dict[int, Products] = {}
        #: By ``trans`` and the number of vectors.
        self._groups_of: dict[tuple[int, int], Groups] = {}
        self._layouts = Layouts()
        #: Graphs of products that come again and again, where there are GPUs.
        self._again: Any = None
        #: Products of vectors in host memory, by the same.
        self._from_host_of: dict[tuple[int, int], FromHost] = {}
        self.split, self.bounds = whole.split, whole.bounds
        self.places = tuple(shard.place.name for shard in shards)
        super().__init__(whole.dtype, whole.shape)

    # Products ------------------------------------------------------------------------------------

    def __matmul__(self, x: Any) -> Any:
        if self._layouts.on_device(x):  # no other operator, number or list, and of a known library
            return self._on_device(AS_IT_IS, x)
        return super().__matmul__(x)

    def _products(self, trans: int, x: np.ndarray) -> np.ndarray:
        """A product for each row of `x`, in host memory; some of them at once."""
        self.kept()
        trans = self._form(trans)
        rows, cols = self.shape if trans == 0 else self.shape[::-1]
        if not (len(x) and rows and cols):
            return np.zeros((len(x), rows), self.dtype)
        backend.require_device("Matrix")
        with self._lock, self._fabric.places[0].current():
            parts = [
                self._from_host(trans, x[first : first + MOST_VECTORS])
                for first in range(0, len(x), MOST_VECTORS)
            ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _from_host(self, trans: int, x: np.ndarray) -> np.ndarray:
        """The products of one vector or several in host memory, which are sent together."""
        backend.refuse_capture("Matrix", backend.engine().default_stream())
        count, cols = x.shape
        groups = self._groups(trans, count)
        from_host = self._from_host_of.get((trans, count))
        if from_host is None:
            usual = (1, MOST_VECTORS)
            if count not in usual:  # of all other numbers, only the last one is kept
                for each in [key for key in self._from_host_of if key[1] not in usual]:
                    del self._from_host_of[each]
            from_host = FromHost(cols, groups.rows, count, self.dtype)
            self._from_host_of[trans, count] = from_host
        make = functools.partial(self._apart(), trans, count)
        return from_host.product(x, groups, self._fabric.places[0].index, make)

    def _on_device(self, op: int, x: Any) -> Any:
        self.kept()
        trans = self._form(op)
        if trans == CONJUGATE:
            raise TypeError(
                "Matrix: the conjugate of a complex matrix takes vectors in host memory only"
            )
        rows, cols = self.shape if trans == 0 else self.shape[::-1]
        operand = self._layouts.operand(x, self.dtype, cols)
        if len(operand.shape) > 2:
            raise ValueError(
                f"Matrix: x must have one or two dimensions, got shape {operand.shape}"
            )
        if operand.shape[0] != cols:
            what = "elements" if len(operand.shape) == 1 else "rows"
            raise ValueError(f"Matrix: x must have {cols} {what}, got {operand.shape[0]}")
        if len(operand.shape) == 2:
            operand = rows_of(operand)
        if not rows or not cols or not operand.shape[0]:
            return self._zeros(trans, operand)
        with self._lock:
            return self._enqueue(trans, operand)

    def _several_on_device(self, op: int, x: Any) -> Any:
        return self._on_device(op, x)

    def _zeros(self, trans: int, x: Operand) -> Any:
        """The y of no elements of x, or of no vectors."""
        rows, cols = self.shape if trans == 0 else self.shape[::-1]
        count = x.shape[0] if len(x.shape) == 2 else 1
        if self._gather is not None:
            parts = [(index, rows) for index in self._targets(x)]
        elif rows and cols:
            with self._lock:
                parts = [(place.index, some) for place, some in self._groups(trans, 1).in_parts]
        else:  # an empty matrix has no product that would have parts
            parts = [(x.device, rows)]
        results = []
        for index, rows in parts:
            made = NewVector(x, index, rows * count, self.dtype, self._layouts)
            made.clear()
            y = made.finished()
            results.append(y if len(x.shape) == 1 else y.reshape((rows, count)))
        return results if self._gather in (None, "all") else results[0]

    def _enqueue(self, trans: int, x: Operand) -> Any:
        """The y of a vector on a device, or of several, in the places that `gather` asks for."""
        count = x.shape[0] if len(x.shape) == 2 else 1
        groups = self._groups(trans, count)
        x_stream = stream_of(x)
        keep = exported(x, x_stream)
        if len(x.shape) == 1 and self._gather in ("x", x.device):
            repeated = self._graph_of(trans, x, groups.rows, x_stream)
            if repeated is not None:
                y = NewVector(x, x.device, groups.rows, self.dtype, self._layouts)
                try:
                    repeated.run(x, x_stream, y)
                except BaseException:
                    with suppress(RuntimeError):  # as below
                        hold(x, keep, x_stream)
                    raise
                hold(x, keep, x_stream)
                return y.finished()
        parts: list[tuple[int | None, int]]
        if self._gather is None:
            parts = [(place.index, rows) for place, rows in groups.in_parts]
        else:
            parts = [(index, groups.rows) for index in self._targets(x)]
        made = [
            NewVector(x, index, rows * count, self.dtype, self._layouts) for index, rows in parts
        ]
        targets = [Target(y.operand, y.own) for y in made]
        if len(x.shape) == 2:
            pairs = zip(made, parts, strict=True)
            targets = [
                Target(as_vectors(y.operand, count, rows, rows), y.own) for y, (_, rows) in pairs
            ]
        try:  # every y is there by now, so nothing that reads x is enqueued if one does not fit
            source, source_stream = readable(x, x_stream, self._layouts)
            streams = [
                (x.device, x_stream), (x.device, source_stream),
                *((y.index, y.stream) for y in made),
            ]  # fmt: skip
            if self._gather is None:
                groups.run_in_parts(source, targets, streams)
            else:
                groups.run(source, targets, streams)
        except BaseException:
            with suppress(RuntimeError):  # of a lost GPU; the first error says more
                hold(x, keep, x_stream)  # work before the error may still read x
            raise
        hold(x, keep, x_stream)
        results = [each.finished(count if len(x.shape) == 2 else 0) for each in made]
        return results if self._gather in (None, "all") else results[0]

    def _graph_of(self, trans: int, x: Operand, rows: int, stream: int) -> Any:
        """What computes this product by one graph, if it came often enough."""
        if self._again is None:
            if backend.engine().name != "cuda":
                return None
            from gemv.shards.again import Again

            self._again = Again(self._apart(), self._fabric.places)
        return self._again.of(trans, x, rows, stream)

    def _targets(self, x: Operand) -> list[Any]:
        """The devices that get the whole y."""
        if self._gather == "all":
            indices = [place.index for place in self._fabric.places]
            return indices if x.device is None else list(dict.fromkeys(indices))
        if self._gather == "x" or x.device is None:
            return [x.device]
        return [self._gather]

    def _groups(self, trans: int, count: int) -> Groups:
        """The products of so many vectors, planned at first use and after a setting has changed."""
        self.kept()
        if self._generation != memo.generation():
            backend.require_device("Matrix")
            self._forget_products()
            self._generation = memo.generation()
        groups = self._groups_of.get((trans, count))
        if groups is None:
            products = self._products_of.get(trans)
            if products is None:
                products = self._products_of[trans] = Products(
                    self._whole, self._fabric, self.kept(), trans, self._reproducible,
                    self._objection,
                )  # fmt: skip
            groups = Groups(products, count)
            if count <= MOST_VECTORS:  # there are as many other numbers as there are callers
                self._groups_of[trans, count] = groups
        return groups

    def _forget_products(self) -> None:
        """Give the memory of all products back, behind the work on every GPU that may use it."""
        try:
            if self._again is not None:
                self._again.forget()
                self._again = None  # it keeps the shards
            for from_host in self._from_host_of.values():
                from_host.forget()
            for place in self._fabric.places:
                place.settle()
        finally:
            self._products_of.clear()
            self._groups_of.clear()

    def plan(self, x: Any, y: Any, trans: Any = 0) -> ShardedPlan:
        """Bind a product to its vectors, checked and prepared once, and launched many times.

        Parameters
        ----------
        x, y : device array of shape (cols,) and (rows,), or (cols, k) and (rows, k)
            On any GPU; y is overwritten by each call, whatever `gather` says. A vector is
            contiguous, and x begins at a multiple of 16 bytes; of k vectors each column is
            contiguous, and columns may have any distance.
        trans : {0, 1, 2, "N", "T", "C"}, optional
            Which form of the matrix is multiplied.

        Returns
        -------
        ShardedPlan
            Call it without arguments: it computes y and returns it.
        """
        apart = self._apart()
        form, operand_x, operand_y = vectors_of(self, x, y, trans)
        count = 1 if len(operand_x.shape) == 1 else operand_x.shape[0]
        return ShardedPlan(functools.partial(apart, form, count), operand_x, operand_y)

    def _apart(self) -> Callable[[int, int], Groups]:
        """What makes products that share nothing with others but the shards; not the matrix."""
        return functools.partial(
            groups_apart, self._whole, self._fabric, self.kept(), self._reproducible,
            self._objection,
        )  # fmt: skip

    # Vectors -------------------------------------------------------------------------------------

    def _form(self, op: int) -> int:
        """BLAS's code; a real matrix is its own conjugate."""
        if op != AS_IT_IS and self.dtype.kind != "c":
            return AS_IT_IS if op == CONJUGATE else TRANSPOSED
        return op

    def cupy_operator(self) -> Any:
        """As :meth:`gemv.Matrix.cupy_operator`, if products give one y.

        Raises
        ------
        ValueError
            If `gather` asks for a list of arrays, which CuPy's solvers do not take.
        """
        if self._gather in ("all", None):
            raise ValueError(
                'Matrix.cupy_operator: gather must be "x" or the ordinal of a GPU, since CuPy takes'
                f" one y of a product, got {self._gather!r}"
            )
        return super().cupy_operator()

    # The matrix itself ---------------------------------------------------------------------------

    def free(self) -> None:
        """Give the memory back now; the matrix cannot be used afterwards.

        Arrays that were on GPUs before are only let go of. Calling this twice does nothing.
        """
        with self._lock:
            if self._shards is not None:
                self._shards = None
                try:
                    self._forget_products()
                finally:
                    self._from_host_of.clear()
                    self._fabric.free()

    def __enter__(self) -> ShardedMatrix:
        self.kept()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.free()

    def kept(self) -> tuple[Shard, ...]:
        """The shards, unless they were freed."""
        if self._shards is None:
            raise ValueError("Matrix: the matrix was freed and cannot be used any more")
        return self._shards

    def _kept(self) -> Any:
        return self.kept()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a sharded gemv.Matrix can be neither pickled nor copied: its memory belongs to this"
            " process. Send the array, and make another gemv.Matrix where it is needed"
        )

    def __repr__(self) -> str:
        m, n = self.shape
        state = " (freed)" if self._shards is None else ""
        return (
            f"<{m}x{n} gemv.Matrix of {self.dtype} in {len(self.places)} shards of {self.split} on"
            f" {', '.join(self.places)}{state}>"
        )
