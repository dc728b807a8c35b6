"""The peers of batches and of several vectors: products of matrices in PyTorch and CuPy, cuBLAS.

As for one product (:mod:`gemv.measure.peers`), a peer works on the same memory as our call. To a
library several vectors of one matrix are the columns of a second matrix, which is stored transposed
here, and the vectors of a batch are matrices of one column.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from gemv.core.dtypes import dtype_name
from gemv.measure import peers as of_one
from gemv.measure.frames import FramedCell, Place
from gemv.measure.peers import LETTERS, Peer, TorchMemory, cublas_form
from gemv.measure.plain import Enqueue

#: Makes an array at an address, with a shape and strides in elements.
_ArrayAt = Callable[[int, tuple[int, ...], tuple[int, ...]], Any]


def peers(library: str, framed: FramedCell, memory: Any) -> tuple[list[Peer], dict[str, str]]:
    """Routines of a library for a cell of several items, and why others cannot take it.

    The parameters are those of :func:`gemv.measure.peers.peers`, but for the cell.
    """
    return {"torch": _torch, "cupy": _cupy}[library](framed, memory)


def _matrices(framed: FramedCell, place: Place, array_at: _ArrayAt) -> tuple[Any, Any, Any]:
    """op(A), x and y as matrices of which the third is the product of the first two."""
    problem, layout = framed.problem, framed.layout
    rows, cols, items = problem.rows, problem.cols, layout.items
    steps = problem.row_stride, problem.col_stride
    if layout.a_step:
        a = array_at(place.a, (items, rows, cols), (layout.a_step, *steps))
        x = array_at(place.x, (items, cols, 1), (cols, 1, 1))
        return a, x, array_at(place.y, (items, rows, 1), (rows, 1, 1))
    a = array_at(place.a, (rows, cols), steps)
    x = array_at(place.x, (cols, items), (1, cols))
    return a, x, array_at(place.y, (rows, items), (1, rows))


def _torch(framed: FramedCell, memory: Any) -> tuple[list[Peer], dict[str, str]]:
    torch = importlib.import_module("torch")
    problem, beta = framed.problem, framed.cell.beta
    batch = framed.layout.a_step > 0
    name = {
        (True, False): "torch.bmm", (True, True): "torch.baddbmm",
        (False, False): "torch.mm", (False, True): "torch.addmm",
    }[batch, beta != 0]  # fmt: skip
    dtype = getattr(torch, dtype_name(problem.dtype), None)
    if dtype is None:
        return [], {name: f"PyTorch has no {dtype_name(problem.dtype)}"}
    tensors = TorchMemory(torch, memory, dtype, problem.dtype.itemsize)
    routine = getattr(torch, name.removeprefix("torch."))

    def product(place: Place) -> Enqueue:
        a, x, y = _matrices(framed, place, tensors.at)
        a = a.conj() if problem.conj else a

        def call(stream: int) -> None:
            with tensors.on(stream):
                if beta:
                    routine(y, a, x, beta=beta, out=y)
                else:
                    routine(a, x, out=y)

        return call

    return [Peer(name, product, product)], {}


def _cupy(framed: FramedCell, memory: Any) -> tuple[list[Peer], dict[str, str]]:
    found, refused = [], {}
    for name, make in (("cupy.matmul", _matmul), ("cuBLAS gemvStridedBatched", _strided)):
        product = make(framed, memory)
        if isinstance(product, str):
            refused[name] = product
        else:
            found.append(Peer(name, product, product))
    return found, refused


def _matmul(framed: FramedCell, memory: Any) -> Callable[[Place], Enqueue] | str:
    problem = framed.problem
    if framed.cell.beta:
        return "it adds no y"
    if problem.conj:
        return "it would conjugate a copy of A"
    if dtype_name(problem.dtype) == "bfloat16":
        return "CuPy has no bfloat16"
    cupy = importlib.import_module("cupy")
    everything, itemsize = cupy.asarray(memory), problem.dtype.itemsize
    base = int(memory.__cuda_array_interface__["data"][0])

    def array_at(address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        reach = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
        part = everything[address - base :][: reach * itemsize].view(problem.dtype)
        steps = tuple(step * itemsize for step in strides)
        return cupy.lib.stride_tricks.as_strided(part, shape, steps)

    def product(place: Place) -> Enqueue:
        a, x, y = _matrices(framed, place, array_at)

        def call(stream: int) -> None:
            with cupy.cuda.ExternalStream(stream):
                cupy.matmul(a, x, out=y)

        return call

    return product


def _strided(framed: FramedCell, memory: Any) -> Callable[[Place], Enqueue] | str:
    problem, layout = framed.problem, framed.layout
    letter = LETTERS.get(dtype_name(problem.dtype))
    if letter is None:
        return f"cuBLAS has it not for {dtype_name(problem.dtype)}"
    form = cublas_form(problem)
    if isinstance(form, str):
        return form
    library = of_one.cublas()
    trans, m, n, lda = form
    scalars = np.array([1, framed.cell.beta], problem.dtype)
    alpha_at, beta_at = (
        ctypes.c_void_p(scalars.ctypes.data + k * problem.dtype.itemsize) for k in range(2)
    )
    steps = [ctypes.c_longlong(each) for each in (layout.a_step, problem.cols, problem.rows)]

    def product(place: Place) -> Enqueue:
        a, x, y = (ctypes.c_void_p(address) for address in (place.a, place.x, place.y))

        def call(stream: int, keep: Any = scalars) -> None:
            library.on(stream, results_on_host=True)
            library.call(
                f"cublas{letter}gemvStridedBatched", "NTC".index(trans), m, n, alpha_at, a, lda,
                steps[0], x, 1, steps[1], beta_at, y, 1, steps[2], layout.items,
            )  # fmt: skip

        return call

    return product
