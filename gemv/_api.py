"""The public calls: bind, adopt, check, return at once or select and run, hand y back."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from gemv import _adopt, _arrays, _backend, _dlpack, _fast, _host, _memo, _pointers
from gemv._adopt import Operand, adopt
from gemv._check import (
    accumulation,
    check,
    coefficient,
    describe,
    flag,
    integer,
    is_complex,
    number,
    transposition,
    type_error,
    value_error,
    y_length,
)
from gemv._coefficients import Coefficients, homes_of
from gemv._fast import CALLS, Miss
from gemv._narrow import cast
from gemv._plan import Plan
from gemv._problem import DTYPES, NARROW, PREFIXES, Launch, Precision, Problem, dtype_name

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
    accumulate : {"plain", "wide", "pairs"}
        How products are added up; "pairs" as well where a GPU does for "wide" what is faster there.
    depth : int or None
        Additions on the longest way from a product to its row's sum, in the row where it is
        longest; the error bound follows from it. Where the order of sums follows the address of A
        modulo 16 bytes, or the order of arrival, it is an upper bound: the largest of the possible
        depths. None where SciPy's BLAS decides, or nothing is computed.
    access : str
        ``"dot"`` where memory runs along the sum, ``"axpy"`` along y, else ``"strided"``.
    bytes_moved : int
        What a perfect gemv reads and writes for this call.
    reason : str
        Why this kernel, or why nothing is computed.
    transfer : str
        How a matrix in host memory gets to the device in each call; empty if it does not.
    """

    routine: str
    backend: str | None
    kernel: str | None
    rung: int | None
    knobs: dict[str, int]
    launches: tuple[Launch, ...]
    sizes: dict[str, int]
    coefficients: str
    accumulate: str
    depth: int | None
    access: str
    bytes_moved: int
    reason: str
    transfer: str = ""

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
        wide = {
            "plain": "",
            "wide": ", adding up in twice the precision",
            "pairs": ", adding up in sums of two numbers",
        }[self.accumulate]
        return (
            f"{self.routine} runs kernel {self.kernel!r}, rung {self.rung}, on the {self.backend}"
            f" backend as {launches}{named}, reading A in {self.access} order and alpha and beta"
            f" from {self.coefficients}{wide}: {self.reason}. It moves at least"
            f" {self.bytes_moved} bytes."
            + (f" {self.transfer}; gemv.Matrix would keep it there." if self.transfer else "")
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
    homes: tuple[str, str]
    owner: Coefficients | None

    @property
    def on_host(self) -> bool:
        return self.a.on_host

    @property
    def device(self) -> int | None:
        """Ordinal of the GPU it runs on: that of A, or where A has no memory, of the next one."""
        operands = (self.a, self.x, self.y)
        return next((o.device for o in operands if o is not None and o.device is not None), None)


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
    coefficients: Any,
    accumulate: Any = "plain",
    out_dtype: Any = None,
    peer: Any = False,
) -> _Call:
    """Read the arguments and check them: no copy, no allocation, no launch."""
    trans = transposition(routine, trans)
    incx = integer(routine, "incx", incx)
    incy = integer(routine, "incy", incy)
    offx = integer(routine, "offx", offx)
    offy = integer(routine, "offy", offy)
    overwrite = flag(routine, "overwrite_y", overwrite_y)
    alpha = _number_or_operand(routine, "alpha", alpha, dtype)
    beta = _number_or_operand(routine, "beta", beta, dtype)
    on_device = isinstance(alpha, Operand), isinstance(beta, Operand)
    homes = homes_of(routine, coefficients, on_device)
    accumulate = accumulation(routine, accumulate)
    owner = coefficients if isinstance(coefficients, Coefficients) else None

    operand_a = adopt(routine, "a", a, dtype, _backend.HOME)
    operand_x = adopt(routine, "x", x, dtype, _backend.HOME)
    operand_y = None if y is None else adopt(routine, "y", y, dtype, _backend.HOME)
    peer = flag(routine, "peer", peer)
    _check_places(routine, operand_a, operand_x, operand_y, alpha, beta, peer)
    if dtype is None:
        dtype = _common_dtype(routine, alpha, operand_a, operand_x, beta, operand_y)
    y_dtype = _result_dtype(routine, dtype, operand_y, out_dtype)
    factors_dtype = Precision.of(dtype).factors
    if not on_device[0]:
        alpha = coefficient(routine, "alpha", alpha, factors_dtype)
    if not on_device[1]:
        beta = coefficient(routine, "beta", beta, factors_dtype)

    in_place = (
        overwrite
        and operand_y is not None
        and (
            _adopt.writable_in_place(operand_y, y_dtype)
            if operand_y.on_host
            else not operand_y.exporter.immutable
        )
    )
    factors = _Factors(routine, alpha, beta)
    operand_x = factors.fold(operand_a, operand_x, operand_y if in_place else None)
    alpha, beta = factors.alpha, factors.beta
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
        y_dtype,
    )
    problem = problem._replace(conj=problem.conj != factors.conjugate_a, accumulate=accumulate)
    if in_place and operand_y is not None:
        _check_overwrite(routine, problem, operand_a, operand_x, operand_y, alpha, beta)

    nothing = None
    if problem.rows == 0 or problem.cols == 0:
        nothing = f"A of shape {operand_a.shape} is empty"
    elif owner is None and not any(on_device) and alpha == 0 and beta == 1:
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
        homes=homes,
        owner=owner,
    )


