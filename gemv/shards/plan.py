"""Products with a sharded matrix that are bound to their vectors: on GPUs, one graph for all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from gemv.arrays import adopt
from gemv.core import memo
from gemv.core.errors import drop_frames
from gemv.core.geometry import LOAD_BYTES
from gemv.core.operand import Operand, matrix_view, overlap, where
from gemv.core.rules import transposition
from gemv.engines import backend
from gemv.shards.groups import Groups
from gemv.shards.steps import Target
from gemv.shards.streams import exported, stream_by_now
from gemv.shards.vectors import rows_of


class ShardedPlan:
    """A product that is made again and again; :meth:`ShardedMatrix.plan` makes one.

    Calling it computes ``y := op(A)*x`` with what x holds by then. On GPUs a call launches one
    graph, which has a node for each launch and for each copy between GPUs. On a stream that is
    captured, that graph becomes a node of the captured one, or a node for each GPU: where parts of
    A are too large for the L2 cache, the first bytes of each are fetched between two such products,
    while the GPUs wait for each other (:mod:`gemv.shards.chains`). The plan keeps the matrix and
    both vectors in use, so it must live as long as a graph that it is part of.

    The graph is launched on the stream of x, and later work on the stream of y comes behind it. A
    vector that names a stream as the plan is made (``__cuda_array_interface__["stream"]``) is asked
    for it again in each call. One that names none then is never asked: its stream is the current
    one of its library in each call, or else the default stream.

    Attributes
    ----------
    x, y : device array
        The vectors it is bound to.
    is_graph : bool
        Whether a call launches a graph. False in the simulator, and where the driver refuses to
        capture the product; a call then enqueues each launch and each copy by itself.
    """

    def __init__(
        self, make: Callable[[], Groups], x: Operand, y: Operand,
        routine: str = "Matrix.plan", is_part: bool = True,
    ) -> None:  # fmt: skip
        self._make, self._x, self._y = make, x, y
        #: Whether calls on streams that are captured are to be expected.
        self._is_part = is_part
        #: For error texts: what the user has called.
        self._routine = routine
        #: Reentrant: garbage that is collected while it is held may make calls of its own.
        self._lock = threading.RLock()
        self._generation = -1
        #: What the library of x gave for the last call.
        self._exported: Any = None
        #: Either the graph or what is enqueued in its place. Neither is a bound method of the plan,
        #: which would keep the plan in use until Python looks for cycles of garbage.
        self._graph: Any = None
        self._groups: Groups | None = None
        self._prepare()

    @property
    def x(self) -> Any:
        return self._x.origin

    @property
    def is_graph(self) -> bool:
        return self._graph is not None

    @property
    def y(self) -> Any:
        return self._y.origin

    def _prepare(self) -> None:
        generation = memo.generation()
        backend.require_device(self._routine)
        self._graph = None
        self._groups = groups = self._make()
        if backend.backend() == "cuda":
            from gemv.driver.libcuda import CannotCapture
            from gemv.shards.graph import Graph

            try:
                self._graph = Graph(groups, self._x, self._y, self._is_part, self._routine)
                self._groups = None  # the graph keeps them
            except CannotCapture as error:
                drop_frames(error)
                # With new events: those of a capture that failed cannot be waited for.
                self._groups = self._make()
        self._generation = generation

    def _launch(self, stream: int) -> None:
        """Enqueue the product, where x is used on `stream`."""
        if self._graph is not None:
            self._graph.launch(stream)
            return
        assert self._groups is not None
        streams = [(self._x.device, stream), (self._y.device, stream_by_now(self._y))]
        self._groups.run(self._x, [Target(self._y)], streams)

    def __call__(self) -> Any:
        """Compute y, and return it."""
        with self._lock:
            if self._generation != memo.generation():  # a setting has changed
                self._prepare()
            stream = stream_by_now(self._x)
            self._exported = exported(self._x, stream)
            self._launch(stream)
        written = self._y.exporter.notes_writes
        if written is not None:
            written(self._y.origin)
        return self._y.origin

    def __repr__(self) -> str:
        x, y = tuple(self.x.shape), tuple(self.y.shape)
        return f"<plan of a sharded gemv.Matrix, bound to x of shape {x} and y of shape {y}>"

    def __reduce__(self) -> Any:
        raise TypeError(
            "a plan of a sharded gemv.Matrix can be neither pickled nor copied: it holds addresses"
            " of this process's GPU memory"
        )


def vectors_of(matrix: Any, x: Any, y: Any, trans: Any) -> tuple[int, Operand, Operand]:
    """The checked arguments of a plan, trans as BLAS's code."""
    form = transposition("Matrix.plan", trans)
    if form == 2 and matrix.dtype.kind != "c":
        form = 1
    rows, cols = matrix.shape if form == 0 else matrix.shape[::-1]
    if not rows or not cols:
        raise ValueError(f"Matrix.plan: a matrix of shape {matrix.shape} is empty")
    operand_x, operand_y = (
        _adopted(matrix, name, given, length)
        for name, given, length in (("x", x, cols), ("y", y, rows))
    )
    if operand_x.shape[:-1] != operand_y.shape[:-1]:
        raise ValueError(f"Matrix.plan: x has {_count(operand_x)} and y has {_count(operand_y)}")
    if len(operand_x.shape) == 1 and operand_x.pointer % LOAD_BYTES:
        raise ValueError(
            "Matrix.plan: x must begin at a multiple of 16 bytes, got address"
            f" {operand_x.pointer:#x}"
        )
    if operand_y.readonly or operand_y.exporter.immutable:
        raise ValueError("Matrix.plan: y is read-only, so a plan cannot write to it")
    if len(operand_y.shape) == 2 and operand_y.shape[0] > 1 and operand_y.strides[0] < rows:
        raise ValueError(
            f"Matrix.plan: columns of y overlap: they are {operand_y.strides[0]} elements apart"
        )
    y_view = matrix_view(operand_y)
    if overlap(y_view, matrix_view(operand_x)):
        raise ValueError("Matrix.plan: y overlaps x in memory")
    for number, shard in enumerate(matrix.kept()):
        if shard.a is not None and overlap(y_view, matrix_view(shard.a)):
            raise ValueError(f"Matrix.plan: y overlaps shard {number} in memory")
    return form, operand_x, operand_y


def _adopted(matrix: Any, name: str, given: Any, length: int) -> Operand:
    """A vector, or several of shape (vectors, length)."""
    operand = adopt.adopt("Matrix.plan", name, given, matrix.dtype, backend.HOME, batch=True)
    if operand.on_host:
        raise TypeError(f"Matrix.plan: {name} is {where(operand)}; a plan is bound to a GPU")
    what = "elements" if len(operand.shape) == 1 else "rows"
    if operand.shape[0] != length:
        raise ValueError(f"Matrix.plan: {name} must have {length} {what}, got {operand.shape[0]}")
    if len(operand.shape) > 2 or 0 in operand.shape:
        raise ValueError(
            f"Matrix.plan: {name} must be a vector or some columns, got shape {operand.shape}"
        )
    if operand.conj or operand.neg:
        raise TypeError(f"Matrix.plan: {name} is a lazy negative or conjugate; resolve it first")
    if length > 1 and operand.strides[0] != 1:
        raise ValueError(
            f"Matrix.plan: {name} must be contiguous, each column if there are several, got"
            f" strides {operand.strides}"
        )
    return operand if len(operand.shape) == 1 else rows_of(operand)


def _count(operand: Operand) -> str:
    return "one dimension" if len(operand.shape) == 1 else f"{operand.shape[0]} columns"
