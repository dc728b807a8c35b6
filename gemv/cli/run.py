"""``python -m gemv run``: one product from files."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemv.cli.array_files import is_large, read_matrix, read_vector, write_vector
from gemv.cli.console import Refused, one_line_failures, output_path, progress, reason
from gemv.cli.options import DTYPE_OF_PREFIX, blas_prefix, byte_count, scalar, trans

if TYPE_CHECKING:
    import numpy as np

    from gemv.core.trace import Call


def add_commands(commands: Any) -> None:
    """Add ``run`` to the parser."""
    sub = commands.add_parser("run", help="compute one product from files")
    sub.set_defaults(command="run", act=run)
    sub.add_argument("--a", required=True, metavar="FILE", help="matrix, .npy or .mtx")
    sub.add_argument("--x", required=True, metavar="FILE", help="vector, .npy or .mtx")
    sub.add_argument("--y", metavar="FILE", help="vector that beta scales; zeros if left out")
    sub.add_argument("--alpha", type=scalar, default=1.0, metavar="NUMBER", help="default 1")
    sub.add_argument("--beta", type=scalar, default=0.0, metavar="NUMBER", help="default 0")
    sub.add_argument("--trans", type=trans, default=0, metavar="N|T|C", help="op(A); default N")
    sub.add_argument(
        "--dtype",
        type=blas_prefix,
        metavar="s|d|c|z",
        help="or float32, ...; default: the narrowest that holds A, x, y, alpha and beta",
    )
    sub.add_argument("--kernel", metavar="NAME", help="this kernel instead of the best one")
    sub.add_argument(
        "--backend", choices=("cuda", "host"), help="default: cuda if there is a GPU, else host"
    )
    sub.add_argument(
        "--device-memory-limit",
        type=byte_count,
        metavar="BYTES",
        help="stream A in panels that fit, 4G or 500M; default: what is free on the GPU",
    )
    sub.add_argument("-o", "--output", required=True, metavar="FILE", help="y, .npy or .mtx")


def run(options: argparse.Namespace) -> int:
    """Read A, x and perhaps y, compute, write y."""
    output = output_path(options.output, (".npy", ".mtx"))
    _check_not_an_input(output, options)
    try:
        import numpy as np

        import gemv
    except ImportError as error:
        raise Refused(f"cannot import what it needs: {reason(error)}") from error

    with progress("gemv run", is_large(options.a)) as report:
        report(0, 4, f"reading {options.a}")
        a = read_matrix(options.a)
        report(1, 4, "reading vectors")
        x = read_vector(options.x)
        y = None if options.y is None else read_vector(options.y)
        prefix = _checked_prefix(options, a, x, y)

        report(2, 4, "computing")
        panels: list[int] = []

        def streamed(done: int, total: int) -> None:
            panels.append(done)
            report(done, total, f"{done / 1e9:.1f} of {total / 1e9:.1f} GB")

        start_s = time.perf_counter()
        result, calls = _product(options, prefix, a, x, y, streamed)
        time_s = time.perf_counter() - start_s

        report(3, 4, f"writing {output}")
        write_vector(output, np.asarray(result))

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


def _product(
    options: argparse.Namespace,
    prefix: str,
    a: np.ndarray,
    x: np.ndarray,
    y: np.ndarray | None,
    streamed: Callable[[int, int], None],
) -> tuple[Any, list[Call]]:
    """The result, and the calls that really ran; `streamed` is told of every panel."""
    import gemv

    keywords: dict[str, Any] = {
        "y": y,
        "kernel": options.kernel,
        "device_memory_limit": options.device_memory_limit,
    }
    keywords = {name: value for name, value in keywords.items() if value is not None}
    routine = getattr(gemv, f"{prefix}gemv")
    with one_line_failures(OSError):
        from gemv.engines.backend import using
        from gemv.streaming.compute import watch

        # Without the option a GPU computes, where there is one: this command shows it at work.
        asked = options.backend or ("cuda" if gemv.backend() == "cuda" else None)
        with nullcontext() if asked is None else using(asked):
            with gemv.trace() as calls, watch(streamed):
                result = routine(
                    options.alpha, a, x, beta=options.beta, trans=options.trans, **keywords
                )
    return result, calls


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


def _checked_prefix(
    options: argparse.Namespace, a: np.ndarray, x: np.ndarray, y: np.ndarray | None
) -> str:
    """The letter of the dtype to compute in; what cannot be computed is refused."""
    arrays = {"A": a, "x": x} if y is None else {"A": a, "x": x, "y": y}
    if options.dtype is None:
        _check_precision(arrays)
    prefix = options.dtype or _common_prefix(arrays, options)
    _check_complex(arrays, options, prefix)
    _check_lengths(options, a, x, y)
    return prefix


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
    """A real dtype would lose the imaginary parts of what is complex."""
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
