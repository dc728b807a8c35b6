"""Cells of which a problem was timed get no launch that was slower there."""

import dataclasses
from array import array

import pytest
from helpers.programs import program

from gemv.core.geometry import Device
from gemv.measure.cells import Cell
from gemv.measure.frames import FramedCell
from gemv.selection import compiled
from gemv.selection.cells import LINES_INDICES, indices_of, kind_of
from gemv.selection.choices import CELLS, choices, packed, unpacked
from gemv.selection.machine import FOLDER, machine
from gemv.selection.overlays import cells_of, changes_of
from gemv.selection.parse import parse
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


def cells_with(chosen, *measured):
    """Choices, the place of the cell of both problems, which gets `chosen`, and a campaign."""
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
    made = {"entries": [list(each) for each in entries], "kinds": {str(kind): packed(numbers)}}
    return made, at, campaign


def corrected(chosen, *measured, used=USED):
    """The choice of the cell of both problems, which is `chosen` before."""
    made, at, campaign = cells_with(chosen, *measured)
    found, count = timed_cells.corrected(made, campaign, used)
    ((kind, text),) = made["kinds"].items()
    numbers, after = unpacked(text), unpacked(found["kinds"][kind])
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
    times = [(chosen, 1.1e-5), (better, 1.05e-5), (best, 1e-5)]
    assert corrected(chosen, (LARGEST, times)) == best, "the fastest, not the first"
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


#: Sets of constants that no machine has, and launches with them.
NEW = [candidates.normal("vector_rows", {**USED.constants[launches(1)[0].number].knobs, **knobs})
       for knobs in ({"MIN_BLOCKS": 7}, {"MIN_BLOCKS": 5})]  # fmt: skip


def of_new(own, *seconds):
    """A cell's times: those of launches that the machine has, and of the new ones."""
    return [store.Timed(one, each) for one, each in zip(NEW, seconds, strict=True)] + [
        store.Timed(candidates.of_machine(USED, one), each) for one, each in own
    ]


@pytest.fixture
def growing():
    """Choices and a campaign with two cells: on one both new sets gain, on the other the second."""
    chosen, better = launches(2)
    made, _, campaign = cells_with(chosen, (LARGEST, [(chosen, 1e-5)]))
    own = campaign.cells[0]
    other = dataclasses.replace(own, number=1, cell=dataclasses.replace(LARGEST, m=1 << 19))
    number = choices(H200).numbers(kind_of(FramedCell.at(other.cell, 0, 1).problem))
    line, lines = indices_of(FramedCell.at(other.cell, samples.ADDRESS, 1).problem)
    there = choices(H200).entries[number[line * LINES_INDICES + lines]]
    own.times = of_new([(chosen, 1.2e-5), (better, 1.1e-5)], 1e-5, 1.01e-5)
    other.times = of_new([(there, 1.2e-5)], 1.3e-5, 1e-5)
    campaign.cells.append(other)
    for one in NEW:
        spec = candidates.choice(one, FramedCell.at(LARGEST, samples.ADDRESS, 1).problem, H200).spec
        campaign.codes[store.code_key(one.constants, spec, "h")] = (40, 0, 0)
    return made, campaign


def test_sets_that_gain_most_over_all_cells_come_first(growing):
    made, campaign = growing
    found = timed_cells.further_sets(made, campaign, USED, 2)
    # the second gains 1.09 on one cell and 1.2 on the other; then the first gains 1.01 on one
    assert [each.knobs["MIN_BLOCKS"] for each in found] == [5, 7]
    assert all([*each.registers.values()] == [40] for each in found)
    (first,) = timed_cells.further_sets(made, campaign, USED, 1)
    assert first.knobs == found[0].knobs
    grown = dataclasses.replace(USED, constants=[*USED.constants, *found])
    assert timed_cells.further_sets(made, campaign, grown, 2) == []
    after, count = timed_cells.corrected(made, campaign, grown)
    assert count == 2
    assert {Candidate(*each).number for each in after["entries"]} >= {
        len(USED.constants), len(USED.constants) + 1,
    }  # fmt: skip


def test_a_set_that_gains_nothing_beside_another_is_not_taken(growing):
    made, campaign = growing
    for cell in campaign.cells:
        first, second, *own = cell.times
        cell.times[:] = [first._replace(seconds=1.02 * second.seconds), second, *own]
    found = timed_cells.further_sets(made, campaign, USED, 2)
    assert [each.knobs["MIN_BLOCKS"] for each in found] == [5]


def test_a_set_that_does_not_gain_enough_is_not_taken(growing):
    made, campaign = growing
    chosen = launches(1)[0]
    campaign.cells[:] = campaign.cells[:1]
    campaign.cells[0].times = of_new([(chosen, 1.015e-5)], 1e-5, 1.01e-5)
    assert timed_cells.further_sets(made, campaign, USED, 2) == []


