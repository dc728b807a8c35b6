"""A campaign times launches that several vectors share well, on large cells that its file has."""

import sys
from types import SimpleNamespace

import pytest
from helpers.programs import program

from gemv.core.geometry import Chip, Device
from gemv.kernels import REGISTRY
from gemv.measure.cells import Cell
from gemv.measure.frames import FramedCell, lay_out
from gemv.selection import cells, sharing
from gemv.selection.machine import machine
from gemv.selection.ranking import knobs_of, predictions

campaign = program("fit.campaign")
candidates = program("fit.candidates")
draw = program("fit.draw")
field = program("fit.field")
named = program("fit.named")
samples = program("fit.samples")
shared = program("fit.shared")
store = program("fit.store")
timer = program("fit.timer")

H200 = Device("NVIDIA H200", (9, 0), 132)
H100 = Device("NVIDIA H100 80GB HBM3", (9, 0), 132, chip=Chip(memory_khz=2_619_000, bus_bits=5120))
WIDE = candidates.normal("vector_columns", {"LANES": 32, "THREADS_PER_BLOCK": 256})

simulated = pytest.mark.skipif(
    campaign.backend_name() != "simulator", reason="cells are as large as a GPU needs them"
)


def measured(cell, number=0, of=WIDE, floor=1e-6):
    return store.Measured(number, cell, 1, floor, {}, of, [store.Timed(of, 1e-5)])


def problem_of(cell):
    return FramedCell.at(cell, samples.ADDRESS, 1).problem


def seconds_of(problem, device):
    """What the formula expects of every launch of the machine's constants."""
    return {
        candidates.normal(each.constants.name, knobs_of(each.constants, each.candidate.blocks)):
        each.parts.seconds
        for each in predictions(machine(device), problem, device)
    }  # fmt: skip


@pytest.mark.parametrize("device", [H200, H100], ids=["h200", "h100"])
@pytest.mark.parametrize("dtype, m, n, order", [
    ("b", 8192, 8192, "F"), ("h", 16384, 4096, "F"), ("d", 8192, 8192, "F"), ("b", 8192, 8192, "C"),
])  # fmt: skip
def test_a_large_cell_gets_launches_that_vectors_share_well(dtype, m, n, order, device):
    """They are the formula's fastest ones, behind the best so far, and none comes twice."""
    cell = Cell(m, n, dtype, "N", order)
    problem, own = problem_of(cell), measured(cell)
    first, *found = shared.of_sharing(own, problem, device)
    assert first == WIDE and 1 <= len(found) <= shared.MOST
    for each in found:
        kernel, knobs = REGISTRY[each.constants[0]], dict(each.constants[1])
        assert sharing.shares_well(kernel, knobs, each.blocks, problem)
    expected = seconds_of(problem, device)
    times = [expected[each] for each in found]
    assert times == sorted(times) and times[-1] <= timer.CLOSE * min(expected.values())
    own.times.append(store.Timed(found[0], 9e-6))
    assert shared.of_sharing(own, problem, device) == ([found[0], *found[1:]] if found[1:] else [])
    own.times += [store.Timed(each, 2e-5) for each in found]
    assert shared.of_sharing(own, problem, device) == []


@pytest.mark.parametrize("cell", [
    Cell(512, 512, "b", "N", "F"),  # may be in the L2 cache
    Cell(8192, 8192, "s", "N", "F"),  # no launch has less to do than others
    Cell(64, 1 << 20, "b", "N", "F"),  # unsplit, one block would have all columns
], ids=["small", "floats", "few rows"])  # fmt: skip
def test_other_cells_get_nothing(cell):
    assert shared.of_sharing(measured(cell), problem_of(cell), H100) == []


