"""The public calls: bind, adopt, check, return at once or select and run, hand y back."""

from __future__ import annotations

from typing import Any

from gemv.arrays import adopt as arrays_adopt
from gemv.arrays.adopt import adopt
from gemv.calls import short
from gemv.calls.bind import bind, check_places, common_dtype, result_dtype
from gemv.calls.docstrings import documented
from gemv.calls.execute import check_stream, execute, memory_limit, placed, refuse_on_host, selected
from gemv.calls.explain import Explanation
from gemv.calls.known import ROUTINES, Known, Miss, bind_plan, packable, stream_of
from gemv.calls.plan import Plan
from gemv.calls.short import CALLS
from gemv.core import memo
from gemv.core.dtypes import DTYPES, PREFIXES
from gemv.core.operand import Operand
from gemv.core.rules import accumulation, check, flag, integer, transposition, type_error, y_length
from gemv.engines import backend as engines_backend
from gemv.engines.coefficients import Coefficients
from gemv.engines.host import known_kernel

short.expect_tracing()


@documented
def gemv(
    alpha: Any,
    a: Any,
    x: Any,
    beta: Any = 0,
    y: Any = None,
    offx: Any = 0,
    incx: Any = 1,
    offy: Any = 0,
    incy: Any = 1,
    trans: Any = 0,
    overwrite_y: Any = 0,
    *,
    kernel: str | None = None,
    stream: Any = None,
    coefficients: str | Coefficients | None = None,
    accumulate: str = "plain",
    out_dtype: Any = None,
    peer: bool = False,
    device_memory_limit: int | None = None,
) -> Any:
    """Matrix-vector product ``alpha*op(a)*x + beta*y`` in the precision of its operands.

    <parameters with out_dtype>

    See Also
    --------
    sgemv, dgemv, cgemv, zgemv : The same for one dtype, which host operands are cast to.
    explain : Which kernel a call would use.

    Notes
    -----
    Host operands are computed in NumPy's common dtype of a, x and y, where integers and booleans
    count as float64 in the end, as arrays of objects do that are numbers; a complex alpha or beta
    makes it complex. Long doubles are refused. Device operands share one dtype, float32, float64,
    complex64, complex128, float16 or bfloat16, and are never converted or copied.

    Where a and x are both float16 or both bfloat16, products and sums are float32, as alpha and
    beta are, and y is rounded to its dtype once: theirs, or float32 if y or `out_dtype` says so.

    <notes>

    Examples
    --------
    >>> import numpy as np
    >>> import gemv
    >>> a = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    >>> gemv.gemv(1, a, [1.0, 0.0, -1.0])
    array([-2., -2.])
    >>> gemv.gemv(2, a, [1.0, 1.0], trans="T", beta=1, y=np.ones(3))
    array([11., 15., 19.])
    """
    if accumulate == "plain" and peer is False and out_dtype is None:
        product, fast = "gemv", CALLS.get(type(a))
    else:
        product, fast = short.wide("gemv", a, accumulate, peer, out_dtype)
    key = None
    if fast is not None and device_memory_limit is None:
        result = fast(
            product, alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y,
            kernel, stream, coefficients,
        )  # fmt: skip
        if type(result) is not Miss:
            return result
        key = result.key
    call = bind(
        "gemv", None, alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y,
        coefficients, accumulate, out_dtype, peer,
    )  # fmt: skip
    return execute(call, kernel, stream, device_memory_limit, key)


