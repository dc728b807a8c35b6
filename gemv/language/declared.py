"""How a device function is declared, and which half implements it in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import cuda as cuda
from numba.cuda.core import config

#: Whether kernels run in the simulator, in plain Python.
SIMULATOR = bool(config.ENABLE_CUDASIM)

if SIMULATOR:
    from gemv.language.simulator import functions as _half
else:
    from gemv.language.numba_cuda import functions as _half  # type: ignore[no-redef]

#: The declarations by name; the documentation is made from them.
VOCABULARY: dict[str, Callable] = {}


def declared(declaration: Callable) -> Any:
    """The function of that name for this process; the declaration itself is kept for its words."""
    VOCABULARY[declaration.__name__] = declaration
    return getattr(_half, declaration.__name__)
