""":func:`gemv.explain`: what a call would do, found without computing anything."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gemv.calls import faster
from gemv.calls.bind import BlasArguments, Call, bind
from gemv.calls.execute import (
    check_stream,
    memory_limit,
    refuse_on_host,
    selected,
    to_be_selected,
)
from gemv.core.dtypes import PREFIXES
from gemv.core.geometry import Launch
from gemv.engines import backend as engines_backend
from gemv.kernels import BATCHED

if TYPE_CHECKING:
    from gemv.selection.forecast import Forecast
    from gemv.selection.host_or_gpu import Comparison

#: Launches that a sentence names one by one.
_MOST_SHOWN = 4


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
        The kernel's place on the ladder; None for that of small matrices.
    knobs : dict
        Compile-time constants of the kernel.
    launches : tuple of Launch
        Grid and block of each launch, and the shared memory that it asks for.
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
    forecast : Forecast or None
        The time that the formula of selection expects, what takes most of it, and what would be
        next: see :class:`gemv.selection.forecast.Forecast`. None unless a GPU would compute, and
        for kernels that are there to be read.
    transfer : str
        How a matrix in host memory gets to the device in each call; empty if it does not.
    comparison : Comparison or None
        For a call on host arrays that goes to the faster of host and GPU, the times that are
        expected of both: see :class:`gemv.selection.host_or_gpu.Comparison`. None where a backend
        was asked for, where there is no GPU, and for arguments that only the GPU has.
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
    forecast: Forecast | None = None
    transfer: str = ""
    comparison: Comparison | None = None

    def __str__(self) -> str:
        if self.kernel is None:
            return f"{self.routine} computes nothing and returns y as it was: {self.reason}."
        if self.backend == "host":
            return (
                f"{self.routine} is computed by SciPy's BLAS on the host: {self.reason}."
                f" It moves {self.bytes_moved} bytes.{told(self.comparison)}"
            )
        return (
            f"{self.routine} runs kernel {self.kernel!r},"
            f" {'beside the ladder' if self.rung is None else f'rung {self.rung}'}, on the"
            f" {self.backend} backend as {described(self)}: {self.reason}. It moves at least"
            f" {self.bytes_moved} bytes."
            + (f" {self.forecast}" if self.forecast else "")
            + (f" {self.transfer}; gemv.Matrix would keep it there." if self.transfer else "")
            + told(self.comparison)
        )


def told(comparison: Comparison | None) -> str:
    """A further sentence on the times that were compared, if there were any."""
    return "" if comparison is None else f" {comparison}"


def described(told: Explanation) -> str:
    """Grids, constants and the order of reading, for a sentence."""
    shown = [
        f"{' x '.join(map(str, _trim(launch.grid)))}"
        f" {'block' if math.prod(launch.grid) == 1 else 'blocks'} of"
        f" {' x '.join(map(str, _trim(launch.block)))} threads"
        + (f" and {launch.shared} bytes of shared memory" if launch.shared else "")
        for launch in told.launches[:_MOST_SHOWN]
    ]
    if len(told.launches) > _MOST_SHOWN:
        shown.append(f"{len(told.launches) - _MOST_SHOWN} more")
    settings = {**told.knobs, **told.sizes}
    named = f" ({', '.join(f'{k}={v}' for k, v in settings.items())})" if settings else ""
    wide = {
        "plain": "",
        "wide": ", adding up in twice the precision",
        "pairs": ", adding up in sums of two numbers",
    }[told.accumulate]
    return (
        f"{', then '.join(shown)}{named}, reading A in {told.access} order and alpha and beta from"
        f" {told.coefficients}{wide}"
    )


#: What there is to say of launches where there are none.
NO_LAUNCH: dict[str, Any] = {
    "rung": None,
    "depth": None,
    "knobs": {},
    "launches": (),
    "sizes": {},
    "coefficients": "nowhere",
}


def by_host(call: Call, kernel: str | None, comparison: Comparison | None) -> dict[str, Any]:
    """What there is to say of a call that SciPy's BLAS computes; an error if it may not."""
    refuse_on_host(call, kernel)
    if comparison is not None:
        reason = "it is expected to be faster than the GPU, which would need a copy of A"
    elif engines_backend.chosen() is not None:
        reason = "this backend was asked for"
    else:
        reason = engines_backend.probe()[1]
    return {
        **NO_LAUNCH,
        "backend": "host",
        "kernel": PREFIXES[call.problem.precision.sums] + "gemv",
        "reason": reason,
        "coefficients": "arguments",
        "comparison": comparison,
    }


def explain(
    arguments: BlasArguments,
    options: tuple[Any, Any, Any],
    accumulate: Any,
    out_dtype: Any,
    peer: Any,
    device_memory_limit: Any,
) -> Explanation:
    """What :func:`gemv.explain` answers; the parameters are those of :func:`long_way`."""
    kernel, stream, coefficients = options
    call = bind(
        "gemv", None, *arguments, coefficients=coefficients, accumulate=accumulate,
        out_dtype=out_dtype, peer=peer,
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
    if call.nothing is not None:
        common["bytes_moved"] = 0
        return Explanation(backend=None, kernel=None, reason=call.nothing, **common, **NO_LAUNCH)
    found = faster.comparison(call, kernel, coefficients, limit)
    backend = engines_backend.backend() if found is None else found.chosen
    if backend == "host":
        return Explanation(**common, **by_host(call, kernel, found))
    problem = to_be_selected(call)
    choice, engine = selected(call, problem, kernel)
    common["accumulate"] = choice.spec.accumulate
    transfer = ""
    if call.on_host and engine.name == "cuda" or limit is not None:
        from gemv.streaming import compute

        reach = 1 + (problem.rows - 1) * abs(problem.incy)
        way = compute.planned(engine, call.routine, problem, choice, reach, limit)
        transfer = way.describe(problem.rows * problem.cols * problem.dtype.itemsize)
    expected = None
    if engine.name == "cuda":
        from gemv.selection.forecast import forecast

        expected = forecast(choice, problem, engine.device())
    return Explanation(
        backend=backend,
        kernel=choice.kernel.name,
        rung=None if choice.kernel.name in BATCHED else choice.kernel.rung,
        depth=choice.kernel.depth(problem, choice.geometry, choice.knobs),
        knobs=choice.knobs,
        launches=choice.geometry.launches,
        sizes=dict(choice.geometry.sizes),
        coefficients=choice.coefficients,
        reason=choice.reason,
        forecast=expected,
        transfer=transfer,
        comparison=found,
        **common,
    )


def _trim(extent: tuple[int, int, int]) -> tuple[int, ...]:
    """``(x, y, z)`` without the ones at its end."""
    trimmed = list(extent)
    while len(trimmed) > 1 and trimmed[-1] == 1:
        trimmed.pop()
    return tuple(trimmed)
