"""Choices by cells: of one kind, one for all problems of a cell, the same as computed ahead."""

from __future__ import annotations

import random
from array import array

import pytest
from helpers.selection import problem_of, problem_with

from gemv.core.dtypes import DTYPES
from gemv.core.geometry import Chip, Device
from gemv.measure.inputs import make_problem
from gemv.selection import cells
from gemv.selection.choices import (
    EMPTY,
    Choices,
    choices,
    packed,
    problems_of_line,
    unpacked,
)
from gemv.selection.choices import problem_of as problem_of_cell
from gemv.selection.machine import machine
from gemv.selection.ranking import EQUAL, Candidate, best, first, predictions
from gemv.selection.select import select

H200 = Device("NVIDIA H200", (9, 0), 132)


# Cells -------------------------------------------------------------------------------------------


#: Index of a size, largest size, and the number of indices: of lines' lengths and numbers.
OF_LINE = cells.index_of_line, cells.line_of, cells.LINE_INDICES
OF_LINES = cells.index_of_lines, cells.lines_of, cells.LINES_INDICES
BOTH = pytest.mark.parametrize("index_of, largest_of, indices", [OF_LINE, OF_LINES])


@BOTH
def test_indices_grow_by_one_and_a_cell_ends_at_its_largest_size(index_of, largest_of, indices):
    last = 0
    for size in range(1, 70000):
        index = index_of(size)
        assert index == last + (size > largest_of(last))
        last = index
    for index in range(1, indices):
        assert index_of(largest_of(index)) == index
        assert index + 1 == indices or index_of(largest_of(index) + 1) == index + 1
    assert index_of(10**12) == indices - 1
    # A launch may need one pass more just above a power of two, and half way to the next.
    for size in (64, 96, 128, 1024, 4096, 5120, 1 << 20):
        assert largest_of(index_of(size)) == size


@BOTH
def test_no_problem_of_a_cell_is_much_smaller_than_its_largest(index_of, largest_of, indices):
    least = 0.8 if index_of is cells.index_of_lines else 0.888
    for size in random.Random(1).sample(range(16, 1 << 27), 3000):
        assert least < size / largest_of(index_of(size)) <= 1


def test_the_largest_problem_of_a_cell_is_of_the_cell():
    chance = random.Random(2)
    found = 0
    for kind in cells.kinds():
        for _ in range(60):
            at = chance.randrange(1, 110), chance.randrange(1, 60)
            problem = cells.representative(kind, *at)
            if problem is not None:
                found += 1
                assert cells.kind_of(problem, kind.free) == kind
                assert cells.indices_of(problem) == at
    assert found > 2000


def test_every_problem_has_one_of_the_kinds():
    known = set(cells.kinds())
    chance = random.Random(3)
    for _ in range(3000):
        letter = chance.choice("sdczhb")
        size = DTYPES[letter].itemsize
        m, n = (int(2 ** chance.uniform(0, 16)) for _ in range(2))
        problem = make_problem(m, n, DTYPES[letter], chance.choice("CF"), chance.choice("NTC"))
        if chance.random() < 0.5:
            wider = chance.randrange(1, 40)
            step = "row_stride" if problem.row_stride > 1 else "col_stride"
            problem = problem._replace(**{step: getattr(problem, step) + wider})
        problem = problem.at(256 + size * chance.randrange(4), 256)
        kind = cells.kind_of(problem)
        assert kind in known if problem.access != "strided" else kind is None


def test_kinds_of_one_line_have_no_gap():
    """A single column ends where memory does, however far away another one would begin."""
    usual = problem_of("axpy", 10, 1)
    for step in (10, 11, 1000):
        assert cells.kind_of(usual._replace(col_stride=step)).close
    two = problem_of("axpy", 10, 2)
    assert cells.kind_of(two._replace(col_stride=11)).close
    assert not cells.kind_of(two._replace(col_stride=1000)).close


def test_numbers_of_cells_survive_as_text():
    numbers = array("H", range(60000, 60000 + 500))
    assert unpacked(packed(numbers)) == numbers


