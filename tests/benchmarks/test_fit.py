"""The campaign and the fit: cells are drawn evenly, times are kept, a machine is found again."""

import json
from collections import Counter

import numpy as np
import pytest
from helpers.programs import program

from gemv.core.dtypes import DTYPES
from gemv.core.geometry import Device
from gemv.kernels import REGISTRY
from gemv.measure.cells import random_cells
from gemv.measure.frames import FramedCell, lay_out
from gemv.measure.inputs import make_problem
from gemv.selection import cells
from gemv.selection.choices import problem_of as problem_of_cell
from gemv.selection.formula import Machine
from gemv.selection.machine import Constants, machine
from gemv.selection.ranking import knobs_of, predictions
from gemv.selection.select import select

draw = program("fit.draw")
candidates = program("fit.candidates")
store = program("fit.store")
campaign = program("fit.campaign")
samples = program("fit.samples")
fit = program("fit.fit")
gate = program("fit.gate")
portfolio = program("fit.portfolio")
ahead = program("fit.ahead")

H200 = Device("NVIDIA H200", (9, 0), 132)


def problem_of(number):
    return FramedCell.at(draw.cell(number), 1 << 30, 1).problem


# The draw ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [60, 300])
def test_any_first_part_of_the_draw_covers_the_same_ground(count):
    cells = [draw.cell(number) for number in range(count)]
    problems = [problem_of(number) for number in range(count)]
    assert len(set(cells)) == count
    assert {cell.dtype for cell in cells} == set("sdczhb")
    access = Counter(problem.access for problem in problems)
    assert min(access["dot"], access["axpy"]) > 0.4 * count
    assert 0.3 < np.mean([problem.a_alignment == 16 for problem in problems]) < 0.8
    size = np.log2([lay_out(cell).nbytes for cell in cells if not cell.hot])
    # log-uniform from 2**14 to 2**30, and up to half an octave of rounding
    quarters = np.histogram(size, bins=[13, 18, 22, 26, 31])[0] / len(size)
    assert np.all(np.abs(quarters - 0.25) < 0.08)


def test_cells_are_as_large_as_they_may_be():
    for number in range(400):
        cell = draw.cell(number)
        nbytes = cell.m * cell.n * problem_of(number).dtype.itemsize
        least, most = draw.HOT_BYTES if cell.hot else draw.BYTES
        assert 0.6 * least < nbytes < 1.5 * most
        assert max(cell.m, cell.n) <= 1.2 * draw.SIDE


def test_cells_of_either_cache_are_kept_from_the_fit():
    kept = Counter(draw.cell(number).hot for number in range(550) if draw.is_held_out(number))
    assert 130 <= kept.total() <= 170 and kept[True] > 12


# Candidates -------------------------------------------------------------------------------------


def test_candidates_begin_with_the_present_choice_and_never_repeat_a_launch():
    from gemv.selection.select import select

    for number in range(0, 120, 7):
        problem = problem_of(number)
        found = candidates.candidates(problem, H200, number)
        made = [candidates.choice(each, problem, H200) for each in found]
        present = select(problem, H200)
        assert made[0].kernel is present.kernel
        assert made[0].geometry.launches == present.geometry.launches
        launches = [(each.constants, one.geometry.launches)
                    for each, one in zip(found, made, strict=True)]  # fmt: skip
        assert len(set(launches)) == len(found) >= 5
        assert candidates.candidates(problem, H200, number) == found  # by its seed alone


def test_splits_share_machine_code():
    one = candidates.normal("vector_rows", {"BLOCKS_PER_SM": 4})
    other = candidates.normal("vector_rows", {"BLOCKS_PER_SM": 8})
    none = candidates.normal("vector_rows", {"BLOCKS_PER_SM": 0})
    assert one.constants == other.constants != none.constants
    assert (one.blocks, other.blocks, none.blocks) == (4, 8, 0)
    problem = problem_of(0)._replace(rows=3, cols=1 << 22, row_stride=1 << 22, col_stride=1)
    few, many = (candidates.choice(each, problem, H200) for each in (one, other))
    assert few.spec == many.spec and few.geometry.sizes["splits"] < many.geometry.sizes["splits"]


