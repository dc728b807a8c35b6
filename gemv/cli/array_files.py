"""Matrices and vectors in .npy and Matrix Market files."""

from __future__ import annotations

import math
import os
import stat
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemv.cli.console import Refused, complain, reason, refused_writes

if TYPE_CHECKING:
    import numpy as np


#: A file of more bytes than this is large.
LARGE_BYTES = 64 * 2**20


def is_large(path: str) -> bool:
    """Whether a file is mapped into memory, and work on it shows its progress."""
    try:
        return os.stat(path).st_size > LARGE_BYTES
    except OSError:
        return False  # reading it will tell what is wrong


def _check_file(path: str) -> None:
    """Refuse what has no end, what waits for a writer, and what has no content."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        what = "a directory" if stat.S_ISDIR(mode) else "a device or a pipe"
        raise Refused(f"cannot read {path}: it is {what}, and only regular files are read")


def _check_npy_size(path: str) -> None:
    """Refuse a header that promises more than the file has, before memory is reserved for it."""
    import numpy as np

    with open(path, "rb") as file:
        if file.read(len(np.lib.format.MAGIC_PREFIX)) != np.lib.format.MAGIC_PREFIX:
            return  # several arrays, or no array: np.load tells
        file.seek(0)
        # Version 3 differs from 2 only in how it encodes the names of fields.
        version = np.lib.format.read_magic(file)
        read_header = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read_header(file)
        if any(length < 0 for length in shape):
            raise ValueError(f"its header gives the shape {shape}, which no array has")
        promised = math.prod(shape) * dtype.itemsize
        found = os.fstat(file.fileno()).st_size - file.tell()
        if promised > found and not dtype.hasobject:
            raise ValueError(
                f"its header promises {promised} bytes, shape {shape} of {dtype}, but {found}"
                " bytes follow"
            )


def _dense(sparse: Any) -> np.ndarray:
    """A sparse matrix as a dense one."""
    try:
        return sparse.toarray()
    except (MemoryError, ValueError) as error:
        rows, cols = sparse.shape
        raise ValueError(
            f"it is sparse, and as a dense matrix {rows} x {cols} numbers do not fit into memory"
        ) from error


def _read(path: str) -> np.ndarray:
    """An array of any rank from a .npy or Matrix Market file."""
    import numpy as np

    suffix = Path(path).suffix.lower()
    if suffix not in (".npy", ".mtx"):
        raise Refused(f"cannot read {path}: the name must end in .npy or .mtx")
    try:
        _check_file(path)
        if suffix == ".npy":
            _check_npy_size(path)
            # mapped: a matrix larger than memory can still be read piece by piece
            large = is_large(path)
            array = np.load(path, mmap_mode="r" if large else None, allow_pickle=False)
            if not isinstance(array, np.ndarray):
                raise ValueError("it holds several arrays")
        else:
            from scipy.io import mmread

            with warnings.catch_warnings():
                # SciPy is about to return another class of sparse matrix; either will do here
                warnings.simplefilter("ignore", DeprecationWarning)
                warnings.simplefilter("ignore", FutureWarning)
                array = mmread(path)
            if not isinstance(array, np.ndarray):
                array = _dense(array)
                complain("gemv run", f"note: {path} is sparse; it is computed as a dense matrix")
        # np.asarray: the mapped array as a plain one, still mapped
        array = np.asarray(array)
    except Refused:
        raise
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror or reason(error)}") from error
    except Exception as error:  # a broken file fails in a hundred ways inside the readers
        raise Refused(f"cannot read {path}: {reason(error)}") from error
    if array.dtype.kind not in "biufc":
        raise Refused(f"{path} holds {array.dtype}, which is no number")
    return array


def read_matrix(path: str) -> np.ndarray:
    """The matrix in a file."""
    a = _read(path)
    if a.ndim != 2:
        raise Refused(f"{path} holds an array of shape {a.shape}; A needs two dimensions")
    return a


def read_vector(path: str) -> np.ndarray:
    """The vector in a file."""
    vector = _read(path)
    # Matrix Market knows no vectors: a single row or column is one
    if vector.ndim == 2 and 1 in vector.shape:
        vector = vector.reshape(-1)
    if vector.ndim != 1:
        raise Refused(f"{path} holds an array of shape {vector.shape}; a vector has one dimension")
    return vector


def write_vector(path: Path, y: np.ndarray) -> None:
    """Write a file whole or not at all."""
    import numpy as np

    from gemv.core.files import whole

    with refused_writes(path), whole(path) as file:
        if path.suffix.lower() == ".npy":
            # Not np.save: where the disk is full, that says how much is missing, but not why.
            header = np.lib.format.header_data_from_array_1_0(y)
            np.lib.format.write_array_header_1_0(file, header)
            file.write(np.ascontiguousarray(y).view(np.uint8).data)
        else:
            from scipy.io import mmwrite

            mmwrite(file, y.reshape(-1, 1))