@documented
def sgemv(
    alpha: Any,
    a: Any,
    x: Any,
    beta: Any = 0,
    y: Any = None,
    offx: Any = 0,
    incx: Any = 1,
    offy: Any = 0,
    incy: Any = 1,
    trans: Any = 0,
    overwrite_y: Any = 0,
    *,
    kernel: str | None = None,
    stream: Any = None,
    coefficients: str | Coefficients | None = None,
    accumulate: str = "plain",
    peer: bool = False,
    device_memory_limit: int | None = None,
) -> Any:
    """Matrix-vector product ``alpha*op(a)*x + beta*y`` in float32.

    A drop-in for :func:`scipy.linalg.blas.sgemv`: host operands are cast as it casts them.

    <parameters>

    See Also
    --------
    gemv : The same in the precision of its operands.

    Notes
    -----
    <notes>

    Examples
    --------
    >>> import gemv
    >>> gemv.sgemv(1, [[1, 2], [3, 4]], [1, 1])
    array([3., 7.], dtype=float32)
    """
    if accumulate == "plain" and peer is False:
        product, fast = "sgemv", CALLS.get(type(a))
    else:
        product, fast = short.wide("sgemv", a, accumulate, peer)
    key = None
    if fast is not None and device_memory_limit is None:
        result = fast(
            product, alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y,
            kernel, stream, coefficients,
        )  # fmt: skip
        if type(result) is not Miss:
            return result
        key = result.key
    call = bind(
        "sgemv", DTYPES["s"], alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y,
        coefficients, accumulate, peer=peer,
    )  # fmt: skip
    return execute(call, kernel, stream, device_memory_limit, key)


@documented
def dgemv(
    alpha: Any,
    a: Any,
    x: Any,
    beta: Any = 0,
    y: Any = None,
    offx: Any = 0,
    incx: Any = 1,
    offy: Any = 0,
    incy: Any = 1,
    trans: Any = 0,
    overwrite_y: Any = 0,
    *,
    kernel: str | None = None,
    stream: Any = None,
    coefficients: str | Coefficients | None = None,
    accumulate: str = "plain",
    peer: bool = False,
    device_memory_limit: int | None = None,
) -> Any:
    """Matrix-vector product ``alpha*op(a)*x + beta*y`` in float64.

    A drop-in for :func:`scipy.linalg.blas.dgemv`: host operands are cast as it casts them.

    <parameters>

    See Also
    --------
    gemv : The same in the precision of its operands.

    Notes
    -----
    <notes>

    Examples
    --------
    >>> import gemv
    >>> gemv.dgemv(1, [[1, 2], [3, 4]], [1, 9, 1], incx=-2)
    array([3., 7.])
    """
    if accumulate == "plain" and peer is False:
        product, fast = "dgemv", CALLS.get(type(a))
    else:
        product, fast = short.wide("dgemv", a, accumulate, peer)
    key = None
    if fast is not None and device_memory_limit is None:
        result = fast(
            product, alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y,
            kernel, stream, coefficients,
        )  # fmt: skip
        if type(result) is not Miss:
            return result
        key = result.key
    call = bind(
        "dgemv", DTYPES["d"], alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y,
        coefficients, accumulate, peer=peer,
    )  # fmt: skip
    return execute(call, kernel, stream, device_memory_limit, key)


@documented
def cgemv(
    alpha: Any,
    a: Any,
    x: Any,
    beta: Any = 0,
    y: Any = None,
    offx: Any = 0,
    incx: Any = 1,
    offy: Any = 0,
    incy: Any = 1,
    trans: Any = 0,
    overwrite_y: Any = 0,
    *,
    kernel: str | None = None,
    stream: Any = None,
    coefficients: str | Coefficients | None = None,
    accumulate: str = "plain",
    peer: bool = False,
    device_memory_limit: int | None = None,
) -> Any:
    """Matrix-vector product ``alpha*op(a)*x + beta*y`` in complex64.

    A drop-in for :func:`scipy.linalg.blas.cgemv`: host operands are cast as it casts them.

    <parameters>

    See Also
    --------
    gemv : The same in the precision of its operands.

    Notes
    -----
    <notes>

    Examples
    --------
    >>> import gemv
    >>> gemv.cgemv(1, [[1j, 2], [3, 4]], [1, 1], trans="C")
    array([3.-1.j, 6.+0.j], dtype=complex64)
    """
    if accumulate == "plain" and peer is False:
        product, fast = "cgemv", CALLS.get(type(a))
    else:
        product, fast = short.wide("cgemv", a, accumulate, peer)
    key = None
    if fast is not None and device_memory_limit is None:
        result = fast(
            product, alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y,
            kernel, stream, coefficients,
        )  # fmt: skip
        if type(result) is not Miss:
            return result
        key = result.key
    call = bind(
        "cgemv", DTYPES["c"], alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y,
        coefficients, accumulate, peer=peer,
    )  # fmt: skip
    return execute(call, kernel, stream, device_memory_limit, key)


