"""How a matrix comes to lie on several devices: cut from host memory, or joined from arrays."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from gemv.arrays import adopt, host
from gemv.calls.operators import ADJOINT, TRANSPOSED, KeptOperator, precision_of
from gemv.core.dtypes import DTYPES, NARROW, dtype_name
from gemv.core.geometry import LOAD_BYTES
from gemv.core.narrow import cast
from gemv.core.operand import Operand, where
from gemv.core.rules import flag
from gemv.core.values import is_integer, is_word, shown, typed
from gemv.engines import backend
from gemv.engines.host import announce, known_kernel, refuse_kernel
from gemv.shards.cut import Whole
from gemv.shards.matrix import ShardedMatrix
from gemv.shards.on_host import HostShardedMatrix
from gemv.shards.places import Fabric, check_gather, ordinals, same_model
from gemv.shards.steps import Shard
from gemv.shards.streams import exported, stream_of


def spread(
    a: Any, dtype: Any, kernel: Any, devices: Any, split: Any, gather: Any, reproducible: Any
) -> KeptOperator:
    """What ``gemv.Matrix(a, devices=...)`` makes: shards of an array in host memory."""
    reproducible = flag("Matrix", "reproducible", reproducible)
    if split is not None and not is_word(split, ("rows", "columns")):
        raise ValueError(f'Matrix: split must be "rows", "columns" or None, got {shown(split)}')
    there = _count()
    asked = ordinals(devices, there)
    gather = check_gather("Matrix", gather, there)
    operand = adopt.adopt("Matrix", "a", a, None, backend.HOME)
    wanted = precision_of(operand, dtype)
    if kernel is not None:
        known_kernel("Matrix", kernel)
    if not operand.on_host:
        raise TypeError(
            f"Matrix: a is {where(operand)}, and devices= spreads arrays of host memory;"
            " gemv.sharded takes device arrays that are shards already"
        )
    if backend.backend() == "host":
        refuse_kernel("Matrix", kernel)
        announce()
        return HostShardedMatrix(
            np.array(host.host_copy(operand, wanted)), split or "rows", len(asked)
        )
    fabric = _fabric(asked)
    _require_alike(fabric, reproducible)
    m, n = operand.shape
    strides = (n, 1) if operand.strides[1] == 1 else (1, m)
    whole = Whole((m, n), strides, wanted, 0, fabric.places[0].device, kernel=kernel)
    whole = _cut(whole, split, len(asked), reproducible)
    array = np.asarray(operand.owner)
    array = cast(array, wanted) if array.dtype in NARROW else array
    return ShardedMatrix(whole, fabric, _stored(whole, fabric, array), gather, reproducible)


def _cut(whole: Whole, split: str | None, count: int, reproducible: bool) -> Whole:
    """The matrix cut into shards of rows, or of columns where rows give much less even ones."""
    if 0 in whole.shape:
        whole = whole._replace(split=split or "rows")
        return whole._replace(bounds=(0,) * count + (whole.extent,))
    adjoint = ADJOINT if whole.dtype.kind == "c" else TRANSPOSED
    if split is not None:
        return whole._replace(split=split).cut_evenly(count, adjoint, reproducible)
    by_rows = whole._replace(split="rows").cut_evenly(count, adjoint, reproducible)
    if not by_rows.uneven:
        return by_rows
    by_columns = whole._replace(split="columns").cut_evenly(count, adjoint, reproducible)
    return by_rows if by_columns.uneven or not by_columns.has_bits(0) else by_columns


def _stored(whole: Whole, fabric: Fabric, array: np.ndarray) -> tuple[Shard, ...]:
    """The shards, copied to their places: to each GPU by a thread of its own."""
    # A single column without gaps is one line, though its columns have stride 1 as well.
    lines_are_rows = 0 in whole.shape or whole.lines_are_rows
    lines = array if lines_are_rows else array.T
    cut_lines = lines_are_rows == (whole.split == "rows")

    def store(number: int) -> Shard:
        place = fabric.places[number]
        start, end = whole.bounds[number : number + 2]
        if start == end or 0 in whole.shape:
            return Shard(place, None, 0)
        mine = lines[start:end] if cut_lines else lines[:, start:end]
        _, _, pitch, offset = whole.stored(number)
        return Shard(place, place.store(mine, whole.dtype, pitch, offset), pitch)

    numbers = range(len(fabric.places))
    devices = len({place.index for place in fabric.places})
    if devices == 1:
        return tuple(map(store, numbers))
    with ThreadPoolExecutor(devices, "gemv-shards") as threads:
        return tuple(threads.map(store, numbers))


def sharded(
    parts: Sequence[Any], axis: int = 0, *, gather: Any = "x", reproducible: bool = True
) -> KeptOperator:
    """One matrix from device arrays where they lie, on one GPU or on several; nothing is copied.

    Parameters
    ----------
    parts : sequence of arrays
        Device arrays of one dtype, of any library, in the order of their rows or columns. Memory
        runs along the rows in all of them, or down the columns. A part may have no rows.
    axis : {0, 1}
        0 joins rows, 1 joins columns.
    gather : {"x", "all", None} or int
        Where a y is gathered, as in :class:`gemv.Matrix`.
    reproducible : bool, optional
        Whether a product must have the bits of one device, as in :class:`gemv.Matrix`.

    Returns
    -------
    LinearOperator
        As ``gemv.Matrix(a, devices=...)``. It keeps the arrays in use. Work that is enqueued on
        them by now is waited for; who writes to them later has to synchronise before a product.

    Raises
    ------
    ValueError
        If shapes or strides do not go together.
    TypeError
        For an array in host memory, or dtypes that differ or are not computed in.

    Examples
    --------
    >>> import gemv, numpy as np
    >>> from numba import cuda
    >>> parts = [cuda.to_device(np.full((2, 3), value)) for value in (1.0, 2.0)]
    >>> a = gemv.sharded(parts)
    >>> a @ np.ones(3)
    array([3., 3., 6., 6.])
    """
    reproducible = flag("sharded", "reproducible", reproducible)
    if not is_integer(axis) or axis not in (0, 1):
        raise ValueError(f"sharded: axis must be 0 or 1, got {shown(axis)}")
    if not isinstance(parts, (list, tuple)):
        raise TypeError(f"sharded: parts must be a list of arrays, got {typed(parts)}")
    if not parts:
        raise ValueError("sharded: parts is empty; name at least one array")
    operands = [
        adopt.adopt(f"sharded: shard {number}", "a", each, None, backend.HOME)
        for number, each in enumerate(parts)
    ]
    _check_parts(operands, axis)
    split = ("rows", "columns")[axis]
    if backend.backend() == "host":
        for number, each in enumerate(operands):
            if not each.on_host:
                raise TypeError(
                    f"sharded: shard {number} is {where(each)}, but the backend is host, which"
                    " takes host arrays only"
                )
        announce()
        joined = np.concatenate([np.asarray(each.owner) for each in operands], axis)
        return HostShardedMatrix(joined, split, len(parts))
    for number, each in enumerate(operands):
        if each.on_host:
            raise TypeError(
                f"sharded: shard {number} is in host memory; gemv.Matrix(a, devices=...) sends an"
                " array of host memory to GPUs"
            )
        if each.conj or each.neg:
            raise TypeError(
                f"sharded: shard {number} is a lazy negative or conjugate: call resolve_neg() and"
                " resolve_conj() on it first"
            )
    gather = check_gather("sharded", gather, _count())
    used = next((each.device for each in operands if each.device is not None), 0)
    fabric = _fabric([used if each.device is None else each.device for each in operands])
    _require_alike(fabric, reproducible)
    whole, pitches, objection = _joined(operands, axis, fabric)
    if objection is not None and reproducible:
        raise ValueError(
            f"sharded: products would not have the bits of one device: {objection}. Pass"
            " reproducible=False for other bits"
        )
    shards = tuple(
        Shard(place, None if 0 in each.shape else each, pitch)
        for place, each, pitch in zip(fabric.places, operands, pitches, strict=True)
    )
    _wait_for(shards)
    return ShardedMatrix(whole, fabric, shards, gather, reproducible, objection)


def _check_parts(operands: list[Operand], axis: int) -> None:
    """Refuse arrays that are no shards of one matrix."""
    first = operands[0]
    known = [DTYPES[letter] for letter in "sdcz"]
    for number, each in enumerate(operands):
        if each.dtype not in known:
            raise TypeError(
                f"sharded: shard {number} has dtype {dtype_name(each.dtype)}; products are computed"
                f" in {', '.join(map(str, known))}"
            )
        if each.dtype != first.dtype:
            raise TypeError(
                f"sharded: shard {number} has dtype {each.dtype}, and shard 0 has {first.dtype}"
            )
        if each.shape[1 - axis] != first.shape[1 - axis]:
            other = ("columns", "rows")[axis]
            raise ValueError(
                f"sharded: shard {number} has {each.shape[1 - axis]} {other}, and shard 0 has"
                f" {first.shape[1 - axis]}"
            )


def _joined(
    operands: list[Operand], axis: int, fabric: Fabric
) -> tuple[Whole, list[int], str | None]:
    """The matrix that shards are parts of, their pitches, and why bits cannot be those of one.

    The matrix has its lines as far apart as the shards if these are stretches of it; else as if it
    had no gaps.
    """
    bounds = [0]
    for each in operands:
        bounds.append(bounds[-1] + each.shape[axis])
    shape = [0, 0]
    shape[axis], shape[1 - axis] = bounds[-1], operands[0].shape[1 - axis]
    by_rows = _lines_are_rows(operands)
    lines = 0 if by_rows else 1  # the axis that counts lines
    line = shape[1 - lines]
    several = [each for each in operands if 0 not in each.shape and each.shape[lines] > 1]
    along = axis == lines
    step = several[0].strides[lines] if along and several else max(line, 1)
    strides = (step, 1) if by_rows else (1, step)
    there = [each for each in operands if 0 not in each.shape]
    address = there[0].pointer % LOAD_BYTES if there else 0
    whole = Whole(
        (shape[0], shape[1]), strides, operands[0].dtype, address, fabric.places[0].device,
        ("rows", "columns")[axis], tuple(bounds),
    )  # fmt: skip
    pitches, objection = [], None
    for number, each in enumerate(operands):
        pitch = each.strides[lines] if each.shape[lines] > 1 and 0 not in each.shape else step
        pitches.append(pitch)
        if 0 in each.shape or objection is not None:
            continue
        offset = whole.stored(number)[3]
        size = each.dtype.itemsize
        if (along and pitch != step) or (pitch - step) * size % LOAD_BYTES:
            objection = f"lines are {pitch} elements apart in shard {number}, and not {step}"
            if not along:
                objection += f" or a multiple of {LOAD_BYTES} bytes more or less"
        elif each.pointer % LOAD_BYTES != offset:
            objection = (
                f"shard {number} begins {each.pointer % LOAD_BYTES} bytes behind a multiple of"
                f" {LOAD_BYTES}, and in one matrix it would begin {offset} bytes behind one"
            )
    return whole, pitches, objection


def _lines_are_rows(operands: list[Operand]) -> bool:
    """Whether memory runs along the rows; an error unless it runs in one way in all shards."""
    by_rows = None
    for number, each in enumerate(operands):
        m, n = each.shape
        if 0 in each.shape:
            continue
        can = (
            (n == 1 or each.strides[1] == 1) and (m == 1 or each.strides[0] >= n),
            (m == 1 or each.strides[0] == 1) and (n == 1 or each.strides[1] >= m),
        )
        if not any(can):
            raise ValueError(
                f"sharded: shard {number} of shape {each.shape} and strides {each.strides} in"
                " elements has memory that runs neither along its rows nor down its columns"
            )
        if all(can):
            continue
        if by_rows is not None and by_rows != can[0]:
            raise ValueError(
                f"sharded: memory runs {_direction(can[0])} in shard {number}, and"
                f" {_direction(by_rows)} in the shards before it"
            )
        by_rows = can[0]
    return by_rows is not False


def _direction(by_rows: bool) -> str:
    return "along the rows" if by_rows else "down the columns"


def _wait_for(shards: tuple[Shard, ...]) -> None:
    """Let every place come after the work that is pending on its array."""
    engine = backend.engine()
    for place, a, _ in shards:
        if a is None or a.device is None:
            continue
        with place.current():
            if exported(a, place.stream) is None:
                engine.wait(place.stream, stream_of(a))
        place.settle()  # streams that are made later, for plans, need not wait for it


def _count() -> int:
    """How many devices the backend has; the host's parts have any number."""
    name = backend.backend()
    if name == "cuda":
        from gemv.shards import cuda

        backend.engine()
        return cuda.count()
    return 1


def _fabric(devices: list[int]) -> Fabric:
    engine = backend.engine()
    if engine.name == "cuda":
        from gemv.shards.cuda import CudaFabric

        return CudaFabric(engine, devices)
    from gemv.shards.simulated import SimulatedFabric

    return SimulatedFabric(engine, devices)


def _require_alike(fabric: Fabric, reproducible: bool) -> None:
    different = same_model(fabric.places)
    if different is not None and reproducible:
        raise ValueError(
            f"Matrix: {different}: kernels are chosen for one model, so bits would depend on which"
            " GPU is first; pass reproducible=False to accept that"
        )
