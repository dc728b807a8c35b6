"""Caches that depend on a setting are emptied when the setting changes.

The settings are the backend and whether selection looks at addresses. A module with such a cache
registers a function that empties it; the module that changes a setting calls :func:`forget`, so
neither imports the other.
"""

from __future__ import annotations

from collections.abc import Callable

_generation = 0
_forgetting: list[Callable[[], None]] = []
_in_child: list[Callable[[], None]] = []


def generation() -> int:
    """A number that grows each time the caches are emptied.

    A function that computes an entry reads it first, and drops the entry if the number has changed
    by the time it is ready, since the entry may follow from the old settings.
    """
    return _generation


def on_forget(forgetting: Callable[[], None], in_child: Callable[[], None] | None = None) -> None:
    """Register functions: `forgetting` is called at each change of a setting.

    In a forked process `in_child` is called first, to replace locks that another thread held.
    """
    _forgetting.append(forgetting)
    if in_child is not None:
        _in_child.append(in_child)


def forget() -> None:
    """Empty all caches: a setting has changed."""
    global _generation
    _generation += 1
    for forgetting in _forgetting:
        forgetting()


def after_fork() -> None:
    """Replace the locks of a forked process and empty all caches."""
    for renew in _in_child:
        renew()
    forget()
