"""Lists of products of different sizes are drawn, laid out, checked, then timed.

Times come from a stand-in for the clock, and PyTorch is played by NumPy.
"""

from __future__ import annotations

import math
import re
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.clock import StandIn
from helpers.results import timed_lists

import gemv
from gemv.core.dtypes import DTYPES
from gemv.engines import backend
from gemv.measure import peers, peers_of_ragged, ragged_bench
from gemv.measure.frames import Frames
from gemv.measure.plain import Mover
from gemv.measure.ragged import BYTES, RaggedCell, cells, count_of, lay_out
from gemv.measure.ragged_bench import ONE_BY_ONE, Ours, RaggedBench, measure
from gemv.measure.ragged_records import RaggedResults

OURS = Ours(gemv.Batch, gemv.gemv)

simulated_only = pytest.mark.skipif(
    backend.backend() != "simulator", reason="the stand-ins are for the simulator"
)


def test_sizes_are_log_uniform_and_a_longer_list_begins_with_a_shorter_one():
    cell = RaggedCell(4000, "s")
    assert cell.sizes[:30] == RaggedCell(30, "d", "T", "F").sizes
    assert cell.sizes[:9] != RaggedCell(9, "s", seed=1).sizes
    sides = np.array(cell.sizes).ravel()
    assert sides.min() == 4 and 500 < sides.max() <= 512
    # 7 doublings from 4 to 512
    shares = [np.mean((sides >= 4 << k) & (sides < 8 << k)) for k in range(7)]
    assert all(abs(share - 1 / 7) < 0.03 for share in shares), shares


def test_lists_have_64_mib_unless_a_number_is_asked_for():
    (single, half), (three,) = cells(None, "sh", "N", "C"), cells(3, "s", "N", "C")
    for cell in (single, half):
        areas = [m * n * DTYPES[cell.dtype].itemsize for m, n in cell.sizes]
        assert sum(areas) >= BYTES > sum(areas[:-1])
    assert three.count == 3 and count_of(1, "s") == 1
    for arguments in ((0,), (3, "s", "N", "C", -1), (3, "q"), (3, "s", "X"), (3, "s", "N", "A")):
        with pytest.raises(ValueError, match="bench: "):
            cells(*arguments)


def test_bytes_are_whole_sectors_of_each_operand():
    layout = lay_out(RaggedCell(2, "s", "T", least=4, most=40))
    assert layout.cell.sizes == [(28, 23), (10, 7)]
    # 644 and 70 numbers of A, 28 and 10 of x, 23 and 7 of y
    assert layout.moved == (32 * (81 + 9 + 4 + 2), 32 * (3 + 1))
    assert layout.a_at == [0, 2816] and layout.x_at == [3328, 3584]
    assert layout.y_at == [3840, 4096] and (layout.y_start, layout.nbytes) == (3840, 4352)
    assert layout.padding == 2 * 644 / 714


def items_of(launch):
    """How many items a launch has, from what is stored of it."""
    found = re.match(r"\w+: (\d+) items? of ", launch)
    return int(found[1])


@pytest.mark.parametrize("dtype, op, order", [
    ("s", "N", "C"), ("d", "T", "F"), ("c", "C", "C"), ("h", "T", "C"), ("b", "N", "F"),
])  # fmt: skip
def test_lists_are_right(dtype, op, order):
    cell = RaggedCell(3, dtype, op, order, least=4, most=50, seed=2)
    (*_, found) = measure([cell], OURS)
    (row,) = found.rows
    assert row.wrong is None and row.cell == cell
    # Rows or columns of all lengths are computed together; rows that blocks share are apart.
    assert row.launches and row.launches[0].startswith(("list_rows: ", "list_columns: "))
    assert sum(items_of(launch) for launch in row.launches) == cell.count
    assert row.nbytes == sum(lay_out(cell).moved)
    timed = found.backend == "cuda"
    assert (row.time_s is not None) == timed and (row.share is not None) == timed


@simulated_only
@pytest.mark.parametrize("mistake", ["item", "beside"])
def test_mistakes_are_found_and_not_timed(mistake, monkeypatch):
    cell = RaggedCell(3, "s", least=4, most=30)
    layout, frames = lay_out(cell), []
    made = Frames.vector
    monkeypatch.setattr(
        Frames, "vector", lambda self, *more: frames.append(self) or made(self, *more)
    )
    # The second y is not written, or what lies behind it is, too.
    start = layout.y_at[1] + (0 if mistake == "item" else 4 * layout.problems[1].rows)

    class Batch(gemv.Batch):
        def plan(self, *arguments, **more):
            plan, memory = super().plan(*arguments, **more), frames[-1]

            def call(stream):
                plan(stream=stream)
                memory.fill("whole", np.dtype("f"), memory.base + start, 1)

            return call

    (*_, found) = measure([cell], Ours(Batch, gemv.gemv))
    m, n = cell.sizes[1]
    assert found.rows[0].wrong == {
        "item": f"item 1, {m} x {n}, differs from what it should be",
        "beside": "bytes between two y were written",
    }[mistake]  # fmt: skip


