"""Numbers that go along with a call of XLA's: a ticket stands for words of host memory.

Arguments of XLA's lie on the GPU, and to put a single number there takes longer than a small
product. A *ticket* is an array that stays on the GPU, whatever is in it: its address stands for a
line of words in host memory. Whoever calls writes alpha and beta into the line, marks it as taken,
and passes the ticket. XLA's handler reads them as it launches the kernel, which gets them as
arguments, and marks the line as free. XLA may run calls late and in threads of its own, so a line
that is taken must not be written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

#: Words of a line, and which is which: the ticket's address; 0 where the line is free; real and
#: imaginary parts of alpha and beta, each as the kernel takes it, at the beginning of a word.
LINE = 8
ADDRESS, TAKEN, ALPHA, BETA = 0, 1, 2, 4
#: The most lines of a process.
MOST = 256

#: The lines, which machine code reads as well. The first has their number instead of one of them.
TABLE = np.zeros(LINE * (1 + MOST), np.int64)

_words = TABLE.data
_reals = {8: _words.cast("B").cast("d"), 4: _words.cast("B").cast("f")}
#: The first word of a line, by the ticket's address.
_lines: dict[int, int] = {}
_lock = threading.Lock()


def line_of(address: int) -> int | None:
    """The line of a ticket at this address, a new one if need be; None if there are too many.

    An address may come again, with another array, once JAX has dropped all of its arrays.
    """
    with _lock:
        line = _lines.get(address)
        if line is None:
            if len(_lines) >= MOST:
                return None
            line = _lines[address] = LINE * (1 + len(_lines))
            _words[line + ADDRESS] = address
            _words[0] = len(_lines)  # last: machine code looks at so many
        return line


def known_line(address: int) -> int:
    """The line of a ticket that was made before."""
    return _lines[address]


def is_taken(line: int) -> bool:
    return _words[line + TAKEN] != 0


def leave(line: int) -> None:
    """Mark a line as free."""
    _words[line + TAKEN] = 0


def writer(factors: np.dtype) -> Callable[[int, Any, Any], None]:
    """``write(line, alpha, beta)`` for numbers of a dtype: the line is taken then.

    A number that the dtype does not hold becomes infinite; an int that is none of Python's floats
    raises ValueError, and the line stays free.
    """
    parts = 2 if factors.kind == "c" else 1
    size = factors.itemsize // parts
    reals, step = _reals[size], 8 // size

    def write(line: int, alpha: Any, beta: Any) -> None:
        place = step * line
        reals[place + step * ALPHA] = alpha
        reals[place + step * BETA] = beta
        _words[line + TAKEN] = 1

    def write_complex(line: int, alpha: Any, beta: Any) -> None:
        place = step * line
        reals[place + step * ALPHA] = alpha.real
        reals[place + step * (ALPHA + 1)] = alpha.imag
        reals[place + step * BETA] = beta.real
        reals[place + step * (BETA + 1)] = beta.imag
        _words[line + TAKEN] = 1

    return write if parts == 1 else write_complex


def read(line: int, factors: np.dtype) -> tuple[Any, Any]:
    """alpha and beta of a line, as scalars of NumPy's."""
    parts = 2 if factors.kind == "c" else 1
    real = np.dtype(f"f{factors.itemsize // parts}")
    step = 8 // real.itemsize
    found = TABLE[line : line + LINE].view(real)[::step]
    return tuple(
        factors.type(complex(*found[at : at + 2]) if parts == 2 else found[at])
        for at in (ALPHA, BETA)
    )