def test_digits_of_a_text_of_any_length():
    """Five digits stand for four bytes, and the last ones for fewer."""
    lengths = set()
    for length in range(60):
        numbers = array("H", random.Random(length).choices(range(1 << 16), k=length))
        text = packed(numbers)
        assert unpacked(text) == numbers
        lengths.add(len(text) % 5)
    assert lengths == {0, 2, 3, 4}


def test_problems_of_a_line_are_those_of_its_cells():
    """With large matrices among them, which stand for more lines."""
    large = 0
    for name in ("h dot 1 free", "d axpy 2 whole free", "s axpy 1 close free"):
        (kind,) = (each for each in cells.kinds() if str(each) == name)
        for line in (5, 60, 130):
            found = problems_of_line(kind, line)
            assert found == [problem_of_cell(kind, line, k) for k in range(cells.LINES_INDICES)]
            large += len(found) - len(set(found))
    assert large > 100


# Choices -----------------------------------------------------------------------------------------


def test_all_problems_of_a_cell_get_the_same_constants():
    for rows, cols in ((2047, 4095), (2048, 4096), (1800, 3900)):  # whole or not: another kind
        problem = problem_with("dot", 4 * cols // 16 * 16, rows)
        chosen = select(problem, H200)
        assert chosen.spec == select(problem_with("dot", 4 * 4096, 2048), H200).spec


def test_a_choice_does_not_depend_on_what_was_chosen_before():
    problems = []
    chance = random.Random(4)
    device = Device("another GPU", (9, 0), 80)
    for _ in range(40):
        letter = chance.choice("sdh")
        rows, cols = (int(2 ** chance.uniform(0, 14)) for _ in range(2))
        problems.append(problem_of(chance.choice(["dot", "axpy"]), rows, cols, letter).at(256, 256))
    one, other = (Choices(machine(device), device) for _ in range(2))

    def candidates(found, wanted):
        return {
            p: found.entries[found.number(cells.kind_of(p), *cells.indices_of(p))] for p in wanted
        }

    assert candidates(one, problems) == candidates(other, problems[::-1])


def test_what_a_fit_computed_is_a_launch_that_the_problem_can_have():
    """Of cells all over the place: the kernel accepts the largest, and its block fits."""
    found = choices(H200)
    chance = random.Random(5)
    looked = 0
    for kind in cells.kinds():
        numbers = found.numbers(kind)
        full = [at for at, number in enumerate(numbers) if number != EMPTY]
        assert full, f"nothing was computed for {kind}"
        for at in chance.sample(full, min(25, len(full))):
            problem = problem_of_cell(kind, *divmod(at, cells.LINES_INDICES))
            candidate = found.entries[numbers[at]]
            constants = found.machine.constants[candidate.number]
            assert constants.kernel.accepts(problem) is None
            assert kind.free or not constants.kernel.phased
            assert any(
                each.candidate.number == candidate.number
                for each in predictions(found.machine, problem, H200, kind.free)
            )
            looked += 1
    assert looked > 1000


def test_what_a_fit_computed_is_near_what_the_formula_prefers():
    """Corrections shift choices between neighbours: no choice is far from the formula's own."""
    found = choices(H200)
    chance = random.Random(6)
    ratios = []
    for kind in cells.kinds():
        numbers = found.numbers(kind)
        full = [at for at, number in enumerate(numbers) if number != EMPTY]
        for at in chance.sample(full, min(4, len(full))):
            problem = problem_of_cell(kind, *divmod(at, cells.LINES_INDICES))
            seconds = {
                each.candidate: each.parts.seconds
                for each in predictions(found.machine, problem, H200, kind.free)
            }
            chosen = found.entries[numbers[at]]
            same = [t for c, t in seconds.items() if c.number == chosen.number]
            ratios.append(seconds.get(chosen, min(same)) / min(seconds.values()))
    assert max(ratios) < 1.6 and sum(ratios) / len(ratios) < 1.08


# GPUs that were not measured --------------------------------------------------------------------

#: By what the driver says of them.
OTHERS = {
    "A100": Device("NVIDIA A100-SXM4-80GB", (8, 0), 108, 0, 2,
                   Chip(2048, 65536, 164 * 1024, 32, 1_410_000, 1_593_000, 5120, 40 << 20,
                        163 << 10)),
    "L4": Device("NVIDIA L4", (8, 9), 58, 0, 64,
                 Chip(1536, 65536, 100 * 1024, 24, 2_040_000, 6_251_000, 192, 48 << 20, 99 << 10)),
    "RTX 4090": Device("NVIDIA GeForce RTX 4090", (8, 9), 128, 0, 64,
                       Chip(1536, 65536, 100 * 1024, 24, 2_520_000, 10_501_000, 384, 72 << 20,
                            99 << 10)),
    "B200": Device("NVIDIA B200", (10, 0), 148, 0, 2,
                   Chip(2048, 65536, 228 * 1024, 32, 1_965_000, 3_996_000, 8192, 126 << 20,
                        227 << 10)),
}  # fmt: skip
SHAPES = [(1, 100000), (64, 4096), (1000, 1000), (8192, 8192), (1 << 20, 32), (5, 1 << 20)]


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("access", ["dot", "axpy"])
def test_choices_for_other_gpus_fit_them(name, access):
    device = OTHERS[name]
    found = machine(device)
    for letter in "sdzh":
        for rows, cols in SHAPES:
            problem = problem_of(access, rows, cols, letter).at(256, 256)
            choice = select(problem, device)
            (launch,) = choice.geometry.launches
            candidate = best(found, problem, device)
            constants = found.constants[candidate.number]
            threads = launch.threads_per_block
            assert threads <= device.chip.threads
            registers = constants.registers_for(problem)
            assert registers * threads <= device.chip.registers
            assert device.lacks(choice.kernel.capability) is None
            work = choice.kernel.work(problem, choice.geometry, choice.knobs)
            assert work.shared_bytes <= min(device.chip.shared_bytes, 48 * 1024)
            size = rows * cols * problem.dtype.itemsize
            if size > 64 << 20:  # enough to keep the memory busy
                blocks = min(work.blocks, device.multiprocessors * 32)
                in_flight = work.flight * work.threads * blocks / device.multiprocessors
                assert in_flight >= 12 * 1024


def test_no_cluster_is_chosen_where_there_are_none():
    problem = problem_of("dot", 1, 16384).at(256, 256)
    assert "cluster" in select(problem, H200).kernel.name
    for name in ("A100", "L4", "RTX 4090"):
        assert "cluster" not in select(problem, OTHERS[name]).kernel.name
        with pytest.raises(ValueError, match="cluster_rows: blocks in clusters: .*9.0"):
            select(problem, OTHERS[name], "cluster_rows")


def test_choices_differ_where_machines_do():
    def chosen(device):
        problems = [
            problem_of(access, rows, cols, letter).at(256, 256)
            for access in ("dot", "axpy")
            for rows, cols in SHAPES
            for letter in "sd"
        ]
        return [select(problem, device)[:3] for problem in problems]

    assert chosen(OTHERS["L4"]) != chosen(OTHERS["B200"])
    times = {
        name: min(
            each.parts.seconds
            for each in predictions(machine(device), problem_of("dot", 8192, 8192), device)
        )
        for name, device in OTHERS.items()
    }
    assert times["B200"] < times["A100"] < times["RTX 4090"] < times["L4"]


def test_of_costs_that_count_as_equal_the_first_candidate_wins():
    """Up to the limit, and not beyond; wherever in the list they are."""
    one, two, three = (Candidate(number, 0) for number in (1, 2, 3))
    assert first([]) is None
    assert first([(2.0, three)]) == three
    assert first([(2.0, three), (2.0 * EQUAL, one)]) == one
    assert first([(2.0 * EQUAL, one), (2.0, three)]) == one
    assert first([(2.001 * EQUAL, one), (2.0, three), (2.0 * EQUAL, two)]) == two
    assert first([(3.0, one), (2.0, two)]) == two
    assert first([(2.0, Candidate(2, 4)), (2.0, Candidate(2, 1))]) == Candidate(2, 1)
