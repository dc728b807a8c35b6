"""The public calls: bind, adopt, check, return at once or select and run, hand y back."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from gemv import _adopt, _backend, _host
from gemv._adopt import Operand, adopt
from gemv._check import (
    check,
    coefficient,
    flag,
    integer,
    is_complex,
    number,
    transposition,
    type_error,
    value_error,
    y_length,
)
from gemv._problem import DTYPES, PREFIXES, Launch, Problem

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a call would do; ``str()`` of it is a sentence.

    Attributes
    ----------
    routine : str
        The BLAS routine that the operands ask for, ``"sgemv"`` for instance.
    backend : str or None
        ``"cuda"``, ``"simulator"`` or ``"host"``; None when nothing is computed.
    kernel : str or None
        The kernel, SciPy's routine on the host, or None when nothing is computed.
    rung : int or None
        The kernel's place on the ladder.
    knobs : dict
        Compile-time constants of the kernel.
    launches : tuple of Launch
        Grid and block of each launch.
    sizes : dict
        Further sizes that the kernel is given, ``splits`` for instance.
    coefficients : str
        Where the kernel reads alpha and beta.
    access : str
        ``"dot"`` where memory runs along the sum, ``"axpy"`` along y, else ``"strided"``.
    bytes_moved : int
        What a perfect gemv reads and writes for this call.
    reason : str
        Why this kernel, or why nothing is computed.
    """

    routine: str
    backend: str | None
    kernel: str | None
    rung: int | None
    knobs: dict[str, int]
    launches: tuple[Launch, ...]
    sizes: dict[str, int]
    coefficients: str
    access: str
    bytes_moved: int
    reason: str

    def __str__(self) -> str:
        if self.kernel is None:
            return f"{self.routine} computes nothing and returns y as it was: {self.reason}."
        if self.backend == "host":
            return (
                f"{self.routine} is computed by SciPy's BLAS on the host: {self.reason}."
                f" It moves {self.bytes_moved} bytes."
            )
        launches = ", then ".join(
            f"{' x '.join(map(str, _trim(launch.grid)))} blocks of"
            f" {' x '.join(map(str, _trim(launch.block)))} threads"
            for launch in self.launches
        )
        settings = {**self.knobs, **self.sizes}
        named = f" ({', '.join(f'{k}={v}' for k, v in settings.items())})" if settings else ""
        return (
            f"{self.routine} runs kernel {self.kernel!r}, rung {self.rung}, on the {self.backend}"
            f" backend as {launches}{named}, reading A in {self.access} order and alpha and beta"
            f" from {self.coefficients}: {self.reason}. It moves at least"
            f" {self.bytes_moved} bytes."
        )


@dataclass(frozen=True, slots=True)
class _Call:
    """A checked call: everything that is known before anything moves."""

    routine: str
    blas_name: str
    problem: Problem
    alpha: Any
    beta: Any
    a: Operand
    x: Operand
    y: Operand | None
    y_object: Any
    offx: int
    offy: int
    incy: int
    in_place: bool
    nothing: str | None

    @property
    def on_host(self) -> bool:
        return self.a.on_host


