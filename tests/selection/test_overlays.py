"""Changes of another GPU's choices: kept as few bytes, made where they belong, and nowhere else."""

from __future__ import annotations

import json
import random
from array import array
from pathlib import Path

import pytest

from gemv.core.dtypes import DTYPES
from gemv.core.geometry import Chip, Device
from gemv.core.problem import Problem
from gemv.selection import compiled, overlays
from gemv.selection import machine as selection_machine
from gemv.selection.cells import LINES_INDICES, kinds
from gemv.selection.choices import EMPTY, Choices, packed, problem_of, unpacked
from gemv.selection.machine import machine, machines, scaled
from gemv.selection.ranking import knobs_of
from gemv.selection.select import forget, select

REFERENCE = Device("NVIDIA H200", (9, 0), 132)
H100_CHIP = Chip(memory_khz=2_619_000, bus_bits=5120, cache_bytes=50 << 20)
H100 = Device("NVIDIA H100 80GB HBM3", (9, 0), 132, chip=H100_CHIP)
#: One with the H200's choices alone.
ALIKE = H100._replace(name="another GPU")
#: Files of changes.
FILES = sorted(
    file
    for file in Path(str(selection_machine.FOLDER)).glob("*.cells")
    if not file.with_suffix(".toml").exists()
)
GOLDEN = Path(__file__).with_name("golden_h100.json")


def toml_of_reference():
    return Path(str(selection_machine.FOLDER)).joinpath("nvidia-h200.toml").read_bytes()


# As they are kept --------------------------------------------------------------------------------


def test_changes_survive_as_text():
    chance = random.Random(1)
    places = chance.sample(range(20000), 500)
    cells = {place: chance.randrange(60) for place in places}
    numbers = array("H", range(20000))
    kept = unpacked(packed(overlays.changes_of(cells)))
    assert list(overlays.cells_of(kept).items()) == sorted(cells.items())
    overlays.change(numbers, kept, 30000)
    for place, number in enumerate(numbers):
        assert number == (30000 + cells[place] if place in cells else place)


def test_the_first_and_the_last_cell_can_change():
    cells = {0: 3, 21908: 0}
    numbers = array("H", [EMPTY]) * 21909
    overlays.change(numbers, overlays.changes_of(cells), 7)
    assert (numbers[0], numbers[-1], set(numbers[1:-1])) == (10, 7, {EMPTY})


# Where they count --------------------------------------------------------------------------------

KIND = next(kind for kind in kinds() if str(kind) == "s dot 4 whole free")


@pytest.fixture
def changed():
    """A cell, what it gets on the reference, and changes that give it the next set of constants."""
    found = Choices(machine(REFERENCE), REFERENCE)
    place = next(
        place
        for place, number in enumerate(found.numbers(KIND))
        if number != EMPTY and place % LINES_INDICES > 40 and place > 60 * LINES_INDICES
    )
    usual = found.entries[found.numbers(KIND)[place]]
    other = next(each for each in found.entries if each.number != usual.number)
    texts = {str(KIND): packed(overlays.changes_of({place: 0}))}
    return place, usual, other, {"entries": [list(other)], "kinds": texts}


def test_a_change_is_made_in_its_cell_alone(changed):
    place, _, other, changes = changed
    before = Choices(machine(REFERENCE), REFERENCE)
    after = Choices(scaled(machine(REFERENCE), ALIKE, changes), ALIKE)
    assert after.entries[after.number(KIND, *divmod(place, LINES_INDICES))] == other
    differ = [
        at
        for at, (one, two) in enumerate(zip(before.numbers(KIND), after.numbers(KIND), strict=True))
        if one != two
    ]
    assert differ == [place]
    unchanged = next(kind for kind in kinds() if str(kind) == "d axpy 2 whole free")
    assert before.numbers(unchanged) == after.numbers(unchanged)


def test_changes_are_part_of_the_hash(changed):
    *_, changes = changed
    reference = machine(REFERENCE)
    assert scaled(reference, ALIKE, changes).hash != scaled(reference, ALIKE).hash
    assert scaled(reference, ALIKE, changes).hash == scaled(reference, ALIKE, changes).hash