@documented
def zgemv(
    alpha: Any,
    a: Any,
    x: Any,
    beta: Any = 0,
    y: Any = None,
    offx: Any = 0,
    incx: Any = 1,
    offy: Any = 0,
    incy: Any = 1,
    trans: Any = 0,
    overwrite_y: Any = 0,
    *,
    kernel: str | None = None,
    stream: Any = None,
    coefficients: str | Coefficients | None = None,
    accumulate: str = "plain",
    peer: bool = False,
    device_memory_limit: int | None = None,
) -> Any:
    """Matrix-vector product ``alpha*op(a)*x + beta*y`` in complex128.

    A drop-in for :func:`scipy.linalg.blas.zgemv`: host operands are cast as it casts them.

    <parameters>

    See Also
    --------
    gemv : The same in the precision of its operands.

    Notes
    -----
    <notes>

    Examples
    --------
    >>> import gemv
    >>> gemv.zgemv(1j, [[1, 2], [3, 4]], [1, 1])
    array([0.+3.j, 0.+7.j])
    """
    if accumulate == "plain" and peer is False:
        product, fast = "zgemv", CALLS.get(type(a))
    else:
        product, fast = short.wide("zgemv", a, accumulate, peer)
    key = None
    if fast is not None and device_memory_limit is None:
        result = fast(
            product, alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y,
            kernel, stream, coefficients,
        )  # fmt: skip
        if type(result) is not Miss:
            return result
        key = result.key
    call = bind(
        "zgemv", DTYPES["z"], alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y,
        coefficients, accumulate, peer=peer,
    )  # fmt: skip
    return execute(call, kernel, stream, device_memory_limit, key)


def plan(
    a: Any,
    x: Any = None,
    y: Any = None,
    *,
    offx: Any = 0,
    incx: Any = 1,
    offy: Any = 0,
    incy: Any = 1,
    trans: Any = 0,
    kernel: str | None = None,
    stream: Any = None,
    accumulate: str = "plain",
    out_dtype: Any = None,
    peer: bool = False,
) -> Plan:
    """A product with the same device matrix, and perhaps the same vectors, to be made many times.

    The arguments are those of :func:`gemv`, which describes them. They are checked, a kernel is
    selected and compiled, and where both vectors are given the launch is packed, all of it once.

    Parameters
    ----------
    a : device array of shape (m, n)
    x, y : device array, optional
        Vectors that the plan is bound to. It overwrites y; without one, each call makes a new one.
    offx, incx, offy, incy, trans, kernel, stream, accumulate, out_dtype, peer
        As in :func:`gemv`.

    Returns
    -------
    Plan
        Call it as ``plan(alpha, beta)``, or ``plan(alpha, beta, x, y)`` with other vectors.

    Raises
    ------
    ValueError, TypeError
        As :func:`gemv` does; also for a matrix in host memory, which would move in every call.

    Examples
    --------
    >>> import gemv, numpy as np
    >>> from numba import cuda
    >>> a, x = cuda.to_device(np.eye(2)), cuda.to_device(np.array([1.0, 2.0]))
    >>> y = cuda.to_device(np.zeros(2))
    >>> twice = gemv.plan(a, x, y)
    >>> twice(2.0).copy_to_host()
    array([2., 4.])
    >>> twice(1.0, beta=1.0).copy_to_host()
    array([3., 6.])
    """
    operand = arrays_adopt.adopt("plan", "a", a, None, engines_backend.HOME)
    if operand.on_host:
        raise type_error(
            "plan", "a", "a is in host memory, from where it would be moved in every call"
        )
    options = (offx, incx, offy, incy, trans)

    def general(alpha: Any, beta: Any, x: Any, y: Any, stream_now: Any) -> Any:
        if x is None:
            raise type_error("plan", "x", "the plan is bound to no x, so each call has to pass one")
        return gemv(
            alpha, a, x, beta, y, *options, 0 if y is None else 1,
            kernel=kernel, stream=stream if stream_now is None else stream_now,
            accumulate=accumulate, out_dtype=out_dtype, peer=peer,
        )  # fmt: skip

    made = Plan(general, a, x, y, options)
    call, era = None, memo.generation()
    if x is not None:
        call = bind(
            "plan", None, 2, a, x, 0, y, *options, 0 if y is None else 1, None, accumulate,
            out_dtype, peer,
        )  # fmt: skip
    else:
        _check_without_x(operand, y, options, accumulate, out_dtype, peer)
    if kernel is not None:
        known_kernel("plan", kernel)
    if engines_backend.backend() == "host" or (call is not None and call.nothing is not None):
        return made
    engine = engines_backend.engine()
    usual = kernel is stream is out_dtype is None and accumulate == "plain" and peer is False
    if engine.name == "cuda" and usual:
        short.meet(operand.kind)
        made._remember(CALLS.get(type(a)))
    if call is None:
        return made
    with engine.on(call.device):
        choice = selected(call, placed(call), kernel)[0]
        if engine.name != "cuda":
            return made
        engine.load(choice, engine.device())
        same = len({o.kind for o in (call.a, call.x, call.y) if o is not None}) == 1
        current = stream_of(call.a) if same and stream is None else None
        bound = [o.stream for o in (call.x, call.y) if o is not None]
        if call.y is None or current is None or peer or any(each is not None for each in bound):
            return made
        if packable(engine, choice, call):
            known = Known(engine, choice, call.problem, call.problem.rows)
            addresses = (call.a.pointer, call.x.pointer, call.y.pointer)
            bind_plan(made, era, known, current, addresses, call.a.exporter.notes_writes)
    return made


