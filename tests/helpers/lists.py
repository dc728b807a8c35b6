"""Products of a list on memory with poison around it, and kernels that all of its items get."""

from __future__ import annotations

import dataclasses

import numpy as np

from gemv.calls import ragged_tables
from gemv.core.operand import Operand
from gemv.engines import backend
from gemv.kernels import get
from gemv.selection import ragged
from gemv.selection.select import select
from helpers.problems import operand_at


def placed(case):
    """A, x and y of a case on the device as operands that begin at element 0, and y's buffer."""
    engine = backend.engine()
    operands, buffers = [], []
    for buffer, view in (
        (case.a_buffer, case.a),
        (case.x_buffer, case.x),
        (case.y_buffer, case.y_of(case.y_buffer)),
    ):
        device = engine.to_device(buffer)
        buffers.append(device)
        byte = view.__array_interface__["data"][0] - buffer.__array_interface__["data"][0]
        there = operand_at(engine, device, byte, view)
        strides = tuple(stride // view.itemsize for stride in view.strides)
        operands.append(
            Operand("numba", view.dtype, view.shape, strides, there.pointer, False, there.owner)
        )
    return operands, buffers[2]


def device_bytes(engine, packed):
    array = engine.to_device(packed.bytes)
    if engine.name == "simulator":
        pointer = array.__array_interface__["data"][0]
    else:
        pointer = array.__cuda_array_interface__["data"][0]
    return Operand("numba", np.dtype(np.uint8), array.shape, (1,), pointer, False, array)


def run_together(cases, find=ragged.groups):
    """Run the cases by tables; the launches, and the buffer of y of each afterwards."""
    engine = backend.engine()
    operands, buffers = zip(*map(placed, cases), strict=True)
    a, x, y = (list(each) for each in zip(*operands, strict=True))
    problems = [case.problem for case in cases]
    launches = ragged_tables.planned(engine, "gemv", problems, a, x, y, find)
    factors = [case.alpha for case in cases], [case.beta for case in cases]
    changing = ragged_tables.variables(launches, x, y, *factors)
    constants, memory = (device_bytes(engine, each) for each in (launches.constants, changing))
    bound = ragged_tables.bound(launches, constants, changing, memory, x, y)
    ragged_tables.run(engine, bound, None)
    return launches.groups, [engine.to_host(buffer) for buffer in buffers]


def forced(monkeypatch, name, knobs, in_lists=False):
    """Let every item get one kernel, or the one for lists that has its sums."""
    kernel = get(name)

    def chosen(problem, batch, device, _, homes):
        own = knobs
        if kernel.constants_of is not None:
            own = {**(knobs or {}), **kernel.constants_of(problem)}
        choice = select(problem, device, name, own, homes)
        if in_lists:
            return choice
        return choice._replace(kernel=dataclasses.replace(kernel, in_lists=None))

    monkeypatch.setattr(ragged, "select_item", chosen)
