"""The task that a worker runs for a solve: SciPy's solver, on the chunks that the worker holds.

Every worker runs the same solver on the same vectors. A product is computed in parts, one for each
chunk. The parts are sent to all workers, and each adds them in the order of the chunks. So every
worker has the same vectors to the last bit, and all take the same decisions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import distributed
import numpy as np
from scipy.sparse.linalg import LinearOperator

from gemv.distributed.allocator import keeps_memory
from gemv.distributed.digest import digest_of
from gemv.distributed.exchange import Exchange
from gemv.distributed.mailbox import Place
from gemv.distributed.methods import METHODS, Kept
from gemv.distributed.neighbours import capacity_of
from gemv.distributed.outcome import Interrupted, Stopped
from gemv.matrix import Matrix


class Job(NamedTuple):
    """What all workers of a solve are told.

    Attributes
    ----------
    solve : str
        A name that no other solve has.
    method : str
    addresses : tuple of str
        Of the workers that take part; the first gives the result back.
    rows, columns : tuple of int
        The chunks along each dimension of the matrix.
    dtype : numpy.dtype
    patience : float
    checkpoint : int or None
    """

    solve: str
    method: str
    addresses: tuple[str, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    dtype: np.dtype
    patience: float
    checkpoint: int | None


def run(job: Job, places: list[Place], chunks: list[Any], right: dict[str, Any]) -> Any:
    """Solve, together with the other workers.

    Parameters
    ----------
    job : Job
    places : list of (int, int)
        Those of `chunks`, which this worker holds.
    chunks : list of arrays
    right : dict
        The right-hand side and the options of the solver.

    Returns
    -------
    object
        What SciPy's solver returns, from one of the workers, and None from the others; or
        :class:`Interrupted`.
    """
    here = distributed.get_worker().address
    kept = Kept(right["options"].get("x0"))
    capacity = capacity_of(places, (job.rows, job.columns))
    exchange = Exchange(job.solve, here, job.addresses, job.patience, capacity)
    with ExitStack() as stack:
        stack.enter_context(keeps_memory())
        stack.callback(exchange.close)
        try:
            exchange.start()
            matrices = [stack.enter_context(Matrix(chunk, job.dtype)) for chunk in chunks]
            shards = dict(zip(places, matrices, strict=True))
            operator = Shared(job, shards, exchange)
            found = METHODS[job.method].run(
                operator, right["b"], dict(right["options"]), job.checkpoint, kept
            )
            exchange.finish()
        except Stopped as stopped:
            exchange.give_up(stopped.reason, stopped.workers, stopped.started)
            return Interrupted(
                stopped.reason, stopped.workers, stopped.started, kept.vector, kept.iterations
            )
        except BaseException as error:
            exchange.give_up(f"the solver failed on worker {here}: {error!r}", [here])
            raise
    return found if here == job.addresses[0] else None


class Checksum:
    """That of the vector of a product, computed once for all chunks: while a GPU computes."""

    def begin(self, vector: np.ndarray) -> None:
        """Another vector, whose checksum is not known."""
        self._vector, self._digest = vector, -1

    def __call__(self) -> int:
        if self._digest < 0:
            self._digest = digest_of(self._vector)
        return self._digest


class Shared(LinearOperator):
    """A matrix of which this worker holds some chunks, as SciPy's solvers see it."""

    def __init__(self, job: Job, shards: dict[Place, Matrix], exchange: Exchange) -> None:
        self._shards, self._exchange = sorted(shards.items()), exchange
        self._checksum = Checksum()
        for matrix in shards.values():
            matrix.meanwhile = self._checksum
        self._edges = [np.cumsum([0, *sizes]).tolist() for sizes in (job.rows, job.columns)]
        super().__init__(job.dtype, (sum(job.rows), sum(job.columns)))

    def _matvec(self, x: np.ndarray) -> np.ndarray:
        return self._product(x, 0)

    def _rmatvec(self, x: np.ndarray) -> np.ndarray:
        return self._product(x, 1)

    def _product(self, x: np.ndarray, trans: int) -> np.ndarray:
        """A product with the matrix, or with its conjugate transpose."""
        x = x.reshape(-1)
        self._checksum.begin(x)
        of_x, of_y = self._edges[1 - trans], self._edges[trans]
        parts: dict[Place, np.ndarray] = {}
        for place, matrix in self._shards:
            block, position = place[trans], place[1 - trans]
            piece = x[of_x[position] : of_x[position + 1]]
            parts[block, position] = matrix.rmatvec(piece) if trans else matrix.matvec(piece)
        begun = list(_begun(parts))
        everything = dict(self._exchange.all_gather(begun, self._checksum()))
        y = np.empty(of_y[-1], np.result_type(self.dtype, x.dtype))
        for block in range(len(of_y) - 1):
            _add_up(everything, block, len(of_x) - 1, y[of_y[block] : of_y[block + 1]])
        return y


def _begun(parts: dict[Place, np.ndarray]) -> Iterator[tuple[Place, np.ndarray]]:
    """The parts of a worker, where those that begin a sum are added already.

    A part has the place of the last chunk in it. The sum of all parts is from the first to the
    last, so only the first ones of a block can be added before the others are known.
    """
    for block in sorted({block for block, _ in parts}):
        mine = sorted(position for other, position in parts if other == block)
        total, many = None, 0
        while many < len(mine) and mine[many] == many:
            part = parts[block, many]
            total = part if total is None else total + part
            many += 1
        if total is not None:
            yield (block, many - 1), total
        for position in mine[many:]:
            yield (block, position), parts[block, position]


def _add_up(parts: dict[Place, np.ndarray], block: int, many: int, out: np.ndarray) -> None:
    """The sum of the parts of a block, in the order of their places.

    It has the precision of the parts, as those sums that workers have begun; `out` may have a
    higher one.
    """
    first, *others = (parts[block, k] for k in range(many) if (block, k) in parts)
    if not others:
        out[:] = first
        return
    np.add(first, others[0], out=out)
    for other in others[1:]:
        np.add(out, other, out=out, dtype=first.dtype)