def test_lanes_are_too_few_for_long_rows_and_not_for_long_columns():
    """Lanes of a row take turns along it; those of a column are the rows of one block of many."""
    rows, columns = (
        make_problem(8192, 8192, DTYPES["b"], order, "N").at(256, 256) for order in "CF"
    )
    works = {lanes: candidates.has_work({"LANES": lanes}, rows) for lanes in (8, 16, 31, 32)}
    assert works == {8: False, 16: False, 31: False, 32: True}
    assert all(candidates.has_work({"LANES": lanes}, columns) for lanes in (1, 8, 32, 2048))
    assert candidates.has_work({"LANES": 8}, rows._replace(rows=4095))
    for problem in (rows, columns):  # 1024 loads of a line
        assert not candidates.has_work({"LANES": 4096}, problem)


def test_the_pool_is_spread_out():
    assert set(candidates.pool()) == {k.name for k in REGISTRY.values() if not k.teaching}
    for name, sets in candidates.pool().items():
        assert len(set(sets)) == len(sets)
        for kernel, knobs in sets:
            assert kernel == name and not REGISTRY[name].objection(dict(knobs))
    lanes = {dict(knobs)["LANES"] for _, knobs in candidates.pool()["vector_rows"]}
    assert {1, 4, 32, 256} <= lanes


# The campaign -----------------------------------------------------------------------------------


@pytest.mark.skipif(
    campaign.backend_name() != "simulator", reason="cells are as large as a GPU needs them"
)
def test_candidates_agree_and_a_second_run_goes_on(tmp_path, capsys):
    file = tmp_path / "campaign.json"
    campaign.main([str(file), "--cells", "2"])
    first = store.Campaign.load(file)
    assert [each.number for each in first.cells] == [0, 1]
    assert "2 cells: all candidates agree" in capsys.readouterr().out
    campaign.main([str(file), "--cells", "3"])
    again = store.Campaign.load(file)
    assert again.cells[:2] == first.cells and again.cells[2].cell.dtype == draw.cell(2).dtype
    campaign.main([str(file), "--cells", "1", "--random", "3"])
    last = store.Campaign.load(file).cells[3]
    assert last.number == 4 * campaign.RANDOM
    assert last.cell.dtype == random_cells(1, 3)[0].dtype


@pytest.mark.skipif(
    campaign.backend_name() != "simulator", reason="cells are as large as a GPU needs them"
)
def test_a_wrong_candidate_is_an_error(tmp_path, monkeypatch):
    from gemv.engines import backend

    engine = backend.engine()
    run = type(engine).run

    def off_by_one(self, choice, problem, alpha, *rest, **more):
        wrong = alpha * 2 if choice.reason == "a candidate" else alpha
        return run(self, choice, problem, wrong, *rest, **more)

    monkeypatch.setattr(type(engine), "run", off_by_one)
    with pytest.raises(AssertionError, match="is wrong on Cell"):
        campaign.main([str(tmp_path / "campaign.json"), "--cells", "1"])


def test_a_random_cell_tries_what_the_formula_expects_of_the_machines_own_constants():
    (cell,) = random_cells(1, 3)
    problem = FramedCell.at(cell, 1 << 30, 1).problem
    present, *others = candidates.expected(problem, H200, 6)
    chosen = select(problem, H200)
    assert present == candidates.normal(chosen.kernel.name, chosen.knobs)
    assert 5 <= len(others) <= 6 and present not in others
    own = {
        candidates.normal(each.kernel.name, each.knobs).constants
        for each in machine(H200).constants
    }
    assert {each.constants for each in others} <= own
    predicted = {}
    for each in predictions(machine(H200), problem, H200):
        knobs = knobs_of(each.constants, each.candidate.blocks)
        predicted[candidates.normal(each.constants.kernel.name, knobs)] = each.parts.seconds
    times = [predicted.pop(each) for each in others]
    predicted.pop(present, None)
    assert times == sorted(times) and times[-1] <= min(predicted.values())


