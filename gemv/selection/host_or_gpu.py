"""Which of the host's BLAS and the GPU is faster for arrays in host memory: two predicted times.

The host reads A where it is. The GPU gets a copy of A over the link, and reads it while it
arrives, so the time of the kernel is hidden behind that of the copy. The numbers are those of the
table ``[host]`` in the file of a machine; nothing is timed. Only bytes of A count: those of x and y
add to both times in nearly the same proportion.
"""

from __future__ import annotations

import sys
from typing import NamedTuple


class Numbers(NamedTuple):
    """The table ``[host]`` of a machine: times in seconds, rates in bytes of A per second.

    Attributes
    ----------
    start : float
        Time of a call of the host's BLAS on a matrix of a few bytes.
    item : float
        Time that each further item of a batch takes on the host, whatever its size.
    rate, thread_rate : float
        The rate at which BLAS reads A, with all threads, and with one.
    convert, narrow : float
        Time in which the host converts an element of A to the dtype that BLAS computes in, and the
        same for float16 and bfloat16.
    gather : float
        Time in which an element is copied where BLAS cannot take A as it lies in memory.
    gpu_start : float
        Time of a call that copies a matrix of a few bytes to the GPU.
    link_rate, link_thread_rate : float
        The rate of the copy, with all threads that take part in it, and with one.
    """

    start: float
    item: float
    rate: float
    thread_rate: float
    convert: float
    narrow: float
    gather: float
    gpu_start: float
    link_rate: float
    link_thread_rate: float

    def with_threads(self, blas: int, copying: int) -> Numbers:
        """The numbers of a process whose BLAS has `blas` threads, and whose copies so many."""
        return self._replace(
            rate=min(self.rate, blas * self.thread_rate),
            link_rate=min(self.link_rate, copying * self.link_thread_rate),
        )

    def cautious(self) -> Numbers:
        """These numbers for a machine that was not measured: its link has the rate of one thread.

        That is the slowest link that was measured, so a call leaves the host's memory only where
        the host has to convert or to gather A, or to call BLAS very often.
        """
        return self._replace(link_rate=min(self.link_rate, self.link_thread_rate))


class Work(NamedTuple):
    """A call on host arrays, as far as its time follows from it.

    Attributes
    ----------
    read_bytes : int
        Bytes of A that BLAS reads on the host, for all items.
    sent_bytes : int
        Bytes of A that cross the link.
    items : int
        Products.
    converted, narrow, gathered : int
        Elements of A that the host converts, converts from float16 or bfloat16, or gathers before
        BLAS reads them.
    prepared : int
        Elements that the host converts before they cross the link.
    """

    read_bytes: int
    sent_bytes: int
    items: int = 1
    converted: int = 0
    narrow: int = 0
    gathered: int = 0
    prepared: int = 0


class Comparison(NamedTuple):
    """The predicted times of a call on host arrays; ``str()`` of it is a sentence.

    Attributes
    ----------
    chosen : str
        The backend that computes it, ``"host"`` or ``"cuda"``: the one with the smaller time.
    host_s, gpu_s : float
        Seconds that are expected of SciPy's BLAS on the host, and of the GPU with the copy of A.
    """

    chosen: str
    host_s: float
    gpu_s: float

    def __str__(self) -> str:
        return (
            f"SciPy's BLAS on the host is expected to take {_in_words(self.host_s)}, the GPU with"
            f" the copy of A {_in_words(self.gpu_s)}."
        )


def compared(numbers: Numbers, work: Work) -> Comparison:
    """The predicted times of a call; the host computes it where they are equal."""
    host_s = (
        numbers.start
        + (work.items - 1) * numbers.item
        + work.read_bytes / numbers.rate
        + work.converted * numbers.convert
        + work.narrow * numbers.narrow
        + work.gathered * numbers.gather
    )
    gpu_s = (
        numbers.gpu_start + work.sent_bytes / numbers.link_rate + work.prepared * numbers.convert
    )
    return Comparison("cuda" if gpu_s < host_s else "host", host_s, gpu_s)


def most_bytes(numbers: Numbers, gathered_size: int | None = None) -> int:
    """The host computes one product of an A that has at most so many bytes, without asking again.

    Parameters
    ----------
    gathered_size : int, optional
        Bytes of an element, where the host gathers the elements of A.
    """
    lost = 1 / numbers.rate - 1 / numbers.link_rate  # seconds that the host is slower, per byte
    if gathered_size is not None:
        lost += numbers.gather / gathered_size
    ahead = numbers.gpu_start - numbers.start
    if lost <= 0:
        return sys.maxsize if ahead >= 0 else 0
    return max(0, min(sys.maxsize, int(ahead / lost)))


def _in_words(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"
