"""alpha and beta in every home, in the same kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.measure.constants_code import Codes, Pick, coefficient_code, parameter_offset
from benchmarks.measure.constants_records import CHECKED_ROWS, SINGLE, CoefficientRow
from gemv.core.problem import Problem
from gemv.engines import backend as engines_backend
from gemv.engines.coefficients import Coefficients
from gemv.kernels.spec import HOMES
from gemv.measure.clock import Clock
from gemv.measure.inputs import ALPHA, BETA, as_buffer, make_problem, random_array
from gemv.measure.plain import Enqueue
from gemv.measure.reference import error_in_bounds, reference
from gemv.selection.select import Choice, select

#: Kernel and storage order: a row of A for a thread, a warp and a block. The last kernel asks for
#: its loads in batches, so the compiler has less to decide.
KERNELS = (
    ("thread_per_row", "F"),
    ("warp_per_row", "C"),
    ("last_block", "C"),
    ("vector_rows", "C"),
)
#: Rows and columns of A.
SIZES = (64, 1024, 8192)
SIZES_SIMULATED = (9,)


def coefficients(
    clock: Clock | None,
    report: Callable[[str], None] = lambda what: None,
    kernels: Iterable[tuple[str, str]] = KERNELS,
    sizes: Iterable[int] | None = None,
    homes: Iterable[str] = HOMES,
    codes: Codes | None = None,
) -> Iterable[CoefficientRow]:
    """alpha and beta in every home, on square problems in float32."""
    engine = engines_backend.engine()
    homes = tuple(homes)
    if sizes is None:
        sizes = SIZES if clock is not None else SIZES_SIMULATED
    rng = np.random.default_rng(3)
    alpha, beta = SINGLE.type(ALPHA), SINGLE.type(BETA)
    for size in sizes:
        a = random_array(rng, (size, size), SINGLE)
        x, y = random_array(rng, (size,), SINGLE), random_array(rng, (size,), SINGLE)
        # A large A comes from memory each time: the next one has displaced it.
        copies = 2 if clock is not None and a.nbytes > clock.l2_bytes else 1
        on_device = [as_buffer(engine.to_device(a)) for _ in range(copies)]
        device_x = as_buffer(engine.to_device(x))
        for name, order in kernels:
            report(f"{name}, {size} x {size}")
            problem = make_problem(size, size, SINGLE, order, "N")
            problem = problem.at(on_device[0].pointer, device_x.pointer)
            few = min(size, CHECKED_ROWS)
            rows_of_a = (a if order == "C" else a.T)[:few]
            exact, magnitude = reference(alpha, rows_of_a, x, beta, y[:few])
            for home in homes:
                row = CoefficientRow(name, order, size, home)
                choice = select(
                    problem, engine.device(), name, _knobs(name), (home, home), (ALPHA, BETA)
                )
                factors: list[Any] = [alpha, beta]
                if home in ("pointer", "global"):
                    factors = [as_buffer(engine.to_device(v.reshape(1))) for v in factors]
                device_y = as_buffer(engine.to_device(y))
                owner = Coefficients() if home == "constant" else None
                run = partial(_run, engine, choice, problem, factors, device_x)
                run(on_device[0], device_y)
                got = engine.to_host(device_y.owner)[:few]
                row.error = error_in_bounds(got, exact, magnitude, size, alpha)
                if clock is not None:
                    calls = [partial(run, each, device_y, owner=owner) for each in on_device]
                    row.time_s = clock.time([_on_stream(call) for call in calls])
                    row.call_s = clock.call_time(_on_stream(partial(run, on_device[0], device_y)))
                    if codes is not None:
                        codes.later(row, *_alpha_code(engine, choice, home))
                if owner is not None:
                    owner.close()
                yield row


def _alpha_code(engine: Any, choice: Choice, home: str) -> tuple[bytes, Pick]:
    """Machine code, and how to find the instruction in it that brings alpha."""
    binary = engine.load(choice, engine.device())[-1].binary
    if not binary.ptx:  # it comes from the disk, where only machine code is kept
        from gemv.language.numba_cuda.compile import binaries

        capability = engine.device().compute_capability
        binary = binaries(choice.kernel, choice.spec, capability)[-1]
    offset = None
    for name in ("alpha", "alpha_pointer"):
        if name in binary.arguments:
            offset = parameter_offset(binary.ptx, binary.arguments, name, SINGLE)
    return binary.cubin, partial(coefficient_code, home=home, offset=offset)


def _knobs(kernel: str) -> dict[str, int] | None:
    """Constants for the simulator, which has little time; on a GPU the kernel's own."""
    from gemv.kernels import get

    return dict(get(kernel).small_knobs) if engines_backend.backend() == "simulator" else None


def _run(
    engine: Any,
    choice: Choice,
    problem: Problem,
    factors: list[Any],
    x: Any,
    a: Any,
    y: Any,
    stream: Any = None,
    owner: Coefficients | None = None,
) -> None:
    engine.run(choice, problem, factors[0], a, x, factors[1], y, stream=stream, owner=owner)


def _on_stream(call: Callable[..., None]) -> Enqueue:
    return lambda stream: call(stream=stream)
