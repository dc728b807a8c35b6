"""Other ways to compute a list of products of different sizes, with PyTorch and with CuPy.

A library computes them one by one, in the same memory as our call: `torch.mv`, and cuBLAS's gemv.
`torch.bmm` computes all at once, from copies padded with zeros to the largest matrix. The copies
are made before the clock starts; the bytes of the padding count as its own time.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gemv.core.dtypes import dtype_name
from gemv.measure import peers as of_one
from gemv.measure.clock import copies_past_l2
from gemv.measure.frames import Place
from gemv.measure.peers import TorchMemory
from gemv.measure.plain import Enqueue
from gemv.measure.ragged import RaggedLayout


@dataclass(frozen=True, slots=True)
class Way:
    """One other way to compute a list.

    Attributes
    ----------
    name : str
    calls : callable
        ``calls(starts)`` gives for each frame, by its address, a function that enqueues all
        products on a stream. The values in the frames are final by then.
    checked : callable
        ``checked(start)`` gives one that leaves the results in the frame's y.
    """

    name: str
    calls: Callable[[Sequence[int]], list[Enqueue]]
    checked: Callable[[int], Enqueue]


def ways(
    library: str, layout: RaggedLayout, memory: Any, l2_bytes: int
) -> tuple[list[Way], dict[str, str]]:
    """The ways of a library, and why it lacks others.

    Parameters
    ----------
    library : {"torch", "cupy"}
    layout : RaggedLayout
    memory : array
        Bytes on the device that all frames lie in, with ``__cuda_array_interface__``.
    l2_bytes : int
        Size of the L2 cache: padded copies are used in turn until they exceed it.
    """
    found, refused = _one_by_one(library, layout, memory)
    if library == "torch":
        padded = _padded(layout, memory, l2_bytes)
        if isinstance(padded, str):
            refused[BMM] = padded
        else:
            found.append(padded)
    return found, refused


#: What the padded way is called in results.
BMM = "torch.bmm, padded"


def _one_by_one(
    library: str, layout: RaggedLayout, memory: Any
) -> tuple[list[Way], dict[str, str]]:
    singles = []
    for problem in layout.problems:
        found, refused = of_one.peers(library, problem, 0, memory)
        if not found:
            return [], {f"{name}, one by one": why for name, why in refused.items()}
        singles.append(found[0])

    def at(start: int) -> Enqueue:
        places = zip(layout.a_at, layout.x_at, layout.y_at, strict=True)
        each = [
            single.checked(Place(start + a, start + x, start + y))
            for single, (a, x, y) in zip(singles, places, strict=True)
        ]

        def call(stream: int) -> None:
            for enqueue in each:
                enqueue(stream)

        return call

    name = f"{singles[0].name}, one by one"
    return [Way(name, lambda starts: [at(start) for start in starts], at)], {}


def _padded(layout: RaggedLayout, memory: Any, l2_bytes: int) -> Way | str:
    torch = importlib.import_module("torch")
    name, size = dtype_name(layout.dtype), layout.dtype.itemsize
    dtype = getattr(torch, name, None)
    if dtype is None:
        return f"PyTorch has no {name}"
    problems, rows = layout.problems, layout.cell.order == "C"
    most_m, most_n = max(p.m for p in problems), max(p.n for p in problems)
    most_rows, most_cols = max(p.rows for p in problems), max(p.cols for p in problems)
    tensors = TorchMemory(torch, memory, dtype, size)
    nbytes = len(problems) * most_m * most_n * size

    def operands(start: int) -> tuple[Any, Any, Any]:
        """op(A), x and y with zeros behind the elements of each item."""
        shape = (most_m, most_n) if rows else (most_n, most_m)
        a = torch.zeros((len(problems), *shape), dtype=dtype, device="cuda")
        x = torch.zeros((len(problems), most_cols, 1), dtype=dtype, device="cuda")
        y = torch.zeros((len(problems), most_rows, 1), dtype=dtype, device="cuda")
        for k, problem in enumerate(problems):
            m, n = (problem.m, problem.n) if rows else (problem.n, problem.m)
            a[k, :m, :n] = tensors.at(start + layout.a_at[k], (m, n), (n, 1))
            x[k, : problem.cols, 0] = tensors.at(start + layout.x_at[k], (problem.cols,), (1,))
        if rows == (problems[0].trans != 0):
            a = a.swapaxes(1, 2)
        torch.cuda.synchronize()
        return (a.conj() if problems[0].conj else a), x, y

    def product(a: Any, x: Any, y: Any) -> Enqueue:
        def call(stream: int) -> None:
            with tensors.on(stream):
                torch.bmm(a, x, out=y)

        return call

    def calls(starts: Sequence[int]) -> list[Enqueue]:
        count = min(len(starts), copies_past_l2(nbytes, l2_bytes))
        made = [product(*operands(start)) for start in starts[:count]]
        return [made[k % count] for k in range(len(starts))]

    def checked(start: int) -> Enqueue:
        a, x, y = operands(start)
        multiply = product(a, x, y)

        def call(stream: int) -> None:
            multiply(stream)
            with tensors.on(stream):
                for k, problem in enumerate(problems):
                    own = tensors.at(start + layout.y_at[k], (problem.rows,), (1,))
                    own[:] = y[k, : problem.rows, 0]

        return call

    return Way(BMM, calls, checked)