def test_changes_are_for_the_multiprocessors_of_the_reference(changed):
    *_, changes = changed
    fewer = ALIKE._replace(multiprocessors=114)
    assert not scaled(machine(REFERENCE), fewer, changes).choices


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of machines, to write to."""
    for file in Path(str(selection_machine.FOLDER)).iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(selection_machine, "FOLDER", tmp_path)
    selection_machine._of_package.cache_clear()
    machine.cache_clear()
    forget()
    yield tmp_path
    selection_machine._of_package.cache_clear()
    machine.cache_clear()
    forget()


def test_a_file_of_changes_is_for_the_gpu_of_its_name(folder, changed):
    place, usual, other, changes = changed
    text = compiled.cells_text_of(toml_of_reference(), changes)
    (folder / "a-new-gpu.cells").write_text(text)
    problem = problem_of(KIND, *divmod(place, LINES_INDICES))
    for name, wanted in (("A new GPU", other), ("another GPU", usual)):
        device = ALIKE._replace(name=name)
        constants = machine(REFERENCE).constants[wanted.number]
        chosen = select(problem, device)
        assert chosen.kernel is constants.kernel
        knobs = knobs_of(constants, wanted.blocks)
        apart = chosen.kernel.far_apart and chosen.kernel.far_apart(
            {**chosen.kernel.knobs, **knobs}
        )
        assert chosen.knobs == (apart[0] if apart and apart[1](problem) else knobs)


def test_changes_of_another_toml_are_not_used(folder, changed):
    *_, changes = changed
    text = compiled.cells_text_of(toml_of_reference() + b"# edited", changes)
    (folder / "a-new-gpu.cells").write_text(text)
    device = ALIKE._replace(name="A new GPU")
    assert machine(device).hash == machine(ALIKE).hash


# The files of the package ------------------------------------------------------------------------


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_of_changes_is_for_the_present_toml(file):
    found = compiled.choices_of(file.read_bytes(), compiled.hash_of(toml_of_reference()))
    assert found, "the H200's TOML was edited: run make fit with LIKE=h200 again"
    assert file.read_text("ascii") == compiled.cells_text_of(toml_of_reference(), found)
    assert len(file.read_bytes()) < 120_000
    assert set(found["kinds"]) <= set(map(str, kinds()))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_changed_cells_get_what_they_can_have(file):
    """Each change is another launch than the usual one, and is for the largest problem."""
    device = H100._replace(name=file.stem)
    before, after = Choices(machine(ALIKE), ALIKE), Choices(machine(device), device)
    chance, tried, used = random.Random(1), 0, set()
    for kind in kinds():
        pairs = enumerate(zip(before.numbers(kind), after.numbers(kind), strict=True))
        places = [place for place, (one, two) in pairs if one != two]
        used |= {after.numbers(kind)[place] for place in places}
        for place in chance.sample(places, min(len(places), 8)):
            candidate = after.entries[after.numbers(kind)[place]]
            assert before.entries[before.numbers(kind)[place]] != candidate
            constants = machines()[0].constants[candidate.number]
            problem = problem_of(kind, *divmod(place, LINES_INDICES))
            assert constants.kernel.accepts(problem) is None
            assert constants.registers_for(problem)
            knobs = knobs_of(constants, candidate.blocks)
            assert constants.kernel.geometry(problem, device, knobs).launches
            tried += 1
    assert tried > 200
    assert used == set(range(len(before.entries), len(after.entries)))


def test_the_choices_on_an_h100_are_these():
    """The same on every machine with this GPU and this release."""
    wanted = json.loads(GOLDEN.read_text("utf-8"))
    assert len(wanted) == 100
    changes = 0
    for each in wanted:
        problem = Problem(**{**each["problem"], "dtype": DTYPES[each["problem"]["dtype"]]})
        chosen, usual = select(problem, H100), select(problem, ALIKE)
        launch = chosen.geometry.launches[0]
        assert chosen.kernel.name == each["kernel"] and chosen.knobs == each["knobs"]
        assert list(launch.grid) == each["grid"] and list(launch.block) == each["block"]
        changes += (chosen.kernel, chosen.knobs) != (usual.kernel, usual.knobs)
    assert changes > 5
