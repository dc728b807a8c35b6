"""The command line: ``info``, ``cache``, ``run``, ``ladder``, ``constants`` and ``bench``.

Only the standard library is imported at the top, so that ``info`` can report an environment in
which NumPy, Numba or the driver is unusable.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import platform
import shutil
import stat
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import numpy as np

#: What ``--dtype`` accepts, and the letter it stands for: a prefix of BLAS, or a narrow dtype.
DTYPE_NAMES = {
    "s": "s",
    "f32": "s",
    "float32": "s",
    "d": "d",
    "f64": "d",
    "float64": "d",
    "c": "c",
    "c64": "c",
    "complex64": "c",
    "z": "z",
    "c128": "z",
    "complex128": "z",
    "h": "h",
    "f16": "h",
    "float16": "h",
    "b": "b",
    "bf16": "b",
    "bfloat16": "b",
}
#: The name of each letter's dtype.
DTYPE_OF_PREFIX = {
    "s": "float32",
    "d": "float64",
    "c": "complex64",
    "z": "complex128",
    "h": "float16",
    "b": "bfloat16",
}
#: What ``--trans`` and ``--op`` accept, and SciPy's number for it.
TRANS = {"N": 0, "T": 1, "C": 2, "0": 0, "1": 1, "2": 2}

#: Parts of the race of ``constants``.
RACE_PARTS = ("coefficients", "vector", "turns")
LADDER_SIZE = (8192, 8192)
#: Thousands of simulated threads are slow: large enough for tails on every tile, no larger.
LADDER_SIZE_SIMULATED = (96, 160)
#: Work on a matrix of more bytes than this shows its progress.
LARGE_BYTES = 64 * 2**20

DISTRIBUTIONS = (
    "numpy",
    "scipy",
    "numba",
    "numba-cuda",
    "llvmlite",
    "cuda-bindings",
    "cuda-core",
    "cuda-toolkit",
    "nvidia-cuda-nvrtc",
    "nvidia-nvjitlink",
    "greenlet",
    "rich",
)


class Refused(Exception):
    """What the user asked for cannot be done; the message is one line for them."""


class _Parser(argparse.ArgumentParser):
    """An argument parser that refuses in one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        _complain(self.prog, message)
        raise SystemExit(2)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0, 1 for a failed check, 2 for a bad request."""
    for stream in (sys.stdout, sys.stderr):
        # a terminal that lacks a character of a table shows a question mark, not a traceback
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    arguments = _join_scalars(sys.argv[1:] if argv is None else argv)
    options, unknown = _parser().parse_known_args(arguments)
    prog = f"gemv {options.command}"
    if unknown:
        _complain(prog, f"unrecognized arguments: {' '.join(unknown)}")
        return 2
    try:
        with _one_line_warnings(prog):
            return options.act(options)
    except Refused as refusal:
        _complain(prog, str(refusal))
        return 2
    except KeyboardInterrupt:
        _complain(prog, "interrupted")
        return 130
    except BrokenPipeError:
        # the reader of a pipe left; Python would complain once more when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _join_scalars(argv: Sequence[str]) -> list[str]:
    """``--alpha -1+2j`` as ``--alpha=-1+2j``: argparse takes the former for another option."""
    joined: list[str] = []
    for argument in argv:
        if joined and joined[-1] in ("--alpha", "--beta"):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="gemv",
        description="Matrix-vector products y := alpha*op(A)*x + beta*y on the GPU.",
    )
    parser.set_defaults(command="info", act=info)
    commands = parser.add_subparsers(metavar="COMMAND")

    sub = commands.add_parser(
        "info", help="versions, GPU, backend, kernels and a self-check (the default)"
    )
    sub.set_defaults(command="info", act=info)

    sub = commands.add_parser("cache", help="where compiled kernels are kept, and how many")
    sub.set_defaults(command="cache", act=cache)
    sub.add_argument("--clear", action="store_true", help="remove them")

    sub = commands.add_parser("run", help="compute one product from files")
    sub.set_defaults(command="run", act=run)
    sub.add_argument("--a", required=True, metavar="FILE", help="matrix, .npy or .mtx")
    sub.add_argument("--x", required=True, metavar="FILE", help="vector, .npy or .mtx")
    sub.add_argument("--y", metavar="FILE", help="vector that beta scales; zeros if left out")
    sub.add_argument("--alpha", type=_scalar, default=1.0, metavar="NUMBER", help="default 1")
    sub.add_argument("--beta", type=_scalar, default=0.0, metavar="NUMBER", help="default 0")
    sub.add_argument("--trans", type=_trans, default=0, metavar="N|T|C", help="op(A); default N")
    sub.add_argument(
        "--dtype",
        type=_prefix,
        metavar="s|d|c|z",
        help="or float32, ...; default: the narrowest that holds A, x, y, alpha and beta",
    )
    sub.add_argument("--kernel", metavar="NAME", help="this kernel instead of the best one")
    sub.add_argument(
        "--backend", choices=("cuda", "host"), help="default: cuda if there is a GPU, else host"
    )
    sub.add_argument(
        "--device-memory-limit",
        type=_bytes,
        metavar="BYTES",
        help="stream A in panels that fit, 4G or 500M; default: what is free on the GPU",
    )
    sub.add_argument("-o", "--output", required=True, metavar="FILE", help="y, .npy or .mtx")

    sub = commands.add_parser("ladder", help="measure every kernel on one problem")
    sub.set_defaults(command="ladder", act=ladder)
    sub.add_argument("--m", type=_size, metavar="ROWS", help=f"of A; default {LADDER_SIZE[0]}")
    sub.add_argument("--n", type=_size, metavar="COLUMNS", help=f"of A; default {LADDER_SIZE[1]}")
    sub.add_argument(
        "--dtype",
        type=_letter,
        default="s",
        metavar="s|d|c|z|h|b",
        help="or f32, bf16, ...; default s",
    )
    sub.add_argument("--order", choices=("C", "F"), default="C", help="storage; default C")
    sub.add_argument("--op", choices=("N", "T", "C"), default="N", help="op(A); default N")
    sub.add_argument("--kernels", type=_names, metavar="A,B,...", help="only these; default all")
    sub.add_argument("--json", metavar="FILE", help="write the figures there as well")
    sub.add_argument(
        "--plot", metavar="FILE", help="draw them, .png, .svg or .pdf; needs matplotlib"
    )

    sub = commands.add_parser(
        "constants", help="race constant memory against its rivals, for alpha, beta and x"
    )
    sub.set_defaults(command="constants", act=constants)
    sub.add_argument(
        "--parts",
        type=_names,
        metavar="A,B,...",
        help=f"of {', '.join(RACE_PARTS)}; default all",
    )
    sub.add_argument("--json", metavar="FILE", help="write the figures there as well")
    sub.add_argument(
        "--plot", metavar="FILE", help="draw them, .png, .svg or .pdf; needs matplotlib"
    )

    sub = commands.add_parser(
        "memories", help="measure one product with its matrix in each kind of memory"
    )
    sub.set_defaults(command="memories", act=memories)
    sub.add_argument("--n", type=_size, metavar="N", help="rows and columns of A; default 16384")
    sub.add_argument("--json", metavar="FILE", help="write the figures there as well")

    sub = commands.add_parser("bench", help="measure calls beside those of other libraries")
    sub.set_defaults(command="bench", act=bench)
    sub.add_argument(
        "--calls",
        action="store_true",
        help="what one call costs the host instead, for each kind of array, plans, graphs, peers",
    )
    sub.add_argument(
        "--shapes", type=_shapes, metavar="MxN,...", help="of A; default 24 from small to 2 GiB"
    )
    sub.add_argument(
        "--dtypes", type=_prefixes, metavar="s,d,...", help="default all but complex128"
    )
    sub.add_argument("--ops", type=_names, metavar="N,T,C", help="op(A); default N,T")
    sub.add_argument("--order", type=_names, metavar="C,F", help="storage of A; default C")
    sub.add_argument(
        "--view",
        action="append",
        metavar="SLICES",
        help="A as a view: '[:, 1:]', '[3:, 5:]', '[:, :-7]', '[::2, ::2]'; may be repeated",
    )
    sub.add_argument(
        "--hot", action="store_true", help="the same A each time, held by the L2 cache if it fits"
    )
    sub.add_argument(
        "--beta", type=int, choices=(0, -1), help="of y := A*x + beta*y; default 0", metavar="0|-1"
    )
    sub.add_argument(
        "--random",
        type=_size,
        metavar="COUNT",
        help="so many shapes, dtypes, ops, orders and views that nobody chose; --seed for others",
    )
    sub.add_argument("--seed", type=int, metavar="SEED", help="of --random; default 0")
    sub.add_argument(
        "--against", type=_names, metavar="torch,cupy", help="peers; default: those installed"
    )
    sub.add_argument("--seconds", type=float, metavar="S", help="begin nothing after so long")
    sub.add_argument("--json", metavar="FILE", help="write the figures there, after each cell")
    sub.add_argument(
        "--resume", action="store_true", help="skip what the file of --json has already"
    )
    sub.add_argument(
        "--plot", metavar="FILE", help="draw them, .png, .svg or .pdf; needs matplotlib"
    )
    return parser


def _scalar(text: str) -> float | complex:
    try:
        value = complex(text.replace(" ", ""))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number (1.5 and 1+2j are)") from None
    # a plain "2" must not make the whole product complex; "2+0j" does so on purpose
    return value if "j" in text.lower() else value.real


def _letter(text: str, letters: str = "sdczhb") -> str:
    letter = DTYPE_NAMES.get(text.lower())
    if letter is None or letter not in letters:
        known = ", ".join(name for name, each in DTYPE_NAMES.items() if each in letters)
        raise argparse.ArgumentTypeError(f"{text!r} is none of {known}")
    return letter


def _prefix(text: str) -> str:
    return _letter(text, "sdcz")


def _trans(text: str) -> int:
    try:
        return TRANS[text.upper()]
    except KeyError:
        raise argparse.ArgumentTypeError(f"{text!r} is none of N, T, C") from None


def _bytes(text: str) -> int:
    units = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
    number, unit = (text[:-1], text[-1:].upper()) if text[-1:].isalpha() else (text, "")
    try:
        value = int(float(number) * units[unit]) if unit else int(number)
    except (ValueError, KeyError, OverflowError):
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number of bytes (1000000000, 500M and 1.5G are)"
        )
    return value


def _size(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return value


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _shapes(text: str) -> list[tuple[int, int]]:
    shapes = []
    for name in _names(text):
        sizes = name.lower().split("x")
        if len(sizes) != 2:
            raise argparse.ArgumentTypeError(f"{name!r} is no shape (1000x2000 is)")
        shapes.append((_size(sizes[0]), _size(sizes[1])))
    return shapes


def _prefixes(text: str) -> list[str]:
    return [_letter(name) for name in _names(text)]


def _complain(prog: str, message: str) -> None:
    print(f"{prog}: {' '.join(message.split())}", file=sys.stderr)


@contextmanager
def _one_line_warnings(prog: str) -> Iterator[None]:
    """Warnings are for the user too: one line each, without the source line Python adds."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        _complain(prog, f"note: {message}")

    previous = warnings.showwarning
    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = previous