@pytest.mark.parametrize("device", [H200, H100], ids=["h200", "h100"])
def test_8192_columns_of_short_numbers_are_timed_with_8_lanes_and_512_threads(device):
    cell = Cell(8192, 8192, "b", "N", "F")
    _, *found = shared.of_sharing(measured(cell), problem_of(cell), device)
    knobs = [dict(each.constants[1]) for each in found]
    assert (8, 512, 0) in [
        (own["LANES"], own["THREADS_PER_BLOCK"], each.blocks)
        for own, each in zip(knobs, found, strict=True)
    ]


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A campaign of two cells, the second one as large as no cell of the draw is here.

    Matrices of a simulator are small, so what the cache holds is nothing.
    """
    for module in (sharing, shared):
        monkeypatch.setattr(module, "MAY_BE_HOT", 0)
    monkeypatch.setattr(sharing, "_FEW_SHORT", 0)
    monkeypatch.setattr(sharing, "_MANY_LINES", 0)
    rows = candidates.normal("vector_rows", {"LANES": 128, "THREADS_PER_BLOCK": 128})
    made = store.Campaign({"gpu": "simulator", "device": [[0, 0], 1]})
    made.cells += [
        measured(cell, number, rows, 0.0)  # without a floor, as nothing is timed here
        for number, cell in ((4, Cell(3, 16, "h")), (9, Cell(64, 512, "h")))
    ]
    found = tmp_path / "campaign.json"
    made.save(found)
    return found


@simulated
def test_the_memory_is_as_large_as_the_cells_of_the_file_need(file, capsys):
    """They are larger than those of the draw, and a copy beyond the memory ended a run."""
    before = store.Campaign.load(file)
    largest = lay_out(before.cells[1].cell).nbytes
    assert largest > 2 * lay_out(campaign._simulated(draw.cell(0))).nbytes
    campaign.main([str(file), "--sharing", "--cells", "1"])
    after = store.Campaign.load(file)
    assert [each.number for each in after.cells] == [4, 9]
    for old, new in zip(before.cells, after.cells, strict=True):
        assert new.times[:1] == old.times and len(new.times) > 2
    assert "all candidates agree" in capsys.readouterr().out


@simulated
def test_a_cell_that_the_memory_was_not_made_for_is_refused(file):
    from gemv.engines import backend

    small, large = (each.cell for each in store.Campaign.load(file).cells)
    made = field.Field([small], backend.engine(), ())
    made.framed(small)
    with pytest.raises(ValueError, match=r"Cell\(m=64, n=512.* needs \d+ bytes"):
        made.framed(large)


@simulated
@pytest.mark.parametrize("alone", [True, False])
def test_floor_and_peers_are_not_timed_again(file, monkeypatch, alone):
    """A cell that candidates are added to has them already."""
    from gemv.engines import backend

    class Ring:
        def __init__(self, places, seconds):
            pass

        def time(self, call):
            return 2e-6

        def close(self):
            pass

    monkeypatch.setitem(sys.modules, "benchmarks.fit.ring", SimpleNamespace(Ring=Ring))
    monkeypatch.setattr(field.Field, "plain", lambda self, *_: None)
    old = store.Campaign.load(file).cells[0]
    made = field.Field([old.cell], backend.engine(), ())
    made.is_timed = True
    found = made.measure(4, old.cell, [old.present], alone)
    assert {each.seconds for each in found.times} == {2e-6}
    assert found.floor_s == (0.0 if alone else 2e-6)


def test_only_kinds_with_some_names_are_timed_again(file):
    found = store.Campaign.load(file).cells

    def wanted(only):
        options = SimpleNamespace(kernels="", sharing=True, only=only)
        return [number for number, _ in campaign.wanted_cells(options, found, True)]

    assert wanted("") == wanted("h dot 8") == wanted("s axpy, h") == [4, 9]
    assert wanted("h axpy 8") == []
    with pytest.raises(ValueError, match="no kind's name begins with 'b dot'"):
        wanted("b dot")


@simulated
@pytest.mark.parametrize("gpu, options, words", [
    ("simulator", ["--sharing", "--kernels", "vector_rows"], "not allowed with"),
    ("simulator", ["--sharing", "--only", "h axpy 8"], "no such cells"),
    ("NVIDIA H200", ["--sharing"], "has times of NVIDIA H200, and this GPU is simulator"),
])  # fmt: skip
def test_times_of_nothing_or_of_another_gpu_are_refused(file, gpu, options, words, capsys):
    made = store.Campaign.load(file)
    made.about["gpu"] = gpu
    made.save(file)
    with pytest.raises(SystemExit):
        campaign.main([str(file), *options])
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--sharing"], ["--kernels", "vector_rows"]])
def test_times_are_added_to_a_file_that_is_there(tmp_path, options, capsys):
    with pytest.raises(SystemExit):
        campaign.main([str(tmp_path / "none.json"), *options])
    assert "there is no such file" in capsys.readouterr().err


def test_kinds_by_their_names():
    """Whole words count, and each text has to be the beginning of a name."""
    every = cells.kinds()
    assert named.kinds_named("") == named.kinds_named(" ") == every
    some = named.kinds_named("z dot 1, h axpy 8 whole")
    assert [str(kind) for kind in some] == [
        "h axpy 8 whole free", "h axpy 8 whole close free", "z dot 1 free", "z dot 1",
    ]  # fmt: skip
    for text, begun in (("h dot 8 w", "h dot 8 w"), ("h dot 8,", ""), ("s, dot", "dot")):
        with pytest.raises(ValueError, match=f"no kind's name begins with '{begun}'"):
            named.kinds_named(text)