def _check_without_x(
    a: Operand, y: Any, options: tuple, accumulate: Any, out_dtype: Any, peer: Any
) -> None:
    """What can be said about a plan whose x comes with each call, as of a long enough one."""
    routine = "plan"
    trans = transposition(routine, options[-1])
    names = ("offx", "incx", "offy", "incy")
    offx, incx, offy, incy = map(integer, [routine] * 4, names, options)
    accumulation(routine, accumulate)
    operand_y = None if y is None else adopt(routine, "y", y, None, engines_backend.HOME)
    check_places(routine, a, a, operand_y, 2, 0, flag(routine, "peer", peer))
    dtype = common_dtype(routine, 2, a, a, 0, operand_y)
    y_dtype = result_dtype(routine, dtype, operand_y, out_dtype)
    rows, cols = a.shape if trans == 0 else a.shape[::-1]
    x_len, y_len = (
        max(off + 1, y_length(count, off, inc))
        for count, off, inc in ((cols, offx, incx), (rows, offy, incy))
    )
    if operand_y is not None:
        y_len = operand_y.shape[0]
    check(
        routine, dtype, a.shape, a.strides, x_len, 1, y_len, 1, offx, incx, offy, incy, trans,
        y_dtype,
    )  # fmt: skip


def precompile(
    alpha: Any,
    a: Any,
    x: Any,
    beta: Any = 0,
    y: Any = None,
    offx: Any = 0,
    incx: Any = 1,
    offy: Any = 0,
    incy: Any = 1,
    trans: Any = 0,
    overwrite_y: Any = 0,
    *,
    kernel: str | None = None,
    coefficients: str | Coefficients | None = None,
    accumulate: str = "plain",
    out_dtype: Any = None,
    peer: bool = False,
) -> None:
    """Compile and load what :func:`gemv` would run for these arguments, without running it.

    A kernel that was not loaded before cannot be used in a CUDA graph capture: call this with the
    arguments of the call, or of one of the same dtype and shape, ahead of the capture.

    Raises
    ------
    ValueError, TypeError
        As :func:`gemv` does.

    Examples
    --------
    >>> import gemv
    >>> gemv.precompile(1.0, [[1.0, 2.0]], [3.0, 4.0])
    """
    call = bind(
        "gemv", None, alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y,
        coefficients, accumulate, out_dtype, peer,
    )  # fmt: skip
    if call.nothing is not None:
        return
    if engines_backend.backend() == "host":
        return refuse_on_host(call, kernel)
    problem, engine = call.problem, engines_backend.engine()
    if call.y is None and call.on_host:
        problem = problem._replace(incy=1, y_offset=0)
    problem = problem.at(0, 0) if call.on_host else placed(call)
    with engine.on(call.device):
        choice = selected(call, problem, kernel)[0]
        if engine.name == "cuda":
            engine.load(choice, engine.device())
            if call.y is not None and not call.in_place:
                engine.prepare_copy(call.y)
            if not call.on_host:
                short.meet(call.a.kind)


