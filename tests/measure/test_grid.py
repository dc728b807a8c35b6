"""The grid of shapes: what a cell is, the bytes it touches, the arithmetic, and the command.

Results are checked on the simulator as on a GPU. Times come from a stand-in for the clock here; the
tests marked gpu take real ones.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gemv import _cli, _grid, _peers
from gemv._grid import Bench, Cell, Grid, Row, cells, lay_out, measure, sectors, summary, traffic
from gemv.core.dtypes import DTYPES, PREFIXES
from gemv.engines import backend

TOP = Path(__file__).resolve().parents[2]


def row(**changes) -> Row:
    """A row of 3 GB: 1 ms is 3 TB/s."""
    usual = dict(m=8, n=9, dtype="s", op="N", order="C", view="", hot=False, beta=0)
    known = dict(nbytes=3 * 10**9, frames=2, kernel="vector_rows", knobs={"LANES": 8})
    return Row(**{**usual, **known, **changes})


# --------------------------------------------------------------------------------------------------
# cells, views, bytes


def test_cells_are_all_combinations_dtype_by_dtype():
    found = cells([(3, 4), (5, 6)], "sd", "NT", "CF", ["", "[:, 1:]"])
    assert len(found) == len(set(found)) == 2 * 2 * 2 * 2 * 2
    assert found[0] == Cell(3, 4, "s", "N", "C", "", False, 0)
    assert [cell.dtype for cell in found] == ["s"] * 16 + ["d"] * 16


def test_default_shapes_are_those_of_the_grid():
    assert len(set(_grid.SHAPES)) == 24
    assert (1, 67108864) in _grid.SHAPES and (128256, 4096) in _grid.SHAPES


@pytest.mark.parametrize(
    "changes, complaint",
    [
        ({"dtypes": ["q"]}, "dtype must be one of s, d, c, z"),
        ({"shapes": [(0, 3)]}, "at least 1, got 0 and 3"),
        ({"ops": ["H"]}, "op must be N, T or C"),
        ({"orders": ["K"]}, "order C or F, got 'N', 'K'"),
        ({"views": ["1:"]}, "a view is two slices"),
        ({"views": [":, ::-1"]}, "a view is two slices"),
        ({"views": [":, ::0"]}, "must be positive"),
    ],
)
def test_bad_cells(changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        cells(**{"shapes": [(3, 4)], "dtypes": ["s"], **changes})


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("op", "NTC")
@pytest.mark.parametrize("view", ["", ":, 1:", "3:, 5:", ":, :-7", "::2, 1:-3:3"])
def test_a_layout_is_the_view_that_numpy_makes(order, op, view):
    cell = Cell(6, 5, "c", op, order, _grid.normal_view(view))
    layout = lay_out(cell)
    (r0, r_left, r_step), (c0, c_left, c_step) = _grid._cut(view)
    shape = (r0 + 6 * r_step + r_left, c0 + 5 * c_step + c_left)
    base = np.arange(shape[0] * shape[1]).reshape(shape, order=order)
    rows = slice(r0, shape[0] - r_left, r_step)
    a = base[rows, c0 : shape[1] - c_left : c_step]
    assert a.shape == (6, 5)
    op_a = a if op == "N" else a.T
    problem = layout.problem
    assert layout.elements == base.size and layout.first == a[0, 0]
    assert op_a.shape == (problem.rows, problem.cols)
    flat = base.ravel(order="K")
    i, j = np.indices(op_a.shape)
    places = layout.first + i * problem.row_stride + j * problem.col_stride
    assert (flat[places] == op_a).all()
    assert problem.conj == (op == "C")
    # A, x and y do not overlap, and each starts as memory of its own would
    assert layout.elements * 8 <= layout.x_at and layout.x_at % 256 == layout.y_at % 256 == 0
    assert layout.x_at + 8 * problem.cols <= layout.y_at
    assert layout.y_at + 8 * problem.rows <= layout.nbytes


def test_a_view_has_one_way_to_be_written():
    assert _grid.normal_view("[ : , 1: ]") == _grid.normal_view("0:,1:") == ":, 1:"
    assert _grid.normal_view("::1, :") == _grid.normal_view("") == ""
    assert _grid.normal_view("2::4,:-3") == "2::4, :-3"


def test_sectors_of_a_matrix_counted_one_by_one():
    rng = np.random.default_rng(3)
    for _ in range(600):
        size = int(rng.choice([2, 4, 8, 16]))
        rows, cols, step = (int(each) for each in rng.integers(1, (30, 30, 12)))
        distance = step * cols + int(rng.integers(0, 20))
        first = int(rng.integers(0, 20)) * size
        starts = first + (np.arange(rows)[:, None] * distance + np.arange(cols) * step) * size
        touched = {*(starts // 32).ravel(), *((starts + size - 1) // 32).ravel()}
        pieces = sorted([(rows, distance * size), (cols, step * size)], key=lambda piece: piece[1])
        assert sectors(first, size, pieces) == len(touched), (first, size, pieces)


def test_traffic_of_a_tall_matrix_by_hand():
    # 4 floats a row, rows of 8: each row touches one sector of two, x one, y 1000 * 4 / 32
    padded = lay_out(Cell(1000, 4, "s", view=":, :-4"))
    assert traffic(padded, beta=0) == (32 * (1000 + 1), 32 * 125)
    assert traffic(padded, beta=-1) == (32 * (1000 + 1 + 125), 32 * 125)
    assert traffic(lay_out(Cell(1000, 4, "s")), beta=0) == (32 * (500 + 1), 32 * 125)
    transposed = traffic(lay_out(Cell(1000, 4, "d", "T")), beta=0)
    assert transposed == (32 * (1000 + 250), 32)


# --------------------------------------------------------------------------------------------------
# what the figures say


def test_floor_is_the_fastest_of_the_run_and_the_ratio_is_to_the_fastest_peer():
    each = row(time_s=2e-3, plain_s=1.5e-3, peers={"torch.mv": 4e-3, "cuBLAS": 3e-3})
    assert each.floor_s == 1.5e-3 and each.share == 0.75
    assert each.peer == "cuBLAS" and each.ratio == 1.5
    assert each.rate(each.time_s) == pytest.approx(1500)
    quicker = row(time_s=1e-3, plain_s=1.5e-3)
    assert quicker.share == 1 and quicker.ratio is None and quicker.peer is None
    theirs = row(time_s=2e-3, plain_s=1.5e-3, peers={"torch.mv": 1e-3})
    assert theirs.share == 0.5 and theirs.ratio == 0.5
    assert row().share is None and row().floor_s is None


def test_summary_of_rows_counted_by_hand():
    rows = [
        row(time_s=2.0, plain_s=1.0, peers={"p": 8.0}),  # share 1/2, ratio 4
        row(time_s=1.0, plain_s=1.0, peers={"p": 1.0}),  # 1, 1
        row(time_s=1.0, plain_s=2.0, peers={"p": 0.5}),  # 1/2, 1/2
        row(time_s=1.0, plain_s=1.0),
        row(wrong="yes"),
    ]
    s = summary(rows)
    assert (s.cells, s.against, s.behind, s.ahead) == (4, 3, 1, 2)
    assert s.share == pytest.approx(0.25**0.25) and s.least_share == 0.5
    assert s.ratio == pytest.approx(2 ** (1 / 3)) and s.least_ratio == 0.5
    assert s.peer_share == pytest.approx((1 / 8 * 1 * 1) ** (1 / 3))
    assert _grid.worst(rows, "ratio", 2) == [rows[2], rows[1]]
    assert summary([]).share is None


def test_conjugates_are_no_part_of_the_means_of_others():
    from gemv._plots import title

    rows = [row(op="N"), row(op="C"), row(op="T"), row(op="C", hot=True)]
    parts = list(_grid.groups(rows).values())
    assert parts == [[rows[0], rows[2]], [rows[1]], [rows[3]]]
    assert [title(part[0]).endswith("conjugate") for part in parts] == [False, True, True]


def test_a_file_gives_back_what_was_stored(tmp_path):
    grid = Grid("A GPU", "cuda", {"torch": "9"}, 5, [row(time_s=1e-3, plain_s=1e-3), row(n=10)])
    path = tmp_path / "grid.json"
    grid.store(path)
    assert Grid.load(path) == grid
    assert len([line for line in path.read_text().splitlines() if '"m": 8' in line]) == 2
    assert list(tmp_path.iterdir()) == [path]
    assert Grid.from_json(Grid("A GPU", "cuda").to_json()).rows == []


# --------------------------------------------------------------------------------------------------
# checking and timing


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
        monkeypatch.setattr(_grid, "_HOST_CHECK", 0)
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


class StandIn:
    """A clock that is told what it reads: (name, place of the call in its round) to seconds."""

    stream = 0
    l2_bytes = 4096

    def __init__(self, times):
        self.times, self.races, self.prescanned = times, [], 0

    def versions(self):
        return {}

    def time(self, calls, rounds):
        self.prescanned += 1
        return float(self.prescanned)

    def race(self, contenders, rounds):
        self.races.append({name: len(calls) for name, calls in contenders.items()})
        for calls in contenders.values():
            for call in calls:
                call(0)
        return {name: [self.times[name] * k for k in (1, 1.1, 0.9, 1, 1)] for name in contenders}


@pytest.fixture
def stand_in(monkeypatch):
    if backend.backend() != "simulator":
        pytest.skip("the stand-in clock is for the simulator")
    clock = StandIn({"ours": 2.0, "plain 0": 1.5, "plain 1": 1.0, "a peer": 3.0})
    monkeypatch.setattr(Bench, "_plain_call", lambda *arguments: lambda stream: None)
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

        return [_peers.Peer("a peer", at, at)], {"another": "cannot"}

    return peers


def test_a_cell_is_timed_beside_peers_on_frames_past_the_cache(monkeypatch, stand_in):
    monkeypatch.setattr(_peers, "peers", peer_of(1))
    cell = Cell(5, 70, "s")
    bench = Bench([cell], ["fake"], clock=stand_in)
    measured = bench.row(cell)
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
    bench.row(cell)
    assert stand_in.prescanned == tried


def test_hot_is_one_frame(monkeypatch, stand_in):
    monkeypatch.setattr(_peers, "peers", peer_of(1))
    cell = Cell(5, 70, "s", hot=True)
    assert Bench([cell], ["fake"], clock=stand_in).row(cell).frames == 1


def test_a_peer_that_is_wrong_is_not_timed(monkeypatch, stand_in):
    monkeypatch.setattr(_peers, "peers", peer_of(2))
    cell = Cell(5, 70, "s")
    measured = Bench([cell], ["fake"], clock=stand_in).row(cell)
    assert measured.peers == {} and measured.ratio is None
    assert "its result is wrong" in measured.refused["a peer"]


def test_what_does_not_fit_says_so(monkeypatch, stand_in):
    monkeypatch.setattr(Bench, "_free_bytes", lambda self: 1000)
    cell = Cell(50, 70, "s")
    measured = Bench([cell], clock=stand_in).row(cell)
    assert measured.time_s is None and "do not fit" in measured.refused["gemv"]


def test_a_file_is_gone_on_with_and_time_ends():
    wanted = cells([(5, 7), (6, 8)], "s")
    (*_, first) = measure(wanted[:1])
    kept = first.rows[0]
    (*_, grid) = measure(wanted, grid=Grid.from_json(first.to_json()))
    assert [each.cell for each in grid.rows] == wanted and grid.rows[0] == kept
    (only,) = measure(wanted, seconds=-1.0)
    assert only.rows == []
    first.device = "another GPU"
    with pytest.raises(ValueError, match="measured on another GPU"):
        list(measure(wanted, grid=first))


# --------------------------------------------------------------------------------------------------
# cuBLAS


def at(address, dtype, count):
    kind = (ctypes.c_char * (count * dtype.itemsize)).from_address(address.value)
    return np.frombuffer(kind, dtype)


class FakeCublas:
    """cuBLAS's argument lists on the host: what reads columns, from addresses."""

    def __init__(self):
        self.stream = self.mode = self.workspace = None
        for letter, prefix in zip("SDCZ", "sdcz", strict=True):
            gemv = functools.partial(self.gemv, DTYPES[prefix])
            setattr(self, f"cublas{letter}gemv_v2", gemv)
            for kind in [""] if prefix in "sd" else ["u", "c"]:
                dot = functools.partial(self.dot, DTYPES[prefix], kind)
                setattr(self, f"cublas{letter}dot{kind}_v2", dot)

    def cublasCreate_v2(self, handle):
        handle._obj.value = 77
        return 0

    def cublasSetStream_v2(self, handle, stream):
        self.stream, self.workspace = stream.value, None
        return 0

    def cublasSetWorkspace_v2(self, handle, address, size):
        assert size.value == _peers.Cublas.WORKSPACE_BYTES
        self.workspace = address.value
        return 0

    def cublasSetPointerMode_v2(self, handle, mode):
        self.mode = mode
        return 0

    def gemv(self, dtype, handle, trans, m, n, alpha, a, lda, x, incx, beta, y, incy):
        assert handle.value == 77 and (self.stream, self.mode, self.workspace) == (5, 0, 4096)
        assert (incx, incy) == (1, 1)
        if lda < m:
            return 7
        columns = np.lib.stride_tricks.as_strided(
            at(a, dtype, lda * (n - 1) + m), (m, n), (dtype.itemsize, lda * dtype.itemsize)
        )
        op_a = [columns, columns.T, columns.conj().T][trans]
        rows, cols = op_a.shape
        target = at(y, dtype, rows)
        alpha, beta = at(alpha, dtype, 1)[0], at(beta, dtype, 1)[0]
        target[:] = alpha * (op_a @ at(x, dtype, cols)) + (beta * target if beta else 0)
        return 0

    def dot(self, dtype, kind, handle, n, x, incx, y, incy, result):
        assert (self.stream, self.mode) == (5, 1) and incy == 1
        row = at(x, dtype, incx * (n - 1) + 1)[::incx]
        at(result, dtype, 1)[:] = (row.conj() if kind == "c" else row) @ at(y, dtype, n)
        return 0