class _Factors:
    """alpha and beta, with the signs and conjugations folded in that operands only promise.

    A tensor may be the negative or the conjugate of what lies in memory. With Y, A, X for the
    memory of y, a and x, ``conj(Y) := alpha*A*X + beta*conj(Y)`` is
    ``Y := conj(alpha)*conj(A)*conj(X) + conj(beta)*Y``, and signs go into alpha.
    """

    def __init__(self, routine: str, alpha: Any, beta: Any) -> None:
        self.routine = routine
        self.alpha = alpha
        self.beta = beta
        self.conjugate_a = False

    def fold(self, a: Operand, x: Operand, y: Operand | None) -> Operand:
        """Take what a, x and a y to be overwritten promise; x as it has to be read."""
        flip = y is not None and y.conj
        self.conjugate_a = a.conj != flip
        conjugate_x = x.conj != flip
        negative = a.neg != (y is not None and y.neg)
        if conjugate_x:
            # The one promise that a kernel cannot keep: its x is written out first, contiguous.
            x = dataclasses.replace(x, strides=(1,), resolve=True, conj=flip, neg=False)
        else:
            negative ^= x.neg
        if (flip or negative) and isinstance(self.alpha, Operand):
            raise type_error(
                self.routine,
                "alpha",
                "alpha is a device array, and an operand is a lazy negative or conjugate: call"
                " resolve_neg() and resolve_conj() on a, x and y first",
            )
        if flip:
            self.alpha = self.alpha.conjugate()
            self.beta = self.beta.conjugate()
        if negative:
            self.alpha = -self.alpha
        return x


def _number_or_operand(routine: str, name: str, value: Any, dtype: np.dtype | None) -> Any:
    """alpha or beta: a number, or the operand of a 0-d device array."""
    if isinstance(value, (int, float, complex)) or not _adopt.is_device_array(value):
        return number(routine, name, value)
    return _adopt.adopt(routine, name, value, dtype, _backend.HOME)


def _check_places(
    routine: str, a: Operand, x: Operand, y: Operand | None, alpha: Any, beta: Any, peer: bool
) -> None:
    """Host and device operands do not mix: a copy nobody asked for would be hidden in the call."""
    for name, factor in (("alpha", alpha), ("beta", beta)):
        if isinstance(factor, Operand) and a.on_host:
            raise type_error(
                routine,
                name,
                f"a is {_adopt.where(a)} but {name} is {_adopt.where(factor)};"
                " with host arrays alpha and beta must be numbers",
            )
    # An A without elements is on no GPU in particular.
    nowhere = not a.on_host and a.device is None and x.device is not None
    home, at = ("x", x) if nowhere else ("a", a)
    for name, operand in (("x", x), ("y", y), ("alpha", alpha), ("beta", beta)):
        if isinstance(operand, Operand) and (
            operand.on_host != at.on_host or _on_other_device(at, operand)
        ):
            devices = not (operand.on_host or at.on_host) and name in ("x", "y")
            if peer and devices:
                continue
            hint = ""
            if devices:
                hint = ", or peer=True lets x and y be on another GPU"
            raise type_error(
                routine,
                name,
                f"{home} is {_adopt.where(at)} but {name} is {_adopt.where(operand)};"
                f" a, x and y must be in one place{hint}",
            )


def _on_other_device(a: Operand, operand: Operand) -> bool:
    # None: empty, or memory that the driver does not know the place of.
    return None not in (a.device, operand.device) and a.device != operand.device


