"""Constant memory beside the other homes of alpha, beta and x.

Three parts. *Coefficients*: the same kernels with alpha and beta among the arguments (constant
bank 0), in a constant symbol (bank 3), behind a pointer through the read-only cache or by plain
loads, and compiled in. *Vector*: the kernel ``where_x_lives`` with x in each of its homes, every
thread of a warp at the same x[j] or each at its own, over the length of x. *Turns*: loads alone,
from 1 to 32 different addresses in a warp, which shows how often the hardware has to turn.

Times are device times as in :mod:`gemv.measure.clock`. Beside each stands the line of machine code
that does the load, where a disassembler (``nvdisasm``) is at hand. Under the simulator results
are checked and no time is claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from benchmarks.measure.constants_code import Codes
from benchmarks.measure.constants_coefficients import coefficients
from benchmarks.measure.constants_records import SINGLE, ConstantsResults
from benchmarks.measure.constants_turns import turns
from benchmarks.measure.constants_vector import vector
from gemv.core.geometry import CONSTANT_BYTES
from gemv.engines import backend as engines_backend
from gemv.kernels.spec import Spec
from gemv.kernels.t06_where_x_lives import KERNEL as WHERE_X_LIVES
from gemv.measure.clock import Clock
from gemv.measure.inputs import make_problem


def measure(
    parts: Iterable[str] = ("coefficients", "vector", "turns"),
    progress: Callable[[str], None] | None = None,
) -> ConstantsResults:
    """Measure parts on the current backend, the GPU or the simulator.

    Parameters
    ----------
    parts : iterable of str
        Of ``"coefficients"``, ``"vector"`` and ``"turns"``.
    progress : callable, optional
        Called with a few words before each step.

    Raises
    ------
    BackendError
        On the host backend, which has no kernels.
    """
    engine = engines_backend.engine()
    result = ConstantsResults(engine.name, engine.device().name)
    clock = None
    if engine.name == "cuda":
        clock = Clock(engine)
        result.versions = clock.versions()
    report = progress or (lambda what: None)
    codes = Codes()
    for part in parts:
        if part == "coefficients":
            result.coefficients = list(coefficients(clock, report, codes=codes))
        elif part == "vector":
            result.vector = list(vector(clock, report, codes=codes))
        elif part == "turns":
            result.turns = list(turns(clock, report, codes=codes)) if clock is not None else []
        else:
            raise ValueError(f"constants: no part {part!r}; known: coefficients, vector, turns")
    codes.fill()
    result.limits = limits()
    return result


def limits() -> dict[str, str]:
    """What is said when something is too large for constant memory, word for word."""
    longer = make_problem(1, CONSTANT_BYTES // 4 + 1, SINGLE, "C", "N")
    said = {"x": str(WHERE_X_LIVES.accepts(longer))}
    if engines_backend.backend() != "simulator":
        from gemv.language.numba_cuda.compile import assemble, compile_ptx

        capability = engines_backend.engine().device().compute_capability
        spec = Spec(SINGLE, False, "axpy", tuple(sorted(WHERE_X_LIVES.knobs.items())))
        (function,) = WHERE_X_LIVES.functions(spec)
        ptx = compile_ptx(function, SINGLE, capability)
        try:
            assemble(ptx.replace(f"[{CONSTANT_BYTES}]", f"[{CONSTANT_BYTES + 4}]"), capability)
        except RuntimeError as error:
            said["assembler"] = " ".join(str(error).replace("\0", "").split())
    return said
