"""Sizes of the hardware, and how one call of a kernel is laid out on it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

#: Bytes that one load instruction of a thread can move.
LOAD_BYTES = 16

#: Bytes in which memory answers: what a load leaves of them has been fetched in vain.
SECTOR_BYTES = 32

#: Shared memory that the sums of a block may take; every GPU has a kilobyte more, for what else is
#: there.
SHARED_SUM_BYTES = 47 * 1024

#: Constant memory of a module on a device: all its ``__constant__`` symbols together.
CONSTANT_BYTES = 64 * 1024

#: The largest gridDim.y and gridDim.z of every CUDA device; gridDim.x goes to 2**31 - 1.
MAX_GRID_Y = 65535
MAX_GRID_X = 2**31 - 1


#: Bytes of a panel of a matrix in host memory, where neither tiles nor the device's memory want
#: another size: long enough to hide what a launch costs the host, and two of them fit anywhere.
PANEL_BYTES = 64 * 2**20


class Device(NamedTuple):
    """What geometry and selection may know of a device.

    The simulator's stand-in has few multiprocessors, so that grids stay small there.
    """

    name: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    index: int = 0  # type: ignore[assignment]  # a tuple's search, which nobody needs here
    #: Operations in float32 in the time of one in float64, as the driver tells.
    float64_ratio: int = 2

    @property
    def has_few_doubles(self) -> bool:
        """Whether float64 is an order of magnitude slower than float32, and not half as fast."""
        return self.float64_ratio >= 16


class MemoryRange(NamedTuple):
    """A piece of memory as the driver lists it.

    Attributes
    ----------
    first, end : int
        Addresses of its first byte and of the one behind its last.
    device : int or None
        Ordinal of the GPU that it belongs to; None for memory that every GPU reaches.
    """

    first: int
    end: int
    device: int | None


_NO_SIZES: Mapping[str, int] = MappingProxyType({})


class Launch(NamedTuple):
    """Grid and block of one kernel function, each ``(x, y, z)``."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]

    @property
    def threads_per_block(self) -> int:
        return math.prod(self.block)


class Geometry(NamedTuple):
    """How one call of a kernel is laid out.

    Attributes
    ----------
    launches : tuple of Launch
        One for each function that the kernel builds, in order on the stream.
    sizes : dict of str to int
        Further 64-bit integer arguments by name, ``splits`` for instance.
    scratch : int
        Elements of the dtype of sums that the launches share as ``scratch``.
    counters : int
        Unsigned 32-bit counters, zero before the first launch and after the last, as ``counters``.
    posts : bool
        Whether all bits of ``scratch`` are ones before the first launch and after the last: see
        :mod:`gemv.language`.
    """

    launches: tuple[Launch, ...]
    sizes: Mapping[str, int] = _NO_SIZES
    scratch: int = 0
    counters: int = 0
    posts: bool = False


def one_launch(
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    sizes: Mapping[str, int] = _NO_SIZES,
    scratch: int = 0,
    counters: int = 0,
    posts: bool = False,
) -> Geometry:
    """The Geometry of a single launch, in half the time that the two constructors take."""
    new = tuple.__new__
    return new(Geometry, ((new(Launch, (grid, block)),), sizes, scratch, counters, posts))


def ceil_div(a: int, b: int) -> int:
    """Smallest integer not below ``a / b``, for ``b > 0``."""
    return -(-a // b)
