"""A fit to the times of two GPUs: what differs between them is learned, and few choices change."""

from pathlib import Path

import numpy as np
import pytest
from helpers.programs import program

from gemv.core.geometry import Chip, Device
from gemv.measure.frames import FramedCell
from gemv.selection import cells, overlays, ranking
from gemv.selection.choices import Choices, unpacked
from gemv.selection.choices import problem_of as problem_of_cell
from gemv.selection.machine import machine
from gemv.selection.ranking import predictions

draw = program("fit.draw")
candidates = program("fit.candidates")
store = program("fit.store")
samples = program("fit.samples")
ahead = program("fit.ahead")
deciding = program("fit.deciding")
alike = program("fit.alike")
named = program("fit.named")

RESULTS = Path(alike.__file__).parents[1] / "results" / "fit"
H200 = Device("NVIDIA H200", (9, 0), 132)
SLOW = Chip(memory_khz=2_619_000, bus_bits=5120)
OTHER = Device("a GPU without changes", (9, 0), 132, chip=SLOW)


def invented(device, count, slower):
    """Samples with the times of the formula, those with few warps longer by the factor `slower`."""
    made = store.Campaign({
        "gpu": device.name, "device": [[9, 0], 132], "chip": device.chip._asdict(),
    })  # fmt: skip
    for number in range(count):
        problem = FramedCell.at(draw.cell(number), 1 << 30, 1).problem
        tried = candidates.candidates(problem, device, number)
        for each in tried:
            spec = candidates.choice(each, problem, device).spec
            made.codes[store.code_key(each.constants, spec, draw.cell(number).dtype)] = (64, 0, 0)
        times = [store.Timed(each, 1e-6) for each in tried]
        made.cells.append(store.Measured(number, draw.cell(number), 1, 1e-9, {}, tried[0], times))
    assert made.device == device
    found = samples.samples(made, device)
    used = machine(device)
    times = found.launches.parts(used.numbers, alike.factors_of(used)).seconds
    return found._replace(times=times * np.where(found.launches.counts.warps <= 4, slower, 1.0))


def test_what_one_gpu_lacks_is_learned_from_few_of_its_cells(monkeypatch):
    pytest.importorskip("sklearn", reason="scikit-learn, the extra 'fit', is not installed")
    from threadpoolctl import threadpool_limits  # which scikit-learn needs

    # Of 1000 trees the first 200 learn these few samples as well.
    monkeypatch.setitem(program("fit.corrections").SETTINGS, "max_iter", 200)
    other, own = invented(H200, 30, 1.0), invented(OTHER, 20, 1.5)
    used, reference = machine(OTHER), machine(H200)
    kept = own.cells % 3 != 0
    with threadpool_limits(1):  # threads that wait for each other's cores take ten times as long
        trees = alike.Together(own, kept, used, other, reference, groups=1)
        errors = np.abs(np.log(trees.seconds(own.launches) / own.times))
    slower = own.launches.counts.warps <= 4
    assert errors[slower & ~kept].mean() < 0.4 * np.log(1.5)
    assert errors[~slower & ~kept].mean() < 0.1


class Uncorrected:
    """The formula's times."""

    def __init__(self, used):
        self.used, self.factors = used, alike.factors_of(used)

    def parts(self, launches):
        return launches.parts(self.used.numbers, self.factors)

    def seconds(self, launches):
        return self.parts(launches).seconds


