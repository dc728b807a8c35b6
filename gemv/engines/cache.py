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
import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gemv.core.binary import Binary
from gemv.engines.cache_folder import (
    MAX_FILE_BYTES,
    SUFFIX,
    TEMPORARY,
    Folder,
    chosen,
    complain,
    directory,
    warn,
)
from gemv.engines.fingerprint import Unknown, fingerprint, settings, source_is_as_imported, versions

_MAGIC = b"gemv machine code\n"
#: What the files may take together; a kernel takes some 20 to 50 KB.
MAX_BYTES = 128 * 2**20
#: Temporary files of processes that died are swept after so many seconds.
_STALE_S = 3600


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
        with Folder(path) as folder:
            found = folder.files()
    except FileNotFoundError:
        return []
    return [(path / name, size, used) for name, size, used in found if name.endswith(SUFFIX)]


def clear() -> int:
    """Remove all files; how many they were. Raises as :func:`entries`."""
    path = directory()
    if path is None:
        return 0
    try:
        with Folder(path) as folder:
            names = [name for name, _, _ in folder.files() if name.endswith(SUFFIX)]
            return sum(map(folder.remove, names))
    except FileNotFoundError:
        return 0


def key(name: str, what: str, compute_capability: tuple[int, int]) -> str:
    """The name of a file: readable in front, a hash of everything behind.

    Raises
    ------
    Unknown
        If the source, or a compiler, has changed on disk since this process imported it.
    """
    major, minor = compute_capability
    facts = f"{fingerprint()}\n{settings()}\n{name}\n{what}\n{major}.{minor}"
    digest = hashlib.sha256(facts.encode())
    return f"{name}-sm_{major}{minor}-{digest.hexdigest()[:40]}"


def _look_again() -> None:
    """Raise Unknown if what was compiled just now may be of other source than the key says.

    The key follows from files that were hashed before the compilation, which imports modules.
    """
    source_is_as_imported()
    if any(version not in fingerprint().split("\n") for version in versions()):
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
    path = chosen()
    if path is None:
        return None
    try:
        folder = Folder(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        complain(path, error)
        return None
    with folder:
        try:
            return _unpack(name, folder.read(name + SUFFIX))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            warn(
                f"the compiled kernel in {path / (name + SUFFIX)} is not used ({why}): it is"
                " compiled again, and the file replaced"
            )
            return None


def store(name: str, functions: tuple[Binary, ...]) -> None:
    """Write a file, whole or not at all, and let old ones go; one warning where that fails."""
    path = chosen()
    if path is None:
        return
    try:
        data = _pack(name, functions)
        if len(data) > MAX_FILE_BYTES:
            raise OSError(errno.EFBIG, f"{name} would have {len(data)} bytes")
        with Folder(path, create=True) as folder:
            folder.write(name + SUFFIX, data)
            _bound(folder)
    except OSError as error:
        complain(path, error)


def _bound(folder: Folder) -> None:
    """Remove what was used longest ago beyond the bound, and what dead processes left."""
    files = folder.files()
    kept = [(name, size) for name, size, _ in files if name.endswith(SUFFIX)]
    total = sum(size for _, size in kept)
    for name, size in kept[:-1]:
        if total <= MAX_BYTES:
            break
        with suppress(OSError):  # Windows keeps what another process has opened
            folder.remove(name)
            total -= size
    for name, _, written in files:
        if name.startswith(TEMPORARY) and time.time() - written > _STALE_S:
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
    if chosen() is None:
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
        warn(f"kernels that this process compiles are not kept on disk: {error}")
    return compiled() if found is None else found
