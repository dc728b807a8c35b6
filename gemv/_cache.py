"""Machine code on disk, so that a process compiles nothing that another one has compiled.

A file holds all functions of one kernel for one Spec and one compute capability: a line of JSON
and the cubins behind it, with a checksum over both. Its name is a hash of everything that the
machine code follows from: all source of this package, the versions of what compiles it, those of
Numba's settings that shape it, the Spec and the compute capability. So a file is never out of date,
only of no more use, and the oldest go when there are too many bytes of them.

The source is that which this process imported. Where that cannot be told, because a file was edited
since, nothing is taken from the disk and nothing left there. And only what nobody else could have
written is loaded into a GPU.

Nothing here needs Numba: where the file is there, the compiler is not even imported.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import os
import re
import stat
import struct
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gemv.core import source

if TYPE_CHECKING:
    from gemv.kernels.kernel import Kernel
    from gemv.kernels.spec import Spec

#: Counts the forms that a file has had.
_FORMAT = 3
_MAGIC = b"gemv machine code\n"
_SUFFIX = ".gemv"
_TEMPORARY = ".new-"
#: What the files may take together; a kernel takes some 20 to 50 KB.
MAX_BYTES = 128 * 2**20
#: More than any kernel takes: a larger file is not read.
MAX_FILE_BYTES = 16 * 2**20
#: Temporary files of processes that died are swept after so many seconds.
_STALE_S = 3600

#: What takes part in making machine code, and the module that tells which version of it runs.
_COMPILERS = {
    "numba": "numba",
    "numba-cuda": "numba_cuda",
    "llvmlite": "llvmlite",
    "cuda-bindings": "cuda.bindings",
    "numpy": "numpy",
}
#: The libraries of CUDA, which go by several names.
_TOOLKIT = (
    "nvidia-nvjitlink", "nvidia-nvjitlink-cu13", "nvidia-nvjitlink-cu12", "nvidia-nvvm",
    "nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12", "cuda-toolkit",
)  # fmt: skip

#: Of Numba's some hundred variables those that change what it compiles for a GPU, and what it calls
#: them: no optimization, debug information, code for another architecture, counts of references,
#: and a line printed for each instruction. No other one changes the PTX of a kernel: those for the
#: CPU, bounds checks (which kernels never have), dumps, warnings, threads, directories, logs.
_SETTINGS = {
    "NUMBA_OPT": "OPT",
    "NUMBA_CUDA_DEBUGINFO": "CUDA_DEBUGINFO_DEFAULT",
    "NUMBA_FORCE_CUDA_CC": "FORCE_CUDA_CC",
    "NUMBA_CUDA_ENABLE_NRT": "CUDA_ENABLE_NRT",
    "NUMBA_DEBUG_JIT": "DEBUG_JIT",
}
#: Their values where nobody set them, in this order.
_UNSET = (True, None, None, None, None)


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
        Whether it waits itself for the kernel before it: see :func:`gemv.language.numba_cuda.ptx.waiting`.
    """

    name: str
    arguments: tuple[str, ...]
    ptx: str
    cubin: bytes
    log: str
    waits: bool = False

    def resource(self, pattern: str) -> int:
        """The number before `pattern` in the assembler's report, ``"registers"`` for instance."""
        for number in re.findall(rf"(\d+) {pattern}|[Uu]sed (\d+) {pattern}", self.log):
            return int(next(filter(None, number)))
        raise LookupError(f"the assembler reports no {pattern!r}: {self.log!r}")


class CacheWarning(RuntimeWarning):
    """Machine code cannot be kept on disk, or is not trusted; everything works, but compiles."""


class Unknown(Exception):
    """What machine code follows from is not known, so that it cannot be named; says why."""


@cache
def _warn(text: str) -> None:
    warnings.warn(text, CacheWarning, stacklevel=2)


def _complain(folder: Path | str, error: OSError) -> None:
    _warn(
        f"compiled kernels cannot be kept in {folder} ({type(error).__name__}: {error.strerror}),"
        " so each process compiles them: name a directory that only you can write to with"
        " GEMV_CACHE_DIR, or switch this off with GEMV_CACHE=0"
    )


