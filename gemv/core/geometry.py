"""What a kernel's ``geometry`` is given and returns: sizes of the device, grids and blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

#: Bytes that one load instruction of a thread can move.
LOAD_BYTES = 16

#: An A of at most so many bytes may be in the L2 cache, when it is read again.
MAY_BE_HOT = 24 << 20

#: Bytes of a sector, which the memory always fetches as a whole, and of a line of the caches.
SECTOR_BYTES = 32
CACHE_LINE_BYTES = 128
#: Bytes that one instruction brings to the L2 cache ahead of loads.
PREFETCH_BYTES = 2048

#: Shared memory that the sums of a block may take. Every GPU gives a block 48 KB; the last one is
#: for the rest.
SHARED_SUM_BYTES = 47 * 1024

#: Constant memory of a module on a device: all its ``__constant__`` symbols together.
CONSTANT_BYTES = 64 * 1024

#: The largest gridDim.y and gridDim.z of every CUDA device; gridDim.x goes to 2**31 - 1.
MAX_GRID_Y = 65535
MAX_GRID_X = 2**31 - 1


#: Parameters of a kernel that point to int64 in device memory: sizes and places of items.
TABLES = ("table", "places", "blocks")

#: Bytes of a panel of a matrix in host memory, unless tiles or the device's memory need another
#: size. A copy of it takes longer than a launch costs the host, and two panels fit into any GPU.
PANEL_BYTES = 64 * 2**20


class Chip(NamedTuple):
    """What the driver tells of a GPU's parts; the defaults are an H200's.

    Attributes
    ----------
    threads, registers, shared_bytes, blocks : int
        What a multiprocessor holds at once, for all its blocks.
    clock_khz, memory_khz : int
        Clocks of the multiprocessors and of the memory.
    bus_bits : int
        Width of the bus to the memory.
    cache_bytes : int
        Size of the L2 cache.
    block_bytes : int
        Shared memory that a block gets if its launch asks for it; 48 KB come without asking.
    """

    threads: int = 2048
    registers: int = 65536
    shared_bytes: int = 228 * 1024
    blocks: int = 32
    clock_khz: int = 1_980_000
    memory_khz: int = 3_201_000
    bus_bits: int = 6144
    cache_bytes: int = 60 * 2**20
    block_bytes: int = 227 * 1024


#: The chip that a device has if nothing is said of it.
_CHIP = Chip()


class Device(NamedTuple):
    """What geometry and selection may know of a device.

    The simulator's stand-in has few multiprocessors, so that grids stay small there.
    """

    name: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    index: int = 0  # type: ignore[assignment]  # a tuple's search, which nobody needs here
    #: How many operations in float32 take the time of one in float64; the driver tells.
    float64_ratio: int = 2
    chip: Chip = _CHIP

    def lacks(self, capability: tuple[int, int], block_bytes: int = 0) -> str | None:
        """Why this GPU cannot run what needs a compute capability, or None.

        `block_bytes` is the shared memory that a block needs. The simulator, whose own capability
        is 0.0, has all of them.
        """
        if self.compute_capability != (0, 0) and self.compute_capability < capability:
            needed, has = (
                ".".join(map(str, each)) for each in (capability, self.compute_capability)
            )
            return f"it needs compute capability {needed} or newer, and {self.name} has {has}"
        if self.chip.block_bytes < block_bytes:
            return (
                f"it needs {block_bytes} bytes of shared memory in a block, and {self.name} gives"
                f" {self.chip.block_bytes}"
            )
        return None

    @property
    def has_few_doubles(self) -> bool:
        """Whether float64 takes 16 times as long as float32 or more; else it takes twice."""
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
    """Grid and block of one kernel function, each ``(x, y, z)``.

    Attributes
    ----------
    shared : int
        Bytes of dynamic shared memory of a block: ``cuda.shared.array(0, ...)`` in the function.
        They follow from what the function is compiled for, so that all launches of it have as many.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int = 0

    @property
    def threads_per_block(self) -> int:
        return math.prod(self.block)


class Geometry(NamedTuple):
    """The launches of one call of a kernel.

    Attributes
    ----------
    launches : tuple of Launch
        One for each function that the kernel builds, in order on the stream.
    sizes : dict of str to int
        Further 64-bit integer arguments by name, ``splits`` for instance.
    scratch : int
        Length of the array ``scratch``, which the launches share; its elements are sums.
    counters : int
        Length of the array ``counters`` of unsigned 32-bit integers. All are zero before the first
        launch and after the last.
    posts : bool
        Whether blocks pass sums through ``scratch`` by ``post`` and ``take``. All bits of it are
        then ones before the first launch and after the last.
    """

    launches: tuple[Launch, ...]
    sizes: Mapping[str, int] = _NO_SIZES
    scratch: int = 0
    counters: int = 0
    posts: bool = False


#: Makes a named tuple, in half the time that its own constructor takes.
_new = tuple.__new__


def one_launch(
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    sizes: Mapping[str, int] = _NO_SIZES,
    scratch: int = 0,
    counters: int = 0,
    posts: bool = False,
) -> Geometry:
    """The Geometry of a single launch, in half the time that the two constructors take."""
    return _new(Geometry, ((_new(Launch, (grid, block, 0)),), sizes, scratch, counters, posts))


def ceil_div(a: int, b: int) -> int:
    """Smallest integer not below ``a / b``, for ``b > 0``."""
    return -(-a // b)
