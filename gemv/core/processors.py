"""How many threads of the host take part in what is done there."""

from __future__ import annotations

import os

#: Variables that say how many threads OpenBLAS has, in the order in which it asks for them.
_VARIABLES = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")


def blas_threads() -> int:
    """Threads that SciPy's BLAS has: what the environment says, else a thread for each processor.

    A limit that was set later, in the process itself, is not known here.
    """
    for variable in _VARIABLES:
        text = os.environ.get(variable, "").strip()
        if text.isdecimal() and int(text) > 0:
            return min(int(text), processors())
    return processors()


def copying_threads() -> int:
    """Threads that copy host memory into pinned buffers.

    More than 8 only wait for the interpreter's lock and for memory.
    """
    return max(1, min(8, (os.cpu_count() or 4) - 2))


def processors() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
