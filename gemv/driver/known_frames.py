"""Calls of XLA that were made before, as machine code finds them: :mod:`gemv.driver.handler_ir`.

XLA calls a handler with a frame: addresses of buffers, their dtypes and lengths, and a text with
the options. What a frame was computed with is kept as an *entry* of words behind one of
:data:`HEADS` chains. A thread of XLA's walks along a chain without the interpreter's lock, so an
entry never changes once it is in one, and lives as long as the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gemv.core import memo, trace
from gemv.driver import tickets
from gemv.driver.block import PLACES

#: Words of an entry: the next one of its chain; what is compared; the text; what is launched.
NEXT = 0
DEVICE, ROWS, COLS, DTYPES, ALIGNED, LENGTH = range(1, 7)
#: What is compared word by word, from DEVICE on.
COMPARED = 6
TEXT, STREAM, BLOCK, VALUES = 7, 8, 9, 10
#: The values of a launch that an entry has: alpha to counters, as :data:`PLACES` has them.
FIRST_VALUE = PLACES["alpha"]
ENTRY_WORDS = VALUES + PLACES["counters"] + 1 - FIRST_VALUE

#: Words of the state: the handler in Python, where the count of open traces is and where the lines
#: of tickets are, the chains.
PYTHON, TRACES, TICKETS, CHAINS = 0, 1, 2, 3
#: A power of two: a chain is found by its last bits.
HEADS = 256
#: In place of a stream: any will do.
ANY = -1
#: A text is compared in words, so a shorter one is not kept.
LEAST_TEXT = 8
#: How many entries are kept in the life of a process; other calls go through Python.
MAX_ENTRIES = 4096

#: What machine code reads.
STATE = np.zeros(CHAINS + HEADS, np.int64)
STATE[TRACES], STATE[TICKETS] = trace.OPEN.ctypes.data, tickets.TABLE.ctypes.data

_entries: list[tuple] = []
#: The keys in the chains, each with the identity of the stream of its entry.
_known: set[tuple[Key, int]] = set()
_lock = threading.RLock()


class Key(NamedTuple):
    """What has to be the same for a call to be made again.

    Attributes
    ----------
    device : int
        Ordinal of the GPU.
    rows, cols : int
        Of A as it lies; of an item's, where the text has all lengths of a batch.
    a_dtype, y_dtype : int
        XLA's numbers.
    aligned : tuple of int
        The last four bits of the addresses of A, x and y.
    text : bytes
        The options.
    """

    device: int
    rows: int
    cols: int
    a_dtype: int
    y_dtype: int
    aligned: tuple[int, int, int]
    text: bytes

    @property
    def chain(self) -> int:
        """The number of its chain, as machine code reckons it."""
        return (self.rows ^ self.cols << 3 ^ self.aligned[0]) % HEADS


def remember(
    key: Key, generation: int, publish: Callable[[int, int], Any], block: Any, stream: int,
    values: np.ndarray, keep: Any,
) -> bool:  # fmt: skip
    """Let machine code make a call again from now on; False if it will not.

    Parameters
    ----------
    key : Key
    generation : int
        That of the settings from which the rest follows.
    publish : callable
        That of :class:`gemv.driver.machine.Machine`.
    block : Block
    stream : int
        The identity of the only one on which this entry may be launched, or :data:`ANY`.
    values : numpy.ndarray of int64
        alpha, beta, scratch memory and counters as the block takes them.
    keep : object
        Lives as long as the entry.
    """
    if len(key.text) < LEAST_TEXT:
        return False
    a_aligned, x_aligned, y_aligned = key.aligned
    text = np.frombuffer(key.text, np.uint8)
    entry = np.zeros(ENTRY_WORDS, np.int64)
    entry[DEVICE:TEXT] = (
        key.device, key.rows, key.cols, key.a_dtype | key.y_dtype << 32,
        a_aligned | x_aligned << 8 | y_aligned << 16, len(key.text),
    )  # fmt: skip
    entry[TEXT], entry[STREAM], entry[BLOCK] = text.ctypes.data, stream, block.address
    entry[VALUES:] = values
    with _lock:
        # Asked here, since a change of a setting counts first and then empties the chains.
        if generation != memo.generation() or len(_entries) >= MAX_ENTRIES:
            return False
        if (key, stream) in _known:  # as while a trace is open
            return True
        _known.add((key, stream))
        _entries.append((entry, text, block, keep))
        place = CHAINS + key.chain
        entry[NEXT] = STATE[place]
        publish(STATE.ctypes.data + 8 * place, entry.ctypes.data)
    return True


def forget() -> None:
    """Empty all chains."""
    with _lock:
        STATE[CHAINS:] = 0
        _known.clear()


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


memo.on_forget(forget, _renew_lock)
