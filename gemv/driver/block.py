"""A packed call in memory: the words that the machine code of the last step reads."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gemv.driver.deputy import SYSTEM_ENTRIES

#: Parameters that change from launch to launch, by their places on the stack, 8 bytes each. A
#: complex number is two parameters. A kernel that reads a number from memory gets its address
#: where others get the number.
PLACES = {
    "a": 0, "x": 1, "y": 2, "alpha": 3, "alpha_pointer": 3, "beta": 5, "beta_pointer": 5,
    "scratch": 7, "counters": 8, "old": 9,
}  # fmt: skip
#: Words of these places.
VALUES = 10
#: More parameters than any kernel has.
MAX_PARAMETERS = 40

#: Functions of the driver and of Python that the machine code calls, in the order of its table.
DRIVER_ENTRIES = (
    "launch", "allocate", "free", "is_capturing", "current_device", "context", "set_context",
    "stream_id",
)  # fmt: skip
PYTHON_ENTRIES = (
    "PyFloat_AsDouble", "PyErr_Occurred", "PyErr_Clear", "PyEval_SaveThread",
    "PyEval_RestoreThread", "PyLong_FromLongLong", "PyLong_AsUnsignedLongLongMask",
    "PyThreadState_Get",
)  # fmt: skip
#: And functions of the system, the object None, the calls of XLA that are known, the state of the
#: turn and the clock, and the state of the deputy and what it does.
ENTRIES = (
    *DRIVER_ENTRIES, *PYTHON_ENTRIES, *SYSTEM_ENTRIES, "None", "frames", "turn", "clock",
    "deputy", "serve",
)  # fmt: skip

#: A launch was not made, for a reason that the long way puts into words.
UNUSUAL = -1

# Words of an expectation: the exporter's functions, the block, device, operands (device, rank and
# dtype, two lengths and two strides each), alignments, and what y, x and A span; another block, or
# 0, for an old y beside the new one.
OPERAND_WORDS = 6
DESCRIBE, CURRENT_STREAM, BLOCK, OPERANDS = 0, 1, 2, 3
ALIGNMENTS = OPERANDS + 3 * OPERAND_WORDS
SPANS = ALIGNMENTS + 3
WITH_OLD_Y = SPANS + 6
EXPECTATION_WORDS = WITH_OLD_Y + 1

# Words of a block: of all its launches, then of each of them.
COUNT, REAL, X_START, Y_START, HEAD = 0, 1, 2, 3, 4
FUNCTION, PARAMETERS, CONFIG, ATTRIBUTES, CODES = 0, 1, 2, 6, 8
STEP = CODES + MAX_PARAMETERS
#: Of the stack: values, their addresses, the configuration.
FRAME = VALUES + MAX_PARAMETERS + 7


class Function(NamedTuple):
    """One launch of a call: a loaded function and what is fixed about it."""

    handle: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    #: Names of its parameters, in order; those without a place are in the sizes.
    arguments: Sequence[str]
    #: An array of the driver's launch attributes, or None.
    attributes: Any = None
    #: Bytes of dynamic shared memory of a block.
    shared: int = 0


class Block:
    """A call as machine code reads it.

    Parameters
    ----------
    functions : sequence of Function
        Launched one after the other.
    real, parts : int
        Bytes of a real number of alpha and beta, and how many make one of them.
    sizes : dict of str to int
        The parameters that are the same in every launch.
    x_start, y_start : int
        Bytes from the addresses that are passed to the first elements that are used.
    """

    __slots__ = ("_keep", "address", "words")

    def __init__(
        self,
        functions: Sequence[Function],
        real: int,
        parts: int,
        sizes: dict[str, int],
        x_start: int,
        y_start: int,
    ) -> None:
        fixed = {name: place for place, name in enumerate(sizes)}
        start = HEAD + STEP * len(functions)
        words = self.words = np.zeros(start + len(sizes), np.int64)
        self.address = words.ctypes.data
        self._keep = [function.attributes for function in functions]
        words[:HEAD] = len(functions), real, x_start, y_start
        words[start:] = list(sizes.values())
        for number, function in enumerate(functions):
            here = words[HEAD + STEP * number :][:STEP]
            codes: list[int] = []
            for name in function.arguments:
                if name in fixed:
                    codes.append(self.address + 8 * (start + fixed[name]))
                elif name in ("alpha", "beta"):
                    codes += [PLACES[name] + part for part in range(parts)]
                else:
                    codes.append(PLACES[name])
            if len(codes) > MAX_PARAMETERS:
                raise RuntimeError(f"a kernel of {len(codes)} parameters, {MAX_PARAMETERS} at most")
            here[FUNCTION], here[PARAMETERS] = function.handle, len(codes)
            config = np.array([*function.grid, *function.block, function.shared, 0], np.uint32)
            here[CONFIG : CONFIG + 4] = config.view(np.int64)
            if function.attributes is not None:
                here[ATTRIBUTES] = ctypes.addressof(function.attributes)
                here[ATTRIBUTES + 1] = len(function.attributes)
            here[CODES : CODES + len(codes)] = codes
