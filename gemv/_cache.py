"""Machine code on disk, so that a process compiles nothing that another one has compiled.

A file holds all functions of one kernel for one Spec and one compute capability: a line of JSON
and the cubins behind it, with a checksum over both. Its name is a hash of everything that the
machine code follows from: all source of this package, the versions of what compiles it, Numba's
settings, the Spec and the compute capability. So a file is never out of date, only of no more use,
and the oldest go when there are too many bytes of them.

Nothing here needs Numba: where the file is there, the compiler is not even imported.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gemv.kernels._base import Kernel, Spec

#: Counts the forms that a file has had.
_FORMAT = 2
_MAGIC = b"gemv machine code\n"
_SUFFIX = ".gemv"
#: What the files may take together; a kernel takes some 20 to 50 KB.
MAX_BYTES = 128 * 2**20
#: Temporary files of processes that died are swept after so many seconds.
_STALE_S = 3600

#: What takes part in making machine code. The libraries of CUDA go by several names.
_COMPILERS = ("numba", "numba-cuda", "llvmlite", "cuda-bindings", "numpy")
_TOOLKIT = (
    "nvidia-nvjitlink", "nvidia-nvjitlink-cu13", "nvidia-nvjitlink-cu12", "nvidia-nvvm",
    "nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12", "cuda-toolkit",
)  # fmt: skip


@dataclass(frozen=True)
class Binary:
    """One kernel function, compiled.

    Attributes
    ----------
    name : str
        Entry point in the module.
    arguments : tuple of str
        Names of the parameters, to be filled by the launch path.
    ptx : str
        Empty where it comes from the disk, which keeps what a launch needs.
    cubin : bytes
    log : str
        What the assembler reports: registers, stack frame, spills, constant banks.
    waits : bool
        Whether it waits itself for the kernel before it: see :func:`gemv._compile.waiting`.
    """

    name: str
    arguments: tuple[str, ...]
    ptx: str
    cubin: bytes
    log: str
    waits: bool = False

    def resource(self, pattern: str) -> int:
        """The number before `pattern` in the assembler's report, ``"registers"`` for instance."""
        import re

        for number in re.findall(rf"(\d+) {pattern}|[Uu]sed (\d+) {pattern}", self.log):
            return int(next(filter(None, number)))
        raise LookupError(f"the assembler reports no {pattern!r}: {self.log!r}")


class CacheWarning(RuntimeWarning):
    """Machine code cannot be kept on disk; everything works, and compiles in each process."""


# Where -----------------------------------------------------------------------------------------


def directory() -> Path | None:
    """Where the files are; None where the cache is switched off by ``GEMV_CACHE=0``."""
    if os.environ.get("GEMV_CACHE", "").strip().lower() in ("0", "off", "no", "false"):
        return None
    named = os.environ.get("GEMV_CACHE_DIR")
    if named:
        return Path(named).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~\\AppData\\Local"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(base).expanduser() / "gemv"
    except RuntimeError:  # no home
        return None


def entries() -> list[tuple[Path, int, float]]:
    """Path, bytes and time of last use of each file, the one used longest ago first."""
    folder = directory()
    found = []
    if folder is not None and folder.is_dir():
        for entry in os.scandir(folder):
            if entry.name.endswith(_SUFFIX):
                try:
                    status = entry.stat()
                except OSError:  # another process was faster
                    continue
                found.append((Path(entry.path), status.st_size, status.st_mtime))
    return sorted(found, key=lambda each: each[2])


def clear() -> int:
    """Remove all files; how many they were."""
    removed = 0
    for path, _, _ in entries():
        path.unlink(missing_ok=True)
        removed += 1
    return removed


# What a file's name follows from -----------------------------------------------------------------