def explain(
    alpha: Any,
    a: Any,
    x: Any,
    beta: Any = 0,
    y: Any = None,
    offx: Any = 0,
    incx: Any = 1,
    offy: Any = 0,
    incy: Any = 1,
    trans: Any = 0,
    overwrite_y: Any = 0,
    *,
    kernel: str | None = None,
    stream: Any = None,
    coefficients: str | Coefficients | None = None,
    accumulate: str = "plain",
    out_dtype: Any = None,
    peer: bool = False,
    device_memory_limit: int | None = None,
) -> Explanation:
    """Which kernel :func:`gemv` would use for these arguments, and how it would be launched.

    Nothing is computed, moved or launched, but arguments are checked as by :func:`gemv`, which
    also describes them.

    Returns
    -------
    Explanation
        As data; ``str()`` of it is a sentence.

    Raises
    ------
    ValueError, TypeError
        As :func:`gemv` does.

    Examples
    --------
    >>> import gemv
    >>> print(gemv.explain(0, [[1.0, 2.0]], [1.0, 1.0], beta=1, y=[5.0]))
    dgemv computes nothing and returns y as it was: alpha is 0 and beta is 1.
    """
    call = bind(
        "gemv", None, alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y,
        coefficients, accumulate, out_dtype, peer,
    )  # fmt: skip
    limit = memory_limit(call, device_memory_limit)
    check_stream(call, stream)
    problem = call.problem
    common: dict[str, Any] = {
        "routine": call.blas_name,
        "accumulate": problem.accumulate,
        "access": problem.access,
        "bytes_moved": problem.bytes_moved(bool(call.beta == 0)),
    }
    nothing: dict[str, Any] = {
        "rung": None,
        "depth": None,
        "knobs": {},
        "launches": (),
        "sizes": {},
        "coefficients": "nowhere",
    }
    if call.nothing is not None:
        common["bytes_moved"] = 0
        return Explanation(backend=None, kernel=None, reason=call.nothing, **common, **nothing)
    backend = engines_backend.backend()
    if backend == "host":
        refuse_on_host(call, kernel)
        chosen = engines_backend.chosen() is not None
        reason = "this backend was asked for" if chosen else engines_backend.probe()[1]
        nothing["coefficients"] = "arguments"
        routine = PREFIXES[problem.precision.sums] + "gemv"
        return Explanation(backend=backend, kernel=routine, reason=reason, **common, **nothing)
    if call.y is None and call.on_host:
        problem = problem._replace(incy=1, y_offset=0)
    problem = problem.at(0, 0) if call.on_host else placed(call)
    choice, engine = selected(call, problem, kernel)
    common["accumulate"] = choice.spec.accumulate
    transfer = ""
    if call.on_host and engine.name == "cuda" or limit is not None:
        from gemv.streaming import compute

        reach = 1 + (problem.rows - 1) * abs(problem.incy)
        way = compute.planned(engine, call.routine, problem, choice, reach, limit)
        transfer = way.describe(problem.rows * problem.cols * problem.dtype.itemsize)
    return Explanation(
        backend=backend,
        kernel=choice.kernel.name,
        rung=choice.kernel.rung,
        depth=choice.kernel.depth(problem, choice.geometry, choice.knobs),
        knobs=choice.knobs,
        launches=choice.geometry.launches,
        sizes=dict(choice.geometry.sizes),
        coefficients=choice.coefficients,
        reason=choice.reason,
        transfer=transfer,
        **common,
    )


ROUTINES.update({f.__name__: f for f in (gemv, sgemv, dgemv, cgemv, zgemv)})
