"""Products of XLA's that were made before: told to machine code, which makes them again.

The handler in Python computes the first call of a kind. Any later one, in any thread of XLA's, is
launched by :mod:`gemv.driver.handler_ir` without the interpreter and its lock.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from gemv.calls.jax_frames import DTYPE_NUMBERS, Frame
from gemv.calls.remembered import RememberedCall
from gemv.driver import block, known_frames
from gemv.engines import backend as engines_backend

_NUMBERS = {letter: number for number, letter in DTYPE_NUMBERS.items()}
#: The last of the driver's names of default streams, which are not those of one stream each.
_DEFAULT_STREAMS = 2


def handler(in_python: Any) -> Any:
    """What XLA calls for arrays on a GPU: machine code, or `in_python` where there is none.

    Parameters
    ----------
    in_python : ctypes function
        That of :func:`gemv.calls.jax_frames.handler`, which lives as long as the process.
    """
    if engines_backend.backend() != "cuda":
        return in_python
    known_frames.STATE[known_frames.PYTHON] = ctypes.cast(in_python, ctypes.c_void_p).value or 0
    return engines_backend.engine().machine.handler


def remember(
    engine: Any, known: RememberedCall, generation: int, device: int, stream: int, frame: Frame,
    alpha: Any,
) -> bool:  # fmt: skip
    """Let machine code launch a call like this one from now on; False if it will not.

    Parameters
    ----------
    known : RememberedCall
        What was launched for `frame` on `stream`.
    generation : int
        That of the settings, read before the call was looked for.
    alpha : number or None
        None where the kernel reads it from memory, or where it comes by a ticket.
    """
    values = _factors(known, alpha)
    if values is None:
        return False
    only, keep = known_frames.ANY, None
    if known.shares_scratch:
        # Launches of one stream follow each other, but two launches of one call must not be parted
        # by those of another thread.
        if len(known.functions) != 1 or stream <= _DEFAULT_STREAMS:
            return False
        from gemv.driver import capture

        if capture.capture_of(stream) is not None:
            return False  # the graph owns the scratch memory of what it captures
        only = engine.identity(stream)
        values[-2:], keep = _scratch(engine, known, stream)
    (a, x, *_), (y,) = frame.arguments, frame.results
    rows, cols = a.shape[-2:]
    key = known_frames.Key(
        device, rows, cols, _NUMBERS[a.letter], _NUMBERS[y.letter],
        (a.address & 15, x.address & 15, y.address & 15), frame.attributes["call"].encode(),
    )  # fmt: skip
    return known_frames.remember(
        key, generation, engine.machine.publish, known.block, only, values, (known, keep)
    )


def _factors(known: RememberedCall, alpha: Any) -> np.ndarray | None:
    """The words of a launch from alpha on; None for an alpha that becomes infinite.

    alpha itself is None where it comes with each call.
    """
    real = np.float32 if known.block.words[block.REAL] == 4 else np.float64
    values = np.zeros(known_frames.ENTRY_WORDS - known_frames.VALUES, np.int64)
    if alpha is None:  # each call has its own, or their addresses
        return values
    for place, part in enumerate((alpha.real, alpha.imag) if known.complex else (alpha,)):
        with np.errstate(over="ignore"):
            number = real(part)
        if np.isinf(number) and not np.isinf(part):
            return None
        values[place : place + 1].view(real)[0] = number
    return values


def _scratch(engine: Any, known: RememberedCall, stream: int) -> tuple[tuple[int, int], Any]:
    """Addresses of scratch memory and counters of a stream, and what keeps them alive.

    A stream's memory may be replaced by a larger one; an entry then goes on with the one it has.
    """
    geometry = known.choice.geometry
    workspace = engine.workspace(geometry, known.device, stream)
    with workspace.lock:
        found = workspace.reserve(known.scratch_bytes, geometry.counters, stream, geometry.posts)
        return found, (workspace.scratch, workspace.posts, workspace.counters)
