"""What a launch is told of several products: how many there are, and how far apart they lie.

The kernels of a batch's items, and of vectors that share a matrix, find each of these by itself.
Their ``geometry`` takes a :class:`~gemv.core.batch.Batch` of one dimension, so it is their
``of_batch`` as well. Without a batch it is for :data:`ONE` product.
"""

from __future__ import annotations

from gemv.core.batch import OPERANDS, Batch
from gemv.core.geometry import MAX_GRID_Y, ceil_div

#: A single product.
ONE = Batch((1,), ((0,),) * len(OPERANDS))


def steps_of(batch: Batch) -> dict[str, int]:
    """The sizes ``a_step``, ``x_step`` and so on: elements from an item to the next one."""
    return {f"{name}_step": step for name, (step,) in zip(OPERANDS, batch.strides, strict=True)}


def sizes_of_vectors(batch: Batch) -> dict[str, int]:
    """The sizes ``vectors``, ``x_step`` and so on, of vectors that share the matrix."""
    steps = steps_of(batch)
    del steps["a_step"]
    return {"vectors": batch.items, **steps}


def turns_of_vectors(name: str, vectors: int, at_once: int) -> int:
    """How many blocks take the same part of A, each for `at_once` of the vectors.

    Raises
    ------
    ValueError
        If these are more than a grid of the kernel called `name` can have.
    """
    turns = ceil_div(vectors, at_once)
    if turns > MAX_GRID_Y:
        raise ValueError(f"{name}: {vectors} vectors are more than a grid has blocks for")
    return turns
