""":class:`gemv.dask.Matrix`: a matrix whose chunks stay with the workers that hold them."""

from __future__ import annotations

import contextlib
import itertools
from concurrent.futures import CancelledError
from typing import Any

import dask
import dask.array as da
import distributed
import numpy as np

from gemv.core.dtypes import DTYPES
from gemv.core.values import shown, typed
from gemv.distributed import arguments
from gemv.distributed import client as clients
from gemv.distributed.exchange import Exchanges
from gemv.distributed.mailbox import Place
from gemv.distributed.methods import METHODS
from gemv.distributed.outcome import Interrupted, WorkerLost
from gemv.distributed.placement import spread, where
from gemv.distributed.solve import Job

#: What errors of a solve begin with.
_SOLVE = "gemv.dask.Matrix.solve"

#: Products are computed in BLAS's own precisions.
_KNOWN = tuple(DTYPES[letter] for letter in "sdcz")
#: What others are converted to, by their kind or their letter.
_CONVERTED = {**dict.fromkeys("biu", DTYPES["d"]), "e": DTYPES["s"]}


class Matrix:
    """A matrix that stays on the workers of a Dask cluster, for SciPy's iterative solvers.

    Parameters
    ----------
    a : dask.array.Array of shape (m, n)
        It is computed now, and its chunks stay in the memory of the workers: NumPy's arrays, or
        CuPy's. A worker that gets more than its share of the chunks hands some to the others.
        One chunk of rows for each worker moves the fewest bytes in a solve.
    dtype : data type, optional
        Of the products: float32, float64, complex64 or complex128. By default that of `a`, where
        integers and booleans count as float64 and float16 as float32.
    client : distributed.Client, optional
        By default the current one.

    Attributes
    ----------
    shape : (int, int)
    dtype : numpy.dtype
    chunks : tuple of tuple of int
        As of a Dask array.

    Raises
    ------
    ValueError
        If `a` is no matrix, if its chunks have unknown sizes, or if there is no client.
    TypeError
        If `a` is no Dask array, or for a dtype that is not computed with.

    Notes
    -----
    Chunks that a dead worker held are computed again by Dask when they are next needed, if it
    knows how: an array that was scattered from the client is lost with its worker.

    Examples
    --------
    >>> import dask.array, distributed, gemv.dask, numpy
    >>> client = distributed.Client(processes=False)  # doctest: +SKIP
    >>> a = gemv.dask.Matrix(dask.array.random.random((4000, 300), chunks=(1000, 300)))
    ... # doctest: +SKIP
    >>> x, *_ = a.solve("lsmr", numpy.ones(4000))  # doctest: +SKIP
    """

    def __init__(self, a: Any, dtype: Any = None, *, client: Any = None) -> None:
        if not isinstance(a, da.Array):
            raise TypeError(
                f"gemv.dask.Matrix: a must be a Dask array, got {typed(a)};"
                " gemv.Matrix takes other arrays"
            )
        if a.ndim != 2:
            raise ValueError(f"gemv.dask.Matrix: a must have 2 dimensions, got shape {a.shape}")
        if np.isnan(a.shape).any():
            raise ValueError(
                "gemv.dask.Matrix: the chunks of a have unknown sizes (nan):"
                " call its compute_chunk_sizes() first"
            )
        self.dtype = _dtype(a.dtype, dtype)
        self.shape: tuple[int, int] = a.shape
        self.chunks: tuple[tuple[int, ...], ...] = a.chunks
        self._client = _client(client)
        self._client.register_plugin(Exchanges())
        self._shards = self._held(a)

    def solve(
        self,
        method: str,
        b: Any,
        *,
        patience: float = 20.0,
        checkpoint: int | None = None,
        **options: Any,
    ) -> Any:
        """Solve for x, or for the least squares, by one of SciPy's solvers.

        Each worker runs the solver in one long task, multiplies its own chunks, and sends what it
        has computed to the other workers itself. The scheduler only starts the tasks.

        Parameters
        ----------
        method : {"lsmr", "cg", "gmres"}
            Of :mod:`scipy.sparse.linalg`.
        b : array of shape (m,)
            In host memory, or a Dask array.
        patience : float, optional
            Seconds that workers wait for each other: until all have started, and then for any
            sign of life of one that computes.
        checkpoint : int, optional
            Every so many iterations (of GMRES: of its own restarts) every worker keeps the vector.
            If a worker is lost, others compute its chunks again, and the solver begins again from
            the vector that was kept last. LSMR begins anew after every checkpoint, even where no
            worker is lost: it gives its vector only when it ends.
        **options
            Of SciPy's solver, but for its callbacks: ``rtol``, ``maxiter``, ``x0``, ...

        Returns
        -------
        tuple
            What SciPy's solver returns, with x as a NumPy array.

        Raises
        ------
        WorkerLost
            With the address of the worker that died or was silent. Nothing is left running.
        TimeoutError
            With the addresses of the workers that did not start, for example because they compute
            something else.
        ValueError, TypeError
            For a method or an option that is unknown, and for shapes that do not fit.

        Notes
        -----
        About once a second an event of the topic "gemv" tells the products so far; the client's
        ``subscribe_topic`` and ``get_events`` read it, and Dask's dashboard shows the tasks.

        The product of a chunk has the bits of :class:`gemv.Matrix`. Sums over chunks are in the
        order of the chunks, so x has the same bits for any number of workers, if their processors
        are alike. If vectors of two workers differ by a single bit the solve ends with an error.
        """
        if not isinstance(method, str) or method not in METHODS:
            known = ", ".join(map(repr, sorted(METHODS)))
            raise ValueError(f"{_SOLVE}: method must be one of {known}, got {shown(method)}")
        self._check(method, checkpoint, patience, options)
        vector = arguments.vector(_SOLVE, "b", b, self.shape, 0)
        # SciPy's LSMR adds to b in place, so its dtype must hold what is added
        vector = vector.astype(np.result_type(self.dtype, vector.dtype), copy=False)
        if options.get("x0") is not None:
            options["x0"] = arguments.vector(_SOLVE, "x0", options["x0"], self.shape, 1)
            if options["x0"].dtype.kind == "c" and vector.dtype.kind != "c":
                raise TypeError(
                    f"{_SOLVE}: x0 of dtype {options['x0'].dtype} would lose its imaginary part:"
                    f" the solve is in {vector.dtype}"
                )
        rows, columns = self.chunks
        job = Job("", method, (), rows, columns, self.dtype, patience, checkpoint)
        losses = dask.config.get("distributed.scheduler.allowed-failures", 3)
        for loss in itertools.count(1):
            right = {"b": vector, "options": options}
            found = clients.solve(self._client, self._by_worker(), job, right)
            if not isinstance(found, Interrupted):
                return found
            text = f"{_SOLVE}: {found.reason}"
            if not found.started:
                raise TimeoutError(text)
            if checkpoint is None or loss > losses:
                raise WorkerLost(text, found.workers)
            if found.vector is not None:
                options["x0"] = found.vector
            if options.get("maxiter") is not None:
                options["maxiter"] = max(1, options["maxiter"] - found.iterations)

    def __repr__(self) -> str:
        m, n = self.shape
        return f"<{m}x{n} gemv.dask.Matrix of {self.dtype} in {len(self._shards)} chunks>"

    def _held(self, a: da.Array) -> dict[Place, distributed.Future]:
        """The chunks, computed, and moved from workers that have more than their share."""
        kept = self._client.persist(a)
        keys = {key: (key[1], key[2]) for row in kept.__dask_keys__() for key in row}
        futures = {keys[each.key]: each for each in distributed.futures_of(kept)}
        held = self._holders(futures)
        homes = spread(held, sorted(self._client.nthreads()))
        for place, home in homes.items():
            if home not in held[place]:
                futures[place] = self._client.submit(
                    _itself, futures[place], workers=[home], allow_other_workers=True, pure=False
                )
        return futures

    def _holders(self, futures: dict[Place, distributed.Future]) -> dict[Place, Any]:
        """The workers that hold each chunk, once all chunks are there."""
        with contextlib.suppress(CancelledError):  # the words below say which
            distributed.wait(list(futures.values()))
        for place, future in futures.items():
            if future.status == "error":
                future.result()  # raises
            if future.status != "finished":
                raise WorkerLost(
                    f"gemv.dask.Matrix: chunk {place} was lost with its worker, and Dask cannot"
                    " compute it again: it came from data that was scattered, or was cancelled"
                )
        held = self._client.who_has(list(futures.values()))
        return {place: held[future.key] for place, future in sorted(futures.items())}

    def _by_worker(self) -> dict[str, list[tuple[Place, distributed.Future]]]:
        chunks = where(self._holders(self._shards))
        return {
            worker: [(place, self._shards[place]) for place in places]
            for worker, places in chunks.items()
        }

    def _check(self, method: str, checkpoint: Any, patience: Any, options: dict[str, Any]) -> None:
        arguments.check_options(
            _SOLVE, method, METHODS[method].options, checkpoint, patience, options
        )
        if METHODS[method].square and self.shape[0] != self.shape[1]:
            raise ValueError(f"{_SOLVE}: {method} needs a square matrix, this one is {self.shape}")

    def __reduce__(self) -> Any:
        raise TypeError(
            "a gemv.dask.Matrix can be neither pickled nor copied: its client belongs to this"
            " process. Make another one of the Dask array where it is needed"
        )