def test_a_campaign_is_read_as_it_was_written(tmp_path):
    rows, columns = (candidates.normal(name, {}) for name in ("vector_rows", "vector_columns"))
    written = store.Campaign({"gpu": "any", "device": [[9, 0], 132]})
    written.codes[rows.constants, "s", (4, 4), True, 1] = (96, 0, 1028)
    times = [store.Timed(rows, 2.5e-6), store.Timed(columns, 7e-6), store.Timed(rows, 2.6e-6)]
    written.cells.append(
        store.Measured(7, draw.cell(7), 12345, 2e-6, {"torch.mv": 9e-6}, columns, times)
    )
    file = tmp_path / "campaign.json"
    written.save(file)
    read = store.Campaign.load(file)
    assert (read.about, read.codes) == (written.about, written.codes)
    (cell,) = read.cells
    assert (cell.number, cell.cell, cell.present) == (7, draw.cell(7), columns)
    assert [each.candidate for each in cell.times] == [rows, columns, rows]
    assert cell.times[0].seconds == pytest.approx(2.5e-6)
    assert cell.peers["torch.mv"] == pytest.approx(9e-6)


def test_machine_codes_for_few_and_for_many_rows_are_kept_apart():
    """Both in the campaign's file, and in the constants that a machine gets of it."""
    made = store.Campaign({"gpu": "NVIDIA H200", "device": [[9, 0], 132]})
    each = candidates.normal("vector_columns", {"LANES": 1})
    for rows, registers in ((1, 30), (2, 40), (9, 50)):
        problem = problem_with_rows(rows)
        spec = candidates.choice(each, problem, H200).spec
        made.codes[store.code_key(each.constants, spec, "s")] = (registers, 0, 0)
    assert len(made.codes) == 3
    (constants,) = portfolio.compiled_sets(made)
    assert constants.registers == {"s1xn1": 30, "s1xn2": 40, "s1x": 50}
    for rows, registers in ((1, 30), (2, 40), (9, 50)):
        assert constants.registers_for(problem_with_rows(rows)) == registers


def problem_with_rows(rows):
    """Columns of so many rows, with a gap: without one, memory would run along a single row."""
    problem = make_problem(rows, 5000, DTYPES["s"], "F", "N")
    return problem._replace(col_stride=rows + 1).at(4, 4)


def test_a_summary_is_of_cells_whose_present_choice_was_timed():
    one, other = (candidates.normal(name, {}) for name in ("vector_rows", "vector_columns"))
    cells = [
        store.Measured(number, draw.cell(number), 1, 1e-6, {}, present, [store.Timed(one, 2e-6)])
        for number, present in enumerate((one, other, one))
    ]
    assert campaign.summary(cells).startswith("2 cells, 2 times; floor / best 0.500")


# The formula and the fit ------------------------------------------------------------------------


def invented(count=12, seed=3):
    """Samples whose times follow the formula with a machine that is far from where a fit begins."""
    about = {"gpu": "NVIDIA H200", "device": [[9, 0], 132]}
    made = store.Campaign(about)
    for number in range(count):
        problem = problem_of(number)
        tried = candidates.candidates(problem, H200, number)
        for each in tried:
            spec = candidates.choice(each, problem, H200).spec
            made.codes[store.code_key(each.constants, spec, draw.cell(number).dtype)] = (64, 0, 0)
        times = [store.Timed(each, 1e-6) for each in tried]
        made.cells.append(store.Measured(number, draw.cell(number), 1, 1e-9, {}, tried[-1], times))
    found = samples.samples(made, H200)
    true = Machine(start=3e-6, memory_rate=1e12, memory_latency=1e-6, load=1e-8)
    times = found.launches.parts(true, np.ones((len(samples.KERNELS), 2))).seconds
    return true, found._replace(times=times, floors=times * 0 + times.min())


def test_a_machine_is_found_again_by_what_it_does():
    _, found = invented(count=24)
    machine, factors = fit.rounded(*fit.fit(found, ~found.is_held_out))
    predicted = found.launches.parts(machine, factors).seconds
    assert np.median(np.abs(np.log(predicted / found.times))) < 0.01
    for which in (found.is_held_out, ~found.is_held_out):
        judged = fit.report(found, {"formula": predicted}, which)
        assert judged["formula"]["mean"] == pytest.approx(1, abs=0.01)
        assert judged["present choice"]["mean"] > 1.05
        assert judged["median_error_of_formula"] < 0.01


