"""A matrix whose shards lie on several devices of this process, as a linear operator."""

from __future__ import annotations

import threading
from typing import Any, Literal

import numpy as np

from gemv.arrays import adopt, dlpack
from gemv.calls.operators import AS_IT_IS, CONJUGATE, TRANSPOSED, KeptOperator, device_vector
from gemv.core import memo
from gemv.core.operand import Operand
from gemv.engines import backend
from gemv.shards.cut import Whole
from gemv.shards.places import Fabric, check_ordinal
from gemv.shards.plan import ShardedPlan, vectors_of
from gemv.shards.product import Product, Shard, Target

#: Where y goes: ``"x"`` stands for the device of x.
Gather = Literal["x", "all"] | int | None


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
        self._products_of: dict[int, Product] = {}
        #: Vectors beside the first place for those of host memory, by ``trans``.
        self._vectors_of: dict[int, Any] = {}
        self.split, self.bounds = whole.split, whole.bounds
        self.places = tuple(shard.place.name for shard in shards)
        super().__init__(whole.dtype, whole.shape)

    # Products ------------------------------------------------------------------------------------

    def _products(self, trans: int, x: np.ndarray) -> np.ndarray:
        """A product for each row of `x`, in host memory, one after the other."""
        self.kept()
        trans = self._form(trans)
        rows, cols = self.shape if trans == 0 else self.shape[::-1]
        result = np.zeros((len(x), rows), self.dtype)
        if not result.size or not cols:
            return result
        engine, first = backend.engine(), self._fabric.places[0]
        with self._lock, first.current():
            product = self._product(trans)
            vectors = self._vectors_of.get(trans)
            if vectors is None:
                vectors = self._vectors_of[trans] = engine.vectors(cols, rows, self.dtype)
            on_device, y = (self._operand(each) for each in (vectors.x, vectors.y))
            streams = [(first.index, engine.default_stream())]
            for number, vector in enumerate(x):
                vectors.put(vector, None)
                product.run(on_device, [Target(y)], streams)
                result[number] = vectors.get()
        return result

    def _on_device(self, op: int, x: Any) -> Any:
        self.kept()
        trans = self._form(op)
        if trans == CONJUGATE:
            raise TypeError(
                "Matrix: the conjugate of a complex matrix takes vectors in host memory only"
            )
        rows, cols = self.shape if trans == 0 else self.shape[::-1]
        device_vector(x, cols)
        operand = adopt.adopt("Matrix", "x", x, self.dtype, backend.HOME)
        if not rows or not cols:
            return self._made(operand, operand.device, rows).finished(backend.engine())
        with self._lock:
            return self._enqueue(self._product(trans), operand)

    def _enqueue(self, product: Product, x: Operand) -> Any:
        """The y of a vector on a device, in the places that :attr:`gather` asks for."""
        engine = backend.engine()
        x_stream = self._stream(x)
        exported = dlpack.export(x.origin, x_stream or 1) if x.exporter.ordered_by_export else None
        source = self._readable(x, x_stream)
        parts: list[tuple[int | None, int]]
        if self._gather is None:
            parts = [(place.index, rows) for place, rows in product.in_parts]
        else:
            parts = [(index, product.rows) for index in self._targets(x)]
        made = [self._made(x, index, rows) for index, rows in parts]
        streams = [(x.device, x_stream), *((y.index, y.stream) for y in made)]
        targets = [Target(y.operand, y.own) for y in made]
        if self._gather is None:
            product.run_in_parts(source, targets, streams)
        else:
            product.run(source, targets, streams)
        if engine.name == "cuda" and (exported is not None or x.exporter.held_until_done):
            with engine.on(x.device):
                engine.held.hold((exported, x.origin), x_stream)
        results = [each.finished(engine) for each in made]
        return results if self._gather in (None, "all") else results[0]

    def _targets(self, x: Operand) -> list[Any]:
        """The devices that get the whole y."""
        if self._gather == "all":
            indices = [place.index for place in self._fabric.places]
            return indices if x.device is None else list(dict.fromkeys(indices))
        if self._gather == "x" or x.device is None:
            return [x.device]
        return [self._gather]

    def _product(self, trans: int) -> Product:
        """The product for a form, planned at first use and after a setting has changed."""
        shards = self.kept()
        if self._generation != memo.generation():
            self._products_of.clear()
            self._generation = memo.generation()
        product = self._products_of.get(trans)
        if product is None:
            product = self._products_of[trans] = Product(
                self._whole, self._fabric, shards, trans, self._reproducible, self._objection
            )
        return product

    def plan(self, x: Any, y: Any, trans: Any = 0) -> ShardedPlan:
        """Bind a product to its vectors, checked and prepared once, and launched many times.

        Parameters
        ----------
        x, y : device array of shape (cols,) and (rows,)
            Contiguous, on any GPU; y is overwritten by each call, whatever `gather` says.
        trans : {0, 1, 2, "N", "T", "C"}, optional
            Which form of the matrix is multiplied.

        Returns
        -------
        ShardedPlan
            Call it without arguments: it computes y and returns it.
        """
        shards = self.kept()
        form, operand_x, operand_y = vectors_of(self, x, y, trans)

        def make() -> Product:
            # Streams and memory of its own: other products may run at the same time.
            fabric = self._fabric.another()
            mine = tuple(
                shard._replace(place=place)
                for shard, place in zip(shards, fabric.places, strict=True)
            )
            return Product(self._whole, fabric, mine, form, self._reproducible, self._objection)

        return ShardedPlan(make, operand_x, operand_y)

    # Vectors -------------------------------------------------------------------------------------

    def _form(self, op: int) -> int:
        """BLAS's code; a real matrix is its own conjugate."""
        if op != AS_IT_IS and self.dtype.kind != "c":
            return AS_IT_IS if op == CONJUGATE else TRANSPOSED
        return op

    def _operand(self, array: Any) -> Operand:
        return adopt.adopt("Matrix", "x", array, None, backend.HOME)

    def _stream(self, x: Operand) -> int:
        """The stream on which work on a vector may be pending."""
        if x.stream is not None:
            return 0 if x.stream == 1 else x.stream
        current = None if x.device is None else x.exporter.current_stream(x.device)
        return backend.engine().default_stream() if current is None else current

    def _readable(self, x: Operand, stream: int) -> Operand:
        """x as shards read it: contiguous, and from a multiple of 16 bytes on."""
        if x.conj or x.neg:
            return self._operand(x.exporter.resolved(x.origin, x.conj))
        if x.strides[0] == 1 and x.pointer % 16 == 0:
            return x
        engine = backend.engine()
        copy = self._made(x, x.device, x.shape[0])
        with engine.on(x.device):
            engine.copy(x, copy.operand, stream)
        return copy.operand

    def _made(self, like: Operand, index: int | None, rows: int) -> NewVector:
        """A new vector on a device, of the library of `like`."""
        return NewVector(like, index, rows, self.dtype)

    # The matrix itself ---------------------------------------------------------------------------

    def free(self) -> None:
        """Give the memory back now; the matrix cannot be used afterwards.

        Arrays that were on GPUs before are only let go of. Calling this twice does nothing.
        """
        with self._lock:
            if self._shards is not None:
                self._shards = None
                self._products_of.clear()
                self._vectors_of.clear()
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


