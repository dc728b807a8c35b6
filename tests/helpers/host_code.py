"""Machine code for the host that all engines of a process have in common."""

from __future__ import annotations

from collections.abc import Callable

_images: list[bytes] = []


def linked_once(compiled: Callable[[], bytes]) -> bytes:
    """The image of :func:`gemv.driver.machine.machine`, which LLVM makes once in each process.

    It knows no driver: the driver's functions are in a table, which each of its machines has for
    itself. Stand-ins for a driver are made anew for each test, and LLVM took most of their time.
    """
    if not _images:
        _images.append(compiled())
    return _images[0]
