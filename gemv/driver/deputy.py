"""The deputy: a thread of the system that launches for whichever thread has the interpreter's lock.

A launch may have to wait until the GPU's queue has room, perhaps for a callback on the host that
needs the interpreter's lock. So who launches lets go of the lock. Where many threads call, that
hands the lock around with each launch, and each time a thread has to be woken, which takes longer
than the launch. Two or three threads hand it on by their turn (:mod:`gemv.driver.turn`), and lost
time where the deputy launched for them. With eight threads and more their turns took longer than
calls of PyTorch.

Of four and more threads the one that has the lock keeps it, and asks the deputy to launch: a thread
of its own, which runs machine code only and never needs the lock. Who has asked watches a word
until the launch is done, some microseconds. If that takes longer, the queue may be full: the thread
lets go of the lock then and waits without it. So nothing can stop for good, and after that some
calls launch by themselves.

The deputy serves one thread at a time, in the context that is current there. It sleeps when nobody
has asked for a while; calls launch by themselves then, and wake it if many come one soon after the
other. Nobody asks it for a stream that is captured, or for the default stream that each thread has
for itself.
"""

from __future__ import annotations

import ctypes
import os

import numpy as np

from gemv.driver.turn import is_worth_watching

#: Words of the state. In the first line of the cache: what the slot is (one of the numbers below)
#: and what is asked for, block, values, stream and context; then the driver's status.
SLOT, ASKED, STATUS = 0, 1, 5
#: Words of who has the lock: the thread that called last, the one before it and the one before
#: that, each another one; how many calls the last one made in a row; how many further calls count
#: as those of many threads; how many of the last calls came soon after the one before, and when the
#: last one came; how many calls are not to ask, as one asked in vain, and how many these will be
#: the next time.
LAST, BEFORE, LONG_BEFORE, IN_A_ROW, MANY, SOON, WHEN, SKIPPED, NEXT_SKIPPED = range(8, 17)
#: Times in ns: how long a thread keeps the lock for a launch that it has asked for, how long the
#: deputy watches for the next one who asks, and what counts as soon after the call before.
SPAN, IDLE, NEAR = range(17, 20)
#: The deputy's semaphore, and a set of all signals.
SEMAPHORE, SIGNALS = 24, 32
_WORDS = SIGNALS + 16

#: What the slot is: there is no deputy; it sleeps; it is on its way; it has nothing to do; a thread
#: has the slot for itself; it has asked; the launch is done; there cannot be a deputy.
NONE, ASLEEP, WAKING, READY, TAKEN, POSTED, DONE, NEVER = range(8)

#: After a fourth thread has called, so many calls count as those of many threads.
CALLS_OF_MANY = 256
#: What these times are. Tests change the words: a busy machine may have no processor for the
#: deputy.
SPAN_NS, IDLE_NS, NEAR_NS = 20_000, 200_000, 50_000
#: How often a thread looks after that, without the lock.
PAUSE_NS = 20_000
#: So many calls, each soon after the one before, wake it.
WAKING_CALLS = 32
#: The most calls that do not ask after one that asked in vain; a power of two, less one.
MOST_SKIPPED = 1023
#: After so many calls in a row a thread lets go of the lock, and waits so long at most until
#: another one calls.
MOST_IN_A_ROW, YIELD_NS = 64, 30_000

#: Functions of the system that the machine code calls.
SYSTEM_ENTRIES = (
    "nanosleep", "sem_init", "sem_wait", "sem_post", "pthread_create",
    "pthread_detach", "pthread_sigmask",
)  # fmt: skip


def _state() -> np.ndarray:
    """Words that begin with a line of the cache."""
    words = np.zeros(_WORDS + 8, np.int64)
    start = -words.ctypes.data % 64 // 8
    return words[start : start + _WORDS]


#: What machine code reads and writes.
STATE = _state()


def reset() -> None:
    """Have no deputy: a child of this process does not inherit its threads."""
    STATE[:SIGNALS] = 0
    STATE[[SPAN, IDLE, NEAR]] = SPAN_NS, IDLE_NS, NEAR_NS
    STATE[SIGNALS:] = -1


reset()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=reset)


def system() -> dict[str, int]:
    """Addresses of the functions by name; all are 0 where there is to be no deputy.

    That is where the system lacks one of them, and where nobody is to watch a word.
    """
    none = dict.fromkeys(SYSTEM_ENTRIES, 0)
    try:
        library = ctypes.CDLL(None)
        found = {
            name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
            for name in SYSTEM_ENTRIES
        }
    except (AttributeError, TypeError, OSError):
        return none
    return found if is_worth_watching() else none