def test_a_slower_machine_is_predicted_to_be_slower():
    true, found = invented(count=40)
    factors = np.ones((len(samples.KERNELS), 2))
    found = found._replace(launches=found.launches._replace(
        counts=found.launches.counts._replace(in_cluster=found.launches.counts.has_splits)
    ))  # fmt: skip
    usual = found.launches.parts(true, factors).seconds
    for name in Machine._fields:
        factor = 0.5 if name.endswith("_rate") else 2.0
        worse = true._replace(**{name: getattr(true, name) * factor})
        slower = found.launches.parts(worse, factors).seconds / usual
        assert np.all(slower >= 1) and (slower.max() > 1.0001), name


def test_regret_is_of_the_choice_and_not_of_the_prediction():
    _, found = invented(count=3)
    everything = np.ones(len(found.times), bool)
    right = fit.regret(found, found.times * 7, everything)
    assert right.mean == right.most_of_95 == right.worst == 1
    wrong = fit.regret(found, 1 / found.times, everything)
    worst = [found.times[found.cells == cell] for cell in np.unique(found.cells)]
    ratios = [each.max() / each.min() for each in worst]
    assert wrong.mean == pytest.approx(np.exp(np.mean(np.log(ratios))))
    assert wrong.worst == pytest.approx(max(ratios))


def test_the_present_choice_is_judged_where_it_was_timed():
    _, found = invented(count=4)
    everything = np.ones(len(found.times), bool)
    first = found.cells == found.cells[0]
    found = found._replace(is_present=found.is_present & ~first)
    judged = fit.report(found, {"formula": found.times}, everything)
    assert (
        judged["present choice"]
        == fit.report(found, {"formula": found.times}, ~first)["present choice"]
    )
    assert (judged["present choice"]["cells"], judged["formula"]["cells"]) == (3, 4)


def test_corrections_learn_what_the_formula_lacks():
    """Times with a term that no number of the formula stands for: narrow blocks take longer."""
    pytest.importorskip("sklearn", reason="scikit-learn, the extra 'fit', is not installed")
    from threadpoolctl import threadpool_limits  # which scikit-learn needs

    corrections = program("fit.corrections")
    true, found = invented(count=60)
    factors = np.ones((len(samples.KERNELS), 2))
    lacking = np.where(found.launches.counts.warps <= 4, 1.5, 1.0)
    found = found._replace(times=found.times * lacking)
    kept = ~found.is_held_out
    with threadpool_limits(1):  # threads that wait for each other's cores take ten times as long
        corrected = corrections.Corrections(found, kept, true, factors).seconds(found.launches)
    formula = found.launches.parts(true, factors).seconds
    for which in (kept, ~kept):
        before, after = (
            np.abs(np.log(each / found.times))[which].mean() for each in (formula, corrected)
        )
        assert after < 0.4 * before


def test_a_portfolio_grows_by_what_helps_most():
    made = [
        Constants("vector_rows", dict(knobs), {"s": 64})
        for _, knobs in candidates.pool()["vector_rows"][:12]
    ]
    true = Machine()
    factors = np.ones((len(samples.KERNELS), 2))

    def seconds(launches):
        return launches.parts(true, factors).seconds

    few, many = (portfolio.chosen(made, count, H200, seconds) for count in (3, 6))
    assert many[:3] == few and len(set(map(id, many))) == 6


def test_random_cells_of_a_kind_keep_their_numbers():
    every = dict(campaign.random_wanted(300, 5))
    assert sorted(every) == list(range(6 << 20, (6 << 20) + 300))
    assert list(every.values()) == list(random_cells(300, 5))
    some = campaign.random_wanted(300, 5, "h dot 1")
    assert 10 < len(some) < 80
    for number, cell in some:
        kind = cells.kind_of(FramedCell.at(cell, samples.ADDRESS, 1).problem)
        assert every[number] == cell and (kind.letter, kind.access, kind.width) == ("h", "dot", 1)
    assert len(campaign.random_wanted(300, 5, "h dot")) > len(some)


