"""The package's own source files, as they were when it was imported.

Machine code is kept on disk under a hash of the source, and a file that is edited while a process
runs must not lend its hash to code that was made before. So the state of each file is noted
first of all. This is the first module that the package imports, and it needs the standard library
alone.
"""

from __future__ import annotations

import os
import sys

#: The folder of the package.
PACKAGE = sys.modules["gemv"].__path__[0]


def source_files(folder: str) -> dict[str, tuple[int, ...]]:
    """The state of each source file below `folder`, by its path there.

    Times, size and inode: whoever writes to a file or puts another in its place changes one of
    them. Names that begin with a dot cannot be imported; editors keep copies under such names.
    """
    found: dict[str, tuple[int, ...]] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.name.endswith(".py"):
                status = entry.stat()
                found[entry.name] = (
                    status.st_mtime_ns,
                    status.st_ctime_ns,
                    status.st_size,
                    status.st_ino,
                )
            elif entry.name != "__pycache__" and entry.is_dir():
                below = source_files(entry.path)
                found |= {f"{entry.name}/{name}": state for name, state in below.items()}
    return found


def _imported_files() -> dict[str, tuple[int, ...]]:
    """The package's files before any other module of it is imported; empty if that is not known.

    Machine code goes on disk under a hash of the source, which is taken later: only files that are
    still in this state then are known to hold what was imported.
    """
    own = {__name__, __name__.rpartition(".")[0]}
    if any(name.startswith("gemv.") and name not in own for name in sys.modules):
        return {}  # somebody removed the package from sys.modules and left its modules there
    try:
        return source_files(PACKAGE)
    except OSError:  # in a zip file, for one
        return {}


#: Modification and change time, size and inode of each file at import, by its path in the package.
AT_IMPORT = _imported_files()