def test_other_gpus_keep_their_choices():
    kind = str(kind_of(FramedCell.at(LARGEST, samples.ADDRESS, 1).problem))
    one, two, three = launches(3)
    empty = [0xFFFF] * CELLS

    def ahead(entries, numbers):
        found = array("H", empty)
        for place, number in numbers.items():
            found[place] = number
        return {"entries": [list(each) for each in entries], "kinds": {kind: packed(found)}}

    before = ahead([one, two], {3: 0, 5: 1, 900: 0, 901: 1})
    after = ahead([two, one, three], {3: 2, 5: 0, 900: 2, 901: 2})
    changes = {"entries": [list(three)], "kinds": {kind: packed(changes_of({900: 0, 901: 0}))}}
    for own, right in (
        (changes, {3: one}),  # the others have what is usual now
        ({"entries": [], "kinds": {}}, {3: one, 900: one, 901: two}),
    ):
        found = timed_cells.changes_that_keep(before, own, after)
        entries = [Candidate(*each) for each in found["entries"]]
        cells = cells_of(unpacked(found["kinds"][kind]))
        assert {place: entries[number] for place, number in cells.items()} == right
    same = timed_cells.changes_that_keep(before, {"entries": [], "kinds": {}}, before)
    assert same == {"entries": [], "kinds": {}}


def test_other_gpus_follow_choices_that_are_decided_anew(tmp_path, monkeypatch):
    """They keep what they change, less what is usual by now."""
    publish = program("fit.publish")
    for name in ("nvidia-h200.toml", "nvidia-h200.cells", "nvidia-h100-80gb-hbm3.cells"):
        (tmp_path / name).write_bytes((FOLDER / name).read_bytes())
    about = compiled.hash_of((tmp_path / "nvidia-h200.toml").read_bytes())
    other = tmp_path / "nvidia-h100-80gb-hbm3.cells"
    usual = compiled.choices_of((tmp_path / "nvidia-h200.cells").read_bytes(), about)
    changes = compiled.choices_of(other.read_bytes(), about)
    # What the other GPU has in the first cell that it changes is decided to be usual.
    kind = next(iter(changes["kinds"]))
    changed = cells_of(unpacked(changes["kinds"][kind]))
    place, number = next(iter(changed.items()))
    numbers = unpacked(usual["kinds"][kind])
    numbers[place] = len(usual["entries"])
    anew = {"entries": [*usual["entries"], changes["entries"][number]],
            "kinds": {**usual["kinds"], kind: packed(numbers)}}  # fmt: skip
    monkeypatch.setattr(publish, "FOLDER", tmp_path)
    monkeypatch.setattr(publish, "choices_ahead", lambda *given: anew)
    publish.decide("nvidia-h200", store.Campaign({}), H200, None, 1)
    found = compiled.choices_of(other.read_bytes(), about)
    own = cells_of(unpacked(found["kinds"][kind]))
    assert own.keys() == changed.keys() - {place}
    for where, number in own.items():
        assert found["entries"][number] == changes["entries"][changed[where]]


def test_a_machine_gets_sets_at_the_end_of_its_portfolio(tmp_path, monkeypatch):
    """And its cells, and those of GPUs like it, are for the new TOML."""
    for name in ("nvidia-h200.toml", "nvidia-h200.cells", "nvidia-h100-80gb-hbm3.cells"):
        (tmp_path / name).write_bytes((FOLDER / name).read_bytes())
    monkeypatch.setattr(timed_cells, "FOLDER", tmp_path)
    problem = FramedCell.at(LARGEST, samples.ADDRESS, 1).problem
    kind, (line, lines) = kind_of(problem), indices_of(problem)
    at = line * LINES_INDICES + lines
    chosen = choices(H200).entries[choices(H200).numbers(kind)[at]]
    campaign = store.Campaign({"gpu": H200.name, "device": [[9, 0], 132]})
    times = of_new([(chosen, 1.2e-5)], 1.1e-5, 1e-5)
    campaign.cells.append(store.Measured(0, LARGEST, 1, 1e-9, {}, times[-1].candidate, times))
    for one in NEW:
        spec = candidates.choice(one, problem, H200).spec
        campaign.codes[store.code_key(one.constants, spec, "h")] = (40, 0, 0)
    campaign.save(tmp_path / "campaign.json")
    h100 = Device("NVIDIA H100 80GB HBM3", (9, 0), 132)
    before = choices(h100).entries[choices(h100).numbers(kind)[at]]
    timed_cells.main([str(tmp_path / "campaign.json"), "--machine", "nvidia-h200", "--sets", "1"])
    toml = (tmp_path / "nvidia-h200.toml").read_bytes()
    about = compiled.hash_of(toml)
    content = parse(toml.decode(), "nvidia-h200.toml")
    assert len(content["constants"]) == len(USED.constants) + 1
    assert content["constants"][-1][1]["MIN_BLOCKS"] == 5
    lines_of = (tmp_path / "nvidia-h200.jsonl").read_bytes()
    read = compiled.content_of(lines_of, about)
    assert [*read["constants"]][-1][1]["MIN_BLOCKS"] == 5 and read["rows"] == content["rows"]
    found = compiled.choices_of((tmp_path / "nvidia-h200.cells").read_bytes(), about)
    number = unpacked(found["kinds"][str(kind)])[at]
    assert found["entries"][number] == [len(USED.constants), 0]
    changes = compiled.choices_of((tmp_path / "nvidia-h100-80gb-hbm3.cells").read_bytes(), about)
    own = cells_of(unpacked(changes["kinds"][str(kind)]))
    assert Candidate(*changes["entries"][own[at]]) == before