def _bind(
    routine: str,
    dtype: np.dtype | None,
    alpha: Any,
    a: Any,
    x: Any,
    beta: Any,
    y: Any,
    offx: Any,
    incx: Any,
    offy: Any,
    incy: Any,
    trans: Any,
    overwrite_y: Any,
) -> _Call:
    """Read the arguments and check them: no copy, no allocation, no launch."""
    trans = transposition(routine, trans)
    incx = integer(routine, "incx", incx)
    incy = integer(routine, "incy", incy)
    offx = integer(routine, "offx", offx)
    offy = integer(routine, "offy", offy)
    overwrite = flag(routine, "overwrite_y", overwrite_y)
    alpha = number(routine, "alpha", alpha)
    beta = number(routine, "beta", beta)

    operand_a = adopt(routine, "a", a, dtype)
    operand_x = adopt(routine, "x", x, dtype)
    operand_y = None if y is None else adopt(routine, "y", y, dtype)
    _check_places(routine, operand_a, operand_x, operand_y)
    if dtype is None:
        dtype = _common_dtype(routine, alpha, operand_a, operand_x, beta, operand_y)
    alpha = coefficient(routine, "alpha", alpha, dtype)
    beta = coefficient(routine, "beta", beta, dtype)

    in_place = (
        overwrite
        and operand_y is not None
        and (not operand_y.on_host or _adopt.writable_in_place(operand_y, dtype))
    )
    problem = check(
        routine,
        dtype,
        operand_a.shape,
        operand_a.strides,
        operand_x.shape[0],
        operand_x.strides[0],
        None if operand_y is None else operand_y.shape[0],
        operand_y.strides[0] if operand_y is not None and in_place else 1,
        offx,
        incx,
        offy,
        incy,
        trans,
    )
    if in_place and operand_y is not None:
        _check_overwrite(routine, problem, operand_a, operand_x, operand_y)

    nothing = None
    if problem.rows == 0 or problem.cols == 0:
        nothing = f"A of shape {operand_a.shape} is empty"
    elif alpha == 0 and beta == 1:
        nothing = "alpha is 0 and beta is 1"
    return _Call(
        routine=routine,
        blas_name=PREFIXES[dtype] + "gemv",
        problem=problem,
        alpha=alpha,
        beta=beta,
        a=operand_a,
        x=operand_x,
        y=operand_y,
        y_object=y,
        offx=offx,
        offy=offy,
        incy=incy,
        in_place=in_place,
        nothing=nothing,
    )


def _check_places(routine: str, a: Operand, x: Operand, y: Operand | None) -> None:
    """Host and device operands do not mix: a copy nobody asked for would be hidden in the call."""
    for name, operand in (("x", x), ("y", y)):
        if operand is not None and operand.kind != a.kind:
            raise type_error(
                routine,
                name,
                f"a is {_adopt.where(a)} but {name} is {_adopt.where(operand)};"
                " a, x and y must be in one place",
            )


def _common_dtype(
    routine: str, alpha: Any, a: Operand, x: Operand, beta: Any, y: Operand | None
) -> np.dtype:
    """The dtype that the generic routine computes in; see the Notes of :func:`gemv`."""
    named = [("a", a), ("x", x)] + ([("y", y)] if y is not None else [])
    if not a.on_host:
        for name, operand in named:
            if operand.dtype not in PREFIXES:
                known = ", ".join(map(str, PREFIXES))
                raise type_error(
                    routine,
                    name,
                    f"{name} has dtype {operand.dtype}; device arrays are computed in {known}",
                )
            if operand.dtype != a.dtype:
                raise type_error(
                    routine,
                    name,
                    f"a has dtype {a.dtype} but {name} has dtype {operand.dtype}"
                    " and device arrays are never converted",
                )
        return a.dtype
    for name, operand in named:
        if operand.dtype.char in "gG":
            raise type_error(
                routine,
                name,
                f"{name} has dtype {operand.dtype}, and nothing here is that precise;"
                " convert it to float64 or complex128 first",
            )
    dtype = np.result_type(*(operand.dtype for _, operand in named)).newbyteorder("=")
    if dtype.kind in "biu":
        dtype = DTYPES["d"]
    elif dtype == np.float16:
        dtype = DTYPES["s"]
    if dtype.kind == "f" and (is_complex(alpha) or is_complex(beta)):
        dtype = DTYPES["c" if dtype == DTYPES["s"] else "z"]
    return dtype


