"""Whose turn it is to have the interpreter's lock: words that threads read without it.

Each launch lets go of the interpreter's lock and takes it again some microseconds later. A thread
that finds the lock taken sleeps, and whoever lets go of it then asks the operating system to wake a
sleeper. Both take longer than a launch. So a thread that comes back from a launch watches a word
first, for a short while: the owner of the turn, which is the last thread that came back from a
launch with the lock. The owner clears the word as it launches again. A thread that watches takes
the turn then, and the lock, which is free, without sleep.

The turn only says when it is worth asking for the lock, which is taken in its own way after that.
It may be wrong: an owner that launches nothing more keeps it. So threads stop watching a turn that
is not handed on, and whoever watched in vain lets some later launches ask for the lock at once.
"""

from __future__ import annotations

import ctypes
import sys

import numpy as np

from gemv.core.processors import processors

#: Words of the state, each in a line of the cache of its own: the thread that owns the turn, or 0;
#: how many threads watch; how many launches are not to watch, as others watched in vain; and how
#: many these will be the next time.
OWNER, WATCHING, SKIPPED, NEXT_SKIPPED = 0, 8, 16, 24
#: The most threads that watch, since each keeps a processor busy. More go on to the lock.
MOST_WATCHING = 4
#: How long a thread watches a turn that is not handed on, and how long it watches at all.
SPAN_NS, MOST_NS = 20_000, 200_000
#: The most launches that do not watch after one that watched in vain; a power of two, less one.
MOST_SKIPPED = 1023

#: What machine code reads.
STATE = np.zeros(NEXT_SKIPPED + 8, np.int64)


def clock() -> int:
    """The address of the system's ``clock_gettime``; 0 where nobody is to watch."""
    try:
        function = ctypes.CDLL(None).clock_gettime
    except (AttributeError, TypeError, OSError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0 if is_worth_watching() else 0


def is_worth_watching() -> bool:
    """Whether a thread may watch a word, while another one does what it waits for.

    Not where this process may use one processor only, which the other thread needs, nor in a Python
    whose threads have no lock to wait for.
    """
    return processors() > 1 and getattr(sys, "_is_gil_enabled", lambda: True)()
