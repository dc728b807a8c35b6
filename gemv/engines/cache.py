"""Machine code on disk, so that a process compiles nothing that another one has compiled.

A file holds all functions of one kernel for one Spec and one compute capability: a line of JSON
and the cubins behind it, with a checksum over both. Its name is a hash of everything that the
machine code follows from: all source of this package, the versions of the compilers, those of
Numba's settings that shape machine code, the Spec and the compute capability. So a file never goes
out of date; it only falls out of use, and the files used longest ago are removed when all of them
together have more than 128 MiB.

The source that counts is the one that this process imported. If a file was edited since then,
nothing is read from the disk and nothing written to it. Only files that no other user could have
written are loaded into a GPU: :mod:`gemv.engines.cache_folder` looks at that.

Nothing here needs Numba: with a kernel's file on disk, the compiler is not even imported.
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
#: Bytes of all files together; a kernel takes some 20 to 50 KB.
MAX_BYTES = 128 * 2**20
#: Temporary files of processes that died are removed after so many seconds.
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
    """Remove all files and return how many there were; raises as :func:`entries`."""
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
    """The name of a kernel's file: kernel and compute capability, and a hash of all that counts.

    `what` is the Spec in words.

    Raises
    ------
    Unknown
        If the source, or a compiler, has changed on disk since this process imported it.
    """
    major, minor = compute_capability
    facts = f"{fingerprint()}\n{settings()}\n{name}\n{what}\n{major}.{minor}"
    digest = hashlib.sha256(facts.encode())
    return f"{name}-sm_{major}{minor}-{digest.hexdigest()[:40]}"


def _require_same_source() -> None:
    """Raise Unknown if a kernel may have been compiled from other source than its key says.

    Files are hashed for the key before the compilation, which imports further modules.
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
    """The functions in a file's bytes; raises a ValueError that says what is wrong with them."""
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


def load(name: str) -> tuple[Binary, ...] | None:
    """The functions in a file; None if it is not there or, with a warning, not trusted."""
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
    """Write a file, whole or not at all, and remove old ones; warn where that fails."""
    path = chosen()
    if path is None:
        return
    try:
        data = _pack(name, functions)
        if len(data) > MAX_FILE_BYTES:
            raise OSError(errno.EFBIG, f"{name} would have {len(data)} bytes")
        with Folder(path, create=True) as folder:
            folder.write(name + SUFFIX, data)
            _remove_oldest(folder)
    except OSError as error:
        complain(path, error)


def _remove_oldest(folder: Folder) -> None:
    """Remove the files used longest ago until the rest fits, and those of dead processes."""
    files = folder.files()
    kept = [(name, size) for name, size, _ in files if name.endswith(SUFFIX)]
    total = sum(size for _, size in kept)
    for name, size in kept[:-1]:
        if total <= MAX_BYTES:
            break
        with suppress(OSError):  # Windows does not remove a file that another process has opened
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
    """Machine code from the disk, or from `compiled` and then written to the disk.

    It is not written if it may follow from other source than the file's name says.
    """
    if chosen() is None:
        return compiled()
    found = None
    try:
        file = key(name, what, compute_capability)
        found = load(file)
        if found is None:
            found = compiled()
            _require_same_source()
            if key(name, what, compute_capability) != file:
                raise Unknown("Numba's settings changed during the compilation")
            store(file, found)
    except Unknown as error:
        warn(f"kernels that this process compiles are not kept on disk: {error}")
    return compiled() if found is None else found