def _reason(exception: BaseException) -> str:
    text = " ".join(str(exception).split())
    return text or type(exception).__name__


@contextmanager
def _progress(description: str, show: bool) -> Iterator[Callable[[int, int, str], None]]:
    """Yield ``report(done, total, what)``: a bar on standard error, where that is a terminal."""
    if not (show and sys.stderr.isatty()):
        yield lambda done, total, what: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=None)

        def report(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=f"{description}: {what}")

        yield report


# --------------------------------------------------------------------------------------------------
# info


def info(options: argparse.Namespace) -> int:
    """Print the environment and a self-check; whatever is broken is named, not raised."""
    checks = {}
    for title, probe in (
        ("gemv", _probe_version),
        ("Python", _probe_python),
        ("platform", _probe_platform),
        ("packages", _probe_packages),
        ("GPU", _probe_gpu),
        ("CUDA in Numba", _probe_numba),
        ("backend", _probe_backend),
        ("kernels", _probe_kernels),
        ("table", _probe_table),
        ("cache", _probe_cache),
        ("self-check", _probe_self_check),
    ):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                lines = probe()
            checks[title] = True
        except Exception as exception:  # the report has to print, whatever is broken
            lines = [f"failed: {type(exception).__name__}: {_reason(exception)}"]
            checks[title] = False
        for number, line in enumerate(lines):
            print(f"{title if number == 0 else '':<15}{line}", flush=True)
    return 0 if checks["self-check"] else 1


