"""A product whose operands are in host memory: each panel of A is copied, then read by a launch."""

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
from gemv.core.splits import SumsOfSplits
from gemv.engines.coefficients import Coefficients
from gemv.engines.protocol import Engine
from gemv.selection.select import Choice
from gemv.streaming.cut import Cut, Source, choice_for, cut, part_of

_watchers: ContextVar[tuple[Callable[[int, int], None], ...]] = ContextVar("watch", default=())


@contextmanager
def watch(report: Callable[[int, int], None]) -> Iterator[None]:
    """Call ``report(bytes done, bytes in all)`` after each panel of the calls inside the block."""
    token = _watchers.set((*_watchers.get(), report))
    try:
        yield
    finally:
        _watchers.reset(token)


def room_for(
    engine: Engine, problem: Problem, choice: Choice, y_elements: int, limit: int | None
) -> int | None:
    """Bytes of device memory that A may take; None if the engine does not count them.

    `limit` bounds all memory of the call, that of x, y and scratch memory included.
    """
    free = engine.free_memory() if limit is None else limit
    if free is None:
        return None
    data, result, _, sums = choice.spec.precision
    others = (1 + (problem.cols - 1) * abs(problem.incx)) * data.itemsize
    others += y_elements * result.itemsize + choice.geometry.scratch * sums.itemsize
    return free - others - 4 * choice.geometry.counters


def planned(
    engine: Engine,
    routine: str,
    problem: Problem,
    choice: Choice,
    y_elements: int,
    limit: int | None,
) -> Cut:
    """The cut by which a call will bring A to the device.

    `y_elements` is the length of y in memory, and `limit` what the user allows, or None.

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


def _too_large(engine: Engine, routine: str, problem: Problem, limit: int | None, more: int) -> str:
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
    engine: Engine,
    routine: str,
    made: Cut,
    choice: Choice,
    problem: Problem,
    a: Operand,
    alpha: Any,
    x: np.ndarray,
    beta: Any,
    y: np.ndarray | None,
    owner: Coefficients | None,
) -> np.ndarray:
    """The y of a product whose operands are all in host memory, A cut into the panels of `made`.

    y is None for zeros; `owner` has the slot of alpha and beta, if there is one.

    Raises
    ------
    MemoryError
        If the device's memory does not suffice, with the sizes.
    """
    source = Source(a, problem)
    nbytes = problem.rows * problem.cols * problem.dtype.itemsize
    try:
        with engine.session() as session:
            dtype, y_dtype, _, of_sums = choice.spec.precision
            device_x = session.send("x", x, dtype)
            if y is None:
                device_y = session.blank("y", problem.rows, y_dtype)
            else:
                device_y = session.send("y", y, y_dtype)
            shared = None
            splits = choice.geometry.sizes.get("splits", 1)
            sums = SumsOfSplits(choice.kernel.steps_of_sums, problem.rows, splits)
            if made.way == "columns":
                shared = session.shared(choice.geometry, of_sums)
            trace.record(
                backend=engine.name,
                kernel=choice.kernel.name,
                knobs=choice.knobs,
                geometry=choice.geometry,
                coefficients=choice.coefficients,
            )
            if alpha == 0:  # the kernel does not read A
                nothing = session.blank("a", 1, dtype)
                _run(engine, choice, problem, alpha, nothing, device_x, beta, device_y, owner)
                return session.receive(device_y, shared)
            done = 0
            # Closed in any case: the panels on their way must arrive before memory is freed.
            with closing(session.feed(source, made)) as panels:
                for panel, device_a in panels:
                    part, one = part_of(problem, panel), choice
                    if made.way != "whole":
                        one = choice_for(choice, problem, panel, part, engine.device(), made.way)
                    if shared is not None:
                        sizes = {**one.geometry.sizes, **shared.at(sums.first(panel.split))}
                        geometry = one.geometry._replace(sizes=sizes)
                        one = one._replace(geometry=geometry)
                    _run(engine, one, part, alpha, device_a, device_x, beta, device_y, owner)
                    done += panel.rows * panel.cols * dtype.itemsize
                    for report in _watchers.get():
                        report(done, nbytes)
            return session.receive(device_y, shared)
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
    engine: Engine,
    choice: Choice,
    problem: Problem,
    alpha: Any,
    a: Operand,
    x: Operand,
    beta: Any,
    y: Operand,
    owner: Coefficients | None,
) -> None:
    """Launch without a trace: the whole call has left one."""
    with trace.silent():
        engine.run(choice, problem, alpha, a, x, beta, y, owner=owner)
