"""A call kept for reuse: bound to its arrays, checked and packed once, launched many times."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gemv.calls.known import Miss
from gemv.core.trace import open_traces


def _bound(name: str) -> property:
    """An array that a plan is bound to: its address may be part of a packed launch by now."""

    def read(plan: Any) -> Any:
        return getattr(plan, f"_{name}")

    def refuse(plan: Any, *value: Any) -> None:
        raise AttributeError(
            f"a plan stays bound to its {name}: make another plan, or pass other vectors as the"
            " plan is called"
        )

    return property(read, refuse, refuse, f"The {name} that the plan is bound to; read-only.")


class Plan:
    """A product that is made again and again; :func:`gemv.plan` makes one.

    Calling it computes ``y := alpha*op(a)*x + beta*y``. It keeps references to the arrays that it
    is bound to. They must not change their shape, strides or memory while the plan is used: with
    both vectors bound, nothing of them is read again.

    Any number of threads may call one plan, each on a stream of its own; it has no state that a
    call changes.
    """

    __slots__ = (
        "__weakref__",
        "_a",
        "_addresses",
        "_elsewhere",
        "_general",
        "_known",
        "_launch",
        "_loose",
        "_numbers",
        "_options",
        "_stream",
        "_written",
        "_x",
        "_y",
    )

    a = _bound("a")
    x = _bound("x")
    y = _bound("y")

    def __init__(self, general: Callable[..., Any], a: Any, x: Any, y: Any, options: tuple) -> None:
        self._general = general
        self._options = options
        self._loose: Callable[..., Any] | None = None
        self._launch: Callable[..., int] | None = None
        self._addresses = (0, 0, 0)
        self._known: Any = None
        self._numbers: frozenset[type] = frozenset()
        self._elsewhere: Callable[[], bool] | None = None
        self._stream: Callable[[], int] = int
        self._written: Callable[[Any], None] | None = None
        self._a = a
        self._x = x
        self._y = y

    def _remember(self, loose: Callable[..., Any] | None) -> None:
        """Try this way first where vectors are passed: that of calls that were made before."""
        self._loose = loose

    def _bind(
        self,
        known: Any,
        stream: Callable[[], int],
        addresses: tuple[int, int, int],
        written: Callable[[Any], None] | None,
    ) -> None:
        """Take the short way from now on: `known` is launched on what `stream` answers."""
        self._known, self._stream, self._addresses = known, stream, addresses
        self._numbers, self._written = known.numbers, written
        if known.engine.several:
            index, current = known.device.index, known.engine.current_device
            self._elsewhere = lambda: current() != index
        self._launch = known.launch
        if known.plain:
            self._launch = partial(known.machine.enqueue, known.address)

    def _unbind(self) -> None:
        """Ask for everything again from now on."""
        self._launch = None

    def __call__(
        self, alpha: Any = 1, beta: Any = 0, x: Any = None, y: Any = None, *, stream: Any = None
    ) -> Any:
        """Compute with these factors and, where they are given, with other vectors.

        Parameters
        ----------
        alpha, beta : number
            Factors of the product and of y; they cost nothing to change.
        x, y : device array, optional
            In place of those that the plan is bound to. A y that is passed is overwritten.
        stream : stream, optional
            As in :func:`gemv.gemv`.

        Returns
        -------
        y : device array
            The y passed, else the one bound, overwritten; a new one where there is neither.
        """
        if (
            self._launch is not None
            and x is None
            and y is None
            and stream is None
            and (self._elsewhere is None or not self._elsewhere())
        ):
            numbers = self._numbers
            if type(alpha) in numbers and type(beta) in numbers and not (alpha == 0 and beta == 1):
                a_at, x_at, y_at = self._addresses
                if not self._launch(self._stream(), a_at, x_at, y_at, alpha, beta):
                    if self._written is not None:
                        self._written(self._y)
                    if open_traces():
                        self._known.record()
                    return self._y
        if x is None:
            x = self._x
        if y is None:
            y = self._y
        if self._loose is not None and stream is None and x is not None:
            overwrite = 0 if y is None else 1
            result = self._loose(
                "gemv", alpha, self._a, x, beta, y, *self._options, overwrite, None, None, None
            )
            if type(result) is not Miss:
                return result
        return self._general(alpha, beta, x, y, stream)

    def __repr__(self) -> str:
        bound = [name for name in ("x", "y") if getattr(self, name) is not None]
        return f"<gemv.Plan, bound to {', '.join(['a', *bound])}>"