class Memory:
    """Arrays anywhere in a frame, in place of PyTorch's tensors."""

    def __init__(self, torch, memory, dtype, itemsize):
        self.memory, self.dtype = memory, np.dtype(dtype)

    def at(self, address, shape, strides):
        values = self.memory[address - self.memory.ctypes.data :]
        values = values[: values.size // self.dtype.itemsize * self.dtype.itemsize]
        steps = [step * self.dtype.itemsize for step in strides]
        return np.lib.stride_tricks.as_strided(values.view(self.dtype), shape, steps)

    def on(self, stream):
        return nullcontext()


@pytest.fixture
def torch(monkeypatch):
    """PyTorch's routines, by NumPy."""

    def product(a, x, out):
        out[...] = np.matmul(a, x)

    played = SimpleNamespace(
        float32=np.float32, complex64=np.complex64, mv=product, bmm=product,
        zeros=lambda shape, dtype, device: np.zeros(shape, dtype),
        cuda=SimpleNamespace(synchronize=lambda: None),
    )  # fmt: skip
    for module in (peers, peers_of_ragged):
        monkeypatch.setattr(module, "TorchMemory", Memory)
    monkeypatch.setitem(sys.modules, "torch", played)
    monkeypatch.setattr(peers, "versions", lambda libraries: {})
    monkeypatch.setattr(Mover, "_call", lambda *arguments: lambda stream: None)
    return played


BMM, MV = peers_of_ragged.BMM, "torch.mv, one by one"


@simulated_only
@pytest.mark.parametrize("dtype, op, order", [
    ("s", "N", "C"), ("s", "T", "C"), ("s", "N", "F"), ("c", "C", "F"),
])  # fmt: skip
def test_lists_are_timed_beside_other_ways_past_the_cache(dtype, op, order, torch):
    clock = StandIn({"ours": 2.0, "plain 0": 1.5, "plain 1": 1.0, BMM: 3.0, MV: 8.0}, 5.0)
    cell = RaggedCell(3, dtype, op, order, least=4, most=16)
    bench = RaggedBench([cell], OURS, ["torch"], clock=clock)
    row = bench.measure(cell)
    assert row.wrong is None and row.refused == {}
    assert row.frames == math.ceil(3 * 4096 / lay_out(cell).nbytes) + 1 > 2
    ways = ("ours", "plain 0", "plain 1", ONE_BY_ONE, MV, BMM)
    assert clock.races == [dict.fromkeys(ways, row.frames)]
    assert (row.time_s, row.plain_s) == (2.0, 1.0)
    assert row.peers == {ONE_BY_ONE: 5.0, MV: 8.0, BMM: 3.0}
    assert (row.share, row.ratio, row.peer) == (0.5, 1.5, BMM)


@simulated_only
def test_a_way_that_is_wrong_or_has_no_memory_is_not_timed(torch, monkeypatch):
    def full(*arguments, **more):
        raise MemoryError("out of memory")

    monkeypatch.setattr(torch, "zeros", full)
    monkeypatch.setattr(torch, "mv", lambda a, x, out: None)
    cell = RaggedCell(2, "s", least=4, most=16)
    clock = StandIn({}, 1.0)
    row = RaggedBench([cell], OURS, ["torch"], clock=clock).measure(cell)
    assert row.refused == {
        MV: "ArithmeticError: its result is wrong", BMM: "MemoryError: out of memory"
    }  # fmt: skip
    assert set(row.peers) == {ONE_BY_ONE} and row.time_s == 1.0


def test_ways_say_what_they_lack(torch):
    layout = lay_out(RaggedCell(2, "b"))
    lacks = "PyTorch has no bfloat16"
    assert peers_of_ragged.ways("torch", layout, None, 0) == ([], {MV: lacks, BMM: lacks})
    assert peers_of_ragged.ways("cupy", layout, None, 0) == (
        [], {"cuBLAS gemv, one by one": "cuBLAS has no gemv for bfloat16"}
    )  # fmt: skip


@simulated_only
def test_what_does_not_fit_says_so(monkeypatch):
    monkeypatch.setattr("gemv.measure.grid.free_bytes", lambda engine: 1000)
    cell = RaggedCell(3, "s", least=40, most=50)
    row = RaggedBench([cell], OURS).measure(cell)
    assert row.time_s is None and row.frames == 0 and "do not fit" in row.refused["gemv"]


def test_results_are_stored_line_by_line(tmp_path):
    found, path = timed_lists(), tmp_path / "lists.json"
    found.store(path)
    assert RaggedResults.load(path) == found
    assert sum('"count": 1474' in line for line in path.read_text().splitlines()) == 4


@pytest.mark.gpu
def test_other_ways_agree_with_us_on_the_gpu():
    libraries = [name for name in peers.LIBRARIES if peers.installed(name)]
    (*_, found) = ragged_bench.measure(cells(20, "sb", "NT", "CF"), OURS, libraries)
    for row in found.rows:
        assert row.wrong is None and ONE_BY_ONE in row.peers and 0 < row.share <= 1
        assert not any("Error" in reason for reason in row.refused.values()), row
