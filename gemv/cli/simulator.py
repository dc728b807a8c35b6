"""For commands that need kernels: the backend, which is the GPU or else the simulator."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from gemv.cli.console import Refused, reason

#: Elements of A for which a command takes about a minute.
MOST_ELEMENTS = 1 << 17


def is_simulated() -> bool:
    """Whether Numba simulates in this process."""
    return os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")


def backend_with_kernels() -> str:
    """The backend; "host" says that there is no GPU and that the simulator has to do."""
    try:
        from gemv.engines.backend import backend, chosen

        name = backend()
        if chosen() == "host":
            raise Refused("the host backend was chosen, and it has no kernels to measure")
    except (ImportError, RuntimeError, ValueError) as error:
        raise Refused(reason(error)) from error
    return name


def refuse_large(m: int, n: int, items: int = 1) -> None:
    """Stop a command that would take the simulator many minutes or hours."""
    if m * n * items > MOST_ELEMENTS:
        size = f"{m} x {n}" if items == 1 else f"{items} matrices of {m} x {n}"
        raise Refused(
            f"{size} is too much for the simulator, which runs up to {MOST_ELEMENTS} elements of A"
            " in about a minute: take a smaller size, or a GPU"
        )


def in_simulator(options: argparse.Namespace) -> int:
    """The same command in a process that simulates: Numba decides that when it is imported."""
    if is_simulated():
        raise Refused("neither a GPU nor the simulator can be used; see python -m gemv info")
    print("No GPU here: the kernels run in the simulator (NUMBA_ENABLE_CUDASIM=1).", flush=True)
    command = [sys.executable, "-m", options.program, *options.arguments]
    return subprocess.run(command, env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}).returncode