class NewVector:
    """A vector that is made for a product, in the order of its library's stream on that device.

    Attributes
    ----------
    operand : Operand
    own : bool
        Whether this package allocated its memory.
    index, stream
        Its GPU and the stream that it is made on.
    """

    def __init__(self, like: Operand, index: int | None, rows: int, dtype: np.dtype) -> None:
        engine = backend.engine()
        self.index = index
        self._library = library = like.exporter
        if engine.name == "simulator":
            self.stream, self.own = 0, True
            self._array = engine.zeros(rows, dtype)
        else:
            current = library.current_stream(index)
            self.stream = engine.default_stream() if current is None else current
            self.own = library.on_default_stream
            with engine.on(index):
                if self.own:
                    self._array = engine.empty(rows, dtype)
                else:
                    self._array = library.empty(like.origin, rows, dtype, index)
        self.operand = adopt.on_device(self._array, backend.HOME)

    def finished(self, engine: Any) -> Any:
        """The array as the caller gets it."""
        if engine.name == "simulator":
            return engine.wrap(self._array)

        def wait(consumer: int) -> None:
            with engine.on(self.index):
                engine.wait(consumer, self.stream)

        return self._library.finished(self._array, wait)


def check_gather(gather: Any, there: int) -> Gather:
    """The argument ``gather``, of as many GPUs as there are."""
    if gather in ("x", "all", None):
        return gather
    if isinstance(gather, bool) or not isinstance(gather, (int, np.integer)):
        raise ValueError(
            f'Matrix: gather must be "x", "all", None or the ordinal of a GPU, got {gather!r}'
        )
    check_ordinal("gather", int(gather), there)
    return int(gather)