# Where -----------------------------------------------------------------------------------------


def directory() -> Path | None:
    """Where the files are; None where the cache is switched off by ``GEMV_CACHE=0``.

    Raises
    ------
    NotADirectoryError
        If it would be in the home directory of somebody who has none.
    """
    if os.environ.get("GEMV_CACHE", "").strip().lower() in ("0", "off", "no", "false"):
        return None
    named = os.environ.get("GEMV_CACHE_DIR")
    if named:
        base = named
    elif sys.platform == "win32":
        base = os.path.join(os.environ.get("LOCALAPPDATA") or "~\\AppData\\Local", "gemv")
    else:
        base = os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "gemv")
    try:
        return Path(base).expanduser()
    except RuntimeError as error:
        raise NotADirectoryError(errno.ENOTDIR, "there is no such home directory", base) from error


def _chosen() -> Path | None:
    """:func:`directory`, or None with a warning where there is none."""
    try:
        return directory()
    except OSError as error:
        _complain(error.filename, error)
        return None


def _distrust(status: os.stat_result) -> str | None:
    """Why machine code is not taken from what has this status: others could have written it.

    The superuser could write anywhere, so what is the superuser's is trusted.
    """
    if sys.platform == "win32":  # owner and access are in lists there, which stat does not show
        return None
    if status.st_uid not in (os.geteuid(), 0):
        return f"it belongs to another user, number {status.st_uid}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "its group or everybody may write to it, which chmod go-w changes"
    return None