def _common_dtype(
    routine: str, alpha: Any, a: Operand, x: Operand, beta: Any, y: Operand | None
) -> np.dtype:
    """The dtype that the generic routine computes in; see the Notes of :func:`gemv`."""
    named = [("a", a), ("x", x)] + ([("y", y)] if y is not None else [])
    if not a.on_host:
        for name, operand in named:
            if operand.dtype not in PREFIXES:
                known = ", ".join(map(dtype_name, PREFIXES))
                raise type_error(
                    routine,
                    name,
                    f"{name} has dtype {dtype_name(operand.dtype)}; device arrays are computed in"
                    f" {known}",
                )
            if operand.dtype != a.dtype and not (
                name == "y" and a.dtype in NARROW and operand.dtype == DTYPES["s"]
            ):
                raise type_error(
                    routine,
                    name,
                    f"a has dtype {dtype_name(a.dtype)} but {name} has dtype"
                    f" {dtype_name(operand.dtype)} and device arrays are never converted",
                )
        factors = Precision.of(a.dtype).factors
        for name, factor in (("alpha", alpha), ("beta", beta)):
            if isinstance(factor, Operand) and factor.dtype != factors:
                raise type_error(
                    routine,
                    name,
                    f"a has dtype {dtype_name(a.dtype)}, which needs {name} as {factors}, but"
                    f" {name} has dtype {dtype_name(factor.dtype)} and device arrays are never"
                    " converted",
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
    complex_factor = is_complex(alpha) or is_complex(beta)
    single = DTYPES["s"]
    data, *others = [operand.dtype.newbyteorder("=") for _, operand in named]
    if data in NARROW and others[0] == data and not complex_factor:
        if others[-1] in (data, single):
            return data
    # Among others a narrow dtype counts as float32: bfloat16 is none of NumPy's.
    dtype = np.result_type(*(single if o in NARROW else o for o in (data, *others)))
    if dtype.kind in "biu":
        dtype = DTYPES["d"]
    if dtype.kind == "f" and complex_factor:
        dtype = DTYPES["c" if dtype == single else "z"]
    return dtype


def _result_dtype(routine: str, dtype: np.dtype, y: Operand | None, out_dtype: Any) -> np.dtype:
    """The dtype of the result, where A and x are of `dtype` once they are computed with."""
    narrow = dtype in NARROW
    wanted = None if out_dtype is None else _arrays.dtype_called(out_dtype)
    possible = (dtype, DTYPES["s"]) if narrow else (dtype,)
    # None is equal to float64, as NumPy has it.
    if out_dtype is not None and (wanted is None or wanted not in possible):
        which = "as a and x are, or float32" if narrow else "the dtype computed in"
        raise TypeError(
            f"{routine}: out_dtype must be {dtype_name(dtype)}, {which}, got {out_dtype!r}"
        )
    if y is None or not narrow:
        return dtype if wanted is None else wanted
    if wanted not in (None, y.dtype):
        raise type_error(
            routine,
            "y",
            f"y has dtype {dtype_name(y.dtype)}, which decides, but out_dtype is {out_dtype!r}",
        )
    return y.dtype


def _check_overwrite(
    routine: str, problem: Problem, a: Operand, x: Operand, y: Operand, alpha: Any, beta: Any
) -> None:
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
    for name, factor in (("alpha", alpha), ("beta", beta)):
        if isinstance(factor, Operand) and _adopt.overlap(target, _adopt.matrix_view(factor)):
            raise value_error(
                routine,
                "y",
                f"y overlaps {name} in memory, so overwrite_y=1 would change {name} on the way",
            )


def _execute(
    call: _Call, kernel: str | None, stream: Any, limit: Any, key: tuple | None = None
) -> Any:
    """Compute a bound call and give y back in the kind that came in."""
    limit = _memory_limit(call, limit)
    _check_stream(call, stream)
    if call.on_host:
        return _execute_host_arrays(call, kernel, limit)
    return _execute_device_arrays(call, kernel, stream, key)


def _check_stream(call: _Call, stream: Any) -> None:
    if call.on_host and stream is not None:
        raise ValueError(
            f"{call.routine}: stream only applies to device arrays: with host arrays the call"
            " waits for its result"
        )


def _memory_limit(call: _Call, limit: Any) -> int | None:
    if limit is None:
        return None
    if not call.on_host:
        raise ValueError(
            f"{call.routine}: device_memory_limit only applies to host arrays: a is"
            f" {_adopt.where(call.a)} already"
        )
    if isinstance(limit, bool) or not isinstance(limit, (int, np.integer)):
        raise TypeError(
            f"{call.routine}: device_memory_limit must be an integer, a number of bytes, got"
            f" {describe(limit)}"
        )
    if limit <= 0:
        raise ValueError(f"{call.routine}: device_memory_limit must be positive, got {int(limit)}")
    return int(limit)


def _execute_host_arrays(call: _Call, kernel: str | None, limit: int | None) -> Any:
    from gemv import _panels

    problem, y = call.problem, call.y
    dtype, y_dtype = problem.dtype, problem.y_dtype
    on_engine = False
    if call.nothing is None:
        # Fails before anything is allocated, if it does.
        on_engine = _backend.backend() != "host"
        if not on_engine:
            _refuse_on_host(call, kernel)
            _announce_fallback(stacklevel=4)
    if y is None:
        result = np.zeros(y_length(problem.rows, call.offy, call.incy), y_dtype)
    elif call.in_place:
        result = y.owner
    else:
        result = _adopt.result_like(y, y_dtype)
    if call.in_place and _arrays.is_host_array(call.y_object):
        given = call.y_object  # it shares its memory with result
    else:
        given = _arrays.host_result(call.a.origin, result)
    if call.nothing is not None:
        return given
    if call.in_place:
        _arrays.note_written(call.y_object)

    # Only the stretch of x and y that the increments reach is moved.
    reach_x = call.offx + (problem.cols - 1) * abs(problem.incx) + 1
    reach_y = call.offy + (problem.rows - 1) * abs(call.incy if problem.rows > 1 else 1) + 1
    flat_y = np.asarray(result).reshape(-1)[call.offy : reach_y]
    x = _adopt.host_copy(call.x, dtype)[call.offx : reach_x]
    if call.owner is not None:
        call.owner.note(call.alpha, call.beta)
    if not on_engine:
        a = _adopt.host_copy(call.a, dtype)
        used_x, used_y = x[:: abs(problem.incx)], flat_y[:: abs(problem.incy)]
        used_x = used_x if problem.incx > 0 else used_x[::-1]
        used_y = used_y if problem.incy > 0 else used_y[::-1]
        number = problem.precision.sums  # what SciPy's BLAS computes in
        a, used_x, start = cast(a, number), cast(used_x, number), cast(used_y, number)
        routine = PREFIXES[number] + "gemv"
        total = _host.run(routine, problem.trans, call.alpha, a, used_x, call.beta, start)
        used_y[:] = cast(total, y_dtype)
        return given

    problem = problem._replace(
        x_offset=problem.x_offset - call.offx, y_offset=problem.y_offset - call.offy
    )
    if y is None:
        # All zeros: nothing to upload, and no gaps between the elements either.
        problem = problem._replace(incy=1, y_offset=0)
    problem = problem.at(0, 0)  # as the copies will be: aligned for any load
    choice, engine = _select(call, problem, kernel)
    routine = call.routine
    way = _panels.planned(engine, routine, problem, choice, len(flat_y), limit)
    values = _panels.compute(
        engine, routine, way, choice, problem, call.a, call.alpha, x, call.beta,
        None if y is None else flat_y, call.owner,
    )  # fmt: skip
    if y is None:
        used_y = flat_y[:: abs(call.incy)] if problem.rows > 1 else flat_y
        used_y = used_y if call.incy > 0 else used_y[::-1]
        used_y[:] = values
    else:
        flat_y[:] = values
    return given


def _execute_device_arrays(
    call: _Call, kernel: str | None, stream: Any, key: tuple | None = None
) -> Any:
    problem = call.problem
    if call.nothing is not None and call.in_place:
        return call.y_object
    era = _memo.generation()
    if _backend.backend() == "host":
        raise _device_arrays_on_host(call)
    engine = _backend.engine()
    with engine.on(call.device):
        # Before anything is enqueued, so that an error leaves nothing behind.
        problem = _placed(call)
        choice = None if call.nothing is not None else _select(call, problem, kernel)[0]
        order = _Order(call, engine, stream)
        for other in order.peers():
            engine.reach(call.routine, call.device, other)
        if _pointers.FULL and call.nothing is None and engine.name == "cuda":
            _pointers.check(call.routine, order.operands, engine.memory_at)
        if engine.name == "cuda":
            _fast.meet(call.a.kind)
            if key is not None and choice is not None and order.plain:
                engine.load(choice, engine.device(), order.stream)
                _fast.remember(key, era, engine, choice, call)
        x, made = call.x, None
        if x.resolve:
            x = _adopt.on_device(x.exporter.resolved(x.origin, x.conj), _backend.HOME)
            order.uses(x)
        if call.y is not None and call.in_place:
            target = call.y
        else:
            made = _make_y(call, engine, order)
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
            return made.finish(engine, order.stream)
        _note_written(target)
    return call.y_object


def _note_written(target: Operand) -> None:
    note = target.exporter.notes_writes
    if note is not None:
        note(target.origin)


class _Order:
    """On which stream a call runs, and what it has to wait for and to keep alive.

    It runs on the stream that the caller names, or on the one that the library of `a` works on.
    Streams on which other operands are worked on are joined by events: ahead of the call, and if
    the caller named no stream, so that nobody but us knows of it, after it as well.
    """

    def __init__(self, call: _Call, engine: Any, stream: Any) -> None:
        self._engine = engine
        self._routine = call.routine
        self._named = stream is not None
        self.operands = [
            (name, operand)
            for name, operand in (
                ("a", call.a), ("x", call.x), ("y", call.y),
                ("alpha", call.alpha), ("beta", call.beta),
            )
            if isinstance(operand, Operand)
        ]  # fmt: skip
        own = self._producer(call.a)
        if stream is not None:
            self.stream = _handle(call.routine, stream)
        else:
            self.stream = engine.default_stream() if own is None else own
        #: Ordinal of the GPU of the call's stream, and those of other operands that differ.
        self._device = call.device
        self._others: dict[tuple[int | None, int], str] = {}
        for name, operand in self.operands:
            self._join(name, operand)
        self._exports = [o for _, o in self.operands if o.exporter.ordered_by_export]
        self.capture = None
        if self._others or self._exports:
            self._check_captures()
        # Vectors that calls made for Numba are given back in the order of its default stream. A
        # stream that is captured must not be asked, and a graph holds nothing.
        self._numba = [o for _, o in self.operands if o.kind == "numba"]
        self._unordered = bool(
            self._numba
            and engine.name == "cuda"
            and self.capture_here() is None
            and engine.runs_by_itself(self.stream)
        )
        self.plain = not self._others and not self._exports and not self._unordered

    def _producer(self, operand: Operand) -> int | None:
        if operand.stream is not None:
            return 0 if operand.stream == 1 else operand.stream
        return None if operand.device is None else operand.exporter.current_stream(operand.device)

    def _join(self, name: str, operand: Operand) -> None:
        place = self._place(operand)
        if place is not None:
            self._others.setdefault(place, name)

    def _place(self, operand: Operand) -> tuple[int | None, int] | None:
        """The GPU and the stream that an operand is worked on, if not those of the call."""
        producer = self._producer(operand)
        away = operand.device is not None and operand.device != self._device
        if away and producer is None:
            producer = self._engine.default_stream()
        if producer is None or (producer == self.stream and not away):
            return None
        return operand.device if away else self._device, producer

    def peers(self) -> set[int]:
        """Other GPUs that operands are on."""
        devices = {operand.device for _, operand in self.operands}
        return {device for device in devices if device not in (None, self._device)}

    def _check_captures(self) -> None:
        capture = self.capture_here()
        for (device, other), name in self._others.items():
            with self._engine.on(device):
                theirs = self._engine.capture_of(other)
            if getattr(theirs, "identity", None) == getattr(capture, "identity", None):
                continue
            inside, outside = (f"{other:#x} of {name}", f"{self.stream:#x} of this call")
            if theirs is None:
                inside, outside = outside, inside
            raise ValueError(
                f"{self._routine}: stream {inside} is being captured into a graph, but stream"
                f" {outside} is neither captured nor joined to that capture, so the graph could"
                " not wait for it"
            )
        if capture is not None and self._exports:
            raise TypeError(
                f"{self._routine}: arrays of kind {self._exports[0].kind} cannot be used while a"
                " stream is captured: only their library can order work on them"
            )

    def capture_here(self) -> Any:
        """The capture that the call's stream is part of, or None."""
        return self._engine.capture_of(self.stream)

    def uses(self, operand: Operand) -> None:
        """The call also uses an array that was made for it."""
        self.operands.append(("y", operand))
        self._join("y", operand)
        if operand.kind == "numba":
            self._numba.append(operand)

    def before(self) -> None:
        """Let the call come after pending work on its operands."""
        for device, other in self._others:
            self._engine.wait(self.stream, other, self._device, device)
        self._capsules = [
            _dlpack.export(operand.origin, self.stream or 1) for operand in self._exports
        ]

    def after(self) -> None:
        """Let memory live, and later work wait, until the call is done."""
        if self._named:
            if self._others and self.capture_here() is None:
                self._keep([o for _, o in self.operands if self._place(o) is not None])
        else:
            for device, other in self._others:
                self._engine.wait(other, self.stream, device, self._device)
        loose = [o.origin for _, o in self.operands if o.kind == "cuda_array_interface"]
        if (self._capsules or loose) and self._engine.name == "cuda":
            if self.capture_here() is None:
                self._engine.held.hold((self._capsules, loose), self.stream)
        if self._unordered:
            self._engine.held.hold([operand.origin for operand in self._numba], self.stream)

    def _keep(self, operands: list[Operand]) -> None:
        if self._engine.name != "cuda":
            return
        untold = [
            operand.origin
            for operand in operands
            if not operand.exporter.record(operand.origin, self.stream, self._device or 0)
        ]
        if untold:
            self._engine.held.hold(untold, self.stream)


@dataclass(slots=True)
class _Made:
    """A y that is made for the call: of zeros, or a copy of the y that was passed."""

    array: Any
    operand: Operand
    source: Operand | None

    def fill(self, engine: Any, stream: int) -> None:
        """Enqueue its first values."""
        if self.source is not None:
            engine.copy(self.source, self.operand, stream)
        elif engine.name == "cuda":
            nbytes = self.operand.shape[0] * self.operand.dtype.itemsize
            engine.clear(self.operand.pointer, nbytes, stream)

    def finish(self, engine: Any, stream: int) -> Any:
        """The array as the caller gets it."""
        if not isinstance(self.array, _dlpack.Export):
            return self.array if engine.name == "cuda" else engine.wrap(self.array)
        self.array.before_export = lambda consumer: engine.wait(consumer, stream)
        return _arrays.Jax.finish(self.array)


def _make_y(call: _Call, engine: Any, order: _Order) -> _Made:
    """A new y in the kind and on the device that A is on; nothing is in it yet."""
    problem, y, a = call.problem, call.y, call.a
    if y is None:
        length = y_length(problem.rows, call.offy, call.incy)
    else:
        length = y.shape[0]
    if engine.name == "simulator":
        zeros = engine.zeros(length, problem.y_dtype)
        return _Made(zeros, _adopt.on_device(zeros, _backend.HOME), y)
    library = a.exporter
    if not library.allocates_in_capture and order.capture_here() is not None:
        raise RuntimeError(
            f"{call.routine}: a stream is being captured, where no {library.name} array can be"
            " made for the result: pass y and overwrite_y=1"
        )
    if y is not None and (y.conj or y.neg):
        array = y.exporter.resolved(y.origin, False)
        operand = _adopt.on_device(array, _backend.HOME)
        order.uses(operand)
        return _Copied(array, operand, None)
    if library.name == "numba" and order.stream == engine.default_stream():
        array = engine.empty(length, problem.y_dtype)
    else:
        array = library.empty(a.origin, length, problem.y_dtype, call.device or 0)
    operand = _adopt.on_device(array, _backend.HOME)
    order.uses(operand)
    return _Made(array, operand, y)


class _Copied(_Made):
    """A y whose first values its library has written already."""

    def fill(self, engine: Any, stream: int) -> None:
        """Nothing is left to do."""


def _placed(call: _Call) -> Problem:
    """The problem of a call with device arrays, with what their addresses allow."""
    return call.problem.at(call.a.pointer, 0 if call.x.resolve else call.x.pointer)


def _handle(routine: str, stream: Any) -> int:
    if _backend.backend() != "cuda":
        return 0
    from gemv._streams import stream_handle

    try:
        return stream_handle(stream)
    except TypeError as error:
        raise TypeError(f"{routine}: {error}") from None


def _select(call: _Call, problem: Problem, kernel: str | None) -> tuple[Any, Any]:
    from gemv._select import select

    engine = _backend.engine()
    try:
        choice = select(problem, engine.device(), kernel=kernel, homes=call.homes)
    except ValueError as error:
        raise ValueError(f"{call.routine}: {error}") from None
    return choice, engine


def _refuse_on_host(call: _Call, kernel: str | None) -> None:
    """Refuse what SciPy's BLAS, which computes under this backend, has not."""
    if not call.on_host:
        raise _device_arrays_on_host(call)
    _host.refuse_kernel(call.routine, kernel)
    if call.problem.precision.sums not in PREFIXES:
        raise ValueError(
            f"{call.routine}: accumulate={call.problem.accumulate!r} in"
            f" {dtype_name(call.problem.dtype)} needs a GPU or the simulator, but the backend is"
            " host, where SciPy's BLAS has nothing like it"
        )


def _device_arrays_on_host(call: _Call) -> TypeError:
    return TypeError(
        f"{call.routine}: a is {_adopt.where(call.a)}, but the backend is host, which takes"
        ' host arrays only; call gemv.use_backend("cuda") or copy the arrays to the host'
    )


def _announce_fallback(stacklevel: int) -> None:
    if _backend.chosen() is None:
        _host.announce(_backend.probe()[1], stacklevel + 1)


_fast.expect_tracing()

# Public --------------------------------------------------------------------------------------

_PARAMETERS = """
    Parameters
    ----------
    alpha : number or device array of shape ()
        Factor of the product. A 0-d device array, for device operands only, is read by the
        kernel when it runs, and has their dtype.
    a : array of shape (m, n)
        The matrix, of any strides. Let ``op(a)`` be of shape (rows, cols).
    x : array of shape (offx + 1 + (cols - 1)*abs(incx),) or longer
        The vector to multiply.
    beta : number or device array of shape (), optional
        Factor of y, as alpha. Zero, the default, does not read y, so a NaN there is overwritten.
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
    coefficients : {"arguments", "constant", "pointer"} or Coefficients, optional
        Where the kernel finds alpha and beta, with the same result: among its arguments, the
        default for numbers; in a slot of a constant-memory symbol, a fresh one or that of a
        :class:`Coefficients`, which a captured launch needs; or behind a pointer, which is where
        0-d device arrays always are.
    accumulate : {"plain", "wide", "pairs"}, optional
        How products are added up: in the precision of their factors (float32 for float16 and
        bfloat16), or in twice as many digits, rounded once at the end. "wide" is float64 for
        numbers of up to 32 bits, where the GPU is made for that; elsewhere, and for float64, it is
        "pairs": sums of two numbers each.
    peer : bool, optional
        Let x and y be on other GPUs than a, if its GPU can reach their memory: it runs the
        kernel, after what is pending on the streams of x and y.
    device_memory_limit : int, optional
        Bytes of the GPU's memory that a call on host arrays may take; by default what is free. A
        matrix that does not fit is streamed in panels, with the same result bit for bit.

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
    MemoryError
        If the GPU's memory does not suffice; y has not been changed then.
"""

_OUT_DTYPE = """
    out_dtype : numpy.dtype, optional
        Of the y that is made when none is passed: float32, where a and x are float16 or bfloat16;
        any other must be that of a.
"""

_NOTES = """
    The rules are those of reference BLAS. If ``op(a)`` has no rows or no columns, or alpha is 0
    and beta is 1, y is returned as it was, bit for bit; lengths are checked even then. If alpha
    is 0, neither a nor x is read. A NaN or an infinity in a or x reaches y otherwise, even
    against a zero. The order of the sum is the kernel's own.

    A column or row of shape (ly, 1) or (1, ly) is taken for x or y in host memory, and so is a
    number for one of length 1; y keeps its shape and its subclass, as in SciPy.
"""


def _documented(function: _Function) -> _Function:
    """Put the sections that all five routines share into the docstring of one of them."""
    if function.__doc__:  # not under python -OO
        doc = inspect.cleandoc(function.__doc__)
        more = _PARAMETERS.replace("\n    Returns\n", f"{_OUT_DTYPE[1:]}\n    Returns\n")
        for mark, text in (
            ("<parameters with out_dtype>", more),
            ("<parameters>", _PARAMETERS),
            ("<notes>", _NOTES),
        ):
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
        product, fast = _fast.wide("gemv", a, accumulate, peer, out_dtype)
    key = None
    if fast is not None and device_memory_limit is None:
        result = fast(
            product, alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y,
            kernel, stream, coefficients,
        )  # fmt: skip
        if type(result) is not Miss:
            return result
        key = result.key
    call = _bind(
        "gemv", None, alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y,
        coefficients, accumulate, out_dtype, peer,
    )  # fmt: skip
    return _execute(call, kernel, stream, device_memory_limit, key)


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
        product, fast = _fast.wide("sgemv", a, accumulate, peer)
    key = None
    if fast is not None and device_memory_limit is None:
        result = fast(
            product, alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y,
            kernel, stream, coefficients,
        )  # fmt: skip
        if type(result) is not Miss:
            return result
        key = result.key
    call = _bind(
        "sgemv", DTYPES["s"], alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y,
        coefficients, accumulate, peer=peer,
    )  # fmt: skip
    return _execute(call, kernel, stream, device_memory_limit, key)


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
        product, fast = _fast.wide("dgemv", a, accumulate, peer)
    key = None
    if fast is not None and device_memory_limit is None:
        result = fast(
            product, alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y,
            kernel, stream, coefficients,
        )  # fmt: skip
        if type(result) is not Miss:
            return result
        key = result.key
    call = _bind(
        "dgemv", DTYPES["d"], alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y,
        coefficients, accumulate, peer=peer,
    )  # fmt: skip
    return _execute(call, kernel, stream, device_memory_limit, key)


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
        product, fast = _fast.wide("cgemv", a, accumulate, peer)
    key = None
    if fast is not None and device_memory_limit is None:
        result = fast(
            product, alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y,
            kernel, stream, coefficients,
        )  # fmt: skip
        if type(result) is not Miss:
            return result
        key = result.key
    call = _bind(
        "cgemv", DTYPES["c"], alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y,
        coefficients, accumulate, peer=peer,
    )  # fmt: skip
    return _execute(call, kernel, stream, device_memory_limit, key)


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
        product, fast = _fast.wide("zgemv", a, accumulate, peer)
    key = None
    if fast is not None and device_memory_limit is None:
        result = fast(
            product, alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y,
            kernel, stream, coefficients,
        )  # fmt: skip
        if type(result) is not Miss:
            return result
        key = result.key
    call = _bind(
        "zgemv", DTYPES["z"], alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y,
        coefficients, accumulate, peer=peer,
    )  # fmt: skip
    return _execute(call, kernel, stream, device_memory_limit, key)


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
    operand = _adopt.adopt("plan", "a", a, None, _backend.HOME)
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
    call, era = None, _memo.generation()
    if x is not None:
        call = _bind(
            "plan", None, 2, a, x, 0, y, *options, 0 if y is None else 1, None, accumulate,
            out_dtype, peer,
        )  # fmt: skip
    else:
        _check_without_x(operand, y, options, accumulate, out_dtype, peer)
    if kernel is not None:
        _host.known_kernel("plan", kernel)
    if _backend.backend() == "host" or (call is not None and call.nothing is not None):
        return made
    engine = _backend.engine()
    usual = kernel is stream is out_dtype is None and accumulate == "plain" and peer is False
    if engine.name == "cuda" and usual:
        _fast.meet(operand.kind)
        made._remember(CALLS.get(type(a)))
    if call is None:
        return made
    with engine.on(call.device):
        choice = _select(call, _placed(call), kernel)[0]
        if engine.name != "cuda":
            return made
        engine.load(choice, engine.device())
        same = len({o.kind for o in (call.a, call.x, call.y) if o is not None}) == 1
        current = _fast.stream_of(call.a) if same and stream is None else None
        bound = [o.stream for o in (call.x, call.y) if o is not None]
        if call.y is None or current is None or peer or any(each is not None for each in bound):
            return made
        if _fast.packable(engine, choice, call):
            known = _fast.Known(engine, choice, call.problem, call.problem.rows)
            addresses = (call.a.pointer, call.x.pointer, call.y.pointer)
            _fast.bind(made, era, known, current, addresses, call.a.exporter.notes_writes)
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
    operand_y = None if y is None else adopt(routine, "y", y, None, _backend.HOME)
    _check_places(routine, a, a, operand_y, 2, 0, flag(routine, "peer", peer))
    dtype = _common_dtype(routine, 2, a, a, 0, operand_y)
    y_dtype = _result_dtype(routine, dtype, operand_y, out_dtype)
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
    call = _bind(
        "gemv", None, alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y,
        coefficients, accumulate, out_dtype, peer,
    )  # fmt: skip
    if call.nothing is not None:
        return
    if _backend.backend() == "host":
        return _refuse_on_host(call, kernel)
    problem, engine = call.problem, _backend.engine()
    if call.y is None and call.on_host:
        problem = problem._replace(incy=1, y_offset=0)
    problem = problem.at(0, 0) if call.on_host else _placed(call)
    with engine.on(call.device):
        choice = _select(call, problem, kernel)[0]
        if engine.name == "cuda":
            engine.load(choice, engine.device())
            if call.y is not None and not call.in_place:
                engine.prepare_copy(call.y)
            if not call.on_host:
                _fast.meet(call.a.kind)


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
    call = _bind(
        "gemv", None, alpha, a, x, beta, y, offx, incx, offy, incy, trans, overwrite_y,
        coefficients, accumulate, out_dtype, peer,
    )  # fmt: skip
    limit = _memory_limit(call, device_memory_limit)
    _check_stream(call, stream)
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
    backend = _backend.backend()
    if backend == "host":
        _refuse_on_host(call, kernel)
        chosen = _backend.chosen() is not None
        reason = "this backend was asked for" if chosen else _backend.probe()[1]
        nothing["coefficients"] = "arguments"
        routine = PREFIXES[problem.precision.sums] + "gemv"
        return Explanation(backend=backend, kernel=routine, reason=reason, **common, **nothing)
    if call.y is None and call.on_host:
        problem = problem._replace(incy=1, y_offset=0)
    problem = problem.at(0, 0) if call.on_host else _placed(call)
    choice, engine = _select(call, problem, kernel)
    common["accumulate"] = choice.spec.accumulate
    transfer = ""
    if call.on_host and engine.name == "cuda" or limit is not None:
        from gemv import _panels

        reach = 1 + (problem.rows - 1) * abs(problem.incy)
        way = _panels.planned(engine, call.routine, problem, choice, reach, limit)
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


def _trim(extent: tuple[int, int, int]) -> tuple[int, ...]:
    """``(x, y, z)`` without the ones at its end."""
    trimmed = list(extent)
    while len(trimmed) > 1 and trimmed[-1] == 1:
        trimmed.pop()
    return tuple(trimmed)


_fast.ROUTINES.update({f.__name__: f for f in (gemv, sgemv, dgemv, cgemv, zgemv)})
