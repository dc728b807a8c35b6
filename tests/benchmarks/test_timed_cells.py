"""Cells of which a problem was timed get no launch that was slower there."""

import dataclasses

import pytest
from helpers.programs import program

from gemv.core.geometry import Device
from gemv.measure.cells import Cell
from gemv.measure.frames import FramedCell
from gemv.selection.cells import LINES_INDICES, indices_of, kind_of
from gemv.selection.choices import choices, packed, unpacked
from gemv.selection.machine import machine
from gemv.selection.ranking import Candidate

candidates = program("fit.candidates")
samples = program("fit.samples")
store = program("fit.store")
timed_cells = program("fit.timed_cells")

H200 = Device("NVIDIA H200", (9, 0), 132)
USED = machine(H200)
#: The largest problem of its cell, and a smaller one.
LARGEST, INSIDE = Cell(1 << 20, 128, "h"), Cell((1 << 20) - 77, 128, "h")


def launches(count):
    """Different launches of rows that the machine has, as it numbers them."""
    found = [
        Candidate(number, 0)
        for number, each in enumerate(USED.constants)
        if each.name == "vector_rows" and each.knobs["LANES"] == 8 and not each.has_splits
    ]
    return found[:count]


def corrected(chosen, *measured):
    """The choice of the cell of both problems, which is `chosen` before."""
    problem = FramedCell.at(LARGEST, samples.ADDRESS, 1).problem
    kind, (line, lines) = kind_of(problem), indices_of(problem)
    before = choices(H200)
    numbers = before.numbers(kind)[:]
    entries = [*before.entries, chosen]
    at = line * LINES_INDICES + lines
    numbers[at] = entries.index(chosen)
    campaign = store.Campaign({"gpu": H200.name, "device": [[9, 0], 132]})
    for number, (cell, times) in enumerate(measured):
        own = [store.Timed(candidates.of_machine(USED, each), seconds) for each, seconds in times]
        campaign.cells.append(store.Measured(number, cell, 1, 1e-9, {}, own[0].candidate, own))
    found, count = timed_cells.corrected(
        {"entries": [list(each) for each in entries], "kinds": {str(kind): packed(numbers)}},
        campaign, USED,
    )  # fmt: skip
    after = unpacked(found["kinds"][str(kind)])
    assert [n for n, (a, b) in enumerate(zip(numbers, after, strict=True)) if a != b] in ([], [at])
    now = Candidate(*found["entries"][after[at]])
    assert count == (now != chosen)
    return now


def test_what_was_faster_on_the_largest_problem_is_chosen():
    chosen, better, best = launches(3)
    times = [(chosen, 1.03e-5), (better, 1.01e-5), (best, 1e-5)]
    assert corrected(chosen, (LARGEST, times)) == best
    times = [(chosen, 1.1e-5), (best, 1e-5), (better, 1.05e-5)]
    assert corrected(chosen, (LARGEST, times)) == best, "the fastest, not the last"
    assert corrected(chosen, (LARGEST, [(chosen, 1.01e-5), (best, 1e-5)])) == chosen
    assert corrected(chosen, (LARGEST, [(better, 1.1e-5), (best, 1e-5)])) == chosen


def test_smaller_problems_count_where_the_largest_was_not_timed():
    chosen, better = launches(2)
    a_bit, more = [(chosen, 1.04e-5), (better, 1e-5)], [(chosen, 1.06e-5), (better, 1e-5)]
    assert corrected(chosen, (INSIDE, a_bit)) == chosen
    assert corrected(chosen, (INSIDE, more)) == better
    equal = [(chosen, 1e-5), (better, 1e-5)]
    for measured in ([(INSIDE, more), (LARGEST, equal)], [(LARGEST, equal), (INSIDE, more)]):
        assert corrected(chosen, *measured) == chosen


def test_the_mean_of_several_times_counts():
    chosen, better = launches(2)
    won, lost = [(chosen, 1.1e-5), (better, 1e-5)], [(chosen, 1e-5), (better, 1.2e-5)]
    hot = dataclasses.replace(LARGEST, hot=True)
    assert corrected(chosen, (LARGEST, won), (hot, lost)) == chosen
    assert corrected(chosen, (LARGEST, won), (hot, won)) == better
    assert corrected(chosen, (LARGEST, [*won, (better, 2e-5)])) == better, "the least of two"


@pytest.mark.parametrize("name", ["cluster_rows", "phased_rows"])
def test_launches_that_several_vectors_cannot_share_are_not_chosen(name):
    (chosen,) = launches(1)
    other = next(n for n, each in enumerate(USED.constants) if each.name == name)
    assert corrected(chosen, (LARGEST, [(chosen, 2e-5), (Candidate(other, 0), 1e-5)])) == chosen


def test_more_lanes_have_to_gain_more():
    """Few lanes of large rows of 2-byte numbers are what eight vectors want."""
    (few,) = launches(1)
    many = next(
        Candidate(n, 0) for n, each in enumerate(USED.constants)
        if each.name == "vector_rows" and each.knobs["LANES"] > 32 and not each.has_splits
    )  # fmt: skip
    assert corrected(few, (LARGEST, [(few, 1.023e-5), (many, 1e-5)])) == few
    assert corrected(few, (LARGEST, [(few, 1.03e-5), (many, 1e-5)])) == many
    assert corrected(many, (LARGEST, [(many, 1.023e-5), (few, 1e-5)])) == few
