"""Memory for the vectors of a solve, which the C library keeps from one iteration to the next.

Dask starts its workers so that the C library gives memory back to the system as soon as 64 KiB are
free (``MALLOC_TRIM_THRESHOLD_``), which also lets it map each array of 128 KiB and more anew. A
solver makes some vectors in each iteration, and the first access to each page of a new one is a
fault, which costs more than the arithmetic. So a solve asks the C library to keep what is freed,
and gives it back at its end.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator

#: Options of ``mallopt``, and the environment's names for them.
_TRIM, _MMAP = -1, -3
_NAMES = {_TRIM: "MALLOC_TRIM_THRESHOLD_", _MMAP: "MALLOC_MMAP_THRESHOLD_"}
#: What a solve asks for, in bytes; larger blocks than the second are always mapped anew.
_DURING = {_TRIM: 1 << 30, _MMAP: 32 << 20}
#: What the GNU C library does by itself.
_DEFAULT = 128 << 10

_lock = threading.Lock()
_solves = 0


@contextlib.contextmanager
def keeps_memory() -> Iterator[None]:
    """Have the C library keep what is freed, in a process where Dask has told it not to.

    Solves of several threads may do so at a time; the last one ends it.
    """
    global _solves
    if _NAMES[_TRIM] not in os.environ:
        # The library decides by itself, which no call could bring back.
        yield
        return
    with _lock:
        _solves += 1
        if _solves == 1:
            _set(_DURING)
    try:
        yield
    finally:
        with _lock:
            _solves -= 1
            if not _solves:
                _set({option: _of_environment(name) for option, name in _NAMES.items()})
                _call("malloc_trim", 0)


def _of_environment(name: str) -> int:
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return _DEFAULT


def _set(values: dict[int, int]) -> None:
    for option, value in values.items():
        _call("mallopt", option, value)


def _call(name: str, *arguments: int) -> None:
    """A function of the GNU C library; others have none of that name."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        getattr(ctypes.CDLL(None), name)(*arguments)
