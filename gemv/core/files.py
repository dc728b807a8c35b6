"""Files that are written whole or not at all; needs nothing but the standard library."""

from __future__ import annotations

import errno
import io
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


def replaced_file(path: str | Path) -> Path | None:
    """The file whose place :func:`whole` takes, links followed; None if `path` is no file at all.

    A device or a pipe is none: it is written to, since nothing can take its place.

    Raises
    ------
    OSError
        `path` cannot be written; ``strerror`` says why.
    """
    target = Path(os.path.realpath(path))
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        found = None
    if found is not None and stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a directory")
    if found is not None and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, "permission denied")
    # The second: /dev/stdout leads to what is open, which need not have a name any more.
    if found is not None and (
        not stat.S_ISREG(found.st_mode) or not target.exists() or not target.samefile(path)
    ):
        return None
    folder = target.parent
    if not folder.is_dir():
        shown = folder if Path(path).is_symlink() else Path(path).parent
        raise FileNotFoundError(errno.ENOENT, f"there is no directory {shown}")
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, f"permission denied in the directory {folder}")
    return target


@contextmanager
def whole(path: str | Path) -> Iterator[BinaryIO]:
    """Yield a file to write; only when all of it is on the disk does it take the place of `path`.

    Whatever fails before leaves the old file as it was, and nothing beside it. The new file has the
    permissions of the old one, or, where there was none, those of any new file. If `path` is a
    link, what it points to is replaced. A device or a pipe gets everything at the end.
    """
    target = replaced_file(path)
    if target is None:
        content = io.BytesIO()
        yield content
        with open(path, "wb") as file:
            file.write(content.getbuffer())
        return
    # In the same folder, since a file takes another's place only within one file system.
    beside = target.with_name(f".new-{secrets.token_hex(8)}")
    try:
        with open(beside, "xb") as file:
            yield file
            file.flush()
            # Before the name changes: a machine that fails afterwards must not show an empty file.
            os.fsync(file.fileno())
        with suppress(FileNotFoundError):
            os.chmod(beside, stat.S_IMODE(os.stat(target).st_mode))
        os.replace(beside, target)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise


def write_text(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8, whole or not at all."""
    with whole(path) as file:
        file.write(text.encode())
