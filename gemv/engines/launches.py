"""Launches: parameters packed into a block, and the block launched by machine code."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gemv.core.geometry import MAX_GRID_X, Device, Launch, ceil_div
from gemv.driver import libcuda
from gemv.driver.block import Block, Function
from gemv.driver.machine import Machine
from gemv.engines.loading import LoadedFunction, LoadedFunctions

_COPY_THREADS = 256
#: A thread for each of the 8192 pieces of 16 MB.
_FETCH_BLOCKS = 32

#: The driver reads as many bytes of an array passed by value as the kernel declares: at most so
#: many, which is what all parameters of a kernel may take together.
_MOST_VALUE_BYTES = 4096


def pack(
    functions: Sequence[LoadedFunction],
    launches: Sequence[Launch],
    factors: np.dtype,
    fixed: Mapping[str, Any],
    x_start: int = 0,
    y_start: int = 0,
    early: bool = True,
) -> Block:
    """The functions of one call with the parameters that are the same in each of its launches.

    Parameters
    ----------
    functions, launches
        What is launched, one after the other.
    factors : numpy.dtype
        Of alpha and beta.
    fixed : dict
        Parameters by name: integers, addresses, or an array that is passed by value. All others,
        such as alpha and beta, come with each launch: see :func:`enqueue`.
    x_start, y_start : int
        Bytes from the addresses that come with a launch to the first elements that are used.
    early : bool
        Whether a launch may start before the one ahead of it has ended.
    """
    parts = 2 if factors.kind == "c" else 1
    packed = [
        Function(
            int(function.handle),
            launch.grid,
            launch.block,
            function.binary.arguments,
            function.attributes if early else None,
            launch.shared,
        )
        for function, launch in zip(functions, launches, strict=True)
    ]
    return Block(packed, factors.itemsize // parts, parts, _words(fixed), x_start, y_start)


def pack_copy(function: LoadedFunction, count: int) -> Block:
    """A copy of neighbours whose addresses, x and y, come with each launch.

    It never starts early: what it waits for may be work of another GPU.
    """
    launch = _launch_of_copy(count)
    names = function.binary.arguments
    packed = Function(int(function.handle), launch.grid, launch.block, names)
    return Block([packed], 8, 1, {"rows": count, "incx": 1}, 0, 0)


def pack_copy_of_lines(
    function: LoadedFunction, count: int, length: int, x_step: int, y_step: int
) -> Block:
    """A copy of so many lines, whose beginnings are so far apart; the rest as :func:`pack_copy`."""
    launch = _launch_of_copy(count * length)
    names = function.binary.arguments
    packed = Function(int(function.handle), launch.grid, launch.block, names)
    sizes = {"rows": count, "cols": length, "x_step": x_step, "y_step": y_step}
    return Block([packed], 8, 1, sizes, 0, 0)


def pack_fetch(function: LoadedFunction, pieces: int) -> Block:
    """A fetch to the L2 cache of so many pieces, from an address on that comes with each launch."""
    grid = (min(ceil_div(pieces, _COPY_THREADS), _FETCH_BLOCKS), 1, 1)
    names = function.binary.arguments
    packed = Function(int(function.handle), grid, (_COPY_THREADS, 1, 1), names)
    return Block([packed], 8, 1, {"rows": pieces}, 0, 0)


def _launch_of_copy(count: int) -> Launch:
    grid = (min(ceil_div(count, _COPY_THREADS), MAX_GRID_X), 1, 1)
    return Launch(grid, (_COPY_THREADS, 1, 1))


@functools.lru_cache(maxsize=256)
def pack_sizes(
    functions: tuple[LoadedFunction, ...],
    launches: tuple[Launch, ...],
    factors: np.dtype,
    sizes: tuple[tuple[str, int], ...],
    early: bool = True,
) -> Block:
    """As :func:`pack`, for sizes alone: a call of the same sizes gets the same block again."""
    return pack(functions, launches, factors, dict(sizes), early=early)


def _words(fixed: Mapping[str, Any]) -> dict[str, int]:
    """The same parameters as words of 8 bytes.

    An array becomes many words: the driver finds the parameter at the first one, which has its
    name, and the rest behind it. So their names only have to differ.
    """
    words: dict[str, int] = {}
    for name, value in fixed.items():
        if isinstance(value, np.ndarray):
            data = np.zeros(_MOST_VALUE_BYTES, np.uint8)
            data[: value.nbytes] = value.view(np.uint8)
            names = [name, *(f"{name}, word {k}" for k in range(1, len(data) // 8))]
            words.update(zip(names, data.view(np.int64).tolist(), strict=True))
        else:
            words[name] = value
    return words


def enqueue(
    machine: Machine,
    block: Block,
    factors: np.dtype,
    stream: int,
    a: int = 0,
    x: int = 0,
    y: int = 0,
    alpha: Any = 0,
    beta: Any = 0,
    scratch: int = 0,
    counters: int = 0,
) -> None:
    """Launch a block on `stream` with these addresses and numbers.

    Raises
    ------
    CudaError
        If the driver refuses.
    """
    numbers: tuple = (factors.type(alpha), factors.type(beta))
    submit = machine.enqueue
    if factors.kind == "c":
        numbers = tuple(part for number in numbers for part in (number.real, number.imag))
        submit = machine.enqueue_complex
    status = submit(block.address, stream, a, x, y, *numbers, scratch, counters)
    if status:
        raise libcuda.failed(status)


class Launcher:
    """Launches functions that are no part of a product."""

    def __init__(self, machine: Machine, functions: LoadedFunctions) -> None:
        self._machine, self._functions = machine, functions

    def launch(
        self, function: LoadedFunction, launch: Launch, stream: int, values: Mapping[str, Any]
    ) -> None:
        """Launch a function with all its parameters by name."""
        fixed = {name: value for name, value in values.items() if name not in ("alpha", "beta")}
        numbers = {name: value for name, value in values.items() if name in ("alpha", "beta")}
        block = pack([function], [launch], function.dtype, fixed)
        enqueue(self._machine, block, function.dtype, stream, **numbers)

    def copy_vector(
        self,
        device: Device,
        dtype: np.dtype,
        count: int,
        source: int,
        stride: int,
        target: int,
        stream: int,
    ) -> None:
        """Enqueue a copy of `count` elements, `stride` apart, to contiguous memory."""
        function = self._functions.copy(dtype, device, stream)
        values = {"rows": count, "x": source, "incx": stride, "y": target}
        self.launch(function, _launch_of_copy(count), stream, values)
