"""Cells decided ahead: problems counted together, trees in machine code, the best of a cell."""

from __future__ import annotations

import builtins
import itertools
import math
import sys

import numpy as np
import pytest
from helpers.problems import ALL_ROWS
from helpers.programs import program

from gemv.core import problem as problem_module
from gemv.core.geometry import Device
from gemv.kernels import REGISTRY
from gemv.selection import cells, sharing
from gemv.selection.choices import problem_of, problems_of_line
from gemv.selection.items import counts_in_batches, work_of_batch
from gemv.selection.machine import machine
from gemv.selection.ranking import EQUAL, Candidate, knobs_of

ahead = program("fit.ahead")
deciding = program("fit.deciding")
rows = program("fit.rows")
samples = program("fit.samples")
timer = program("fit.timer")
together = program("fit.together")

H200 = Device("NVIDIA H200", (9, 0), 132)
MACHINE = machine(H200)
FACTORS = np.array([MACHINE.factors_of(REGISTRY[name]) for name in samples.KERNELS])


class Uncorrected:
    """The formula's times, but for A in the L2 cache, where launches of few threads gain."""

    def parts(self, launches):
        return launches.parts(MACHINE.numbers, FACTORS)

    def seconds(self, launches):
        times = self.parts(launches).seconds
        return times * np.where(launches.counts.is_hot * (launches.counts.warps < 8), 0.8, 1.0)


def kind_named(name):
    (kind,) = (each for each in cells.kinds() if str(each) == name)
    return kind


def problems_of(kind, step=3):
    """Problems of cells all over the place, one of each."""
    found = {}
    for line in range(3, cells.LINE_INDICES, 2 * step):
        for problem in problems_of_line(kind, line)[1::step]:
            if problem is not None:
                found[problem] = None
    return list(found)


# Many problems together --------------------------------------------------------------------------


@pytest.mark.parametrize("name", [
    "h dot 1 free", "s dot 4 whole free", "d dot 2 free", "h axpy 1 close free", "z axpy 1 free",
    "s axpy 2 free", "c axpy 2 whole free",
])  # fmt: skip
def test_launches_that_are_counted_together_are_those_counted_one_by_one(name):
    kind = kind_named(name)
    problems = problems_of(kind, 7 if ALL_ROWS else 11)
    expected = {}
    for place, problem in enumerate(problems):
        for candidate, row in ahead.launches_of(MACHINE.constants, problem, H200, False, True):
            expected[place, rows.code_of(candidate)] = row
    own = timer.Timer(problems, MACHINE.constants, H200, Uncorrected())
    with together.arrays():
        found = rows.Rows(own._all(np.arange(len(problems)), True))
    keys = list(zip(found.problems.tolist(), found.codes.tolist(), strict=True))
    assert len(keys) == len(set(keys)) > 1000 and set(keys) == set(expected)
    wanted = samples.stacked([expected[key] for key in keys])
    given = found.launches(np.arange(len(keys)))
    assert np.array_equal(given.kernels, wanted.kernels)
    assert np.array_equal(given.further, wanted.further)
    for one, other in zip(given.counts, wanted.counts, strict=True):
        assert np.array_equal(one, other)
    assert all(map(np.array_equal, found.counted().counts, wanted.counts))
    some = np.arange(1, len(keys), 5)
    assert np.array_equal(found.launches(some).further, wanted.further[some])


def test_problems_are_divided_where_they_go_different_ways():
    kind = kind_named("s dot 4 whole free")
    sizes = itertools.product(range(16, 36, 4), (2, 9))
    problems = [cells.problem_with(kind, *each) for each in sizes]
    gathered = together.Gathered(problems)

    def ways(problem):
        loops = [problem.cols + k for k in range(problem.rows - 1)]
        return ("long" if problem.cols > 24 else "short", len(loops), loops[0])

    found = {}
    for places, (length, loops, cols) in gathered.in_groups(ways, np.arange(len(problems))):
        for place, each in zip(places.tolist(), cols.tolist(), strict=True):
            found[place] = length, loops, each
    assert found == {
        place: ("long" if each.cols > 24 else "short", each.rows - 1, each.cols)
        for place, each in enumerate(problems)
    }
    (some,) = [found for found, _ in gathered.in_groups(lambda problem: 1, np.array([1, 3]))]
    assert some.tolist() == [1, 3]
    assert not list(gathered.in_groups(ways, np.zeros(0, int)))


