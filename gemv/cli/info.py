"""``python -m gemv info`` prints the environment; ``cache`` the compiled kernels on disk."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import warnings
from contextlib import nullcontext
from typing import Any

from gemv.cli.console import Refused, reason
from gemv.cli.simulator import is_simulated

#: Packages whose versions are printed.
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


def add_commands(commands: Any) -> None:
    """Add ``info`` and ``cache`` to the parser."""
    sub = commands.add_parser(
        "info", help="versions, GPU, backend, kernels and a self-check (the default)"
    )
    sub.set_defaults(command="info", act=info)
    sub = commands.add_parser("cache", help="where compiled kernels are kept, and how many")
    sub.set_defaults(command="cache", act=cache)
    sub.add_argument("--clear", action="store_true", help="remove them")


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
        ("machine", _probe_machine),
        ("cache", _probe_cache),
        ("self-check", _probe_self_check),
    ):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                lines = probe()
            checks[title] = True
        except Exception as exception:  # the report has to print, whatever is broken
            lines = [f"failed: {type(exception).__name__}: {reason(exception)}"]
            checks[title] = False
        for number, line in enumerate(lines):
            print(f"{title if number == 0 else '':<15}{line}", flush=True)
    return 0 if checks["self-check"] else 1


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
        return [f"none found (nvidia-smi: {reason(Exception(answer.stdout + answer.stderr))})"]
    rows = []
    for line in lines:
        name, driver, memory, capability = (part.strip() for part in line.rsplit(",", 3))
        rows.append(f"{name}, compute capability {capability}, {memory}, driver {driver}")
    return rows


def _probe_numba() -> list[str]:
    from numba import cuda

    if is_simulated():
        return ["simulated (NUMBA_ENABLE_CUDASIM is set)"]
    if not cuda.is_available():
        from gemv.core import errors

        return [f"not available: {errors.no_gpu(cuda.cuda_error())}"]
    runtime = ".".join(map(str, cuda.runtime.get_version()))
    return [f"available, runtime {runtime}"]


def _probe_backend() -> list[str]:
    from gemv.engines.backend import backend, chosen, compares, probe

    name = backend()
    why = "chosen" if chosen() else probe()[1]
    lines = [f"{name}: {why}"]
    if compares():
        lines.append("a call on host arrays goes to the faster of this GPU and the host's BLAS")
    return lines


def _probe_kernels() -> list[str]:
    from gemv.kernels import REGISTRY

    kernels = sorted(REGISTRY.values(), key=lambda k: (k.rung, k.beside, k.name))
    width = max((len(kernel.name) for kernel in kernels), default=0)
    return [
        f"{kernel.rung}  {kernel.name:<{width}}  {'(teaching) ' if kernel.beside else ''}"
        f"{kernel.idea}"
        for kernel in kernels
    ] or ["none"]


def _probe_machine() -> list[str]:
    from gemv.engines.backend import backend, engine
    from gemv.selection.machine import REFERENCE, machine

    # Without a GPU: what is selected on the one that others are compared with.
    used = machine(REFERENCE if backend() == "host" else engine().device())
    own = os.environ.get("GEMV_MACHINE")
    return [
        f"{used.name}, from the file that GEMV_MACHINE names, {own}" if own else used.name,
        f"{len(used.constants)} sets of constants, {len(used.exceptions)} exceptions, sha256"
        f" {used.hash}",
    ]


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


def _probe_self_check() -> list[str]:
    import numpy as np

    import gemv
    from gemv.engines.backend import using

    # small whole numbers: every sum is exact, so the answers are equal in any order of adding
    rng = np.random.default_rng(0)
    a = rng.integers(-4, 5, (37, 53)).astype(np.float64)
    x = rng.integers(-4, 5, 53).astype(np.float64)
    y = rng.integers(-4, 5, 37).astype(np.float64)
    # By the kernels of a GPU, where there is one; of themselves, arrays so small stay on the host.
    name = gemv.backend()
    with nullcontext() if name == "host" else using(name), gemv.trace() as calls:
        got = gemv.gemv(2.0, a, x, beta=-1.0, y=y)
    if not np.array_equal(got, 2.0 * (a @ x) - y):
        raise ArithmeticError("gemv of 37 x 53 whole numbers differs from NumPy")
    ran = f"{calls[-1].kernel} on {calls[-1].backend}" if calls else "no kernel"
    return [f"passed: 37 x 53 float64, {ran}, equal to NumPy"]