def _probe_version() -> list[str]:
    import gemv

    return [gemv.__version__]


def _probe_python() -> list[str]:
    return [f"{platform.python_version()} ({platform.python_implementation()})"]


def _probe_platform() -> list[str]:
    return [platform.platform()]


def _probe_packages() -> list[str]:
    from importlib.metadata import PackageNotFoundError, version

    lines = []
    for name in DISTRIBUTIONS:
        try:
            lines.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            lines.append(f"{name} is not installed")
    return lines


def _probe_gpu() -> list[str]:
    """Ask the driver's own tool: it needs neither Numba nor a context on the GPU."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ["none found (there is no nvidia-smi)"]
    fields = "name,driver_version,memory.total,compute_cap"
    answer = subprocess.run(
        [tool, f"--query-gpu={fields}", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    lines = [line.strip() for line in answer.stdout.splitlines() if line.strip()]
    if answer.returncode or not lines:
        return [f"none found (nvidia-smi: {_reason(Exception(answer.stdout + answer.stderr))})"]
    rows = []
    for line in lines:
        name, driver, memory, capability = (part.strip() for part in line.rsplit(",", 3))
        rows.append(f"{name}, compute capability {capability}, {memory}, driver {driver}")
    return rows


def _probe_numba() -> list[str]:
    from numba import cuda

    if _simulated():
        return ["simulated (NUMBA_ENABLE_CUDASIM is set)"]
    if not cuda.is_available():
        from gemv.core import errors

        return [f"not available: {errors.no_gpu(cuda.cuda_error())}"]
    runtime = ".".join(map(str, cuda.runtime.get_version()))
    return [f"available, runtime {runtime}"]


def _simulated() -> bool:
    return os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")


def _probe_backend() -> list[str]:
    from gemv.engines.backend import backend, chosen, probe

    name = backend()
    why = "chosen" if chosen() else probe()[1]
    return [f"{name}: {why}"]


def _probe_kernels() -> list[str]:
    from gemv.kernels import REGISTRY

    kernels = sorted(REGISTRY.values(), key=lambda k: (k.rung, k.beside, k.name))
    width = max((len(kernel.name) for kernel in kernels), default=0)
    return [
        f"{kernel.rung}  {kernel.name:<{width}}  {'(teaching) ' if kernel.beside else ''}"
        f"{kernel.idea}"
        for kernel in kernels
    ] or ["none"]


def _probe_table() -> list[str]:
    from gemv.engines.backend import backend, engine
    from gemv.selection.table import tables

    used = tables(None if backend() == "host" else engine().device())
    rows = f"{len(used.rows)} rows of {', then '.join(used.names)}"
    return [f"{rows}, sha256 {used.hash}"]


def _probe_cache() -> list[str]:
    from gemv.engines import cache_folder
    from gemv.engines.cache import MAX_BYTES, entries

    try:
        folder = cache_folder.directory()
        files = entries()
    except OSError as error:
        return [str(error.filename), f"not used, because {error.strerror}"]
    if folder is None:
        return ["off (GEMV_CACHE=0): each process compiles its kernels"]
    size = sum(each for _, each, _ in files) / 2**20
    kept = f"{len(files)} compiled kernel{'' if len(files) == 1 else 's'}, {size:.1f} MiB"
    return [str(folder), f"{kept} of {MAX_BYTES // 2**20}"]


def cache(options: argparse.Namespace) -> int:
    """Say where compiled kernels are kept; remove them if asked to."""
    from gemv.engines.cache import clear

    if options.clear:
        try:
            removed = clear()
        except OSError as error:
            raise Refused(f"cannot remove {error.filename}: {error.strerror}") from error
        print(f"removed {removed} compiled kernel{'' if removed == 1 else 's'}")
        return 0
    for line in _probe_cache():
        print(line)
    return 0


def _probe_self_check() -> list[str]:
    import numpy as np

    import gemv

    # small whole numbers: every sum is exact, so the answers are equal in any order of adding
    rng = np.random.default_rng(0)
    a = rng.integers(-4, 5, (37, 53)).astype(np.float64)
    x = rng.integers(-4, 5, 53).astype(np.float64)
    y = rng.integers(-4, 5, 37).astype(np.float64)
    with gemv.trace() as calls:
        got = gemv.gemv(2.0, a, x, beta=-1.0, y=y)
    if not np.array_equal(got, 2.0 * (a @ x) - y):
        raise ArithmeticError("gemv of 37 x 53 whole numbers differs from NumPy")
    ran = f"{calls[-1].kernel} on {calls[-1].backend}" if calls else "no kernel"
    return [f"passed: 37 x 53 float64, {ran}, equal to NumPy"]


# --------------------------------------------------------------------------------------------------
# run


def run(options: argparse.Namespace) -> int:
    """Read A, x and perhaps y, compute, write y."""
    output = _output_path(options.output, (".npy", ".mtx"))
    _check_not_an_input(output, options)
    np, gemv = _import_for_run()

    large = _bytes_on_disk(options.a) > LARGE_BYTES
    with _progress("gemv run", large) as report:
        report(0, 4, f"reading {options.a}")
        a = _read_matrix(options.a)
        report(1, 4, "reading vectors")
        x = _read_vector(options.x)
        y = None if options.y is None else _read_vector(options.y)
        arrays = {"A": a, "x": x} if y is None else {"A": a, "x": x, "y": y}
        if options.dtype is None:
            _check_precision(arrays)
        prefix = options.dtype or _common_prefix(arrays, options)
        _check_complex(arrays, options, prefix)
        _check_lengths(options, a, x, y)

        report(2, 4, "computing")
        call = getattr(gemv, f"{prefix}gemv")
        keywords: dict[str, Any] = {"beta": options.beta, "trans": options.trans}
        if y is not None:
            keywords["y"] = y
        if options.kernel is not None:
            keywords["kernel"] = options.kernel
        if options.device_memory_limit is not None:
            keywords["device_memory_limit"] = options.device_memory_limit
        panels: list[int] = []

        def streamed(done: int, total: int) -> None:
            panels.append(done)
            report(done, total, f"{done / 1e9:.1f} of {total / 1e9:.1f} GB")

        start_s = time.perf_counter()
        try:
            if options.backend is not None:
                gemv.use_backend(options.backend)
            try:
                from gemv.streaming.compute import watch

                with gemv.trace() as calls, watch(streamed):
                    result = call(options.alpha, a, x, **keywords)
            finally:
                if options.backend is not None:
                    gemv.use_backend(None)
        except (ValueError, TypeError, MemoryError, OSError, RuntimeError, ImportError) as error:
            raise Refused(_reason(error)) from error
        time_s = time.perf_counter() - start_s

        report(3, 4, f"writing {output}")
        _write_vector(output, np.asarray(result))

    backend = calls[-1].backend if calls else gemv.backend()
    kernel = calls[-1].kernel if calls else "nothing to compute"
    if len(panels) > 1:
        kernel += f" in {len(panels)} panels"
    op = "NTC"[options.trans]
    what = f"{prefix}gemv {op}, A {a.shape[0]} x {a.shape[1]} {DTYPE_OF_PREFIX[prefix]}"
    # a simulator's time says nothing about a kernel
    took = "" if backend == "simulator" else f", {time_s:.3g} s with first-call costs and copies"
    print(f"{what}: {kernel} on {backend}{took} -> {output}")
    return 0


def _import_for_run() -> tuple[Any, Any]:
    try:
        import numpy

        import gemv
    except ImportError as error:
        raise Refused(f"cannot import what it needs: {_reason(error)}") from error
    return numpy, gemv


def _bytes_on_disk(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0  # reading it will tell what is wrong


def _output_path(text: str, suffixes: tuple[str, ...]) -> Path:
    """Refuse before the work what could not be written after it."""
    from gemv.core.files import replaced_file

    path = Path(text)
    if path.suffix.lower() not in suffixes:
        raise Refused(f"cannot write {text}: the name must end in {' or '.join(suffixes)}")
    with _refused_writes(path):
        replaced_file(path)
    return path


@contextmanager
def _refused_writes(path: Path) -> Iterator[None]:
    """Say in one line why a file could not be written."""
    try:
        yield
    except OSError as error:
        raise Refused(f"cannot write {path}: {error.strerror or _reason(error)}") from error


def _write_json(path: Path | None, measured: Any) -> None:
    from gemv.core.files import write_text

    if path is not None:
        with _refused_writes(path):
            write_text(path, measured.to_json())


def _check_not_an_input(output: Path, options: argparse.Namespace) -> None:
    """Refuse to write over what is read: a mistyped name would destroy a matrix."""
    for name in ("a", "x", "y"):
        path = getattr(options, name)
        # A file that is missing is no output yet, and reading it will tell that it is missing.
        if path is not None and os.path.exists(path) and output.exists():
            if os.path.samefile(path, output):
                raise Refused(
                    f"cannot write {output}: it is the file of --{name} ({path}), and no input is"
                    " written over"
                )


def _check_file(path: str) -> None:
    """Refuse what has no end, what waits for a writer, and what has no content."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        what = "a directory" if stat.S_ISDIR(mode) else "a device or a pipe"
        raise Refused(f"cannot read {path}: it is {what}, and only regular files are read")


