"""The race between the homes of alpha, beta and x: constant memory and its rivals.

Three parts. *Coefficients*: the same kernels with alpha and beta among the arguments (constant
bank 0), in a constant symbol (bank 3), behind a pointer through the read-only cache or by plain
loads, and compiled in. *Vector*: the kernel ``where_x_lives`` with x in each of its homes, every
thread of a warp at the same x[j] or each at its own, over the length of x. *Turns*: loads alone,
from 1 to 32 different addresses in a warp, which shows how often the hardware has to turn.

Times are device times as in :mod:`gemv.measure.ladder`. Beside each stands the line of machine code
that does the load, where a disassembler (``nvdisasm``) is at hand. Under the simulator results
are checked and no time is claimed.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from gemv.core.geometry import CONSTANT_BYTES
from gemv.core.problem import Problem
from gemv.engines import backend as engines_backend
from gemv.engines.coefficients import Coefficients
from gemv.kernels.spec import HOMES, Spec
from gemv.kernels.t06_where_x_lives import HOMES as X_HOMES
from gemv.kernels.t06_where_x_lives import KERNEL as WHERE_X_LIVES
from gemv.kernels.t06_where_x_lives import fetch_from
from gemv.measure.clock import Clock
from gemv.measure.inputs import ALPHA, BETA, as_buffer, make_problem, random_array
from gemv.measure.reference import error_in_bounds, reference
from gemv.selection.select import Choice, select

SINGLE = np.dtype(np.float32)

#: Kernel and storage order of the first part: rows of A along threads, warps and blocks.
#: The last one asks for its loads in batches, so the compiler has less to decide.
COEFFICIENT_KERNELS = (
    ("thread_per_row", "F"),
    ("warp_per_row", "C"),
    ("last_block", "C"),
    ("vector_rows", "C"),
)
COEFFICIENT_SIZES = (64, 1024, 8192)
COEFFICIENT_SIZES_SIMULATED = (9,)

#: Lengths of x; 64 KB of float32 is the last one, and 8160 fill the parameters of a kernel.
LENGTHS = (16, 64, 256, 1024, 4096, 8160, 16384)
LENGTHS_SIMULATED = (5, 33)
#: Elements of A: in L2, and far past it.
ELEMENTS = {"L2": 1 << 23, "memory": 1 << 27}
#: Threads of a warp that share a row, and so the different x[j] it asks for at once.
LANES = (1, 2, 4, 8, 16, 32)
LENGTH_OF_LANES = 1024
#: Lengths for which the loop over the columns is unrolled as well.
UNROLLED = (16, 64)

#: The first rows answer for all: every thread does the same.
CHECKED_ROWS = 512
#: Bytes of the parameter for x by value: the next one that x fits into.
VALUE_BYTES = (256, 4096, 32640)

#: How the threads of a warp are dealt to addresses: (name, blocked, elements from one to the next).
PATTERNS = (("blocked", True, 1), ("alternating", False, 1), ("apart", True, 16))
_LOADS_PER_ROUND = 8
_ROUNDS = 256


@dataclass(slots=True)
class CoefficientRow:
    """One kernel with its coefficients in one home.

    Attributes
    ----------
    time_s : float or None
        Device time of the launches alone, in a replayed graph.
    call_s : float or None
        Time on the stream of one call of many, enqueued one after the other: with what the home
        needs for each call, and with Python, where that is what limits it.
    error : float or None
        In units of the bound.
    code : str
        The instruction that brings alpha.
    in_flight : int or None
        Loads that the machine code issues one after the other before it needs the first of them,
        at most: what the compiler made of the loop.
    """

    kernel: str
    order: str
    size: int
    home: str
    time_s: float | None = None
    call_s: float | None = None
    error: float | None = None
    code: str = ""
    in_flight: int | None = None


@dataclass(slots=True)
class VectorRow:
    """``where_x_lives`` with x in one home; `lanes` threads of a warp share a row of A.

    `unrolled` says that the compiler knew the number of columns, and so the address of each x[j].
    """

    home: str
    lanes: int
    order: str
    source: str
    m: int
    n: int
    unrolled: bool = False
    time_s: float | None = None
    gb_per_s: float | None = None
    error: float | None = None
    refused: str | None = None
    code: str = ""
    in_flight: int | None = None


@dataclass(slots=True)
class TurnRow:
    """Loads with `distinct` addresses in a warp.

    `load_s` is the device time of one load instruction of one warp on one multiprocessor that has
    nothing else to do than such loads.
    """

    home: str
    pattern: str
    distinct: int
    load_s: float | None = None
    code: str = ""


@dataclass(slots=True)
class Race:
    """All three parts, measured in one run."""

    backend: str
    device: str
    versions: dict[str, str] = field(default_factory=dict)
    coefficients: list[CoefficientRow] = field(default_factory=list)
    vector: list[VectorRow] = field(default_factory=list)
    turns: list[TurnRow] = field(default_factory=list)
    limits: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Race:
        data = json.loads(text)
        data["coefficients"] = [CoefficientRow(**row) for row in data["coefficients"]]
        data["vector"] = [VectorRow(**row) for row in data["vector"]]
        data["turns"] = [TurnRow(**row) for row in data["turns"]]
        return cls(**data)


# Machine code ---------------------------------------------------------------------------------


def disassembler() -> str | None:
    """``nvdisasm``: on the path, or where its package puts it."""
    found = shutil.which("nvdisasm")
    if found:
        return found
    for path in Path(sysconfig.get_path("purelib")).glob("nvidia/*/bin/nvdisasm"):
        return str(path)
    return None


@lru_cache(maxsize=256)
def listing(cubin: bytes) -> list[str]:
    """Instructions of a cubin, without addresses; empty without a disassembler."""
    tool = disassembler()
    if tool is None:
        return []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        run = subprocess.run([tool, "-c", str(path)], capture_output=True, text=True)
    if run.returncode:
        return []
    lines = (re.sub(r"/\*.*?\*/", "", line).strip() for line in run.stdout.splitlines())
    return [line.rstrip(" ;") for line in lines if line.endswith(";")]


def _first(lines: list[str], *patterns: str) -> str:
    for pattern in patterns:
        for line in lines:
            if re.search(pattern, line):
                return " ".join(line.split())
    return ""


def _finder(*patterns: str) -> Callable[[list[str]], str]:
    return lambda lines: _first(lines, *patterns)


def loads_in_flight(lines: list[str]) -> int:
    """The longest row of loads from global memory that no product or sum interrupts."""
    longest = current = 0
    for line in lines:
        if re.search(r"\bLDG\b", line):
            current += 1
            longest = max(longest, current)
        elif re.search(r"\b[FD](FMA|MUL|ADD)\b|\bBRA\b", line):
            current = 0
    return longest


class _Codes:
    """Disassembles beside the measurement: the tool takes as long as the compiler."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=4)
        self._later: list[tuple[Any, Callable[[list[str]], str], Future]] = []

    def later(self, row: Any, cubin: bytes, pick: Callable[[list[str]], str]) -> None:
        """Have ``row.code`` filled by :meth:`fill`."""
        self._later.append((row, pick, self._pool.submit(listing, cubin)))

    def fill(self) -> None:
        for row, pick, lines in self._later:
            row.code = pick(lines.result())
            if hasattr(row, "in_flight") and lines.result():
                row.in_flight = loads_in_flight(lines.result())
        self._later.clear()
        self._pool.shutdown()


