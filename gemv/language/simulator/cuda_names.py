"""The names of ``cuda`` that Numba's simulator lacks, added to its module.

Each looks up the thread that is running right now, so kernels that Numba's own simulator launches
do not see them and work as before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from operator import attrgetter
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
from greenlet import getcurrent
from numba import cuda, types
from numba.cuda.np.numpy_support import as_dtype

from gemv.language.simulator.atomics import AtomicNamespace, threadfence, threadfence_block
from gemv.language.simulator.memory import CheckedArray
from gemv.language.simulator.shared import SharedArray
from gemv.language.simulator.thread import WARP, SimulatorError, Thread, current
from gemv.language.simulator.warp import (
    BLOCK_VOTES,
    SHUFFLES,
    VOTES,
    activemask,
    block_barrier,
    lanemask_lt,
    match_any_sync,
    shuffle,
    syncwarp,
    vote,
)

# Indices ----------------------------------------------------------------------------------------


def triple(get: Callable[[Thread], tuple[int, int, int]], name: str) -> Any:
    """An object whose x, y and z are those of the thread that reads them."""

    def member(k: int) -> property:
        def of_thread(self: Any) -> int:
            thread = getcurrent()  # current() written out: kernels ask often
            return get(thread if type(thread) is Thread else current())[k]

        return property(of_thread)

    members = {axis: member(k) for k, axis in enumerate("xyz")}
    return type(name, (), {"__slots__": (), **members})()


def _per_dimension(dimensions: int, values: list[int]) -> Any:
    if dimensions not in (1, 2, 3):
        raise ValueError(f"a grid has 1 to 3 dimensions, not {dimensions}")
    return values[0] if dimensions == 1 else tuple(values[:dimensions])


def grid_index(dimensions: int) -> Any:
    thread = current()
    places = zip(thread.block.where, thread.block.grid.block_shape, thread.where, strict=True)
    return _per_dimension(dimensions, [block * size + own for block, size, own in places])


def _gridsize(dimensions: int) -> Any:
    grid = current().block.grid
    shapes = zip(grid.grid_shape, grid.block_shape, strict=True)
    return _per_dimension(dimensions, [blocks * size for blocks, size in shapes])


# Arrays -----------------------------------------------------------------------------------------


def _numpy_dtype(dtype: Any) -> np.dtype:
    return as_dtype(dtype) if isinstance(dtype, types.Type) else np.dtype(dtype)


#: Static shared memory that a block can have.
_MAX_SHARED_BYTES = 48 * 1024


def _shared_array(shape: Any, dtype: Any, alignment: int | None = None) -> SharedArray:
    """The block's array of this call site, made by the first thread that comes.

    With shape 0 it is all of the block's dynamic shared memory, which every such array is.
    """
    block = current().block
    if shape == 0:
        return block.dynamic_array(_numpy_dtype(dtype))
    frame = sys._getframe(1)
    code = frame.f_code
    # By the id of its type first, whose hash takes longest; the type stays referenced with it.
    place = (id(code), frame.f_lasti, shape, id(dtype))
    found = block.arrays.get(place)
    if found is None:
        found = block.arrays[place] = dtype, _array_of_site(block, frame, shape, dtype)
    return found[1]


def _array_of_site(block: Any, frame: FrameType, shape: Any, dtype: Any) -> SharedArray:
    """The array of a block that a frame asks for."""
    # Shape and type tell apart closures, which share their code. The code stays referenced so
    # that its id is not used again.
    code = frame.f_code
    key = (id(code), frame.f_lasti, shape, dtype)
    known = block.shared.get(key)
    if known is None:
        array = SharedArray.made(shape, _numpy_dtype(dtype), block.grid.schedule.late)
        block.shared_bytes += array.data.nbytes
        if block.shared_bytes > _MAX_SHARED_BYTES:
            raise SimulatorError(
                f"{block.shared_bytes} bytes of shared memory: a block has {_MAX_SHARED_BYTES}"
            )
        known = block.shared[key] = code, array
        block.memories.append(array.memory)
    return known[1]


def _local_array(shape: Any, dtype: Any, alignment: int | None = None) -> CheckedArray:
    current()
    return CheckedArray.poisoned(shape, _numpy_dtype(dtype))


# Arithmetic -------------------------------------------------------------------------------------


def _bits(value: Any) -> tuple[int, int]:
    """The bits of an integer and their number; 32 for a Python integer that fits."""
    if isinstance(value, np.integer):
        width = 8 * value.itemsize
    else:
        width = 32 if -(1 << 31) <= value < 1 << 32 else 64
    return int(value) & ((1 << width) - 1), width


def _popc(value: Any) -> int:
    return _bits(value)[0].bit_count()


def _clz(value: Any) -> int:
    bits, width = _bits(value)
    return width - bits.bit_length()


def _ffs(value: Any) -> int:
    bits = _bits(value)[0]
    return (bits & -bits).bit_length()


def _fma(a: Any, b: Any, c: Any) -> Any:
    """In double precision for float32, hence all but correctly rounded; plain for float64."""
    if isinstance(a, np.float32) and isinstance(b, np.float32) and isinstance(c, np.float32):
        return np.float32(np.float64(a) * np.float64(b) + np.float64(c))
    return a * b + c


def _selp(condition: Any, a: Any, b: Any) -> Any:
    return a if condition else b


# Installation -----------------------------------------------------------------------------------


def install() -> None:
    """Add the names to Numba's module, once for all threads and kernels."""
    names: dict[str, Any] = {
        "threadIdx": triple(attrgetter("where"), "threadIdx"),
        "blockIdx": triple(attrgetter("block.where"), "blockIdx"),
        "blockDim": triple(attrgetter("block.grid.block_shape"), "blockDim"),
        "gridDim": triple(attrgetter("block.grid.grid_shape"), "gridDim"),
        "warpsize": WARP,
        "shared": SimpleNamespace(array=_shared_array),
        "local": SimpleNamespace(array=_local_array),
        "atomic": AtomicNamespace(),
        "threadfence": threadfence,
        "threadfence_system": threadfence,
        "threadfence_block": threadfence_block,
        "syncwarp": syncwarp,
        "match_any_sync": match_any_sync,
        "activemask": activemask,
        "lanemask_lt": lanemask_lt,
        "grid": grid_index,
        "gridsize": _gridsize,
        "popc": _popc,
        "clz": _clz,
        "ffs": _ffs,
        "fma": _fma,
        "selp": _selp,
    }
    names |= {name: block_barrier(name) for name in BLOCK_VOTES}
    names |= {name: shuffle(name, source) for name, source in SHUFFLES.items()}
    names |= {name: vote(name, count) for name, count in VOTES.items()}
    for name, value in names.items():
        setattr(cuda, name, value)

    # `cuda.laneid` is a bare number, so the module itself has to be asked each time.
    fallback = vars(cuda).get("__getattr__")

    def lookup(name: str) -> Any:
        if name == "laneid" and type(getcurrent()) is Thread:
            return current().lane
        if fallback is not None:
            return fallback(name)
        raise AttributeError(f"module {cuda.__name__!r} has no attribute {name!r}")

    vars(cuda)["__getattr__"] = lookup