def _check_overwrite(routine: str, problem: Problem, a: Operand, x: Operand, y: Operand) -> None:
    """Refuse to overwrite a y whose elements somebody else reads or owns."""
    if y.readonly:
        raise value_error(routine, "y", "y is read-only, so overwrite_y=1 cannot write to it")
    if problem.rows == 0 or problem.cols == 0:
        return
    if problem.rows > 1 and problem.incy == 0:
        raise value_error(
            routine,
            "y",
            "overwrite_y=1 needs a y whose elements are apart in memory, got one of stride 0",
        )
    target = _adopt.vector_view(y, problem.rows, problem.y_offset, problem.incy)
    source = _adopt.vector_view(x, problem.cols, problem.x_offset, problem.incx)
    if _adopt.overlap(target, source):
        raise value_error(
            routine, "y", "y overlaps x in memory, so overwrite_y=1 would change x on the way"
        )
    if _adopt.overlap(target, _adopt.matrix_view(a)):
        raise value_error(
            routine, "y", "y overlaps a in memory, so overwrite_y=1 would change a on the way"
        )


def _execute(call: _Call, kernel: str | None, stream: Any) -> Any:
    """Compute a bound call and give y back in the kind that came in."""
    if call.on_host and stream is not None:
        raise ValueError(
            f"{call.routine}: stream only applies to device arrays: with host arrays the call"
            " waits for its result"
        )
    if call.on_host:
        return _execute_host_arrays(call, kernel)
    return _execute_device_arrays(call, kernel, stream)


def _execute_host_arrays(call: _Call, kernel: str | None) -> Any:
    problem, y = call.problem, call.y
    dtype = problem.dtype
    on_engine = False
    if call.nothing is None:
        # Fails before anything is allocated, if it does.
        on_engine = _backend.backend() != "host"
        if not on_engine:
            _refuse_kernel(call, kernel)
            _announce_fallback(stacklevel=4)
    if y is None:
        result = np.zeros(y_length(problem.rows, call.offy, call.incy), dtype)
    elif call.in_place:
        result = y.owner
    else:
        result = _adopt.result_like(y, dtype)
    if call.nothing is not None:
        return result

    # Only the stretch of x and y that the increments reach is moved.
    reach_x = call.offx + (problem.cols - 1) * abs(problem.incx) + 1
    reach_y = call.offy + (problem.rows - 1) * abs(call.incy if problem.rows > 1 else 1) + 1
    flat_y = np.asarray(result).reshape(-1)[call.offy : reach_y]
    a = _adopt.host_copy(call.a, dtype)
    x = _adopt.host_copy(call.x, dtype)[call.offx : reach_x]
    if not on_engine:
        used_x, used_y = x[:: abs(problem.incx)], flat_y[:: abs(problem.incy)]
        used_x = used_x if problem.incx > 0 else used_x[::-1]
        used_y = used_y if problem.incy > 0 else used_y[::-1]
        used_y[:] = _host.run(
            call.blas_name, problem.trans, call.alpha, a, used_x, call.beta, used_y
        )
        return result

    problem = dataclasses.replace(
        problem, x_offset=problem.x_offset - call.offx, y_offset=problem.y_offset - call.offy
    )
    if y is None:
        # All zeros: nothing to upload, and no gaps between the elements either.
        problem = dataclasses.replace(problem, incy=1, y_offset=0)
    choice, engine = _select(problem, kernel)
    on_device = _adopt.on_device
    device_a, device_x = engine.to_device(a), engine.to_device(x)
    device_y = engine.zeros(problem.rows, dtype) if y is None else engine.to_device(flat_y)
    engine.run(
        choice,
        problem,
        call.alpha,
        on_device(device_a),
        on_device(device_x),
        call.beta,
        on_device(device_y),
    )
    if y is None:
        used_y = flat_y[:: abs(call.incy)] if problem.rows > 1 else flat_y
        used_y = used_y if call.incy > 0 else used_y[::-1]
        used_y[:] = engine.to_host(device_y)
    else:
        flat_y[:] = engine.to_host(device_y)
    return result


