"""What determines machine code (source, compilers, settings), as text that the cache hashes."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import struct
import sys
from functools import cache
from pathlib import Path
from typing import Any

from gemv.core import source

#: Number of the format of the cache's files; it grows with each change of it.
FORMAT = 3
#: Packages that take part in compiling, and for each the module that says which version runs.
_COMPILERS = {
    "numba": "numba",
    "numba-cuda": "numba_cuda",
    "llvmlite": "llvmlite",
    "cuda-bindings": "cuda.bindings",
    "numpy": "numpy",
}
#: Packages of CUDA's libraries; an installation has some of them.
_TOOLKIT = (
    "nvidia-nvjitlink", "nvidia-nvjitlink-cu13", "nvidia-nvjitlink-cu12", "nvidia-nvvm",
    "nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12", "cuda-toolkit",
)  # fmt: skip

#: Numba's environment variables that change what it compiles for a GPU, with the names of these
#: settings in Numba: optimization, debug information, code for another architecture, counts of
#: references, and a line printed for each instruction. No other one of its about 100 variables
#: changes the PTX of a kernel: those for the CPU, bounds checks (which kernels never have), dumps,
#: warnings, threads, directories and logs.
_SETTINGS = {
    "NUMBA_OPT": "OPT",
    "NUMBA_CUDA_DEBUGINFO": "CUDA_DEBUGINFO_DEFAULT",
    "NUMBA_FORCE_CUDA_CC": "FORCE_CUDA_CC",
    "NUMBA_CUDA_ENABLE_NRT": "CUDA_ENABLE_NRT",
    "NUMBA_DEBUG_JIT": "DEBUG_JIT",
}
#: Their values, in the same order, where nobody set them.
_UNSET = (True, None, None, None, None)


class Unknown(Exception):
    """It is not known what machine code follows from, so it has no name; the text says why."""


#: The rooms whose source shapes machine code. They import no other room but these, which the
#: contract of imports keeps, so nothing else can reach a kernel.
ROOMS = ("core", "driver", "kernels", "language")
#: The file outside of them that calls the compiler.
_COMPILES = "engines/binaries.py"


def source_hash(folder: str | Path) -> str:
    """Hash of all source below the package's folder that may reach a kernel."""
    digest = hashlib.sha256()
    for name in sorted(source.source_files(str(folder))):
        if name.partition("/")[0] not in ROOMS and name != _COMPILES:
            continue
        text = Path(folder, name).read_bytes()
        digest.update(f"{name} {len(text)}\n".encode())
        digest.update(text)
    return digest.hexdigest()


@cache
def imported_source() -> str:
    """Hash of the package's source that this process runs; raises Unknown if it has changed."""
    try:
        found = source_hash(source.PACKAGE)
    except OSError as error:
        raise Unknown(f"{error.filename} cannot be read ({error.strerror})") from error
    source_is_as_imported()  # asked now, so that nobody wrote to it while it was read
    _bytecode_is_as_source()
    return found


def source_is_as_imported() -> None:
    """Raise Unknown if a source file is not as it was when the package was imported.

    Python reads a module's file when the module is imported, which may be later. So it is known
    what a process runs only while all files stay as they were.
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


def versions() -> list[str]:
    """What is installed of all that makes machine code; Unknown where another version runs."""
    found, versions = [], installed_versions()
    for name in (*_COMPILERS, *_TOOLKIT):
        installed = versions.get(name.replace("-", "_"))
        if installed is None and name in _COMPILERS:
            installed = _version_elsewhere(name)
        if installed is None:
            continue
        module = sys.modules.get(_COMPILERS.get(name, ""))
        runs = getattr(module, "__version__", installed)
        # A package may spell what follows the numbers otherwise than its installer.
        if _numbers(runs) != _numbers(installed):
            raise Unknown(f"{name} {installed} is installed, and {runs} runs: start Python again")
        found.append(f"{name} {installed}")
    if not any("nvjitlink" in each for each in found):  # installed otherwise than by pip
        from cuda.bindings import nvjitlink

        found.append(f"nvjitlink {nvjitlink.version()}")
        found += [f"{name}={os.environ.get(name)}" for name in ("CUDA_HOME", "CUDA_PATH")]
    return found


def installed_versions() -> dict[str, str]:
    """The version of each distribution that Python can import, by its name in lower case.

    The name of a directory ``NAME-VERSION.dist-info`` tells both. To read the metadata in it, as
    ``importlib.metadata`` does, takes ten times as long. Two of one name in a folder, which an
    installer leaves when it fails, are both named.
    """
    found: dict[str, str] = {}
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:  # a zip file, or nothing at all
            continue
        here: dict[str, str] = {}
        for entry in sorted(names):
            if entry.endswith(".dist-info"):
                name, _, version = entry.removesuffix(".dist-info").partition("-")
                name = name.lower().replace(".", "_")
                here[name] = f"{here[name]} {version}" if name in here else version
        found = here | found
    return found


def _version_elsewhere(name: str) -> str | None:
    """The version of a compiler whose metadata is not in a dist-info directory; None without it.

    Some installers keep metadata in ``NAME.egg-info``.
    """
    import importlib.metadata  # here, since it is rarely needed and takes long

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
    try:
        found = importlib.util.find_spec(_COMPILERS[name])
    except ModuleNotFoundError:
        found = None
    if found is not None:
        raise Unknown(f"{name} can be imported, and no metadata tells its version")
    return None


def _numbers(version: str) -> str:
    found = re.match(r"[\d.]*\d", version)
    return found[0] if found else version


def settings() -> tuple[object, ...]:
    """Numba's settings that shape machine code, as its compiler would take them now.

    Numba itself is asked if it is imported already, or if there is anything that it would read.
    Otherwise its defaults hold, and it is not imported for that.
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
def fingerprint() -> str:
    """What all machine code of this process follows from, a line for each fact."""
    facts = [
        f"format {FORMAT}",
        f"python {sys.version}",
        imported_source(),
        *versions(),
    ]
    return "\n".join(facts)
