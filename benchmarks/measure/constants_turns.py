"""Loads alone, from 1 to 32 different addresses in a warp."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from benchmarks.measure.constants_code import VECTOR_CODE, Codes, finder
from benchmarks.measure.constants_records import LANES, SINGLE, TurnRow
from gemv.engines import backend as engines_backend
from gemv.kernels.spec import Spec
from gemv.kernels.t06_where_x_lives import HOMES as X_HOMES
from gemv.kernels.t06_where_x_lives import fetch_from
from gemv.measure.clock import Clock
from gemv.measure.inputs import as_buffer
from gemv.measure.plain import launcher, loaded

#: How the threads of a warp are dealt to addresses: (name, blocked, elements from one to the next).
PATTERNS = (("blocked", True, 1), ("alternating", False, 1), ("apart", True, 16))
_LOADS_PER_ROUND = 8
ROUNDS = 256


def turns(
    clock: Clock,
    report: Callable[[str], None] = lambda what: None,
    cases: Iterable[tuple[str, str, int]] | None = None,
    codes: Codes | None = None,
) -> Iterable[TurnRow]:
    """Loads with 1, 2, 4 ... 32 addresses in a warp, from every home."""
    engine = engines_backend.engine()
    device = engine.device()
    spec = Spec(SINGLE, False, "strided", ())
    memory = as_buffer(engine.zeros(1 << 14, SINGLE))
    threads, blocks = 1024, 2 * device.multiprocessors
    if cases is None:
        cases = [
            (home, name, distinct)
            for home in X_HOMES
            for name, _, _ in PATTERNS
            for distinct in LANES
        ]
    patterns = {name: (blocked, step) for name, blocked, step in PATTERNS}
    functions: dict[str, Any] = {}
    for home, pattern, distinct in cases:
        report(f"{distinct} addresses from {home}, {pattern}")
        if home not in functions:
            kernel = loading_kernel(home, spec)
            functions[home] = loaded(engine, kernel, SINGLE, early_start=False)
        blocked, step = patterns[pattern]
        values: dict[str, Any] = {
            "rounds": ROUNDS, "mask": 1, "y": memory.pointer, "step": step,
            "share": 32 // distinct if blocked else 1, "distinct": distinct,
            "x": np.zeros(1024, SINGLE) if home == "value" else memory.pointer,
        }  # fmt: skip
        launch = launcher(engine, functions[home], (blocks, 1, 1), (threads, 1, 1), values)
        seconds = clock.time([launch])
        # Two blocks of 32 warps on each multiprocessor.
        loads = 2 * (threads // 32) * ROUNDS * _LOADS_PER_ROUND
        row = TurnRow(home, pattern, distinct, seconds / loads)
        if codes is not None:
            codes.later(row, functions[home].binary.cubin, finder(*VECTOR_CODE[home]))
        yield row


def loading_kernel(home: str, spec: Spec) -> Callable:
    """A kernel that does little but load x[place + ...], `distinct` places in a warp."""
    from numba import cuda

    from gemv.kernels.kernel import attach

    fetch, _ = fetch_from(home, spec)
    zero, impossible = SINGLE.type(0), SINGLE.type(3e38)

    def loads(rounds, mask, share, distinct, step, x, y):
        lane = cuda.threadIdx.x % 32
        at = lane // share % distinct * step
        total = zero
        for k in range(rounds):
            j = at + (k & mask)  # the mask comes at run time: no load can be moved out of the loop
            total += fetch(x, 1, j) + fetch(x, 1, j + 1) + fetch(x, 1, j + 2) + fetch(x, 1, j + 3)
            j += 4
            total += fetch(x, 1, j) + fetch(x, 1, j + 1) + fetch(x, 1, j + 2) + fetch(x, 1, j + 3)
        if total == impossible:
            y[0] = total  # never true, but the compiler cannot drop the loads

    def loads_shared(rounds, mask, share, distinct, step, x, y):
        tile = cuda.shared.array(1024, np.float32)
        tile[cuda.threadIdx.x] = x[cuda.threadIdx.x]
        cuda.syncthreads()  # the whole tile is there
        lane = cuda.threadIdx.x % 32
        at = lane // share % distinct * step
        total = zero
        for k in range(rounds):
            j = at + (k & mask)
            total += tile[j] + tile[j + 1] + tile[j + 2] + tile[j + 3]
            j += 4
            total += tile[j] + tile[j + 1] + tile[j + 2] + tile[j + 3]
        if total == impossible:
            y[0] = total

    if home == "shared":
        return loads_shared
    return attach(loads, value_bytes=4096) if home == "value" else loads
