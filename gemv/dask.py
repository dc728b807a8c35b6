"""Products with Dask's arrays, and solvers for a matrix that lies on many workers.

``gemv.dask.matvec`` and ``gemv.dask.vecmat`` are lazy: they add tasks to a graph, one for each
chunk of the matrix. ``gemv.dask.Matrix`` is a matrix whose chunks stay with the workers of a
``distributed.Client``, and its ``solve`` runs SciPy's solvers there. This module is loaded only
when it is imported, and it imports Dask: ``import gemv.dask``.
"""

from __future__ import annotations

try:
    import dask.array  # noqa: F401
    import distributed  # noqa: F401
except ImportError as error:
    raise ImportError("gemv.dask needs Dask and its scheduler: pip install 'gemv[dask]'") from error

from gemv.distributed.lazy import matvec, vecmat
from gemv.distributed.matrix import Matrix
from gemv.distributed.outcome import WorkerLost

__all__ = ["Matrix", "WorkerLost", "matvec", "vecmat"]