class _Folder:
    """The directory, opened and trusted.

    All that is done in it goes through its descriptor: it stays the directory that was looked at,
    whatever is put in its place. Windows has no descriptors of directories, so there its path is
    used again.

    Raises
    ------
    FileNotFoundError
        If it is not there, and `create` does not ask for it.
    OSError
        If it cannot be opened or is not trusted.
    """

    def __init__(self, path: Path, create: bool = False) -> None:
        self.path = path
        self._handle: int | None = None
        if create:
            try:
                os.stat(path)
            except FileNotFoundError:
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if sys.platform == "win32":
            if not stat.S_ISDIR(os.stat(path).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
            return
        self._handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        why = _distrust(os.fstat(self._handle))
        if why is not None:
            self.close()
            raise PermissionError(errno.EPERM, why, str(path))

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> _Folder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _at(self, name: str) -> str:
        return name if self._handle is not None else str(self.path / name)

    def _open(self, name: str, flags: int) -> int:
        for extra in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_NOINHERIT", "O_BINARY"):
            flags |= getattr(os, extra, 0)
        return os.open(self._at(name), flags, 0o600, dir_fd=self._handle)

    def read(self, name: str) -> bytes:
        """All bytes of a file, which counts as used now; an OSError if it is not trusted."""
        # Of a pipe O_NONBLOCK opens the end without waiting for a writer.
        handle = self._open(name, os.O_RDONLY)
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise PermissionError(errno.EPERM, "it is no regular file", name)
            why = _distrust(status)
            if why is not None:
                raise PermissionError(errno.EPERM, why, name)
            if status.st_size > MAX_FILE_BYTES:
                raise OSError(errno.EFBIG, f"it has {status.st_size} bytes", name)
            # The files used longest ago go first. The superuser's files keep their times.
            with suppress(OSError):
                if os.utime in os.supports_fd:
                    os.utime(handle)
                else:
                    os.utime(self._at(name))
            return os.read(handle, status.st_size)
        finally:
            os.close(handle)

    def write(self, name: str, data: bytes) -> None:
        """Put a file there, whole or not at all."""
        temporary = f"{_TEMPORARY}{os.getpid()}-{os.urandom(8).hex()}"
        handle = self._open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            with open(handle, "wb") as file:
                file.write(data)
            os.replace(
                self._at(temporary), self._at(name),
                src_dir_fd=self._handle, dst_dir_fd=self._handle,
            )  # fmt: skip
        except BaseException:
            self.remove(temporary)
            raise

    def remove(self, name: str) -> bool:
        """Whether the file was there, and is no more."""
        try:
            os.unlink(self._at(name), dir_fd=self._handle)
        except FileNotFoundError:  # another process was faster
            return False
        return True

    def files(self) -> list[tuple[str, int, float]]:
        """Name, bytes and time of last use of all regular files, the one used longest ago first."""
        found = []
        with os.scandir(self.path if self._handle is None else self._handle) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:  # another process was faster
                    continue
                if stat.S_ISREG(status.st_mode):
                    found.append((entry.name, status.st_size, status.st_mtime))
        return sorted(found, key=lambda each: each[2])


def entries() -> list[tuple[Path, int, float]]:
    """Path, bytes and time of last use of each file, the one used longest ago first.

    Raises
    ------
    OSError
        If the directory cannot be read or is not trusted.
    """
    path = directory()
    if path is None:
        return []
    try:
        with _Folder(path) as folder:
            found = folder.files()
    except FileNotFoundError:
        return []
    return [(path / name, size, used) for name, size, used in found if name.endswith(_SUFFIX)]


def clear() -> int:
    """Remove all files; how many they were. Raises as :func:`entries`."""
    path = directory()
    if path is None:
        return 0
    try:
        with _Folder(path) as folder:
            names = [name for name, _, _ in folder.files() if name.endswith(_SUFFIX)]
            return sum(map(folder.remove, names))
    except FileNotFoundError:
        return 0


# What a file's name follows from -----------------------------------------------------------------


def source_hash(folder: str | Path) -> str:
    """Hash of all source below a folder: any of it may reach a kernel."""
    digest = hashlib.sha256()
    for name in sorted(source.source_files(str(folder))):
        text = Path(folder, name).read_bytes()
        digest.update(f"{name} {len(text)}\n".encode())
        digest.update(text)
    return digest.hexdigest()


@cache
def imported_source() -> str:
    """Hash of the source of this package that this process runs; Unknown where that has changed."""
    try:
        found = source_hash(source.PACKAGE)
    except OSError as error:
        raise Unknown(f"{error.filename} cannot be read ({error.strerror})") from error
    _source_is_as_imported()  # now, so nobody wrote to it while it was read
    _bytecode_is_as_source()
    return found


def _source_is_as_imported() -> None:
    """Raise Unknown if a source file is not as it was when the package was imported.

    Modules are imported later than the package, and read then. What a process runs is known only
    where all files have stayed as they were.
    """
    before = source.AT_IMPORT
    if not before:
        raise Unknown("the source files that this process imported are not known")
    try:
        now = source.source_files(source.PACKAGE)
    except OSError as error:
        raise Unknown(f"{error.filename} cannot be read ({error.strerror})") from error
    changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    if changed:
        others = f" and {len(changed) - 1} more" if changed[1:] else ""
        raise Unknown(
            f"gemv/{changed[0]}{others} changed after gemv was imported: start Python again"
        )


def _bytecode_is_as_source() -> None:
    """Raise Unknown if Python runs bytecode of an older source than the one on disk.

    Python compares the seconds of the time of change, and the size. An edit in the second in which
    the file was written before, and that keeps its size, goes unnoticed.
    """
    for name, (changed, _, size, _) in source.AT_IMPORT.items():
        try:
            path = importlib.util.cache_from_source(os.path.join(source.PACKAGE, name))
            made = os.stat(path).st_mtime_ns
            if not changed // 10**9 * 10**9 <= made < changed:
                continue
            with open(path, "rb") as file:
                header = file.read(16)
        except (OSError, NotImplementedError):  # no bytecode is kept
            continue
        second = changed // 10**9 & 0xFFFFFFFF
        if header == importlib.util.MAGIC_NUMBER + struct.pack("<3I", 0, second, size & 0xFFFFFFFF):
            raise Unknown(f"Python runs older code than is in gemv/{name}: remove {path}")


def _versions() -> list[str]:
    """What is installed of all that makes machine code; Unknown where another version runs."""
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for name in (*_COMPILERS, *_TOOLKIT):
        try:
            installed = version(name)
        except PackageNotFoundError:
            continue
        module = sys.modules.get(_COMPILERS.get(name, ""))
        runs = getattr(module, "__version__", installed)
        # Beyond the numbers a package may spell its version otherwise than its installer.
        if _numbers(runs) != _numbers(installed):
            raise Unknown(f"{name} {installed} is installed, and {runs} runs: start Python again")
        found.append(f"{name} {installed}")
    if not any("nvjitlink" in each for each in found):  # of the system, or of another packager
        from cuda.bindings import nvjitlink

        found.append(f"nvjitlink {nvjitlink.version()}")
        found += [f"{name}={os.environ.get(name)}" for name in ("CUDA_HOME", "CUDA_PATH")]
    return found


def _numbers(version: str) -> str:
    found = re.match(r"[\d.]*\d", version)
    return found[0] if found else version


def _settings() -> tuple[object, ...]:
    """Numba's settings that shape machine code, as its compiler would take them now.

    What Numba reads is asked of Numba, if it is imported already, or if there is something to
    read; a process that sets nothing does not import it.
    """
    config: Any = sys.modules.get("numba.core.config")
    if any(name in os.environ for name in _SETTINGS) or os.path.exists(".numba_config.yaml"):
        importlib.import_module("numba.cuda")  # which reads some of them
        config = importlib.import_module("numba.core.config")
    elif not hasattr(config, "reload_config"):  # not imported, or not to its end
        return _UNSET
    try:
        config.reload_config()  # as each compilation does
    except RuntimeError as error:  # another number of threads than those that run, for one
        raise Unknown(f"Numba refuses its settings ({error})") from error
    values = {name: getattr(config, name, None) for name in _SETTINGS.values()}
    values["OPT"] = values["OPT"] != 0  # that is all of it that compilation for a GPU looks at
    return tuple(value or None for value in values.values())


@cache
def _fingerprint() -> str:
    """What all machine code of this process has in common."""
    facts = [
        f"format {_FORMAT}",
        f"python {sys.version}",
        imported_source(),
        *_versions(),
    ]
    return "\n".join(facts)


def key(name: str, what: str, compute_capability: tuple[int, int]) -> str:
    """The name of a file: readable in front, a hash of everything behind.

    Raises
    ------
    Unknown
        If the source, or a compiler, has changed on disk since this process imported it.
    """
    major, minor = compute_capability
    facts = f"{_fingerprint()}\n{_settings()}\n{name}\n{what}\n{major}.{minor}"
    digest = hashlib.sha256(facts.encode())
    return f"{name}-sm_{major}{minor}-{digest.hexdigest()[:40]}"


def _look_again() -> None:
    """Raise Unknown if what was compiled just now may be of other source than the key says.

    The key follows from files that were hashed before the compilation, which imports modules.
    """
    _source_is_as_imported()
    if any(version not in _fingerprint().split("\n") for version in _versions()):
        raise Unknown("a compiler was installed while it ran: start Python again")


# Reading and writing -----------------------------------------------------------------------------


def _pack(name: str, functions: tuple[Binary, ...]) -> bytes:
    header = {
        "key": name,
        "functions": [
            {
                "name": f.name,
                "arguments": f.arguments,
                "bytes": len(f.cubin),
                "log": f.log,
                "waits": f.waits,
            }
            for f in functions
        ],
    }
    body = json.dumps(header).encode() + b"\n" + b"".join(f.cubin for f in functions)
    return _MAGIC + hashlib.sha256(body).digest() + body


def _unpack(name: str, data: bytes) -> tuple[Binary, ...]:
    """The functions of a file; a ValueError that says what is wrong with it."""
    start = len(_MAGIC) + 32
    body = data[start:]
    if data[: len(_MAGIC)] != _MAGIC or hashlib.sha256(body).digest() != data[start - 32 : start]:
        raise ValueError("it is no file of machine code, or not whole")
    head, _, cubins = body.partition(b"\n")
    functions, at = [], 0
    try:
        header = json.loads(head)
        if header["key"] != name:
            raise ValueError("it was kept under another name")
        for entry in header["functions"]:
            arguments, size = entry["arguments"], entry["bytes"]
            names = all(each.isidentifier() for each in (entry["name"], *arguments))
            kinds = tuple(map(type, (arguments, size, entry["log"], entry["waits"])))
            if not names or kinds != (list, int, str, bool) or size <= 0:
                raise TypeError
            cubin = cubins[at : at + size]
            at += size
            functions.append(
                Binary(entry["name"], tuple(arguments), "", cubin, entry["log"], entry["waits"])
            )
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("its header is no list of functions") from error
    if not functions or at != len(cubins):
        raise ValueError("its header and its machine code do not agree")
    return tuple(functions)


def holds(name: str, what: str, compute_capability: tuple[int, int]) -> bool:
    """Whether there is a file that :func:`kept` would take."""
    try:
        return load(key(name, what, compute_capability)) is not None
    except Unknown:
        return False


def load(name: str) -> tuple[Binary, ...] | None:
    """The functions of a file; None if it is not there, or, with a warning, is not trusted."""
    path = _chosen()
    if path is None:
        return None
    try:
        folder = _Folder(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        _complain(path, error)
        return None
    with folder:
        try:
            return _unpack(name, folder.read(name + _SUFFIX))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            _warn(
                f"the compiled kernel in {path / (name + _SUFFIX)} is not used ({why}): it is"
                " compiled again, and the file replaced"
            )
            return None


def store(name: str, functions: tuple[Binary, ...]) -> None:
    """Write a file, whole or not at all, and let old ones go; one warning where that fails."""
    path = _chosen()
    if path is None:
        return
    try:
        data = _pack(name, functions)
        if len(data) > MAX_FILE_BYTES:
            raise OSError(errno.EFBIG, f"{name} would have {len(data)} bytes")
        with _Folder(path, create=True) as folder:
            folder.write(name + _SUFFIX, data)
            _bound(folder)
    except OSError as error:
        _complain(path, error)


def _bound(folder: _Folder) -> None:
    """Remove what was used longest ago beyond the bound, and what dead processes left."""
    files = folder.files()
    kept = [(name, size) for name, size, _ in files if name.endswith(_SUFFIX)]
    total = sum(size for _, size in kept)
    for name, size in kept[:-1]:
        if total <= MAX_BYTES:
            break
        with suppress(OSError):  # Windows keeps what another process has opened
            folder.remove(name)
            total -= size
    for name, _, written in files:
        if name.startswith(_TEMPORARY) and time.time() - written > _STALE_S:
            with suppress(OSError):
                folder.remove(name)


def kept(
    name: str,
    what: str,
    compute_capability: tuple[int, int],
    compiled: Callable[[], tuple[Binary, ...]],
) -> tuple[Binary, ...]:
    """Machine code from the disk, or compiled now and left there for the next process.

    Code that may be of other source than the file's name says is not left there.
    """
    if _chosen() is None:
        return compiled()
    found = None
    try:
        file = key(name, what, compute_capability)
        found = load(file)
        if found is None:
            found = compiled()
            _look_again()
            if key(name, what, compute_capability) != file:
                raise Unknown("Numba's settings changed during the compilation")
            store(file, found)
    except Unknown as error:
        _warn(f"kernels that this process compiles are not kept on disk: {error}")
    return compiled() if found is None else found


# What the launch path asks for -------------------------------------------------------------------


@lru_cache(maxsize=1024)
def binaries(kernel: Kernel, spec: Spec, compute_capability: tuple[int, int]) -> tuple[Binary, ...]:
    """All functions of `kernel` for `spec`, from the disk or compiled."""

    def compiled() -> tuple[Binary, ...]:
        from gemv.language.numba_cuda import compile

        return compile.binaries(kernel, spec, compute_capability)

    if not kernel.build.__module__.startswith("gemv."):
        return compiled()  # its source is not ours, so no hash covers it
    return kept(kernel.name, repr(spec), compute_capability, compiled)


@lru_cache(maxsize=64)
def copy(dtype: np.dtype, compute_capability: tuple[int, int]) -> Binary:
    """The function that copies a vector of any stride to a contiguous one."""

    def compiled() -> tuple[Binary, ...]:
        from gemv.language.copy import copy
        from gemv.language.numba_cuda.compile import compile_function

        return (compile_function(copy, dtype, compute_capability),)

    (binary,) = kept("copy", repr(dtype), compute_capability, compiled)
    return binary