def _execute_device_arrays(call: _Call, kernel: str | None, stream: Any) -> Any:
    problem, y = call.problem, call.y
    if call.nothing is not None and call.in_place:
        return call.y_object
    if _backend.backend() == "host":
        raise _device_arrays_on_host(call)
    engine = _backend.engine()
    if stream is None:
        stream = _stream_of_operands(call)
    choice = None if call.nothing is not None else _select(problem, kernel)[0]
    if y is not None and call.in_place:
        target, result = y, None
    else:
        if y is None:
            length = y_length(problem.rows, call.offy, call.incy)
            result = engine.zeros(length, problem.dtype, stream=stream)
        else:
            result = engine.copy(y, stream=stream)
        target = _adopt.on_device(result)
    if choice is not None:
        engine.run(choice, problem, call.alpha, call.a, call.x, call.beta, target, stream=stream)
    return call.y_object if result is None else engine.wrap(result)


def _stream_of_operands(call: _Call) -> int | None:
    """The stream that orders this call after pending work on its operands, if there is any."""
    operands = (call.a, call.x, call.y)
    streams = sorted({o.stream for o in operands if o is not None and o.stream is not None})
    if len(streams) > 1:
        from numba import cuda

        for other in streams[1:]:
            cuda.external_stream(other).synchronize()
    return streams[0] if streams else None


def _select(problem: Problem, kernel: str | None) -> tuple[Any, Any]:
    from gemv._select import select

    engine = _backend.engine()
    return select(problem, engine.device(), kernel=kernel), engine


def _refuse_kernel(call: _Call, kernel: str | None) -> None:
    if kernel is None:
        return
    from gemv.kernels import get

    get(kernel)
    raise ValueError(
        f"{call.routine}: kernel={kernel!r} needs a GPU or the simulator, but the backend is"
        " host, where SciPy's BLAS computes"
    )


def _device_arrays_on_host(call: _Call) -> TypeError:
    return TypeError(
        f"{call.routine}: a is {_adopt.where(call.a)}, but the backend is host, which takes"
        ' host arrays only; call gemv.use_backend("cuda") or copy the arrays to the host'
    )


def _announce_fallback(stacklevel: int) -> None:
    if _backend.chosen() is None:
        _host.announce(_backend.probe()[1], stacklevel + 1)


# Public --------------------------------------------------------------------------------------

_PARAMETERS = """
    Parameters
    ----------
    alpha : number
        Factor of the product.
    a : array of shape (m, n)
        The matrix, of any strides. Let ``op(a)`` be of shape (rows, cols).
    x : array of shape (offx + 1 + (cols - 1)*abs(incx),) or longer
        The vector to multiply.
    beta : number, optional
        Factor of y. Zero, the default, does not read y, so a NaN there is overwritten.
    y : array of shape (offy + 1 + (rows - 1)*abs(incy),) or longer, optional
        The vector to add to. By default zeros of just that length; its elements outside the
        result, before `offy` and between increments, keep their values.
    offx, offy : int, optional
        How many elements to skip at the start of x and y.
    incx, incy : int, optional
        Steps between elements used of x and y, in elements. Negative ones start at the far end
        of the same stretch of memory.
    trans : {0, 1, 2, "N", "T", "C"}, optional
        Whether ``op(a)`` is a, its transpose or its conjugate transpose.
    overwrite_y : int, optional
        Whether the result may be written into y.
    kernel : str, optional
        Name of the kernel to use; by default one is selected.
    stream : stream, optional
        Stream to enqueue on, for device arrays only: an int, or an object of Numba, CuPy or
        PyTorch. By default the one that the arrays are bound to, or the default stream.

    Returns
    -------
    y : array of shape (ly,)
        For host operands a NumPy array, complete when the call returns: y itself if
        `overwrite_y` is set and y is a contiguous, aligned array of the dtype computed in, else
        a new array that shares no memory with y. For device operands a device array of the same
        library: y itself, whatever its strides, if `overwrite_y` is set, else a new contiguous
        one; the call only enqueues the work.

    Raises
    ------
    ValueError
        If a size, offset, increment, `trans` or `kernel` is not possible, or if y is to be
        overwritten and is read-only or overlaps a or x.
    TypeError
        If an argument is not a number or an array of numbers, if a real routine is given
        complex numbers, or if host and device arrays are mixed.
"""