def _check_npy_size(path: str) -> None:
    """Refuse a header that promises more than the file has, before memory is reserved for it."""
    import numpy as np

    with open(path, "rb") as file:
        if file.read(len(np.lib.format.MAGIC_PREFIX)) != np.lib.format.MAGIC_PREFIX:
            return  # several arrays, or no array: np.load tells
        file.seek(0)
        # Version 3 differs from 2 only in how it encodes the names of fields.
        version = np.lib.format.read_magic(file)
        read_header = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read_header(file)
        if any(length < 0 for length in shape):
            raise ValueError(f"its header gives the shape {shape}, which no array has")
        promised = math.prod(shape) * dtype.itemsize
        found = os.fstat(file.fileno()).st_size - file.tell()
        if promised > found and not dtype.hasobject:
            raise ValueError(
                f"its header promises {promised} bytes, shape {shape} of {dtype}, but {found}"
                " bytes follow"
            )


def _dense(sparse: Any) -> np.ndarray:
    try:
        return sparse.toarray()
    except (MemoryError, ValueError) as error:
        rows, cols = sparse.shape
        raise ValueError(
            f"it is sparse, and as a dense matrix {rows} x {cols} numbers do not fit into memory"
        ) from error


def _read(path: str) -> np.ndarray:
    """An array of any rank from a .npy or Matrix Market file."""
    import numpy as np

    suffix = Path(path).suffix.lower()
    if suffix not in (".npy", ".mtx"):
        raise Refused(f"cannot read {path}: the name must end in .npy or .mtx")
    try:
        _check_file(path)
        if suffix == ".npy":
            _check_npy_size(path)
            # mapped: a matrix larger than memory can still be read piece by piece
            mapped = _bytes_on_disk(path) > LARGE_BYTES
            array = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
            if not isinstance(array, np.ndarray):
                raise ValueError("it holds several arrays")
        else:
            from scipy.io import mmread

            with warnings.catch_warnings():
                # SciPy is about to return another class of sparse matrix; either will do here
                warnings.simplefilter("ignore", DeprecationWarning)
                warnings.simplefilter("ignore", FutureWarning)
                array = mmread(path)
            if not isinstance(array, np.ndarray):
                array = _dense(array)
                _complain("gemv run", f"note: {path} is sparse; it is computed as a dense matrix")
        # np.asarray: the mapped array as a plain one, still mapped
        array = np.asarray(array)
    except Refused:
        raise
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror or _reason(error)}") from error
    except Exception as error:  # a broken file fails in a hundred ways inside the readers
        raise Refused(f"cannot read {path}: {_reason(error)}") from error
    if array.dtype.kind not in "biufc":
        raise Refused(f"{path} holds {array.dtype}, which is no number")
    return array


