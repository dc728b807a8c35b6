"""Every kernel on one problem, checked and timed, beside the rate at which memory can be read.

The *ceiling* is the best rate at which a plain kernel of the same run read buffers of A's size, or
the rate of a kernel that was faster still.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from functools import partial

import numpy as np

from gemv.core.dtypes import DTYPES
from gemv.engines import backend as engines_backend
from gemv.kernels import REGISTRY, get
from gemv.measure.clock import Clock, copies_past_l2
from gemv.measure.inputs import ALPHA, BETA, as_buffer, make_problem, random_array
from gemv.measure.reference import error_in_bounds, reference
from gemv.selection.select import select


@dataclass(slots=True)
class LadderRow:
    """One kernel on the ladder.

    Attributes
    ----------
    time_s, gb_per_s, share : float or None
        Median device time; :attr:`Ladder.bytes_moved` over that time, in 1e9 bytes a second; and
        that rate over the ceiling. None under the simulator, and for a kernel that refuses the
        shape.
    error : float or None
        Largest error, in units of the bound.
    refused : str or None
        Why the kernel does not accept this problem.
    """

    name: str
    rung: int
    teaching: bool
    time_s: float | None = None
    gb_per_s: float | None = None
    share: float | None = None
    error: float | None = None
    refused: str | None = None


@dataclass(slots=True)
class Ladder:
    """All kernels on one problem, and the ceiling of the same run."""

    m: int
    n: int
    dtype: str
    order: str
    op: str
    backend: str
    device: str
    bytes_moved: int
    versions: dict[str, str] = field(default_factory=dict)
    ceiling_gb_per_s: float | None = None
    rows: list[LadderRow] = field(default_factory=list)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Ladder:
        data = json.loads(text)
        rows = [LadderRow(**row) for row in data.pop("rows")]
        return cls(**data, rows=rows)


def ladder(
    m: int,
    n: int,
    dtype: str = "s",
    order: str = "C",
    op: str = "N",
    kernels: Iterable[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Ladder:
    """Run, check and time every kernel on one problem.

    Parameters
    ----------
    m, n : int
        Shape of A.
    dtype : {"s", "d", "c", "z", "h", "b"}
    order : {"C", "F"}
        Storage of A.
    op : {"N", "T", "C"}
    kernels : iterable of str, optional
        Names; the whole registry by default.
    progress : callable, optional
        Called with the name of each kernel before it runs.

    Raises
    ------
    ValueError
        For an unknown kernel, dtype, order or op, or a shape without elements.
    BackendError
        On the host backend, which has no kernels.
    """
    if dtype not in DTYPES:
        raise ValueError(f"ladder: dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    if order not in ("C", "F") or op not in ("N", "T", "C"):
        raise ValueError(f"ladder: order must be C or F, op N, T or C; got {order!r}, {op!r}")
    if m < 1 or n < 1:
        raise ValueError(f"ladder: m and n must be at least 1, got {m} and {n}")
    chosen = list(REGISTRY.values()) if kernels is None else [get(name) for name in kernels]
    element = DTYPES[dtype]
    engine = engines_backend.engine()
    device = engine.device()
    problem = make_problem(m, n, element, order, op)
    rng = np.random.default_rng(20240501)
    a = random_array(rng, (m, n) if order == "C" else (n, m), element)
    a = a if order == "C" else a.T
    x = random_array(rng, (problem.cols,), element)
    y = random_array(rng, (problem.rows,), element)
    op_a = a if op == "N" else a.T
    op_a = op_a.conj() if problem.conj else op_a
    factor = problem.precision.factors.type
    alpha, beta = factor(ALPHA), factor(BETA)
    exact, magnitude = reference(alpha, op_a, x, beta, y)

    result = Ladder(
        m, n, dtype, order, op, engine.name, device.name, problem.bytes_moved(beta_is_zero=False)
    )
    clock = None
    if engine.name == "cuda":
        clock = Clock(engine)
        result.versions = clock.versions()
    copies = 1 if clock is None else copies_past_l2(a.nbytes, clock.l2_bytes)
    all_a = [as_buffer(engine.to_device(a)) for _ in range(copies)]
    device_x = as_buffer(engine.to_device(x))
    problem = problem.at(all_a[0].pointer, device_x.pointer)
    if clock is not None:
        result.ceiling_gb_per_s = clock.read_ceiling([each.pointer for each in all_a], a.nbytes)

    for kernel in chosen:
        if progress is not None:
            progress(kernel.name)
        row = LadderRow(kernel.name, kernel.rung, kernel.beside)
        result.rows.append(row)
        row.refused = kernel.accepts(problem) or device.lacks(kernel.capability)
        if row.refused:
            continue
        choice = select(problem, device, kernel.name)
        device_y = as_buffer(engine.to_device(y))
        engine.run(choice, problem, alpha, all_a[0], device_x, beta, device_y)
        got = engine.to_host(device_y.owner)
        row.error = error_in_bounds(got, exact, magnitude, problem.cols, alpha)
        if clock is not None:

            def call(stream, each, choice=choice, device_y=device_y):
                engine.run(choice, problem, alpha, each, device_x, beta, device_y, stream)

            row.time_s = clock.time([partial(call, each=each) for each in all_a])
            row.gb_per_s = result.bytes_moved / row.time_s / 1e9
    if result.ceiling_gb_per_s is not None:
        # A kernel that reads faster than the plain read kernel raises the ceiling.
        best = max((row.gb_per_s for row in result.rows if row.gb_per_s), default=0.0)
        result.ceiling_gb_per_s = max(result.ceiling_gb_per_s, best)
        for row in result.rows:
            if row.gb_per_s is not None:
                row.share = row.gb_per_s / result.ceiling_gb_per_s
    return result