def parameter_offset(ptx: str, arguments: tuple[str, ...], name: str, dtype: np.dtype) -> int:
    """Byte offset of a parameter among the parameters, as PTX declares them."""
    declared = re.search(r"\.entry \w+\((.*?)\)", ptx, re.S)
    assert declared is not None
    sizes = [int(bits) // 8 for bits in re.findall(r"\.param \.[a-z](\d+)\b", declared.group(1))]
    at = 0
    position = 0
    for argument in arguments:
        parts = 2 if argument in ("alpha", "beta") and dtype.kind == "c" else 1
        for part in range(parts):
            size = sizes[position]
            at = -(-at // size) * size
            if argument == name and part == 0:
                return at
            at += size
            position += 1
    raise LookupError(f"no parameter {name!r}")


def coefficient_code(lines: list[str], home: str, offset: int | None) -> str:
    """The instruction that brings alpha: by bank, by pointer, or as an immediate."""
    if home == "constant":
        return _first(lines, r"c\[0x3\]")
    if home == "literal":
        return _first(lines, rf"\bF(MUL|FMA)\b.*, {ALPHA:g}\b")
    if offset is None:
        return ""
    # Where parameters start differs from one generation to the next; 0x210 is Hopper's.
    address = f"{0x210 + offset:x}"
    if home == "arguments":
        return _first(lines, rf"c\[0x0\]\[0x{address}\]")
    bring = _first(lines, rf"\bU?LDC\.64 U?R\d+, c\[0x0\]\[0x{address}\]")
    register = re.search(r"\bU?LDC\.64 (U?R\d+)", bring)
    if home == "pointer":
        return _first(lines, r"\bLDG\.E\S*\.CONSTANT")
    if register:
        return _first(lines, rf"\bLDG\.E\S* R\d+, .*\b{register.group(1)}\b")
    return ""


#: A product that takes x from constant memory, or from a uniform register, as it stands.
_DIRECT = r"\bFFMA\b.*(\bUR\d+|c\[0x[03]\])"

_VECTOR_CODE = {
    "global": (r"\bLDG\.E",),
    "read_only": (r"\bLDG\.E\S*\.CONSTANT",),
    "shared": (r"\bLDS",),
    # A register in the brackets: the index is not the same for all loads.
    "constant": (r"c\[0x3\]\[U?R", r"c\[0x3\]"),
    "value": (r"c\[0x0\]\[U?R\d+", r"c\[0x0\]\[.*R\d+"),
}


# Parts ----------------------------------------------------------------------------------------


def race(
    parts: Iterable[str] = ("coefficients", "vector", "turns"),
    progress: Callable[[str], None] | None = None,
) -> Race:
    """Run the race on the current backend, the GPU or the simulator.

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
    result = Race(engine.name, engine.device().name)
    clock = None
    if engine.name == "cuda":
        clock = Clock(engine)
        result.versions = clock.versions()
    report = progress or (lambda what: None)
    codes = _Codes()
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


def coefficients(
    clock: Clock | None,
    report: Callable[[str], None] = lambda what: None,
    kernels: Iterable[tuple[str, str]] = COEFFICIENT_KERNELS,
    sizes: Iterable[int] | None = None,
    homes: Iterable[str] = HOMES,
    codes: _Codes | None = None,
) -> Iterable[CoefficientRow]:
    """alpha and beta in every home, on square problems in float32."""
    engine = engines_backend.engine()
    homes = tuple(homes)
    if sizes is None:
        sizes = COEFFICIENT_SIZES if clock is not None else COEFFICIENT_SIZES_SIMULATED
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
                    binary = engine.load(choice, engine.device())[-1].binary
                    if not binary.ptx:  # it comes from the disk, where only machine code is kept
                        from gemv.language.numba_cuda.compile import binaries

                        capability = engine.device().compute_capability
                        binary = binaries(choice.kernel, choice.spec, capability)[-1]
                    offset = None
                    for wanted in ("alpha", "alpha_pointer"):
                        if wanted in binary.arguments:
                            offset = parameter_offset(binary.ptx, binary.arguments, wanted, SINGLE)
                    if codes is not None:
                        pick = partial(coefficient_code, home=home, offset=offset)
                        codes.later(row, binary.cubin, pick)
                if owner is not None:
                    owner.close()
                yield row


def _knobs(kernel: str) -> dict[str, int] | None:
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


def _on_stream(call: Callable[..., None]) -> Callable[[int], None]:
    return lambda stream: call(stream=stream)


#: Source of A, its elements, n, order, lanes, unrolled.
VectorCase = tuple[str, int, int, str, int, bool]


def _vector_cases(simulated: bool) -> Iterable[VectorCase]:
    if simulated:
        for n in LENGTHS_SIMULATED:
            yield "L2", 7 * n, n, "F", 1, False
            yield "L2", 7 * n, n, "C", 32, False
        yield "L2", 7 * n, n, "F", 1, True
        return
    for source, elements in ELEMENTS.items():
        for n in LENGTHS:
            yield source, elements, n, "F", 1, False
            yield source, elements, n, "C", 32, False
    for lanes in LANES[:-1]:
        yield "L2", ELEMENTS["L2"], LENGTH_OF_LANES, "C", lanes, False
    for n in UNROLLED:
        yield "L2", ELEMENTS["L2"], n, "F", 1, True


def vector(
    clock: Clock | None,
    report: Callable[[str], None] = lambda what: None,
    cases: Iterable[VectorCase] | None = None,
    homes: Iterable[str] = X_HOMES,
    codes: _Codes | None = None,
) -> Iterable[VectorRow]:
    """x in every home, in float32; the matrix of each source is one buffer for all shapes."""
    engine = engines_backend.engine()
    simulated = clock is None
    homes = tuple(homes)
    cases = list(_vector_cases(simulated) if cases is None else cases)
    rng = np.random.default_rng(4)
    buffers: dict[str, list[Any]] = {}
    hosts: dict[str, np.ndarray] = {}
    alpha, beta = SINGLE.type(ALPHA), SINGLE.type(0)
    for source, elements, n, order, lanes, unrolled in cases:
        if source not in buffers:
            most = max(case[1] for case in cases if case[0] == source)
            hosts[source] = random_array(rng, (most,), SINGLE)
            # One buffer past the L2 is read front to back: its start is gone when it is over.
            buffers[source] = [as_buffer(engine.to_device(hosts[source]))]
        m = elements // n
        report(f"x of {n}, A of {m} rows from {source}")
        problem = make_problem(m, n, SINGLE, order, "N")
        x = random_array(rng, (n,), SINGLE)
        device_x = as_buffer(engine.to_device(x))
        flat = hosts[source][: m * n]
        a = flat.reshape(m, n) if order == "C" else flat.reshape(n, m).T
        (buffer,) = buffers[source]
        if simulated:
            buffer = replace(buffer, owner=np.asarray(buffer.owner)[: m * n])
        few = min(m, CHECKED_ROWS)
        exact, magnitude = reference(alpha, a[:few], x, beta, np.zeros(few, SINGLE))
        for home in homes:
            if unrolled and home == "shared":
                continue  # its loop is over tiles
            row = VectorRow(home, lanes, order, source, m, n, unrolled)
            row.refused = WHERE_X_LIVES.accepts(problem)
            knobs = {"X_HOME": X_HOMES.index(home), "LANES_PER_ROW": lanes}
            knobs |= {"VALUE_BYTES": next((b for b in VALUE_BYTES if 4 * n <= b), VALUE_BYTES[-1])}
            knobs |= {"COLS": n if unrolled else 0}
            if simulated:
                knobs |= {"THREADS_PER_BLOCK": 32}
            try:
                choice = select(problem, engine.device(), WHERE_X_LIVES.name, knobs)
            except ValueError as refusal:
                row.refused = str(refusal)
                yield row
                continue
            y = as_buffer(engine.zeros(m, SINGLE))
            engine.run(choice, problem, alpha, buffer, device_x, beta, y)
            got = engine.to_host(y.owner)[:few]
            row.error = error_in_bounds(got, exact, magnitude, n, alpha)
            if clock is not None:
                launch = _launcher(engine, choice, problem, alpha, buffer, x, device_x, beta, y)
                row.time_s = clock.time([launch])
                row.gb_per_s = problem.bytes_moved(True) / row.time_s / 1e9
                binary = engine.load(choice, engine.device())[0].binary
                if codes is not None:
                    direct = [_DIRECT] if unrolled else []
                    codes.later(row, binary.cubin, _finder(*direct, *_VECTOR_CODE[home]))
            yield row


def _launcher(
    engine: Any,
    choice: Choice,
    problem: Problem,
    alpha: Any,
    a: Any,
    x: np.ndarray,
    device_x: Any,
    beta: Any,
    y: Any,
) -> Callable[[int], None]:
    """The launch alone: x has been brought to its home by a whole call before."""
    functions = engine.load(choice, engine.device())
    home = choice.kernel.x_home(choice.knobs)
    values = {
        "rows": problem.rows, "cols": problem.cols, "alpha": alpha, "a": a.pointer,
        "row_stride": problem.row_stride, "col_stride": problem.col_stride,
        "x": x if home == "value" else device_x.pointer, "incx": 1, "beta": beta,
        "y": y.pointer, "incy": 1,
    }  # fmt: skip
    (launch,) = choice.geometry.launches

    def call(stream: int) -> None:
        engine.launch(functions[0], launch.grid, launch.block, stream, values)

    return call


def turns(
    clock: Clock,
    report: Callable[[str], None] = lambda what: None,
    cases: Iterable[tuple[str, str, int]] | None = None,
    codes: _Codes | None = None,
) -> Iterable[TurnRow]:
    """Loads with 1, 2, 4 ... 32 addresses in a warp, from every home."""
    from gemv.engines.loading import load
    from gemv.language.numba_cuda.compile import compile_function

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
    loaded: dict[str, Any] = {}
    cubins: dict[str, bytes] = {}
    for home, pattern, distinct in cases:
        report(f"{distinct} addresses from {home}, {pattern}")
        if home not in loaded:
            binary = compile_function(_loads(home, spec), SINGLE, device.compute_capability)
            loaded[home] = load(binary, SINGLE)
            cubins[home] = binary.cubin
        blocked, step = patterns[pattern]
        values: dict[str, Any] = {
            "rounds": _ROUNDS, "mask": 1, "y": memory.pointer, "step": step,
            "share": 32 // distinct if blocked else 1, "distinct": distinct,
            "x": np.zeros(1024, SINGLE) if home == "value" else memory.pointer,
        }  # fmt: skip

        def call(stream, function=loaded[home], values=values):
            engine.launch(function, (blocks, 1, 1), (threads, 1, 1), stream, values)

        seconds = clock.time([call])
        # Two blocks of 32 warps on each multiprocessor.
        loads = 2 * (threads // 32) * _ROUNDS * _LOADS_PER_ROUND
        row = TurnRow(home, pattern, distinct, seconds / loads)
        if codes is not None:
            codes.later(row, cubins[home], _finder(*_VECTOR_CODE[home]))
        yield row


def _loads(home: str, spec: Spec) -> Callable:
    """A kernel that does little but load x[place + ...], `distinct` places in a warp."""
    from numba import cuda

    from gemv.kernels.kernel import attach

    fetch, _ = fetch_from(home, spec)
    zero, impossible = SINGLE.type(0), SINGLE.type(3e38)
    SHARED = home == "shared"

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

    if SHARED:
        return loads_shared
    return attach(loads, value_bytes=4096) if home == "value" else loads


def limits() -> dict[str, str]:
    """What is said when something is too large for constant memory, word for word."""
    longer = make_problem(1, CONSTANT_BYTES // 4 + 1, SINGLE, "C", "N")
    said = {"x": str(WHERE_X_LIVES.accepts(longer))}
    if engines_backend.backend() != "simulator":
        from gemv.language.numba_cuda.compile import assemble, compile_ptx

        capability = engines_backend.engine().device().compute_capability
        small = {**WHERE_X_LIVES.knobs}
        spec = Spec(SINGLE, False, "axpy", tuple(sorted(small.items())))
        (function,) = WHERE_X_LIVES.functions(spec)
        ptx = compile_ptx(function, SINGLE, capability)
        try:
            assemble(ptx.replace(f"[{CONSTANT_BYTES}]", f"[{CONSTANT_BYTES + 4}]"), capability)
        except RuntimeError as error:
            said["assembler"] = " ".join(str(error).replace("\0", "").split())
    return said


# Tables and the picture -----------------------------------------------------------------------


@dataclass(slots=True)
class Table:
    """Rows of text under headings; the first `left` columns are words, the others figures."""

    title: str
    headings: list[str]
    rows: list[list[str]]
    left: int = 1


def _figure(value: float | None, scale: float = 1.0, digits: int = 3) -> str:
    """Three digits, whatever the size; a dash where nothing was measured."""
    if value is None:
        return "–"
    scaled = value * scale
    return f"{scaled:.0f}" if scaled >= 10**digits else f"{float(f'{scaled:.{digits}g}'):g}"


def tables(measured: Race) -> list[Table]:
    """What the command prints and the documentation shows."""
    return [
        *_coefficient_tables(measured.coefficients),
        *_vector_tables(measured.vector),
        *_turn_tables(measured.turns),
    ]


def _coefficient_tables(rows: list[CoefficientRow]) -> list[Table]:
    made = []
    cases = list(dict.fromkeys((row.kernel, row.order) for row in rows))
    sizes = list(dict.fromkeys(row.size for row in rows))
    for kernel, order in cases:
        table = Table(
            f"alpha and beta in {kernel}, float32, order {order}: us of the launch in a graph,"
            " and of a whole call on the stream",
            ["home", *(f"{size}² {what}" for size in sizes for what in ("launch", "call"))],
            [],
        )
        table.headings += ["loads in a row", "machine code that brings alpha"]
        for home in dict.fromkeys(row.home for row in rows):
            found = {
                row.size: row
                for row in rows
                if (row.kernel, row.order, row.home) == (kernel, order, home)
            }
            cells = [home]
            for size in sizes:
                cells += [
                    _figure(found[size].time_s, 1e6, 4),
                    _figure(found[size].call_s, 1e6, 4),
                ]
            some = next(iter(found.values()))
            flight = "–" if some.in_flight is None else str(some.in_flight)
            table.rows.append([*cells, flight, some.code or "–"])
        made.append(table)
    return made


def _vector_tables(rows: list[VectorRow]) -> list[Table]:
    made = []
    looped = [row for row in rows if not row.unrolled]
    over_n = [r for r in looped if (r.lanes, r.order) in ((1, "F"), (32, "C"))]
    unrolled = [row for row in rows if row.unrolled]
    for lanes, order, source in dict.fromkeys((r.lanes, r.order, r.source) for r in over_n):
        part = [r for r in over_n if (r.lanes, r.order, r.source) == (lanes, order, source)]
        lengths = list(dict.fromkeys(row.n for row in part))
        threads = "all threads of a warp at the same x[j]" if lanes == 1 else "each at its own x[j]"
        table = Table(
            f"x in {WHERE_X_LIVES.name}, A of {order} order from {source}, {threads}:"
            " us over the length of x",
            [
                "home of x",
                *(f"n = {n}" for n in lengths),
                "loads in a row",
                "machine code that brings x",
            ],
            [],
        )
        for home in dict.fromkeys(row.home for row in part):
            found = {row.n: row for row in part if row.home == home}
            cells = [
                "does not fit" if found[n].refused else _figure(found[n].time_s, 1e6, 4)
                for n in lengths
            ]
            some = next((row for row in found.values() if row.code), part[0])
            flight = "–" if some.in_flight is None else str(some.in_flight)
            table.rows.append([home, *cells, flight, some.code or "–"])
        made.append(table)
    if unrolled:
        lengths = list(dict.fromkeys(row.n for row in unrolled))
        table = Table(
            f"x in {WHERE_X_LIVES.name}, A of F order from L2, all threads of a warp at the same"
            " x[j], the loop unrolled: us over the length of x",
            ["home of x", *(f"n = {n}" for n in lengths), "machine code of a product"],
            [],
        )
        for home in dict.fromkeys(row.home for row in unrolled):
            found = {row.n: row for row in unrolled if row.home == home}
            cells = [_figure(found[n].time_s, 1e6, 4) for n in lengths]
            table.rows.append([home, *cells, found[lengths[0]].code or "–"])
        made.append(table)
    by_lanes = [row for row in looped if row.n == LENGTH_OF_LANES and row.order == "C"]
    by_lanes = [row for row in by_lanes if row.source == "L2"]
    lanes_seen = sorted({row.lanes for row in by_lanes})
    if len(lanes_seen) > 1:
        table = Table(
            f"x in {WHERE_X_LIVES.name}, A of C order from L2, n = {LENGTH_OF_LANES}: us over the"
            " threads that share a row, and so the different x[j] in a warp",
            ["home of x", *map(str, lanes_seen)],
            [],
        )
        for home in dict.fromkeys(row.home for row in by_lanes):
            times = {row.lanes: row.time_s for row in by_lanes if row.home == home}
            table.rows.append([home, *(_figure(times.get(n), 1e6, 4) for n in lanes_seen)])
        made.append(table)
    return made


def _turn_tables(rows: list[TurnRow]) -> list[Table]:
    made = []
    for pattern in dict.fromkeys(row.pattern for row in rows):
        part = [row for row in rows if row.pattern == pattern]
        counts = list(dict.fromkeys(row.distinct for row in part))
        table = Table(
            f"one load of a warp, {pattern}: ns on a multiprocessor over the addresses in the warp",
            ["home", *map(str, counts), "32 over 1", "machine code"],
            [],
        )
        for home in dict.fromkeys(row.home for row in part):
            found = {row.distinct: row for row in part if row.home == home}
            cells = [_figure(found[n].load_s, 1e9) for n in counts]
            first, last = found[counts[0]].load_s, found[counts[-1]].load_s
            ratio = last / first if first and last else None
            table.rows.append([home, *cells, _figure(ratio), found[counts[0]].code or "–"])
        made.append(table)
    return made


def plot(measured: Race, path: str | Path) -> None:
    """Draw turns and x over n; needs matplotlib, which the extra ``plot`` installs."""
    import matplotlib

    from gemv.measure.picture import save

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(15, 4.5), constrained_layout=True)
    marks = dict(zip(X_HOMES, "osd^v", strict=True))
    for home in X_HOMES:
        rows = [r for r in measured.turns if r.home == home and r.pattern == "blocked"]
        if rows:
            axes[0].plot(
                [row.distinct for row in rows],
                [(row.load_s or 0) * 1e9 for row in rows],
                marker=marks[home],
                label=home,
            )
        for axis, lanes, order in ((axes[1], 1, "F"), (axes[2], 32, "C")):
            times = [
                (row.n, row.time_s * 1e6)
                for row in measured.vector
                if (row.home, row.lanes, row.order, row.source) == (home, lanes, order, "L2")
                and row.time_s is not None
                and not row.unrolled
            ]
            if times:
                axis.plot(*zip(*times, strict=True), marker=marks[home], label=home)
    axes[0].set(
        title="a load alone", xlabel="different addresses in a warp", ylabel="ns a load of a warp"
    )
    axes[1].set(title="gemv, all threads at the same x[j]", xlabel="length of x", ylabel="us")
    axes[2].set(title="gemv, each thread at its own x[j]", xlabel="length of x", ylabel="us")
    for axis in axes:
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.grid(alpha=0.3)
        if axis.has_data():
            axis.legend()
    figure.suptitle(measured.device)
    save(figure, path, dpi=110)
    pyplot.close(figure)