def _itself(chunk: Any) -> Any:
    return chunk


def _client(client: Any) -> distributed.Client:
    if client is None:
        try:
            client = distributed.get_client()
        except ValueError as error:
            raise ValueError(
                "gemv.dask.Matrix: there is no client; make a distributed.Client first"
            ) from error
    if not isinstance(client, distributed.Client):
        raise TypeError(
            f"gemv.dask.Matrix: client must be a distributed.Client, got {typed(client)}"
        )
    if client.asynchronous:
        raise ValueError("gemv.dask.Matrix: the client is asynchronous, and a solve waits")
    if not client.nthreads():
        client.wait_for_workers(1)
    return client


def _dtype(found: np.dtype, asked: Any) -> np.dtype:
    """The precision of the products, by the rules of :class:`gemv.Matrix`."""
    known = ", ".join(map(str, _KNOWN))
    try:
        dtype = found.newbyteorder("=") if asked is None else np.dtype(asked)
    except TypeError:
        raise TypeError(
            f"gemv.dask.Matrix: products are computed in {known}, got {typed(asked)}"
        ) from None
    if asked is None:
        dtype = _CONVERTED.get(dtype.kind, _CONVERTED.get(dtype.char, dtype))
    if dtype not in _KNOWN:
        raise TypeError(f"gemv.dask.Matrix: products are computed in {known}, got {dtype}")
    if found.kind == "c" and dtype.kind != "c":
        raise TypeError(
            f"gemv.dask.Matrix: a of dtype {found} would lose its imaginary part in {dtype}"
        )
    return dtype
