"""Products of JAX's arrays that JAX can transform: by jit, grad, jvp and vmap.

This module is loaded only when it is imported, and it imports JAX: ``import gemv.jax``. XLA calls
SciPy's BLAS for arrays in host memory. For arrays on a GPU it launches a kernel of
:func:`gemv.gemv`, on XLA's own stream.
"""

from __future__ import annotations

try:
    import jax  # noqa: F401
except ImportError as error:
    raise ImportError("gemv.jax needs JAX: pip install 'gemv[jax]'") from error

from gemv.calls.jax_calls import matvec

__all__ = ["matvec"]