@pytest.mark.parametrize("line", [60, 108, 160])
def test_cells_computed_ahead_are_what_the_formula_prefers(line):
    """Without corrections, and with cells as small as they are: the same as one by one."""
    found = machine(H200)
    factors = np.array([found.factors_of(REGISTRY[name]) for name in samples.KERNELS])

    class Uncorrected:
        def parts(self, launches):
            return launches.parts(found.numbers, factors)

        def seconds(self, launches):
            return self.parts(launches).seconds

    (kind,) = (each for each in cells.kinds() if str(each) == "s dot 4 whole free")
    lines = range(line, line + 2)
    with_ahead = ahead.choices_of(kind, found.constants, H200, Uncorrected(), lines)
    assert {at[0] for at in with_ahead} == set(lines)
    near = []
    for at in list(with_ahead)[::31]:
        problem = problem_of_cell(kind, *at)
        times = {
            each.candidate: each.parts.seconds
            for each in predictions(found, problem, H200, kind.free)
        }
        near.append(times[with_ahead[at]] / min(times.values()))
    assert len(near) > 5 and max(near) < 1.2


def test_code_that_spills_is_left_out():
    made = store.Campaign({"gpu": "NVIDIA H200", "device": [[9, 0], 132]})
    problem, cell = problem_of(0), draw.cell(0)
    one, other = candidates.candidates(problem, H200, 0)[:2]
    for each, local in ((one, 0), (other, 8)):
        spec = candidates.choice(each, problem, H200).spec
        made.codes[store.code_key(each.constants, spec, cell.dtype)] = (64, local, 0)
    times = [store.Timed(one, 2e-6), store.Timed(other, 1e-6)]
    made.cells.append(store.Measured(0, cell, 1, 1e-6, {}, one, times))
    found = samples.samples(made, H200)
    assert found.times.tolist() == [2e-6]
    name = samples.KERNELS[found.launches.kernels[0]]
    assert REGISTRY[name] is candidates.choice(one, problem, H200).kernel


def test_choices_of_today_are_judged_by_times_of_then(tmp_path):
    """What was chosen then took twice as long; where today's choice was not timed, none is."""
    made = store.Campaign({"gpu": H200.name, "device": [[9, 0], 132]})
    for number in range(12):
        problem, cell = problem_of(number), draw.cell(number)
        now = gate.chosen_now(cell, H200)
        chosen = select(problem, H200)
        assert now == candidates.normal(chosen.kernel.name, chosen.knobs)
        other = next(each for each in candidates.candidates(problem, H200, 0) if each != now)
        times = [store.Timed(other, 4e-6)]
        if number % 3:
            times.append(store.Timed(now, 2e-6))
        made.cells.append(store.Measured(number, cell, 1, 1e-6, {}, other, times))
    file, report = tmp_path / "times.json", tmp_path / "report.json"
    made.save(file)
    for options, cells_judged, mean in (([], 12, 2 ** (2 / 3)), (["--now"], 8, 1)):
        gate.main([str(file), "--json", str(report), *options])
        judged = json.loads(report.read_text("utf-8"))["present"]
        assert judged["cells"] == cells_judged and judged["mean"] == pytest.approx(mean, 1e-3)


def test_a_fit_keeps_the_tables_that_it_does_not_find(tmp_path):
    pytest.importorskip("sklearn", reason="scikit-learn, the extra 'fit', is not installed")
    publish = program("fit.publish")
    file = tmp_path / "mine.toml"
    kept = "\n[host]\n# measured\nstart = 1.0\n\n[[row]]\nreason = 'why'\n"
    for text, wanted in (
        ("[numbers]\nstart = 2.0\n" + kept, kept),
        ("[numbers]\n\n[[row]]\nreason = 'why'\n", "\n[[row]]\nreason = 'why'\n"),
        ("[numbers]\n\n[host]\nstart = 1.0\n", "\n[host]\nstart = 1.0\n"),
        ("[numbers]\n", ""),
    ):
        file.write_text(text, encoding="utf-8")
        assert publish._kept(file) == wanted
    assert publish._kept(tmp_path / "none.toml") == ""
