"""A product whose matrix is in host memory, panel by panel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from gemv.core import trace
from gemv.core.dtypes import dtype_name
from gemv.core.geometry import PANEL_BYTES
from gemv.core.operand import Operand
from gemv.core.problem import Problem
from gemv.selection.select import Choice
from gemv.streaming.cut import Cut, Source, choice_for, cut, part_of

_watchers: ContextVar[tuple[Callable[[int, int], None], ...]] = ContextVar("watch", default=())


@contextmanager
def watch(report: Callable[[int, int], None]) -> Iterator[None]:
    """Call ``report(bytes done, bytes in all)`` as calls inside the block work their way on."""
    token = _watchers.set((*_watchers.get(), report))
    try:
        yield
    finally:
        _watchers.reset(token)


def room_for(
    engine: Any, problem: Problem, choice: Choice, y_elements: int, limit: int | None
) -> int | None:
    """Bytes of device memory that A may take, or None if nobody counts them."""
    free = engine.free_memory() if limit is None else limit
    if free is None:
        return None
    data, result, _, sums = choice.spec.precision
    others = (1 + (problem.cols - 1) * abs(problem.incx)) * data.itemsize
    others += y_elements * result.itemsize + choice.geometry.scratch * sums.itemsize
    return free - others - 4 * choice.geometry.counters


def planned(
    engine: Any, routine: str, problem: Problem, choice: Choice, y_elements: int, limit: int | None
) -> Cut:
    """How a call will bring A to the device.

    Raises
    ------
    MemoryError
        If the smallest panels do not fit, with the sizes.
    """
    nbytes = problem.rows * problem.cols * problem.dtype.itemsize
    room = None
    if limit is not None or nbytes > PANEL_BYTES:
        room = room_for(engine, problem, choice, y_elements, limit)
    target = PANEL_BYTES if room is None else max(1, min(PANEL_BYTES, room))
    made = cut(problem, choice, room, target)
    if isinstance(made, int):
        raise MemoryError(_too_large(engine, routine, problem, limit, made))
    return made


def _too_large(engine: Any, routine: str, problem: Problem, limit: int | None, more: int) -> str:
    nbytes = problem.rows * problem.cols * problem.dtype.itemsize
    allowed = (
        f"{engine.free_memory()} bytes of device memory are free"
        if limit is None
        else f"device_memory_limit is {limit} bytes"
    )
    return (
        f"{routine}: A of {problem.m} x {problem.n} {dtype_name(problem.dtype)} takes {nbytes}"
        f" bytes, and even in the smallest panels {more} bytes more than there are beside x and y:"
        f" {allowed}"
    )


def compute(
    engine: Any,
    routine: str,
    made: Cut,
    choice: Choice,
    problem: Problem,
    a: Operand,
    alpha: Any,
    x: np.ndarray,
    beta: Any,
    y: np.ndarray | None,
    owner: Any,
) -> np.ndarray:
    """The y of a product whose operands are all in host memory; None stands for a y of zeros.

    Raises
    ------
    MemoryError
        If the device's memory does not suffice, with the sizes.
    """
    source = Source(a, problem)
    nbytes = problem.rows * problem.cols * problem.dtype.itemsize
    try:
        with engine.session():
            dtype, y_dtype, _, sums = choice.spec.precision
            device_x = engine.send("x", x, dtype)
            if y is None:
                device_y = engine.blank("y", problem.rows, y_dtype)
            else:
                device_y = engine.send("y", y, y_dtype)
            shared = None
            if made.way == "columns":
                shared = engine.shared(choice.geometry, sums)
            trace.record(
                backend=engine.name,
                kernel=choice.kernel.name,
                knobs=choice.knobs,
                geometry=choice.geometry,
                coefficients=choice.coefficients,
            )
            if alpha == 0:  # the kernel does not read A
                nothing = engine.blank("a", 1, dtype)
                _run(engine, choice, problem, alpha, nothing, device_x, beta, device_y, owner)
                return engine.receive(device_y, shared)
            done = 0
            # Closed in any case: what is on its way must arrive before memory is given back.
            with closing(engine.feed(source, made)) as panels:
                for panel, device_a in panels:
                    part, one = part_of(problem, panel), choice
                    if made.way != "whole":
                        one = choice_for(choice, problem, panel, part, engine.device(), made.way)
                    if shared is not None:
                        sizes = {**one.geometry.sizes, **shared.at(panel.split * problem.rows)}
                        geometry = one.geometry._replace(sizes=sizes)
                        one = one._replace(geometry=geometry)
                    _run(engine, one, part, alpha, device_a, device_x, beta, device_y, owner)
                    done += panel.rows * panel.cols * dtype.itemsize
                    for report in _watchers.get():
                        report(done, nbytes)
            return engine.receive(device_y, shared)
    except Exception as error:
        if not engine.exhausted(error):
            raise
        free = engine.free_memory()
        raise MemoryError(
            f"{routine}: out of device memory with A of {problem.m} x {problem.n}"
            f" {dtype_name(problem.dtype)}, {nbytes} bytes, of which {made.buffers} x"
            f" {made.panel_bytes} are on the device at a time; {free} bytes are free now."
            " Free what is not needed, or let A be streamed in"
            " smaller panels by device_memory_limit="
        ) from error


def _run(
    engine: Any,
    choice: Choice,
    problem: Problem,
    alpha: Any,
    a: Operand,
    x: Operand,
    beta: Any,
    y: Operand,
    owner: Any,
) -> None:
    """Launch without leaving a trace: that is one for the whole call."""
    with trace.silent():
        engine.run(choice, problem, alpha, a, x, beta, y, owner=owner)