def _read_matrix(path: str) -> np.ndarray:
    a = _read(path)
    if a.ndim != 2:
        raise Refused(f"{path} holds an array of shape {a.shape}; A needs two dimensions")
    return a


def _read_vector(path: str) -> np.ndarray:
    vector = _read(path)
    # Matrix Market knows no vectors: a single row or column is one
    if vector.ndim == 2 and 1 in vector.shape:
        vector = vector.reshape(-1)
    if vector.ndim != 1:
        raise Refused(f"{path} holds an array of shape {vector.shape}; a vector has one dimension")
    return vector


def _common_prefix(arrays: dict[str, np.ndarray], options: argparse.Namespace) -> str:
    """The narrowest of the four dtypes that holds every array and both scalars."""
    import numpy as np

    dtype = np.result_type(*(array.dtype for array in arrays.values()))
    if isinstance(options.alpha, complex) or isinstance(options.beta, complex):
        dtype = np.result_type(dtype, np.complex64)
    if dtype.kind == "c":
        return "c" if dtype.itemsize <= 8 else "z"
    return "s" if dtype.kind == "f" and dtype.itemsize <= 4 else "d"


def _check_precision(arrays: dict[str, np.ndarray]) -> None:
    """No dtype here holds long doubles; the user may still choose a narrower one."""
    for name, array in arrays.items():
        if array.dtype.char in "gG":
            choice = "z" if array.dtype.kind == "c" else "d"
            raise Refused(
                f"{name} has dtype {array.dtype}, and nothing here is that precise; --dtype"
                f" {choice} computes in {DTYPE_OF_PREFIX[choice]}"
            )


def _check_complex(arrays: dict[str, np.ndarray], options: argparse.Namespace, prefix: str) -> None:
    if prefix in "cz":
        return
    named = {name: array.dtype.kind == "c" for name, array in arrays.items()}
    named["alpha"] = isinstance(options.alpha, complex)
    named["beta"] = isinstance(options.beta, complex)
    for name, is_complex in named.items():
        if is_complex:
            dtype = DTYPE_OF_PREFIX[prefix]
            raise Refused(f"{name} is complex, and {dtype} would lose its imaginary part")


def _check_lengths(
    options: argparse.Namespace, a: np.ndarray, x: np.ndarray, y: np.ndarray | None
) -> None:
    """A file of another length is a mistake, though the call itself accepts longer vectors."""
    rows, cols = a.shape if options.trans == 0 else a.shape[::-1]
    op = "NTC"[options.trans]
    for name, vector, length in (("x", x, cols), ("y", y, rows)):
        if vector is not None and len(vector) != length:
            raise Refused(
                f"{name} has {len(vector)} elements, but op(A) is {rows} x {cols} "
                f"(A {a.shape[0]} x {a.shape[1]}, trans {op}) and needs {length}"
            )


def _write_vector(path: Path, y: np.ndarray) -> None:
    import numpy as np

    from gemv.core.files import whole

    with _refused_writes(path), whole(path) as file:
        if path.suffix.lower() == ".npy":
            # Not np.save: where the disk is full, that says how much is missing, but not why.
            header = np.lib.format.header_data_from_array_1_0(y)
            np.lib.format.write_array_header_1_0(file, header)
            file.write(np.ascontiguousarray(y).view(np.uint8).data)
        else:
            from scipy.io import mmwrite

            mmwrite(file, y.reshape(-1, 1))


# --------------------------------------------------------------------------------------------------
# ladder


def ladder(options: argparse.Namespace) -> int:
    """Measure the kernels on one problem and print them as a table."""
    output = None if options.json is None else _output_path(options.json, (".json",))
    picture = _picture_path(options)
    name = _backend_with_kernels()
    if name == "host":
        arguments = _ladder_arguments(options)
        return _in_simulator("ladder", arguments)

    default = LADDER_SIZE_SIMULATED if name == "simulator" else LADDER_SIZE
    m = options.m or default[0]
    n = options.n or default[1]
    try:
        from gemv.kernels import REGISTRY
        from gemv.measure import ladder as measure_ladder

        kernels = list(REGISTRY) if options.kernels is None else options.kernels
        with _progress("gemv ladder", True) as report:
            started: list[str] = []

            def starts(kernel: str) -> None:
                report(len(started), len(kernels), kernel)
                started.append(kernel)

            report(0, len(kernels), "preparing")
            measured = measure_ladder.ladder(
                m, n, options.dtype, options.order, options.op, kernels=kernels, progress=starts
            )
    except (ValueError, TypeError, MemoryError, RuntimeError, ImportError) as error:
        raise Refused(_reason(error)) from error

    dtype = DTYPE_OF_PREFIX[options.dtype]
    _print_ladder(
        f"gemv ladder: {m} x {n} {dtype}, order {options.order}, op {options.op}", measured
    )
    _write_json(output, measured)
    if picture is not None:
        _draw("ladder", measured, picture)
    # written so that NaN counts as wrong
    wrong = [
        row.name
        for row in measured.rows
        if not row.refused and row.error is not None and not row.error <= 1
    ]
    if wrong:
        _complain("gemv ladder", f"error above the bound: {', '.join(wrong)}")
    return 1 if wrong else 0