def test_an_error_of_some_problems_is_theirs_alone():
    kind = kind_named("s dot 4 whole free")
    gathered = together.Gathered([cells.problem_with(kind, 64, lines) for lines in range(2, 20)])

    def made(problem):
        try:
            if problem.rows > 7:
                raise ValueError(f"too many rows: {problem.rows}")
        except ValueError:
            return None
        return problem.rows

    found = [(at.tolist(), rows) for at, rows in gathered.in_groups(made, np.arange(18))]
    assert sorted(sum((at for at, rows in found if rows is None), [])) == list(range(6, 18))


def test_problems_that_differ_in_more_than_sizes_are_refused():
    one = cells.problem_with(kind_named("s dot 4 whole free"), 64, 9)
    with pytest.raises(ValueError, match="differ in their sizes alone"):
        together.Gathered([one, one.aligned(8, 16)])


def test_numbers_of_arrays():
    many = np.array([1, 2, 3, 255, 256, (1 << 53) - 1]).view(together.Many)
    assert many.bit_length().tolist() == [1, 2, 2, 8, 9, 53]
    assert range(9)[many[:1]] == 1 and f"{many}" == "one of several numbers"
    with pytest.raises(together.Differ) as ways:
        bool(many > 2)
    assert ways.value.which.tolist() == [False, False, True, True, True, True]
    assert bool(many > 0) and not bool(many < 0)
    for module in (problem_module, sys.modules["gemv.kernels.grids"]):
        names = [name for name in ("max", "min", "math") if name in vars(module)]
        with together.arrays():
            assert module.max(3, many[:3]).tolist() == [3, 3, 3]
            assert module.min([2, many[:3]]).tolist() == [1, 2, 2]
            assert module.max((5, 7), key=lambda each: -each) == 5 and module.max(2, 3) == 3
            assert module.float(many[:2]).dtype == float and module.int(2.5) == 2
        assert names == [name for name in ("max", "min", "math") if name in vars(module)]
    with together.arrays():
        assert problem_module.math.gcd(4, many[1:3]).tolist() == [2, 1]
        assert problem_module.math.gcd(4, 6) == 2
    assert problem_module.math is math


def test_names_are_back_after_an_error():
    before = {name: dict(vars(module)) for name, module in sys.modules.items()
              if name.startswith("gemv.")}  # fmt: skip
    with pytest.raises(KeyError), together.arrays():
        assert "max" in vars(sys.modules["gemv.kernels.work"])
        raise KeyError
    for name, found in before.items():
        assert vars(sys.modules[name]).keys() == found.keys()
    assert builtins.max is max


# What cells get ----------------------------------------------------------------------------------