_NOTES = """
    The rules are those of reference BLAS. If ``op(a)`` has no rows or no columns, or alpha is 0
    and beta is 1, y is returned as it was, bit for bit; lengths are checked even then. If alpha
    is 0, neither a nor x is read. A NaN or an infinity in a or x reaches y otherwise, even
    against a zero. The order of the sum is the kernel's own.

    A column or row of shape (ly, 1) or (1, ly) is taken for x or y in host memory, and y keeps
    its shape and its subclass, as in SciPy.
"""


def _documented(function: _Function) -> _Function:
    """Put the sections that all five routines share into the docstring of one of them."""
    if function.__doc__:  # not under python -OO
        doc = inspect.cleandoc(function.__doc__)
        for mark, text in (("<parameters>", _PARAMETERS), ("<notes>", _NOTES)):
            doc = doc.replace(mark, inspect.cleandoc(text))
        function.__doc__ = doc
    return function


@_documented
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
) -> Any:
    """Matrix-vector product ``alpha*op(a)*x + beta*y`` in the precision of its operands.

    <parameters>

    See Also
    --------
    sgemv, dgemv, cgemv, zgemv : The same for one dtype, which host operands are cast to.
    explain : Which kernel a call would use.

    Notes
    -----
    Host operands are computed in NumPy's common dtype of a, x and y, where integers and booleans
    count as float64 in the end and float16 becomes float32; a complex alpha or beta makes it
    complex. Long doubles are refused. Device operands share one dtype, float32, float64,
    complex64 or complex128, and are never converted or copied.

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
    call = _bind("gemv", None, alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y)
    return _execute(call, kernel, stream)


@_documented
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
    call = _bind(
        "sgemv", DTYPES["s"], alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y
    )
    return _execute(call, kernel, stream)


@_documented
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
    call = _bind(
        "dgemv", DTYPES["d"], alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y
    )
    return _execute(call, kernel, stream)


@_documented
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
    call = _bind(
        "cgemv", DTYPES["c"], alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y
    )
    return _execute(call, kernel, stream)


@_documented
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
    call = _bind(
        "zgemv", DTYPES["z"], alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y
    )
    return _execute(call, kernel, stream)


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
    call = _bind("gemv", None, alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y)
    problem = call.problem
    common: dict[str, Any] = {
        "routine": call.blas_name,
        "access": problem.access,
        "bytes_moved": problem.bytes_moved(bool(call.beta == 0)),
    }
    nothing: dict[str, Any] = {
        "rung": None,
        "knobs": {},
        "launches": (),
        "sizes": {},
        "coefficients": "nowhere",
    }
    if call.nothing is not None:
        common["bytes_moved"] = 0
        return Explanation(backend=None, kernel=None, reason=call.nothing, **common, **nothing)
    backend = _backend.backend()
    if backend == "host":
        if not call.on_host:
            raise _device_arrays_on_host(call)
        _refuse_kernel(call, kernel)
        chosen = _backend.chosen() is not None
        reason = "this backend was asked for" if chosen else _backend.probe()[1]
        nothing["coefficients"] = "arguments"
        return Explanation(
            backend=backend, kernel=call.blas_name, reason=reason, **common, **nothing
        )
    if call.y is None and call.on_host:
        problem = dataclasses.replace(problem, incy=1, y_offset=0)
    choice, _ = _select(problem, kernel)
    return Explanation(
        backend=backend,
        kernel=choice.kernel.name,
        rung=choice.kernel.rung,
        knobs=choice.knobs,
        launches=choice.geometry.launches,
        sizes=dict(choice.geometry.sizes),
        coefficients=choice.coefficients,
        reason=choice.reason,
        **common,
    )


def _trim(extent: tuple[int, int, int]) -> tuple[int, ...]:
    """``(x, y, z)`` without the ones at its end."""
    trimmed = list(extent)
    while len(trimmed) > 1 and trimmed[-1] == 1:
        trimmed.pop()
    return tuple(trimmed)