def test_choices_are_judged_by_what_was_timed():
    """The usual choices take twice as long as those that change, and what was not timed is out."""
    used, found = machine(OTHER), Choices(machine(OTHER), OTHER)
    made = store.Campaign({"gpu": OTHER.name, "device": [[9, 0], 132]})
    changed = 0
    for number in range(100, 128):
        problem = FramedCell.at(draw.cell(number), 1 << 30, 1).problem
        kind = cells.kind_of(problem)
        cell = cells.indices_of(problem_of_cell(kind, *cells.indices_of(problem)))
        usual = found.entries[found.number(kind, *cell)]
        other = ahead.choice_of_cell(kind, cell, used.constants, OTHER, Uncorrected(used), usual)
        if other == usual:
            continue
        times = [store.Timed(candidates.of_machine(used, usual), 2e-6)]
        if changed % 3:
            times.append(store.Timed(candidates.of_machine(used, other), 1e-6))
        changed += 1
        measured = store.Measured(number, draw.cell(number), 1, 5e-7, {}, times[0].candidate, times)
        made.cells.append(measured)
    assert changed >= 3
    judged = alike.judged(made, used, OTHER, lambda number: Uncorrected(used), 2)
    assert judged["usual"]["cells"] == judged["changed"]["cells"] == changed - -(-changed // 3)
    assert (judged["usual"]["mean"], judged["changed"]["mean"]) == (2, 1)
    assert judged["changed"]["floor_over_time"] == 0.5
    parts = alike.parts_of(made)
    assert set(parts) == {each.number for each in made.cells}
    assert set(parts.values()) <= set(range(alike.FOLDS))


def test_only_cells_change_that_gain():
    """A cell whose usual choice is slower by far gets another one, and one near the best none."""
    used = machine(H200)
    (kind,) = (each for each in cells.kinds() if str(each) == "s dot 4 whole free")
    lines = range(108, 110)

    def choices(usual, lines=lines, of=ahead.everywhere):
        return ahead.choices_of(kind, used.constants, H200, Uncorrected(used), lines, usual, of)

    def choice(usual, cell):
        """Of one cell, which is decided with those beside it: its block, as in the whole line."""

        def is_beside(problem):
            return cells.indices_of(problem)[1] // beside == cell[1] // beside

        found = choices(usual, cell[:1], is_beside)
        assert len(found) <= beside
        return found[cell]

    _, beside = deciding._BLOCK
    best = choices({})
    assert len(best) > 100 and choices(best) == best
    kept = changed = 0
    for cell in sorted(best)[::3]:
        problem = problem_of_cell(kind, *cell)
        if cells.indices_of(problem) != cell:
            continue  # so large that it has the choice of a cell with fewer lines
        # What it costs on the largest problem of a cell, and the most on any of its problems.
        times = [
            {each.candidate: each.parts.seconds for each in predictions(used, one, H200, kind.free)}
            for one in deciding.problems_of(kind, *cell)
        ]
        for candidate in times[0]:
            over = [each.get(candidate, np.inf) / each[best[cell]] for each in times]
            if 1.15 < over[0] < 1.35 and changed < 3:
                assert choice(dict.fromkeys(best, candidate), cell) != candidate
                changed += 1
                break
            if 1 < max(over) < 1.004 and kept < 3:
                assert choice({**best, cell: candidate}, cell) == candidate
                kept += 1
                break
    assert kept and changed


@pytest.mark.parametrize("device", [H200, OTHER], ids=["h200", "other"])
def test_8192_columns_of_short_numbers_get_8_lanes_and_512_threads(device):
    """The formula alone expects them to be among the fastest, and eight vectors share them well."""
    used = machine(device)
    (kind,) = (each for each in cells.kinds() if str(each) == "h axpy 8 whole free")
    cell = cells.index_of_line(8192), cells.index_of_lines(8192)
    (found,) = ahead.choices_of(
        kind,
        used.constants,
        device,
        Uncorrected(used),
        cell[:1],
        None,
        lambda each: each.cols == 8192,
    ).values()
    own = used.constants[found.number]
    assert (own.name, found.blocks) == ("vector_columns", 0)
    assert (own.knobs["LANES"], own.knobs["THREADS_PER_BLOCK"]) == (8, 512)


def test_cells_without_times_keep_their_choices():
    (kind,) = (each for each in cells.kinds() if str(each) == "s dot 4 whole free")
    small, large = (
        cells.problem_with(kind, *sizes) for sizes in ((4096 // 4 - 4, 3), (4096, 4096))
    )
    assert not alike._is_of_the_draw(small) and alike._is_of_the_draw(large)


def test_the_campaign_on_an_h100_is_whole():
    """Each cell has times, of code that is known, and the file says what chip the GPU has."""
    made = store.Campaign.load(RESULTS / "h100.json")
    assert made.device.chip.memory_khz == 2_619_000 and made.device.multiprocessors == 132
    numbers = [each.number for each in made.cells]
    assert len(set(numbers)) == len(numbers) > 150
    assert all(each.times for each in made.cells)
    for each in made.cells:
        problem = FramedCell.at(each.cell, samples.ADDRESS, 1).problem
        for candidate, _ in each.times:
            spec = candidates.choice(candidate, problem, made.device).spec
            assert store.code_key(candidate.constants, spec, each.cell.dtype) in made.codes
    # These cells alone have as many samples as all have to have.
    made.cells[400:] = []
    assert len(samples.samples(made, made.device).times) > 4500


# Some kinds alone -------------------------------------------------------------------------------

H100_FILE = "nvidia-h100-80gb-hbm3"


def cells_with_launches(found):
    """By kinds, the launch of each changed cell of a file of changes."""
    return {
        kind: {
            place: tuple(found["entries"][number])
            for place, number in overlays.cells_of(unpacked(text)).items()
        }
        for kind, text in found["kinds"].items()
    }


def test_a_file_is_the_same_if_no_kind_is_decided():
    earlier = alike.changes_of_file(H100_FILE)
    assert len(earlier["kinds"]) > 50
    assert alike.changes_ahead(OTHER, machine(OTHER), None, 1, [], earlier) == earlier


def test_kinds_that_are_not_decided_keep_their_changes(monkeypatch):
    used = machine(OTHER)
    (kind,) = named.kinds_named("s dot 4 whole")
    usual = alike.usual(OTHER, kind)
    known, other = sorted(usual)[0], sorted(usual)[-1]
    new = ranking.Candidate((usual[other].number + 1) % len(used.constants), 0)
    assert new != usual[other]

    class Decided:
        def __init__(self, *_):
            pass

        def choices(self, wanted):
            assert wanted == [kind]
            return [(kind, {known: usual[known], other: new})]

    monkeypatch.setattr(alike, "Deciders", Decided)
    earlier = alike.changes_of_file(H100_FILE)
    found = alike.changes_ahead(OTHER, used, None, 1, [kind], earlier)
    line, lines = other
    assert cells_with_launches(found) == {
        **cells_with_launches(earlier), str(kind): {line * cells.LINES_INDICES + lines: tuple(new)},
    }  # fmt: skip
    # Launches that no cell has any more are gone, and kinds have their order.
    assert {tuple(each) for each in found["entries"]} == {
        launch for own in cells_with_launches(found).values() for launch in own.values()
    }
    assert list(found["kinds"]) == [
        name for name in map(str, cells.kinds()) if name in found["kinds"]
    ]


def test_cells_change_alone_that_several_vectors_gain_by(monkeypatch):
    """Another change of the same kind stays, and so does one to a launch that they share badly."""
    used = machine(OTHER)
    (kind,) = named.kinds_named("d dot 2 whole free")
    earlier = alike.changes_of_file(H100_FILE)
    before = cells_with_launches(earlier)[str(kind)]
    few, many = ((cells.index_of_line(1 << 17), cells.index_of_lines(rows)) for rows in (128, 8192))
    (number,) = (
        number for number, own in enumerate(used.constants)
        if own.name == "vector_rows" and own.knobs["LANES"] == 32 and "BLOCKS_PER_SM" in own.knobs
        and own.knobs["BLOCKS_PER_SM"] and own.knobs["THREADS_PER_BLOCK"] == 256
    )  # fmt: skip
    new = ranking.Candidate(number, 4)

    class Decided:
        def __init__(self, *_):
            pass

        def choices(self, wanted):
            return [(kind, {few: new, many: new})]

    monkeypatch.setattr(alike, "Deciders", Decided)
    found = alike.changes_ahead(OTHER, used, None, 1, [kind], earlier, is_sharing=True)
    line, lines = few
    expected = {**before, line * cells.LINES_INDICES + lines: tuple(new)}
    assert cells_with_launches(found)[str(kind)] == expected


def test_changes_that_cannot_be_kept_are_an_error(monkeypatch):
    with pytest.raises(ValueError, match="machines/no-gpu.cells has no changes"):
        alike.changes_of_file("no-gpu")
    monkeypatch.setattr(alike.compiled, "hash_of", lambda toml: "that of an edited one")
    with pytest.raises(ValueError, match=f"machines/{H100_FILE}.cells has no changes"):
        alike.changes_of_file(H100_FILE)


def test_options_are_checked_before_trees_are_fitted(capsys):
    files = ["none.json", "--of", "none.json"]
    with pytest.raises(SystemExit):
        alike.main([*files, "--only", "h axpy 8"])
    assert "there is no --write" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        alike.main([*files, "--sharing"])
    assert "there is no --write" in capsys.readouterr().err
    with pytest.raises(ValueError, match="no kind's name begins with 'b axpy 8'"):
        alike.main([*files, "--write", H100_FILE, "--only", "b axpy 8"])
    with pytest.raises(ValueError, match=r"no-gpu\.cells has no changes"):
        alike.main([*files, "--write", "no-gpu", "--only", "h axpy 8"])