def by_hand(kind, inside, sets, usual=()):
    """The candidates of the cells of one block, by loops over single launches."""
    usual = dict(usual)
    one = Uncorrected()

    def logs(launches):
        """Logarithms of times by candidate, of the launches near the best of a problem."""
        stacked = {each: samples.stacked([row]) for each, row in launches.items()}
        rough = {each: float(one.parts(own).seconds[0]) for each, own in stacked.items()}
        found = {}
        for each, own in stacked.items():
            if rough[each] <= 1.4 * min(rough.values()):
                found[each] = float(np.log(one.seconds(own)[0]))
                if own.counts.moved[0] <= sharing.MAY_BE_HOT:
                    hot = own._replace(counts=own.counts._replace(is_hot=np.ones(1)))
                    found[each] = (found[each] + float(np.log(one.seconds(hot)[0]))) / 2
        return found

    def of_near(problem):
        """The launches of those sets alone that have one among the candidates."""
        few = sorted({each.number for each in near})
        own = ahead.launches_of([sets[each] for each in few], problem, H200, False, kind.free)
        launches = ((each._replace(number=few[each.number]), row) for each, row in own)
        return {each: row for each, row in launches if each in near}

    near = set()
    middle = inside[len(inside) // 2]
    for cell in {inside[0], middle, inside[-1]}:
        found = logs(dict(ahead.launches_of(sets, problem_of(kind, *cell), H200, False, kind.free)))
        near |= {each for each, log in found.items() if log <= min(found.values()) + np.log(1.1)}
    chosen = {}
    for cell in inside:
        losses = {}
        for place, problem in enumerate(deciding.problems_of(kind, *cell)):
            costs = logs(of_near(problem))
            if counts_in_batches(problem):
                for each in costs:
                    constants = sets[each.number]
                    knobs = knobs_of(constants, each.blocks)
                    work = work_of_batch(
                        constants.kernel, knobs,
                        constants.kernel.geometry(problem, H200, knobs), problem, H200,
                    )  # fmt: skip
                    row = samples.row_of(
                        constants.name, constants.knobs, each.blocks, problem, work, H200,
                        constants.registers_for(problem), False,
                    )  # fmt: skip
                    costs[each] += np.log(one.parts(samples.stacked([row])).seconds[0]) / 4
            for each, cost in costs.items():
                loss = (2 - min(place, 1)) * (cost - min(costs.values()))
                losses.setdefault(each, []).append(loss)
        most = max(map(len, losses.values()))
        sums = {each: sum(own) for each, own in losses.items() if len(own) == most}
        largest = problem_of(kind, *cell)
        large = largest.rows * largest.cols * largest.dtype.itemsize > 24 << 20

        short = kind.letter in "hb"
        few = largest.rows <= (256 if short else 128)
        wide = kind.width * largest.dtype.itemsize == 16

        def is_good(each, largest=largest, large=large, few=few, wide=wide, short=short):
            """Whether the launch is known to serve eight vectors well."""
            own = sets[each.number]
            if own.name == "vector_rows":
                lanes = own.knobs["LANES"]
                if few:
                    blocks = 2 if short and largest.rows <= 64 else 4
                    return large and wide and lanes == 32 and each.blocks == blocks
                unsplit = lanes <= 32 and not each.blocks and largest.rows >= 1024
                return large and wide and short and kind.whole and unsplit
            if kind.letter in "dc" and own.name == "vector_columns":
                threads = own.knobs["THREADS_PER_BLOCK"] == 512 and own.knobs["LANES"] >= 16
                many = largest.cols >= 1024 and each.blocks <= 1
                return large and kind.width == 2 and threads and many
            return large and str(kind)[0] in "dc" and kind.width == 2 and own.name == "long_columns"

        dear = few and kind.access == "dot"
        limit = min(sums.values()) + (1 + most) * np.log(1.05 if dear else 1.025)
        favoured = {each: own for each, own in sums.items() if own <= limit and is_good(each)}
        sums = favoured or sums
        limit = min(sums.values()) + (1 + most) * np.log(EQUAL)
        chosen[cell] = min(each for each, own in sums.items() if own <= limit)
    return chosen


@pytest.mark.parametrize("name, line, lines", [
    ("s dot 4 whole free", 60, 30), ("h axpy 1 free", 100, 20), ("d dot 1", 120, 12),
    ("c axpy 2 free", 40, 60), ("s axpy 1 close free", 20, 80), ("h dot 8 whole free", 88, 52),
    ("d axpy 2 whole free", 144, 24), ("d axpy 2 whole free", 88, 52),
    ("c axpy 2 whole free", 32, 80), ("h dot 8 whole free", 144, 24),
])  # fmt: skip
def test_a_cell_gets_what_is_best_for_its_problems(name, line, lines):
    """By loops over single launches: the mean over three problems, of what does well nearby."""
    kind = kind_named(name)
    inside = list(itertools.product(range(line, line + 4), range(lines, lines + 2)))
    inside = [cell for cell in inside if problem_of(kind, *cell) is not None]
    assert all(cells.indices_of(problem_of(kind, *cell)) == cell for cell in inside)
    sets = MACHINE.constants
    found = ahead._decided({kind: inside}, sets, H200, Uncorrected(), {})
    assert found == {kind: by_hand(kind, inside, sets)}


def test_kinds_that_are_decided_together_get_what_each_gets_alone():
    groups = ahead._alike(cells.kinds())
    assert sorted(sum(groups, [])) == sorted(cells.kinds())
    several = next(each for each in groups if {"close", "free"} <= set(str(each[-1]).split()))
    assert {(each.letter, each.access, each.width) for each in several} == {several[0][:3]}
    lines, sets = range(44, 48), MACHINE.constants[::2]
    assert {each.name for each in sets} == {each.name for each in MACHINE.constants}
    both = ahead.choices_of_kinds(several, sets, H200, Uncorrected(), lines, {})
    for kind in several:
        assert both[kind] == ahead.choices_of(kind, sets, H200, Uncorrected(), lines)
        assert not both[kind] or {line for line, _ in both[kind]} == set(lines)
    assert sum(map(bool, both.values())) >= 3


def test_usual_choices_are_kept_unless_others_gain():
    kind, sets = kind_named("s dot 4 whole free"), MACHINE.constants
    inside = list(itertools.product(range(60, 64), range(30, 32)))
    best = ahead._decided({kind: inside}, sets, H200, Uncorrected(), {})[kind]
    assert ahead._decided({kind: inside}, sets, H200, Uncorrected(), {kind: best})[kind] == best
    slow = dict.fromkeys(inside, rows.candidate_of(rows.code_of(Candidate(len(sets) - 1, 0))))
    found = ahead._decided({kind: inside}, sets, H200, Uncorrected(), {kind: slow})[kind]
    assert found.keys() == best.keys() and not set(found.values()) & set(slow.values())
    mixed = {**best, inside[3]: slow[inside[3]]}
    found = ahead._decided({kind: inside}, sets, H200, Uncorrected(), {kind: mixed})[kind]
    assert {cell for cell in inside if found[cell] != mixed[cell]} <= {inside[3]}


def test_no_cell_gets_a_kernel_that_its_largest_problem_refuses():
    """Smaller problems of the cell may be for it: here A has 26 MiB at most, and 23 and 24."""
    phased = samples.KERNELS.index("phased_columns")

    class Favoured(Uncorrected):
        def seconds(self, launches):
            return super().seconds(launches) * np.where(launches.kernels == phased, 0.1, 1.0)

    kind, inside = kind_named("s axpy 2 free"), [(61, 51), (61, 52)]
    found = ahead._decided({kind: inside}, MACHINE.constants, H200, Favoured(), {})[kind]
    names = [MACHINE.constants[found[cell].number].name for cell in inside]
    assert names[0] == "phased_columns" and names[1] in sharing.SEVERAL
    sizes = [4 * each.rows * each.cols / 2**20 for each in deciding.problems_of(kind, 61, 52)]
    assert sharing.MAY_BE_HOT == 24 * 2**20 and sizes[0] > 24 > max(sizes[1:])


def test_processes_decide_what_one_does(monkeypatch):
    """The smallest kinds, whose lines end at the 41st, in three parts by the lengths of lines."""
    monkeypatch.setattr(ahead, "LINE_INDICES", 42)
    monkeypatch.setattr(ahead, "_LINES_AT_ONCE", 16)
    wanted = [kind_named("z axpy 1 close free"), kind_named("z axpy 1 close")]
    sets, said = MACHINE.constants[::6], []
    made = ahead.choices_ahead(sets, H200, FormulaOnly(), 2, wanted, said.append)
    assert list(made["kinds"]) == [str(kind) for kind in wanted] and len(said) == 2
    from gemv.selection.choices import EMPTY, unpacked

    for kind, lines in ((wanted[0], range(28, 32)), (wanted[1], range(40, 44))):
        numbers = unpacked(made["kinds"][str(kind)])
        chosen = ahead.choices_of(kind, sets, H200, FormulaOnly(), lines)
        assert len(set(chosen.values())) > 1
        for (line, count), candidate in chosen.items():
            number = numbers[line * cells.LINES_INDICES + count]
            assert number != EMPTY and tuple(made["entries"][number]) == candidate
        found = {at // cells.LINES_INDICES for at, each in enumerate(numbers) if each != EMPTY}
        assert found == {line for line in range(42) if any(problems_of_line(kind, line))}


class FormulaOnly(Uncorrected):
    """As above, for other processes: they import this file."""

    def seconds(self, launches):
        return self.parts(launches).seconds
