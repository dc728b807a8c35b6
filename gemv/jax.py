"""Products of JAX's arrays that its transformations see through: jit, grad, jvp, vmap.

This module is loaded only when it is imported, and it imports JAX: ``import gemv.jax``. XLA calls
SciPy's BLAS for arrays in host memory and a kernel of :func:`gemv.gemv` for those on a GPU, on the
stream that it computes on.
"""

from __future__ import annotations

try:
    import jax  # noqa: F401
except ImportError as error:
    raise ImportError("gemv.jax needs JAX: pip install 'gemv[jax]'") from error

from gemv.calls.jax_calls import matvec

__all__ = ["matvec"]
