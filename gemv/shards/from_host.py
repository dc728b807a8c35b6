"""Products of vectors in host memory: they go to the first GPU and come back from there.

Their x and y on that GPU stay the same, so a product that comes again and again is a plan: one
graph has the launches and copies of all GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gemv.arrays import adopt
from gemv.core import trace
from gemv.core.batch import aligned_step
from gemv.core.errors import drop_frames
from gemv.engines import backend
from gemv.shards.groups import Groups
from gemv.shards.plan import ShardedPlan
from gemv.shards.steps import Target, as_vectors


class FromHost:
    """x and y on the current GPU for one form of the matrix, and so many vectors at once.

    Parameters
    ----------
    cols, rows : int
        Elements of each x, and of each y.
    count : int
    dtype : numpy.dtype
    """

    def __init__(self, cols: int, rows: int, count: int, dtype: np.dtype) -> None:
        self._step, self._count = cols if count == 1 else aligned_step(cols), count
        self._vectors = backend.engine().vectors(count * self._step, count * rows, dtype)
        x, y = (
            adopt.adopt("Matrix", "x", each, None, backend.HOME)
            for each in (self._vectors.x, self._vectors.y)
        )
        if count > 1:
            x, y = as_vectors(x, count, cols, self._step), as_vectors(y, count, rows, rows)
        self._x, self._y = x, y
        #: Products so far; the plan, or False where there can be none.
        self._products = 0
        self._plan: Any = None

    def product(
        self, x: np.ndarray, groups: Groups, index: int | None, make: Callable[[], Groups]
    ) -> np.ndarray:
        """The products of the rows of `x`.

        Parameters
        ----------
        x : numpy.ndarray of shape (count, cols)
        groups : Groups
            Computes them launch by launch.
        index : int or None
            The ordinal of this GPU.
        make : callable
            Makes what a plan of them consists of.

        Returns
        -------
        numpy.ndarray of shape (count, rows)
        """
        stream = backend.engine().default_stream()
        plan = self._planned(make)
        if self._count > 1:
            padded = np.zeros((self._count, self._step), x.dtype)
            padded[:, : x.shape[1]] = x
            x = padded
        self._vectors.put(x.reshape(-1), None, stream)
        if plan is None:
            groups.run(self._x, [Target(self._y)], [(index, stream)])
        else:
            plan()
        return np.asarray(self._vectors.get(stream)).reshape(self._count, -1)

    def forget(self) -> None:
        """Drop the plan: a setting has changed. Its work is done, since y has come back."""
        self._products, self._plan = 0, None

    def _planned(self, make: Callable[[], Groups]) -> ShardedPlan | None:
        """The plan; None until there were some products, and where it would have no graph."""
        if backend.engine().name != "cuda" or trace.open_traces() or self._plan is False:
            return None
        from gemv.driver.capture import outside_of_captures
        from gemv.shards.again import ONE_BY_ONE

        self._products += 1
        if self._plan is None and self._products > ONE_BY_ONE:
            try:
                with outside_of_captures():  # of other threads
                    plan = ShardedPlan(make, self._x, self._y, "Matrix", is_part=False)
                self._plan = plan if plan.is_graph else False
            except MemoryError as error:
                drop_frames(error)
                self._plan = False
        return self._plan or None
