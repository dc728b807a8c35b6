"""The directory of the cache: where it is, and whether its files can be trusted."""

from __future__ import annotations

import errno
import os
import stat
import sys
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path

from gemv.core.environment import switched_off

SUFFIX = ".gemv"
TEMPORARY = ".new-"
#: More than any kernel takes: a larger file is not read.
MAX_FILE_BYTES = 16 * 2**20


class CacheWarning(RuntimeWarning):
    """Machine code cannot be kept on disk, or is not trusted, so every process compiles it."""


@cache
def warn(text: str) -> None:
    """Issue a CacheWarning, each text once in a process."""
    warnings.warn(text, CacheWarning, stacklevel=2)


def complain(folder: Path | str, error: OSError) -> None:
    """Warn that the cache's directory cannot be used, and say how to choose another one."""
    warn(
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
    if switched_off("GEMV_CACHE"):
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


def chosen() -> Path | None:
    """:func:`directory`, or None with a warning where there is none."""
    try:
        return directory()
    except OSError as error:
        complain(error.filename, error)
        return None


def _distrust(status: os.stat_result) -> str | None:
    """Why a file or directory of this status is not trusted: other users could have written it.

    The superuser could write anywhere, so the superuser's files are trusted.
    """
    if sys.platform == "win32":  # owner and access are in lists there, which stat does not show
        return None
    if status.st_uid not in (os.geteuid(), 0):
        return f"it belongs to another user, number {status.st_uid}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "its group or everybody may write to it, which chmod go-w changes"
    return None


class Folder:
    """The cache's directory, opened and found to be trusted.

    Its files are opened through its descriptor, which stands for the directory that was examined,
    whatever is put in its place later. Windows has no descriptors of directories, so its path is
    used there.

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

    def __enter__(self) -> Folder:
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
        """All bytes of a file, which counts as used now; raises OSError if it is not trusted."""
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
        """Write a file, whole or not at all."""
        temporary = f"{TEMPORARY}{os.getpid()}-{os.urandom(8).hex()}"
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
        """Remove a file; False if it was not there."""
        try:
            os.unlink(self._at(name), dir_fd=self._handle)
        except FileNotFoundError:  # another process was faster
            return False
        return True

    def files(self) -> list[tuple[str, int, float]]:
        """Name, bytes and time of last use of each regular file, the one used longest ago first."""
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
