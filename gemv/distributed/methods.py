"""SciPy's solvers, which vector each of them lets be kept, and how each begins again from it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import linalg

#: What :func:`scipy.sparse.linalg.lsmr` returns as its reason to stop at the limit of iterations.
_LIMIT = 7


class Kept:
    """The last vector of a solver that was kept, and the iterations that led to it."""

    def __init__(self, vector: Any) -> None:
        self.vector = vector
        self.iterations = 0


class Method(NamedTuple):
    """One of SciPy's solvers.

    Attributes
    ----------
    solver : callable
    square : bool
        Whether the matrix has to be square.
    run : callable
        Of the operator, the right-hand side, the options of the solver, every how many iterations
        the vector is kept (None for never), and the :class:`Kept` that keeps it.
    without : tuple of str
        Options of the solver that mean nothing here.
    """

    solver: Callable[..., Any]
    square: bool
    run: Callable[[Any, np.ndarray, dict[str, Any], int | None, Kept], Any]
    without: tuple[str, ...] = ()

    @property
    def options(self) -> list[str]:
        """The names of the options that a caller may pass."""
        names = list(inspect.signature(self.solver).parameters)[2:]
        return sorted(set(names) - {*self.without, "callback", "callback_type"})


def _with_callback(solver: Callable[..., Any], **more: Any) -> Callable[..., Any]:
    """The run of a solver that hands its vector to a callback as it goes."""

    def run(
        operator: Any, b: np.ndarray, options: dict[str, Any], checkpoint: int | None, kept: Kept
    ) -> Any:
        if checkpoint is None:
            return solver(operator, b, **options)
        done = 0

        def keep(x: np.ndarray) -> None:
            nonlocal done
            done += 1
            if done % checkpoint == 0:
                kept.vector, kept.iterations = x.copy(), done

        return solver(operator, b, callback=keep, **more, **options)

    return run


def _lsmr(
    operator: Any, b: np.ndarray, options: dict[str, Any], checkpoint: int | None, kept: Kept
) -> Any:
    """LSMR hands no vector out: to keep some, it runs in rounds, each from the last one's x."""
    if checkpoint is None:
        return linalg.lsmr(operator, b, **options)
    limit = options.pop("maxiter", None)
    limit = min(operator.shape) if limit is None else limit
    x0 = options.pop("x0", None)
    while True:
        step = min(checkpoint, limit - kept.iterations)
        x, reason, iterations, *norms = linalg.lsmr(operator, b, maxiter=step, x0=x0, **options)
        kept.vector, kept.iterations = x, kept.iterations + iterations
        if reason != _LIMIT or kept.iterations >= limit:
            return (x, reason, kept.iterations, *norms)
        x0 = x


METHODS = {
    "cg": Method(linalg.cg, True, _with_callback(linalg.cg)),
    # it calls back, and counts up to maxiter, once for each of its own restarts
    "gmres": Method(linalg.gmres, True, _with_callback(linalg.gmres, callback_type="x")),
    "lsmr": Method(linalg.lsmr, False, _lsmr, without=("show",)),
}