# --------------------------------------------------------------------------------------------------
# bench


def bench(options: argparse.Namespace) -> int:
    """Measure a grid of shapes, or what calls cost the host, beside the libraries installed."""
    return _bench_calls(options) if options.calls else _bench_grid(options)


_GRID_OPTIONS = (
    "shapes", "dtypes", "ops", "order", "view", "hot", "beta", "random", "seed", "against",
    "seconds", "resume", "plot",
)  # fmt: skip


def _bench_calls(options: argparse.Namespace) -> int:
    given = [f"--{name}" for name in _GRID_OPTIONS if getattr(options, name) not in (None, False)]
    if given:
        raise Refused(f"--calls measures small matrices of its own, without {', '.join(given)}")
    output = None if options.json is None else _output_path(options.json, (".json",))
    try:
        from gemv import _calls

        with _progress("gemv bench", True) as report:
            table = _calls.measure(progress=lambda what: report(0, 1, what))
    except (ValueError, TypeError, MemoryError, RuntimeError, ImportError) as error:
        raise Refused(_reason(error)) from error
    _print_calls(table)
    _write_json(output, table)
    return 0


def _bench_grid(options: argparse.Namespace) -> int:
    output = None if options.json is None else _output_path(options.json, (".json",))
    picture = _picture_path(options)
    if options.resume and output is None:
        raise Refused("--resume needs the file of --json")
    name = _backend_with_kernels()
    if name == "host":
        return _in_simulator("bench", _grid_arguments(options))
    try:
        from gemv.measure import grid, peers, records

        known = None
        if options.resume and output is not None and output.exists():
            try:
                known = records.GridResults.load(output)
            except OSError as error:
                raise Refused(f"cannot read {output}: {error.strerror}") from error
        wanted = _wanted_cells(options, simulated=name == "simulator")
        libraries = [library for library in peers.LIBRARIES if peers.installed(library)]
        if options.against is not None:
            missing = [each for each in options.against if each not in libraries]
            if missing:
                raise Refused(f"cannot import {', '.join(missing)}; there are: {libraries}")
            libraries = options.against
        with _progress("gemv bench", True) as report:
            for measured in grid.measure(
                wanted,
                () if name == "simulator" else libraries,
                known,
                float("inf") if options.seconds is None else options.seconds,
                lambda done, total, cell: report(done, total, f"{cell.m} x {cell.n} {cell.dtype}"),
            ):
                if output is not None:
                    with _refused_writes(output):
                        measured.store(output)
    except (
        ValueError, TypeError, KeyError, MemoryError, OSError, RuntimeError, ImportError
    ) as error:  # fmt: skip
        raise Refused(_reason(error)) from error
    asked = set(wanted)
    rows = [row for row in measured.rows if row.cell in asked]
    _print_grid(measured, rows)
    if len(rows) < len(asked):
        print(f"Time is up: {len(rows)} of {len(asked)} cells; --json FILE --resume goes on.")
    if picture is not None:
        _draw("grid", measured, picture)
    wrong = [f"{row.m} x {row.n} {row.dtype} {row.op}: {row.wrong}" for row in rows if row.wrong]
    if wrong:
        _complain("gemv bench", f"wrong results: {'; '.join(wrong)}")
    return 1 if wrong else 0


def _wanted_cells(options: argparse.Namespace, simulated: bool) -> list[Any]:
    from gemv.core.dtypes import DTYPES
    from gemv.measure import cells as measure_cells

    if options.random is not None:
        given = [f"--{name}" for name in ("shapes", "view", "hot") if getattr(options, name)]
        if given:
            raise Refused(f"--random draws shapes and views itself, without {', '.join(given)}")
        return measure_cells.random_cells(
            options.random,
            options.seed or 0,
            options.dtypes or list(DTYPES),
            [op.upper() for op in options.ops or ("N", "T")],
            [order.upper() for order in options.order or ("C", "F")],
            options.beta or 0,
            (1, 1 << 11) if simulated else measure_cells.RANDOM_BYTES,
        )
    if options.seed is not None:
        raise Refused("--seed is that of --random")
    usual = measure_cells.HOT_SHAPES if options.hot else measure_cells.SHAPES
    return measure_cells.cells(
        options.shapes or (measure_cells.SIMULATED_SHAPES if simulated else usual),
        options.dtypes or [prefix for prefix in DTYPES if prefix != "z"],
        [op.upper() for op in options.ops or ("N", "T")],
        [order.upper() for order in options.order or ("C",)],
        options.view or [""],
        options.hot,
        options.beta or 0,
    )


def _grid_arguments(options: argparse.Namespace) -> list[str]:
    """The same request for another process."""
    arguments = []
    for name in ("dtypes", "ops", "order", "against"):
        value = getattr(options, name)
        if value is not None:
            arguments += [f"--{name}", ",".join(value)]
    if options.shapes is not None:
        arguments += ["--shapes", ",".join(f"{m}x{n}" for m, n in options.shapes)]
    for view in options.view or ():
        arguments += ["--view", view]
    for name in ("beta", "random", "seed", "seconds", "json", "plot"):
        if getattr(options, name) is not None:
            arguments.append(f"--{name}={getattr(options, name)}")
    return arguments + [f"--{name}" for name in ("hot", "resume") if getattr(options, name)]


