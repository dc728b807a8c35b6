"""General matrix-vector products, ``y := alpha*op(A)*x + beta*y``, on NVIDIA GPUs.

A drop-in for ``scipy.linalg.blas.?gemv`` whose kernels are a course in CUDA written in Numba.
Importing this package loads neither Numba's CUDA target nor SciPy, and touches no GPU: what a
name needs is loaded when the name is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gemv.batch import Batch
    from gemv.blas import cgemv, dgemv, explain, gemv, plan, precompile, sgemv, zgemv
    from gemv.calls.explain import Explanation
    from gemv.calls.explain_batch import BatchExplanation
    from gemv.calls.explain_list import ListExplanation, ListLaunch
    from gemv.calls.plan import Plan
    from gemv.calls.plan_ragged import BatchPlan
    from gemv.core.errors import BackendError
    from gemv.core.trace import trace
    from gemv.engines.backend import backend, use_backend
    from gemv.engines.coefficients import Coefficients
    from gemv.engines.host import HostFallbackWarning
    from gemv.families import explain_batched, gemv_batched, matvec, vecmat
    from gemv.matrix import Matrix
    from gemv.scipy_blas import get_blas_funcs
    from gemv.selection.select import use_alignment
    from gemv.shards.make import sharded

# First of all: it notes the source that this process imports.
importlib.import_module("gemv.core.source")

__version__ = "0.1.0"

__all__ = [
    "BackendError",
    "Batch",
    "BatchExplanation",
    "BatchPlan",
    "Coefficients",
    "Explanation",
    "HostFallbackWarning",
    "ListExplanation",
    "ListLaunch",
    "Matrix",
    "Plan",
    "backend",
    "cgemv",
    "dgemv",
    "explain",
    "explain_batched",
    "gemv",
    "gemv_batched",
    "get_blas_funcs",
    "matvec",
    "plan",
    "precompile",
    "sgemv",
    "sharded",
    "trace",
    "use_alignment",
    "use_backend",
    "vecmat",
    "zgemv",
]

_HOME = {
    "BackendError": "gemv.core.errors",
    "Batch": "gemv.batch",
    "BatchPlan": "gemv.calls.plan_ragged",
    "BatchExplanation": "gemv.calls.explain_batch",
    "Coefficients": "gemv.engines.coefficients",
    "Explanation": "gemv.calls.explain",
    "HostFallbackWarning": "gemv.engines.host",
    "ListExplanation": "gemv.calls.explain_list",
    "ListLaunch": "gemv.calls.explain_list",
    "Matrix": "gemv.matrix",
    "Plan": "gemv.calls.plan",
    "backend": "gemv.engines.backend",
    "cgemv": "gemv.blas",
    "dgemv": "gemv.blas",
    "explain": "gemv.blas",
    "explain_batched": "gemv.families",
    "gemv": "gemv.blas",
    "gemv_batched": "gemv.families",
    "get_blas_funcs": "gemv.scipy_blas",
    "matvec": "gemv.families",
    "plan": "gemv.blas",
    "precompile": "gemv.blas",
    "sgemv": "gemv.blas",
    "sharded": "gemv.shards.make",
    "trace": "gemv.core.trace",
    "use_alignment": "gemv.selection.select",
    "use_backend": "gemv.engines.backend",
    "vecmat": "gemv.families",
    "zgemv": "gemv.blas",
}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'gemv' has no attribute {name!r}")
    try:
        module = importlib.import_module(home)
    except Exception as error:
        _blame_numpy(name, error)
        raise
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _blame_numpy(name: str, error: Exception) -> None:
    """Raise the ImportError that says so, if NumPy is why `name` could not be loaded."""
    try:
        import numpy

        numpy.dtype(numpy.float32)
        numpy.zeros(1)
    except Exception as broken:
        raise ImportError(
            f"gemv.{name} needs NumPy, and NumPy cannot be used here"
            f" ({type(broken).__name__}: {broken})."
            " Install or repair it, for example: python -m pip install --force-reinstall"
            " 'numpy<2.5'"
        ) from error