@pytest.fixture
def fake_cublas(monkeypatch):
    workspace = SimpleNamespace(__cuda_array_interface__={"data": (4096, False)})
    cublas = _peers.Cublas(FakeCublas(), workspace)
    monkeypatch.setattr(_peers, "_cublas", lambda: cublas)
    return cublas


@pytest.mark.parametrize("shape", [(6, 5), (1, 9), (9, 1)], ids=str)
@pytest.mark.parametrize("view", ["", "2:, 1:", ":, :-3"])
@pytest.mark.parametrize("dtype, order, op, beta", [
    ("s", "C", "N", 0), ("d", "F", "T", -1), ("c", "C", "T", 0), ("z", "F", "C", 0),
    ("c", "F", "N", -1),
])  # fmt: skip
def test_cublas_is_asked_for_the_same_product(fake_cublas, shape, view, dtype, order, op, beta):
    cell = Cell(*shape, dtype, op, order, _grid.normal_view(view), beta=beta)
    layout = lay_out(cell)
    problem = layout.problem
    memory = np.zeros(layout.nbytes // problem.dtype.itemsize, problem.dtype)
    rng = np.random.default_rng(1)
    memory[:] = rng.integers(-4, 5, memory.size)
    if problem.dtype.kind == "c":
        memory += 1j * rng.integers(-4, 5, memory.size)
    base, size = memory.ctypes.data, problem.dtype.itemsize
    place = _peers.Place(base + layout.first * size, base + layout.x_at, base + layout.y_at)
    steps = (problem.row_stride * size, problem.col_stride * size)
    op_a = np.lib.stride_tricks.as_strided(
        memory[layout.first :], (problem.rows, problem.cols), steps
    )
    op_a = op_a.conj() if problem.conj else op_a
    x = memory[layout.x_at // size :][: problem.cols]
    y = memory[layout.y_at // size :][: problem.rows]
    expected = op_a @ x + (beta * y if beta else 0)
    found, refused = _peers.peers("cupy", problem, beta, memory)
    names = {peer.name for peer in found}
    if refused:
        assert problem.conj and problem.access == "axpy"
        assert refused == {"cuBLAS gemv": "no conjugate without a transpose"}
        return
    assert ("cuBLAS dot" in names) == (problem.rows == 1 and beta == 0)
    before = y.copy()
    for peer in found:
        y[:] = before if beta else np.nan
        peer.at(place)(5)
        assert np.array_equal(y, expected), peer.name


def test_cublas_refuses_what_it_cannot_take(fake_cublas):
    strided = lay_out(Cell(6, 5, "s", view="::2, ::2")).problem
    assert _peers.peers("cupy", strided, 0, None) == (
        [],
        {"cuBLAS gemv": "neither rows nor columns of A are contiguous"},
    )


def test_what_cublas_says_is_not_ignored(fake_cublas):
    zero = ctypes.c_void_p(0)
    with pytest.raises(RuntimeError, match="cublasSgemv_v2: status 7"):
        fake_cublas.on(5, results_on_host=True)
        fake_cublas.call("cublasSgemv_v2", 0, 6, 5, zero, zero, 4, zero, 1, zero, zero, 1)


def test_a_narrow_type_may_be_rounded_on_the_way_and_nothing_else_may():
    exact = np.array([1000.0, -3.0], np.float32)
    assert _grid._nearly(exact, exact)
    assert not _grid._nearly(exact + 1, exact)
    assert not _grid._nearly(np.array([np.nan, -3.0], np.float32), exact)
    narrow = exact.astype(np.float16)
    assert _grid._nearly(narrow + np.float16(4), narrow)
    assert not _grid._nearly(narrow + np.float16(60), narrow)
    for dtype in PREFIXES:
        if dtype.name in ("float32", "float64", "complex64", "complex128"):
            assert _grid._epsilon(dtype) == np.finfo(dtype).eps


@pytest.mark.gpu
def test_peers_agree_with_us_on_the_gpu():
    libraries = [name for name in _peers.LIBRARIES if _peers.installed(name)]
    if not libraries:
        pytest.skip("neither PyTorch nor CuPy is installed")
    wanted = cells([(300, 200), (1, 5000)], "sc", "NT", "CF", ["", ":, 1:"])
    (*_, grid) = measure(wanted, libraries)
    for each in grid.rows:
        assert each.wrong is None and each.peers and 0 < each.share <= 1
        assert not any("Error" in reason for reason in each.refused.values()), each


# --------------------------------------------------------------------------------------------------
# the command


simulated_only = pytest.mark.skipif(
    backend.backend() == "cuda", reason="figures of a GPU belong to no test"
)


@simulated_only
def test_command_checks_and_claims_no_time(tmp_path, capsys):
    file = tmp_path / "grid.json"
    command = ["bench", "--shapes", "5x7,6x8", "--dtypes", "f32", "--view", "[:, 1:]"]
    command += ["--view", ":, :", "--json", str(file)]
    assert _cli.main(command) == 0
    text = capsys.readouterr().out
    assert "8 results checked. No time is given" in text and "float32 cold A[:, 1:]" in text
    kept = json.loads(file.read_text())
    assert len(kept["rows"]) == 8 and kept["backend"] == "simulator"
    now = kept["versions"]["gemv"]
    kept["versions"]["gemv"] = "0.0 (another table)"
    file.write_text(json.dumps(kept))
    for _ in range(2):  # the second time nothing is open
        assert _cli.main([*command, "--resume", "--ops", "C"]) == 0
    assert "4 results checked" in capsys.readouterr().out
    kept = json.loads(file.read_text())
    assert len(kept["rows"]) == 12
    assert kept["versions"]["gemv"] == f"0.0 (another table), later {now}"


@simulated_only
def test_command_stops_in_time(capsys):
    assert _cli.main(["bench", "--shapes", "5x7", "--dtypes", "s", "--seconds=-1"]) == 0
    assert "Time is up: 0 of 2 cells" in capsys.readouterr().out


def test_random_cells():
    """The same for one seed, on every Python; of all kinds, and of sizes that say something."""
    found = _grid.random_cells(300, 5)
    assert found == _grid.random_cells(300, 5) and len(set(found)) == 300
    assert found[:7] == _grid.random_cells(7, 5) != _grid.random_cells(7, 6)
    assert found[0] == Cell(2448, 60, "z", "T")
    for name, values in (("dtype", "sdczhb"), ("op", "NT"), ("order", "CF")):
        assert {getattr(cell, name) for cell in found} == set(values)
    assert {cell.view for cell in found} == {"", ":, 1:", ":, 4:"}
    low, high = _grid.RANDOM_BYTES
    assert all(low <= c.m * c.n * DTYPES[c.dtype].itemsize <= high for c in found)
    assert min(min(c.m, c.n) for c in found) == 1
    few = _grid.random_cells(20, 1, "h", "T", "C", -1, (1, 100))
    assert {(c.dtype, c.op, c.order, c.beta) for c in few} == {("h", "T", "C", -1)}
    assert max(2 * c.m * c.n for c in few) <= 100
    with pytest.raises(ValueError, match="at least 1 and their seed at least 0, got 0 and 0"):
        _grid.random_cells(0)
    with pytest.raises(ValueError, match="order C or F, got 'N', 'Z'"):
        _grid.random_cells(3, 0, "s", "N", "Z")
    with pytest.raises(ValueError, match="there are no 500 random cells, only about"):
        _grid.random_cells(500, 0, "z", "N", "C", sizes=(1, 64))


def test_command_draws_shapes(tmp_path, capsys):
    file = tmp_path / "drawn.json"
    assert _cli.main(["bench", "--random", "4", "--seed", "3", "--json", str(file)]) == 0
    small = backend.backend() == "simulator"
    assert ("4 results checked" in capsys.readouterr().out) == small
    first = [row.cell for row in Grid.load(file).rows]
    sizes = (1, 1 << 11) if small else _grid.RANDOM_BYTES
    assert first == _grid.random_cells(4, 3, list(DTYPES), sizes=sizes)


@pytest.mark.parametrize(
    "options, says",
    [
        (["--shapes", "5"], "'5' is no shape"),
        (["--shapes", "0x4"], "no whole number of at least 1"),
        (["--dtypes", "int"], "'int' is none of"),
        (["--view", "1:"], "a view is two slices"),
        (["--beta", "3"], "invalid choice: 3"),
        (["--ops", "X"], "op must be N, T or C"),
        (["--against", "numpy"], "cannot import numpy"),
        (["--resume"], "--resume needs the file of --json"),
        (["--json", "x.txt"], "must end in .json"),
        (["--plot", "x.gif"], "must end in .png"),
        (["--calls", "--shapes", "5x5", "--hot"], "without --shapes, --hot"),
        (["--random", "3", "--hot", "--shapes", "5x5"], "itself, without --shapes, --hot"),
        (["--seed", "3"], "--seed is that of --random"),
    ],
)
def test_command_refuses(options, says, capsys):
    try:
        assert _cli.main(["bench", *options]) == 2
    except SystemExit as leaving:
        assert leaving.code == 2
    out, err = capsys.readouterr()
    assert out == "" and says in err and len(err.splitlines()) == 1


def timed_grid() -> Grid:
    rows = [
        row(
            m=m,
            n=n,
            op=op,
            dtype=dtype,
            time_s=1e-3,
            plain_s=0.9e-3,
            spread=0.01,
            peers={"torch.mv": peer},
        )  # fmt: skip
        for dtype in "sd"
        for m, n, peer in ((8, 9, 2e-3), (16, 4, 0.5e-3))
        for op in "NT"
    ]
    return Grid("A GPU", "cuda", {"torch": "9"}, 5, [*rows, row(n=77, refused={"gemv": "too big"})])


def test_command_prints_figures_and_means(monkeypatch, capsys, tmp_path):
    grid = timed_grid()
    monkeypatch.setattr(_cli, "_backend_with_kernels", lambda: "cuda")
    monkeypatch.setattr(_grid, "measure", lambda *arguments: iter([grid]))
    monkeypatch.setattr(_peers, "installed", lambda name: name == "torch")
    command = ["bench", "--shapes", "8x9,16x4,8x77", "--dtypes", "s,d"]
    if importlib.util.find_spec("matplotlib"):
        command += ["--plot", str(tmp_path / "grid.png")]
    assert _cli.main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "gemv bench on A GPU" and lines[1] == "torch 9"
    first = next(line for line in lines if "8 x 9" in line).split()
    assert first == ["float32", "cold", "8", "x", "9", "N", "1000.0", "3.00", "0.90", "2000.0",
                     "2.00", "torch.mv"]  # fmt: skip
    assert any("too big" in line for line in lines)
    everything = next(line for line in lines if line.startswith("all")).split()
    assert everything[:2] == ["all", "8"] and everything[-2:] == ["4", "50%"]
    assert lines[-2].startswith("Worst beside the peer: float32 cold 16 x 4 N 0.50")
    assert lines[-1].startswith("Time is up: 9 of 12")
    if "--plot" in command:
        assert (tmp_path / "grid.png").stat().st_size > 10_000


def test_pictures(tmp_path):
    pytest.importorskip("matplotlib")
    from gemv import _plots
    from gemv._measure import Ladder, LadderRow

    _plots.plot_grid(timed_grid(), tmp_path / "grid.svg")
    text = (tmp_path / "grid.svg").read_text()
    assert text.count("<svg") == 1 and len(text) > 10_000
    with pytest.raises(ValueError, match="no time to draw"):
        _plots.plot_grid(Grid("simulator", "simulator", rows=[row()]), tmp_path / "none.png")
    ladder = Ladder(8, 9, "s", "C", "N", "cuda", "A GPU", 324, ceiling_gb_per_s=4000.0)
    ladder.rows = [LadderRow("serial", 1, False, 1.0, 10.0, 0.01), LadderRow("x", 2, True)]
    _plots.plot_ladder(ladder, tmp_path / "ladder.png")
    assert (tmp_path / "ladder.png").stat().st_size > 5_000


# --------------------------------------------------------------------------------------------------
# what is made from the stored results


@pytest.fixture(scope="module")
def pages():
    return SimpleNamespace(**runpy.run_path(str(TOP / "benchmarks" / "grid_page.py")))


def test_readme_and_its_picture_are_made_from_the_results(pages):
    grids = pages.load()
    text = (TOP / "README.md").read_text(encoding="utf-8")
    assert pages.replaced(text, pages.readme(grids, pages.load(pages.RANDOM))) == text, "make table"
    if grids:
        assert pages.fingerprint(grids).encode() in pages.PICTURE.read_bytes(), "make table"


def test_page_has_losing_cells_first_and_every_figure(pages):
    text = pages.page({"h": timed_grid()})
    losing = text.split("### Where cuBLAS is faster")[1].split("###")[0]
    assert "4 of 8 cells are under 0.98" in losing
    text = text.replace("\N{NO-BREAK SPACE}", " ")
    losing = losing.replace("\N{NO-BREAK SPACE}", " ")
    first = "| float32, cold | 16 x 4 | N | 0.50 | 0.50 | 1000.0 | 500.0 | 3.00 | torch.mv | `"
    assert losing.split("| --- |")[-1].splitlines()[1].startswith(first)
    assert "| float64, cold | 4 | " in text.split("### Means")[1]
    assert "| 8 x 9 | 1000.0 | 3.00 | 0.90 | 2.00 | 1000.0 | 3.00 | 0.90 | 2.00 |" in text
    assert "```{drawing} grid-h-1\n```" in text
    assert "make grid" in pages.page({}) and "make grid" in pages.readme({}, {})


def test_random_cells_have_a_section_and_a_sentence(pages):
    text = pages.random_page({"h": timed_grid()}).replace("\N{NO-BREAK SPACE}", " ")
    assert "4 of 8 are under 0.98 of the fastest peer:" in text
    losing = text.split("fastest peer:")[1].split("Furthest")[0]
    first = losing.split("| --- |")[-1].splitlines()[1]
    assert first.startswith("| float32, cold | 16 x 4 | N | 0.50 |")
    table = text.split("at 1 or more |")[1].split("4 of 8")[0]
    assert [line.split(" | ")[1] for line in table.splitlines()[2:5]] == ["4", "4", "8"]
    (sentence,) = pages.readme_random({"h": timed_grid()})
    assert "On 8 shapes" in sentence and "4 of them are under 0.98" in sentence
    assert pages.random_page({}) == "" and pages.readme_random({}) == []


def test_a_grid_without_a_gpu_makes_no_page(pages, tmp_path):
    Grid("simulator", "simulator", rows=[row()]).store(tmp_path / "x.json")
    with pytest.raises(ValueError, match="without a GPU"):
        pages.load(tmp_path)


@simulated_only
def test_all_parts_of_the_grid_run(tmp_path, capsys):
    script = runpy.run_path(str(TOP / "benchmarks" / "grid.py"))
    file = tmp_path / "grid" / "here.json"
    assert script["main"]([str(file), "--parts", "cold,conjugate"]) == 0
    stored = Grid.load(file)
    assert [(each.op, each.wrong) for each in stored.rows] == [
        ("N", None),
        ("T", None),
        ("C", None),
    ]
    with pytest.raises(SystemExit):
        script["main"]([str(file), "--parts", "warm"])
    assert "there are: cold, hot" in capsys.readouterr().err
    for part in script["PARTS"].values():
        options = _cli._parser().parse_args(["bench", *part])
        assert _cli._wanted_cells(options, simulated=False)
