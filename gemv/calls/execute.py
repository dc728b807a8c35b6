"""The long way of a call: bind the arguments, select a kernel, run it, hand y back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gemv.arrays import adopt as arrays_adopt
from gemv.arrays import host
from gemv.arrays.jax import is_traced
from gemv.calls import faster, memory_check, short
from gemv.calls.bind import BlasArguments, Call, bind
from gemv.calls.order import Order
from gemv.calls.remembered import UNUSUAL, LongWay, remember
from gemv.calls.result import make_y, note_written
from gemv.core import memo, trace
from gemv.core.dtypes import PREFIXES, dtype_name
from gemv.core.narrow import cast
from gemv.core.operand import where
from gemv.core.problem import Problem
from gemv.core.rules import y_length
from gemv.core.values import digits, is_integer, typed
from gemv.engines import backend as engines_backend
from gemv.engines.host import announce, refuse_kernel, run


def long_way(
    found: LongWay,
    name: str | None,
    routine: str,
    dtype: np.dtype | None,
    arguments: BlasArguments,
    options: tuple[Any, Any, Any],
    accumulate: Any,
    out_dtype: Any,
    peer: Any,
    device_memory_limit: Any,
) -> Any:
    """Check a call and compute it.

    Parameters
    ----------
    found : LongWay
        The answer of the short way.
    name : str or None
        The routine's name in the key; None for a call that no short way makes.
    routine, dtype
        The routine's own name, and the dtype it computes in; None for that of its operands.
    options : tuple
        The arguments kernel, stream and coefficients.
    """
    kernel, stream, coefficients = options
    if is_traced(*arguments[:5]):
        from gemv.calls import jax_calls

        return jax_calls.traced(
            routine, dtype, arguments, options, accumulate, out_dtype, peer, device_memory_limit
        )
    call = bind(
        routine, dtype, *arguments, coefficients=coefficients, accumulate=accumulate,
        out_dtype=out_dtype, peer=peer,
    )  # fmt: skip
    limit = memory_limit(call, device_memory_limit)
    check_stream(call, stream)
    if call.on_host:
        return _execute_host_arrays(call, kernel, coefficients, limit)

    def ask() -> LongWay:
        return UNUSUAL if name is None else short.answer(name, arguments, options)

    return _execute_device_arrays(call, kernel, stream, found, ask)


def check_stream(call: Call, stream: Any) -> None:
    """Refuse a stream for arrays in host memory."""
    if call.on_host and stream is not None:
        raise ValueError(
            f"{call.routine}: stream only applies to device arrays: with host arrays the call"
            " waits for its result"
        )


def memory_limit(call: Call, limit: Any) -> int | None:
    """``device_memory_limit`` as an int, in bytes; only calls on host arrays take one."""
    if limit is None:
        return None
    if not call.on_host:
        raise ValueError(
            f"{call.routine}: device_memory_limit only applies to host arrays: a is"
            f" {where(call.a)} already"
        )
    if not is_integer(limit):
        raise TypeError(
            f"{call.routine}: device_memory_limit must be an integer, a number of bytes, got"
            f" {typed(limit)}"
        )
    if limit <= 0:
        raise ValueError(
            f"{call.routine}: device_memory_limit must be positive, got {digits(int(limit))}"
        )
    return int(limit)


def _execute_host_arrays(
    call: Call, kernel: str | None, coefficients: Any, limit: int | None
) -> Any:
    problem, y, y_dtype = call.problem, call.y, call.problem.y_dtype
    found, on_host, generation = None, False, memo.generation()
    if call.nothing is None:
        # Fails before anything is allocated, if it does.
        found = faster.comparison(call, kernel, coefficients, limit)
        on_host = faster.on_host(found)
        if on_host and found is None:
            refuse_on_host(call, kernel)
            announce()
    if y is None:
        result = np.zeros(y_length(problem.rows, call.offy, call.incy), y_dtype)
    elif call.in_place:
        result = y.owner
    else:
        result = host.result_like(y, y_dtype)
    if call.nothing is None:
        if y is not None and call.in_place:
            note_written(y)
        with trace.compared(found):
            _compute_host_arrays(call, kernel, limit, result, on_host)
        if on_host:
            short.prepare_host(
                generation, engines_backend.is_by_environment(), faster.reach(found is not None)
            )
    if y is not None and call.in_place and y.exporter.is_array(y.origin):
        return y.origin  # it shares its memory with result
    # Only now: JAX may copy the values that are there.
    return call.a.exporter.from_numpy(call.a.origin, result)


def _compute_host_arrays(
    call: Call, kernel: str | None, limit: int | None, result: Any, on_host: bool
) -> None:
    """Compute a product of host arrays into `result`, which has the values of y, or zeros."""
    problem, y, dtype = call.problem, call.y, call.problem.dtype

    # Only the stretch of x and y that the increments reach is moved.
    reach_x = call.offx + (problem.cols - 1) * abs(problem.incx) + 1
    reach_y = call.offy + (problem.rows - 1) * abs(call.incy if problem.rows > 1 else 1) + 1
    flat_y = np.asarray(result).reshape(-1)[call.offy : reach_y]
    x = host.host_copy(call.x, dtype)[call.offx : reach_x]
    if call.owner is not None:
        call.owner.note(call.alpha, call.beta)
    if on_host:
        a = host.host_view(call.a, dtype)
        used_x, used_y = x[:: abs(problem.incx)], flat_y[:: abs(problem.incy)]
        used_x = used_x if problem.incx > 0 else used_x[::-1]
        used_y = used_y if problem.incy > 0 else used_y[::-1]
        number = problem.precision.sums  # what SciPy's BLAS computes in
        a, used_x, start = cast(a, number), cast(used_x, number), cast(used_y, number)
        routine = PREFIXES[number] + "gemv"
        total = run(routine, problem.trans, call.alpha, a, used_x, call.beta, start)
        used_y[:] = cast(total, problem.y_dtype)
        return

    from gemv.streaming import compute

    problem = problem._replace(
        x_offset=problem.x_offset - call.offx, y_offset=problem.y_offset - call.offy
    )
    if y is None:
        # All zeros: nothing to upload, and no gaps between the elements either.
        problem = problem._replace(incy=1, y_offset=0)
    problem = problem.at(0, 0)  # as the copies will be: aligned for any load
    choice, engine = selected(call, problem, kernel)
    routine = call.routine
    way = compute.planned(engine, routine, problem, choice, len(flat_y), limit)
    values = compute.compute(
        engine, routine, way, choice, problem, call.a, call.alpha, x, call.beta,
        None if y is None else flat_y, call.owner,
    )  # fmt: skip
    if y is None:
        used_y = flat_y[:: abs(call.incy)] if problem.rows > 1 else flat_y
        used_y = used_y if call.incy > 0 else used_y[::-1]
        used_y[:] = values
    else:
        flat_y[:] = values


def _execute_device_arrays(
    call: Call, kernel: str | None, stream: Any, found: LongWay, ask: Callable[[], LongWay]
) -> Any:
    """Enqueue a call; ``ask()`` asks the short way, for one that is made in the meantime."""
    problem = call.problem
    if call.nothing is not None and call.in_place:
        return call.y_object
    generation, remembered = memo.generation(), None
    if engines_backend.backend() == "host":
        raise _device_arrays_on_host(call)
    engine = engines_backend.engine()
    with engine.on(call.device):
        # Before anything is enqueued, so that an error leaves nothing behind.
        problem = placed(call)
        choice = None if call.nothing is not None else selected(call, problem, kernel)[0]
        order = Order(call, engine, stream)
        for other in order.peers():
            engine.reach(call.routine, call.device, other)
        if memory_check.FULL and call.nothing is None and engine.name == "cuda":
            memory_check.check(call.routine, order.operands, engine.memory_at)
        if engine.name == "cuda":
            if short.prepare(engine, call.a.kind):
                found = ask()
            if found.key is not None and choice is not None and order.plain:
                engine.load(choice, engine.device(), order.stream)
                remembered = remember(found.key, generation, engine, choice, call)
        x, made = call.x, None
        if x.resolve:
            x = arrays_adopt.on_device(x.exporter.resolved(x.origin, x.conj), engines_backend.HOME)
            order.uses(x)
        if call.y is not None and call.in_place:
            target = call.y
        else:
            made = make_y(call, engine, order)
            target = made.operand
        order.before()
        if made is not None:
            made.fill(engine, order.stream)
        if choice is not None:
            engine.run(
                choice,
                problem,
                call.alpha,
                call.a,
                x,
                call.beta,
                target,
                stream=order.stream,
                owner=call.owner,
            )
        order.after()
        if made is not None:
            y = made.finish(engine, order.stream)
        else:
            note_written(target)
            y = call.y_object
        if found.expect is not None and (remembered is not None or found.key is None):
            found.expect(remembered, y)
    return y


def placed(call: Call) -> Problem:
    """The problem of a call with device arrays, with what their addresses allow."""
    return call.problem.at(call.a.pointer, 0 if call.x.resolve else call.x.pointer)


def to_be_selected(call: Call) -> Problem:
    """The problem that a kernel is selected for, as the launch will have it, ahead of the call."""
    if not call.on_host:
        return placed(call)
    problem = call.problem
    if call.y is None:
        problem = problem._replace(incy=1, y_offset=0)
    return problem.at(0, 0)


def selected(call: Call, problem: Problem, kernel: str | None) -> tuple[Any, Any]:
    """The kernel with its knobs and geometry that a call gets, and the engine that runs it."""
    from gemv.selection.select import select

    engine = engines_backend.engine()
    try:
        choice = select(problem, engine.device(), kernel=kernel, homes=call.homes)
    except ValueError as error:
        raise ValueError(f"{call.routine}: {error}") from None
    return choice, engine


def refuse_on_host(call: Call, kernel: str | None) -> None:
    """Refuse what SciPy's BLAS, which computes under this backend, has not."""
    if not call.on_host:
        raise _device_arrays_on_host(call)
    refuse_kernel(call.routine, kernel)
    if call.problem.precision.sums not in PREFIXES:
        raise ValueError(
            f"{call.routine}: accumulate={call.problem.accumulate!r} in"
            f" {dtype_name(call.problem.dtype)} needs a GPU or the simulator, but the backend is"
            " host, where SciPy's BLAS has nothing like it"
        )


def _device_arrays_on_host(call: Call) -> TypeError:
    return TypeError(
        f"{call.routine}: a is {where(call.a)}, but the backend is host, which takes"
        ' host arrays only; call gemv.use_backend("cuda") or copy the arrays to the host'
    )