def source_hash(folder: Path) -> str:
    """Hash of all source below a folder: any of it may reach a kernel."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()} {len(text)}\n".encode())
        digest.update(text)
    return digest.hexdigest()


def _versions() -> list[str]:
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for name in (*_COMPILERS, *_TOOLKIT):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    if not any("nvjitlink" in each for each in found):  # of the system, or of another packager
        from cuda.bindings import nvjitlink

        found.append(f"nvjitlink {nvjitlink.version()}")
        found += [f"{name}={os.environ.get(name)}" for name in ("CUDA_HOME", "CUDA_PATH")]
    return found


@cache
def _fingerprint() -> str:
    """What all machine code of this process has in common."""
    import gemv

    settings = sorted(
        f"{name}={value}"
        for name, value in os.environ.items()
        if name.startswith("NUMBA_") and name != "NUMBA_ENABLE_CUDASIM"
    )
    facts = [
        f"format {_FORMAT}",
        f"gemv {gemv.__version__}",
        f"python {sys.version}",
        source_hash(Path(__file__).parent),
        *_versions(),
        *settings,
    ]
    return "\n".join(facts)


def key(name: str, what: str, compute_capability: tuple[int, int]) -> str:
    """The name of a file: readable in front, a hash of everything behind."""
    major, minor = compute_capability
    digest = hashlib.sha256(f"{_fingerprint()}\n{name}\n{what}\n{major}.{minor}".encode())
    return f"{name}-sm_{major}{minor}-{digest.hexdigest()[:40]}"


# Reading and writing -----------------------------------------------------------------------------


def _pack(functions: tuple[Binary, ...]) -> bytes:
    header = [
        {
            "name": f.name,
            "arguments": f.arguments,
            "bytes": len(f.cubin),
            "log": f.log,
            "waits": f.waits,
        }
        for f in functions
    ]
    body = json.dumps(header).encode() + b"\n" + b"".join(f.cubin for f in functions)
    return _MAGIC + hashlib.sha256(body).digest() + body


def _unpack(data: bytes) -> tuple[Binary, ...]:
    """The functions of a file; a ValueError if it is not whole."""
    start = len(_MAGIC) + 32
    body = data[start:]
    if data[: len(_MAGIC)] != _MAGIC or hashlib.sha256(body).digest() != data[start - 32 : start]:
        raise ValueError("not a file of machine code, or not whole")
    header, _, cubins = body.partition(b"\n")
    functions, at = [], 0
    for entry in json.loads(header):
        cubin = cubins[at : at + entry["bytes"]]
        at += entry["bytes"]
        functions.append(
            Binary(
                entry["name"], tuple(entry["arguments"]), "", cubin, entry["log"], entry["waits"]
            )
        )
    return tuple(functions)


def holds(name: str, what: str, compute_capability: tuple[int, int]) -> bool:
    """Whether there is a file, whole or not."""
    folder = directory()
    return (
        folder is not None and (folder / (key(name, what, compute_capability) + _SUFFIX)).exists()
    )


def load(name: str) -> tuple[Binary, ...] | None:
    """The functions of a file, or None: it is not there, or broken, which is the same."""
    folder = directory()
    if folder is None:
        return None
    path = folder / (name + _SUFFIX)
    try:
        functions = _unpack(path.read_bytes())
    except (OSError, ValueError, KeyError, TypeError):
        return None
    try:
        os.utime(path)  # used now: the ones used longest ago go first
    except OSError:
        pass
    return functions


def store(name: str, functions: tuple[Binary, ...]) -> None:
    """Write a file, whole or not at all, and let old ones go; one warning where that fails."""
    folder = directory()
    if folder is None:
        return
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".new-", dir=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_pack(functions))
            os.replace(temporary, folder / (name + _SUFFIX))
        except BaseException:
            os.unlink(temporary)
            raise
        _bound(folder)
    except OSError as error:
        _complain(folder, f"{type(error).__name__}: {error}")


def _bound(folder: Path) -> None:
    """Remove what was used longest ago beyond the bound, and what dead processes left."""
    import time

    files = entries()
    total = sum(size for _, size, _ in files)
    for path, size, _ in files[:-1]:
        if total <= MAX_BYTES:
            break
        path.unlink(missing_ok=True)
        total -= size
    for path in folder.glob(".new-*"):
        try:
            if time.time() - path.stat().st_mtime > _STALE_S:
                path.unlink()
        except OSError:
            continue


@cache
def _complain(folder: Path, why: str) -> None:
    warnings.warn(
        f"compiled kernels cannot be kept in {folder} ({why}), so each process compiles them:"
        " name a writable directory with GEMV_CACHE_DIR, or switch this off with GEMV_CACHE=0",
        CacheWarning,
        stacklevel=2,
    )


def kept(
    name: str,
    what: str,
    compute_capability: tuple[int, int],
    compiled: Callable[[], tuple[Binary, ...]],
) -> tuple[Binary, ...]:
    """Machine code from the disk, or compiled now and left there for the next process."""
    file = key(name, what, compute_capability)
    found = load(file)
    if found is None:
        found = compiled()
        store(file, found)
    return found


# What the launch path asks for -------------------------------------------------------------------


@lru_cache(maxsize=1024)
def binaries(kernel: Kernel, spec: Spec, compute_capability: tuple[int, int]) -> tuple[Binary, ...]:
    """All functions of `kernel` for `spec`, from the disk or compiled."""

    def compiled() -> tuple[Binary, ...]:
        from gemv import _compile

        return _compile.binaries(kernel, spec, compute_capability)

    if not kernel.build.__module__.startswith("gemv."):
        return compiled()  # its source is not ours, so no hash covers it
    return kept(kernel.name, repr(spec), compute_capability, compiled)


@lru_cache(maxsize=64)
def copy(dtype: np.dtype, compute_capability: tuple[int, int]) -> Binary:
    """The function that copies a vector of any stride to a contiguous one."""

    def compiled() -> tuple[Binary, ...]:
        from gemv._compile import compile_function
        from gemv.kernels._copy import copy

        return (compile_function(copy, dtype, compute_capability),)

    (binary,) = kept("copy", repr(dtype), compute_capability, compiled)
    return binary
