"""Cells are checked, then timed.

Results are checked on the simulator as on a GPU. Times come from a stand-in for the clock here; the
tests marked gpu take real ones.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
from helpers.clock import StandIn

from gemv.core.dtypes import DTYPES, PREFIXES
from gemv.engines import backend
from gemv.measure import checks, peers
from gemv.measure.cells import Cell, cells
from gemv.measure.frames import lay_out
from gemv.measure.grid import Bench, each_cell, measure
from gemv.measure.peers import Peer
from gemv.measure.plain import Mover
from gemv.measure.records import GridResults


@pytest.mark.parametrize("view", ["", ":, 1:", "::2, ::2"])
@pytest.mark.parametrize("dtype, op, order, beta", [("s", "N", "C", 0), ("z", "C", "F", -1)])
def test_cells_are_right(view, dtype, op, order, beta):
    wanted = cells([(5, 70), (33, 17)], [dtype], [op], [order], [view], beta=beta)
    (*_, grid) = measure(wanted)
    assert [each.cell for each in grid.rows] == wanted
    for each in grid.rows:
        assert each.wrong is None and each.kernel
        timed = grid.backend == "cuda"
        assert (each.time_s is not None) == timed and (each.share is not None) == timed


def test_every_dtype_of_the_package_has_cells():
    (*_, grid) = measure(cells([(5, 70)], DTYPES, "N"))
    assert [each.dtype for each in grid.rows if each.wrong is None] == list(DTYPES)


@pytest.mark.parametrize("large", [False, True], ids=["numpy", "second-kernel"])
def test_a_wrong_result_is_named_and_not_timed(monkeypatch, large):
    if large:
        monkeypatch.setattr("gemv.measure.grid.NUMPY_ELEMENTS", 0)
    engine = backend.engine()
    run = type(engine).run

    def doubles(self, choice, problem, alpha, *rest, **more):
        wrong = alpha * 2 if choice.kernel.name == "vector_rows" else alpha
        return run(self, choice, problem, wrong, *rest, **more)

    monkeypatch.setattr(type(engine), "run", doubles)
    (*_, grid) = measure(cells([(5, 70)], "s"))
    bad, good = grid.rows
    assert bad.wrong == "vector_rows differs from what it should be" and bad.time_s is None
    assert good.wrong is None


@pytest.fixture
def stand_in(monkeypatch):
    if backend.backend() != "simulator":
        pytest.skip("the stand-in clock is for the simulator")
    clock = StandIn({"ours": 2.0, "plain 0": 1.5, "plain 1": 1.0, "a peer": 3.0})
    monkeypatch.setattr(Mover, "_call", lambda *arguments: lambda stream: None)
    return clock


def peer_of(factor):
    """A stand-in for a library: numpy on the same memory, and `factor` for one that is wrong."""

    def peers(library, problem, beta, memory):
        def at(place):
            def call(stream):
                start = memory.ctypes.data
                dtype = problem.dtype
                a = memory[place.a - start :].view(np.uint8)
                a = a[: a.size // dtype.itemsize * dtype.itemsize].view(dtype)
                steps = (problem.row_stride * dtype.itemsize, problem.col_stride * dtype.itemsize)
                a = np.lib.stride_tricks.as_strided(a, (problem.rows, problem.cols), steps)
                x = memory[place.x - start :][: problem.cols * dtype.itemsize].view(dtype)
                y = memory[place.y - start :][: problem.rows * dtype.itemsize].view(dtype)
                y[:] = factor * (a @ x)

            return call

        return [Peer("a peer", at, at)], {"another": "cannot"}

    return peers


def test_a_cell_is_timed_beside_peers_on_frames_past_the_cache(monkeypatch, stand_in):
    monkeypatch.setattr(peers, "peers", peer_of(1))
    cell = Cell(5, 70, "s")
    bench = Bench([cell], ["fake"], clock=stand_in)
    measured = bench.measure(cell)
    assert measured.frames == -(-3 * 4096 // lay_out(cell).nbytes) + 1 > 2
    assert stand_in.races == [
        dict.fromkeys(("ours", "plain 0", "plain 1", "a peer"), measured.frames)
    ]
    assert (measured.time_s, measured.plain_s, measured.peers) == (2.0, 1.0, {"a peer": 3.0})
    assert (measured.share, measured.ratio) == (0.5, 1.5)
    assert measured.spread == pytest.approx(0.2)
    assert measured.refused == {"another": "cannot"}
    # the grids of the plain kernel are tried once for the same bytes
    tried = stand_in.prescanned
    assert tried > 1
    bench.measure(cell)
    assert stand_in.prescanned == tried


def test_hot_is_one_frame(monkeypatch, stand_in):
    monkeypatch.setattr(peers, "peers", peer_of(1))
    cell = Cell(5, 70, "s", hot=True)
    assert Bench([cell], ["fake"], clock=stand_in).measure(cell).frames == 1


def test_a_peer_that_is_wrong_is_not_timed(monkeypatch, stand_in):
    monkeypatch.setattr(peers, "peers", peer_of(2))
    cell = Cell(5, 70, "s")
    measured = Bench([cell], ["fake"], clock=stand_in).measure(cell)
    assert measured.peers == {} and measured.ratio is None
    assert "its result is wrong" in measured.refused["a peer"]


def test_what_does_not_fit_says_so(monkeypatch, stand_in):
    monkeypatch.setattr("gemv.measure.grid.free_bytes", lambda engine: 1000)
    cell = Cell(50, 70, "s")
    measured = Bench([cell], clock=stand_in).measure(cell)
    assert measured.time_s is None and "do not fit" in measured.refused["gemv"]


def test_a_file_is_gone_on_with_and_time_ends():
    wanted = cells([(5, 7), (6, 8)], "s")
    (*_, first) = measure(wanted[:1])
    kept = first.rows[0]
    (*_, grid) = measure(wanted, grid=GridResults.from_json(first.to_json()))
    assert [each.cell for each in grid.rows] == wanted and grid.rows[0] == kept
    (only,) = measure(wanted, seconds=-1.0)
    assert only.rows == []
    first.device = "another GPU"
    with pytest.raises(ValueError, match="measured on another GPU"):
        list(measure(wanted, grid=first))


def test_a_narrow_type_may_be_rounded_on_the_way_and_nothing_else_may():
    exact = np.array([1000.0, -3.0], np.float32)
    assert checks.nearly_equal(exact, exact)
    assert not checks.nearly_equal(exact + 1, exact)
    assert not checks.nearly_equal(np.array([np.nan, -3.0], np.float32), exact)
    narrow = exact.astype(np.float16)
    assert checks.nearly_equal(narrow + np.float16(4), narrow)
    assert not checks.nearly_equal(narrow + np.float16(60), narrow)
    for dtype in PREFIXES:
        if dtype.name in ("float32", "float64", "complex64", "complex128"):
            assert checks.epsilon(dtype) == np.finfo(dtype).eps


@pytest.mark.gpu
def test_peers_agree_with_us_on_the_gpu():
    libraries = [name for name in peers.LIBRARIES if peers.installed(name)]
    if not libraries:
        pytest.skip("neither PyTorch nor CuPy is installed")
    wanted = cells([(300, 200), (1, 5000)], "sc", "NT", "CF", ["", ":, 1:"])
    (*_, grid) = measure(wanted, libraries)
    for each in grid.rows:
        assert each.wrong is None and each.peers and 0 < each.share <= 1
        assert not any("Error" in reason for reason in each.refused.values()), each


def test_cells_that_are_measured_again_stand_where_they_stood():
    class Row(NamedTuple):
        cell: int

    class Stored:
        device = backend = "any"

        def __init__(self, *cells):
            self.rows, self.versions = [Row(cell) for cell in cells], {}

    class Fake:
        results, measure = Stored, Row

    for stored, right in (
        ((0, 1, 2, 3), [0, 1, 2, 3]), ((1, 3), [0, 1, 2, 3]), ((0, 9, 1), [0, 9, 1, 2, 3]),
        ((8, 2, 9), [8, 0, 1, 2, 3, 9]), ((8, 9), [8, 9, 0, 1, 2, 3]), ((), [0, 1, 2, 3]),
    ):  # fmt: skip
        *_, found = each_cell(Fake, range(4), Stored(*stored), math.inf, None)
        assert [row.cell for row in found.rows] == right