def _print_grid(measured: Any, rows: Sequence[Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from gemv.measure import records

    piped = not sys.stdout.isatty()
    console = Console(width=200, no_color=True) if piped else Console()

    def table(*headings: str, words: int) -> Table:
        shown = Table(box=None if piped else box.SIMPLE_HEAD, pad_edge=False)
        for number, heading in enumerate(headings):
            shown.add_column(heading, justify="left" if number < words else "right", no_wrap=True)
        return shown

    def number(value: float | None, form: str = ".2f") -> str:
        return "–" if value is None else format(value, form)

    def where(row: Any) -> str:
        words = [DTYPE_OF_PREFIX[row.dtype], "hot" if row.hot else "cold"]
        words += [f"order {row.order}"] if row.order != "C" else []
        words += [f"A\\[{row.view}]"] if row.view else []
        words += [f"beta {row.beta}"] if row.beta else []
        return " ".join(words)

    def name(row: Any) -> str:
        return f"{row.m} x {row.n}"

    console.print(f"gemv bench on {measured.device}", highlight=False, markup=False)
    versions = ", ".join(f"{name} {version}" for name, version in measured.versions.items())
    console.print(versions, highlight=False, markup=False)
    timed = [row for row in rows if row.time_s is not None]
    if not timed:
        right = sum(row.wrong is None and row.frames > 0 for row in rows)
        shown = table("", "shape", "op", "kernel", words=4)
        for row in rows:
            shown.add_row(where(row), name(row), row.op, row.kernel)
        console.print(shown)
        console.print(f"{right} results checked. No time is given: a simulator's says nothing.")
        return

    shown = table(
        "", "shape", "op", "us", "TB/s", "of floor", "peer us", "times as fast", "peer", words=3
    )
    for row in rows:
        if row.time_s is None:
            shown.add_row(where(row), name(row), row.op, "–", "", "", "", "",
                          row.wrong or row.refused.get("gemv", ""))  # fmt: skip
            continue
        shown.add_row(
            where(row), name(row), row.op, number(row.time_s * 1e6, ".1f"),
            number(row.rate(row.time_s) / 1e3), number(row.share),
            number(None if row.peer is None else row.peers[row.peer] * 1e6, ".1f"),
            number(row.ratio), row.peer or "; ".join(row.refused.values())[:40],
        )  # fmt: skip
    console.print(shown)
    console.print("Geometric means, and the least")
    shown = table(
        "", "cells", "floor / ours", "least", "floor / peer", "peer / ours", "least",
        "under 0.98", "at 1 or more", words=1,
    )  # fmt: skip
    parts = [
        (f"{where(group[0])}{' conjugate' * (group[0].op == 'C')}", group)
        for group in records.groups(timed).values()
    ]
    for title, part in [*parts, ("all", timed)] if len(parts) > 1 else parts:
        s = records.summary(part)
        shown.add_row(
            title, str(s.cells), number(s.share), number(s.least_share), number(s.peer_share),
            number(s.ratio), number(s.least_ratio), str(s.behind),
            number(s.ahead / s.against if s.against else None, ".0%"),
        )  # fmt: skip
    console.print(shown)
    for by, what in (("share", "Furthest from the floor"), ("ratio", "Worst beside the peer")):
        least = records.worst(timed, by)
        said = [f"{where(r)} {name(r)} {r.op} {getattr(r, by):.2f}" for r in least]
        if said:
            console.print(f"{what}: {'; '.join(said)}", highlight=False)


def _picture_path(options: argparse.Namespace) -> Path | None:
    """Where ``--plot`` writes, if it can."""
    if options.plot is None:
        return None
    path = _output_path(options.plot, (".png", ".svg", ".pdf"))
    if importlib.util.find_spec("matplotlib") is None:
        raise Refused("--plot needs matplotlib, which is not installed: pip install gemv[plot]")
    return path


def _draw(what: str, measured: Any, path: Path) -> None:
    from gemv.measure.picture import plot_grid, plot_ladder

    try:
        with _refused_writes(path):
            (plot_grid if what == "grid" else plot_ladder)(measured, path)
    except ValueError as error:  # nothing to draw
        _complain(f"gemv {'bench' if what == 'grid' else what}", f"note: {_reason(error)}")


# --------------------------------------------------------------------------------------------------
# memories


def memories(options: argparse.Namespace) -> int:
    """Print what a product takes with its matrix in each kind of memory."""
    output = None if options.json is None else _output_path(options.json, (".json",))
    try:
        from gemv import _memories

        order = options.n or _memories.ORDER
        sizes = tuple(n for n in _memories.THRESHOLDS if n <= order)
        with _progress("gemv memories", True) as report:
            measured = _memories.measure(order, sizes=sizes, progress=lambda w: report(0, 1, w))
    except (ValueError, TypeError, MemoryError, RuntimeError, ImportError) as error:
        raise Refused(_reason(error)) from error
    _print_memories(measured)
    _write_json(output, measured)
    wrong = [f"{row.memory}, {row.way}" for row in measured.rows if row.same_bits is False]
    if wrong:
        _complain("gemv memories", f"other bits than on the device: {'; '.join(wrong)}")
    return 1 if wrong else 0


def _print_memories(measured: Any) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    piped = not sys.stdout.isatty()
    console = Console(width=160, no_color=True) if piped else Console()
    shown = Table(box=None if piped else box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("A is in", "read by"):
        shown.add_column(heading, no_wrap=True)
    for heading in ("ms", "GB/s of A"):
        shown.add_column(heading, justify="right")
    shown.add_column("")
    for row in measured.rows:
        known = row.time_s is not None
        shown.add_row(
            f"{row.memory} ({row.group})",
            row.way,
            f"{row.time_s * 1e3:.3f}" if known else "–",
            f"{row.gb_per_s:.1f}" if known else "–",
            row.note,
        )
    n = measured.order
    console.print(f"gemv memories: {n} x {n} float32 on {measured.device}", highlight=False)
    console.print(shown, markup=False)


def _print_calls(table: Any) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    piped = not sys.stdout.isatty()
    console = Console(width=160, no_color=True) if piped else Console()
    shown = Table(box=None if piped else box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("group", "call"):
        shown.add_column(heading, no_wrap=True)
    shown.add_column("us", justify="right")
    shown.add_column("of torch.mv(out=)", justify="right")
    shown.add_column("")
    references = {
        row.group: row.time_s for row in table.rows if row.name == "torch.mv(out=)" and row.time_s
    }
    group = None
    for row in table.rows:
        reference = references.get(row.group)
        shown.add_row(
            "" if row.group == group else row.group,
            row.name,
            "–" if row.time_s is None else f"{row.time_s * 1e6:.2f}",
            "–" if row.time_s is None or reference is None else f"{row.time_s / reference:.2f}",
            row.note,
        )
        group = row.group
    console.print("gemv bench --calls: host time of one call, float32", highlight=False)
    versions = ", ".join(f"{name} {version}" for name, version in table.versions.items())
    console.print(f"{table.device}; {versions}", highlight=False, markup=False)
    console.print(shown, markup=False)


def _backend_with_kernels() -> str:
    """The backend; a host that nobody chose means that the simulator has to do."""
    try:
        from gemv.engines.backend import backend, chosen

        name = backend()
        if chosen() == "host":
            raise Refused("the host backend was chosen, and it has no kernels to measure")
    except (ImportError, RuntimeError, ValueError) as error:
        raise Refused(_reason(error)) from error
    return name


def _ladder_arguments(options: argparse.Namespace) -> list[str]:
    arguments = []
    for name in ("m", "n", "dtype", "order", "op", "json", "plot"):
        value = getattr(options, name)
        if value is not None:
            arguments += [f"--{name}", str(value)]
    if options.kernels is not None:
        arguments += ["--kernels", ",".join(options.kernels)]
    return arguments


def _in_simulator(command: str, arguments: list[str]) -> int:
    """Numba decides for its simulator when it is imported, so a new process has to."""
    if _simulated():
        raise Refused("neither a GPU nor the simulator can be used; see python -m gemv info")
    print("No GPU here: the kernels run in the simulator (NUMBA_ENABLE_CUDASIM=1).", flush=True)
    whole = [sys.executable, "-m", "gemv", command, *arguments]
    return subprocess.run(whole, env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}).returncode


def _print_ladder(title: str, measured: Any) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    # when piped: no lines, no colours, and as wide as the text wants to be
    piped = not sys.stdout.isatty()
    console = Console(width=240, no_color=True) if piped else Console()
    table = Table(box=None if piped else box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("rung", justify="right")
    table.add_column("kernel", no_wrap=True)
    for heading in ("time us", "GB/s", "of ceiling", "error / bound"):
        table.add_column(heading, justify="right")
    if any(row.refused for row in measured.rows):
        table.add_column("")

    simulated = measured.backend == "simulator"
    for row in measured.rows:
        timed = row.time_s is not None and not simulated
        cells = [
            str(row.rung),
            row.name,
            f"{row.time_s * 1e6:.1f}" if timed else "–",
            f"{row.gb_per_s:.0f}" if timed and row.gb_per_s is not None else "–",
            f"{row.share:.0%}" if timed and row.share is not None else "–",
            "–" if row.error is None else f"{row.error:.3g}",
        ]
        if row.refused:
            cells.append(f"refused: {row.refused}")
        table.add_row(*cells)

    console.print(title, highlight=False)
    place = measured.device if simulated else f"{measured.device}, backend {measured.backend}"
    console.print(place, highlight=False, markup=False)
    console.print(table)
    if simulated:
        console.print("No time is given: a simulator's time says nothing about a GPU.")
    elif measured.ceiling_gb_per_s is not None:
        console.print(
            f"ceiling: {measured.ceiling_gb_per_s:.0f} GB/s read in this run", highlight=False
        )


# --------------------------------------------------------------------------------------------------
# constants


def constants(options: argparse.Namespace) -> int:
    """Run the race of constant memory and its rivals, print it, and keep it if asked to."""
    output = None if options.json is None else _output_path(options.json, (".json",))
    picture = _picture_path(options)
    parts = list(RACE_PARTS) if options.parts is None else options.parts
    unknown = [part for part in parts if part not in RACE_PARTS]
    if unknown:
        raise Refused(f"no part {', '.join(unknown)}; known parts: {', '.join(RACE_PARTS)}")
    name = _backend_with_kernels()
    if name == "host":
        arguments = ["--parts", ",".join(parts)]
        for option in ("json", "plot"):
            if getattr(options, option) is not None:
                arguments += [f"--{option}", getattr(options, option)]
        return _in_simulator("constants", arguments)
    try:
        from gemv import _race

        with _progress("gemv constants", True) as report:
            measured = _race.race(parts, progress=lambda what: report(0, 1, what))
    except (ValueError, TypeError, MemoryError, RuntimeError, ImportError) as error:
        raise Refused(_reason(error)) from error

    _print_race(measured)
    _write_json(output, measured)
    if picture is not None:
        with _refused_writes(picture):
            _race.plot(measured, picture)
    checked: list[Any] = [*measured.coefficients, *measured.vector]
    wrong = [row.home for row in checked if row.error is not None and not row.error <= 1]
    if wrong:
        _complain("gemv constants", f"error above the bound: {', '.join(wrong)}")
    return 1 if wrong else 0


def _print_race(measured: Any) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from gemv._race import tables

    piped = not sys.stdout.isatty()
    console = Console(width=240, no_color=True) if piped else Console()
    console.print(f"gemv constants on {measured.device}", highlight=False, markup=False)
    for each in tables(measured):
        shown = Table(box=None if piped else box.SIMPLE_HEAD, pad_edge=False)
        for number, heading in enumerate(each.headings):
            words = number < each.left or heading.startswith("machine code")
            shown.add_column(heading, justify="left" if words else "right", no_wrap=words)
        for row in each.rows:
            shown.add_row(*(cell.replace("[", r"\[") for cell in row))
        console.print()
        console.print(each.title, highlight=False, markup=False)
        console.print(shown)
    console.print()
    for what, said in measured.limits.items():
        console.print(f"limit ({what}): {said}", highlight=False, markup=False)
    if measured.backend == "simulator":
        right = len(measured.coefficients) + len(measured.vector)
        console.print(f"{right} results checked. No time is given: a simulator's says nothing.")
