"""When to forget what earlier calls have found out.

Several modules remember things that depend on settings: which backend computes, whether selection
looks at addresses. Each registers a function that forgets; whoever changes a setting calls
:func:`forget`, and knows none of them.
"""

from __future__ import annotations

from collections.abc import Callable

_generation = 0
_forgetting: list[Callable[[], None]] = []
_in_child: list[Callable[[], None]] = []


def generation() -> int:
    """A number that changes when everything is forgotten.

    Whoever computes something to be remembered reads it first, and does not keep the result if
    the number has changed by then: the result may follow from the old settings.
    """
    return _generation


def on_forget(forgetting: Callable[[], None], in_child: Callable[[], None] | None = None) -> None:
    """Call `forgetting` at each change; `in_child`, ahead of it, in a process that was forked."""
    _forgetting.append(forgetting)
    if in_child is not None:
        _in_child.append(in_child)


def forget() -> None:
    """Forget everything: a setting has changed."""
    global _generation
    _generation += 1
    for forgetting in _forgetting:
        forgetting()


def after_fork() -> None:
    """Forget everything in a forked process, where another thread may have held a lock."""
    for renew in _in_child:
        renew()
    forget()
