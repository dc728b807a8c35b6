"""Constants for several vectors: what a campaign would try, and what the stored one found."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from helpers.programs import program

from gemv.kernels import get
from gemv.measure.cells import Cell
from gemv.measure.frames import FramedCell, lay_out
from gemv.measure.records import CellResult
from gemv.selection.machine import REFERENCE as H200
from gemv.selection.parts import parts

STORED = Path(__file__).parents[2] / "benchmarks" / "results" / "tiles"
#: Constants that sums depend on.
OF_SUMS = ("LANES", "PIECES", "COLUMNS", "BLOCKS_PER_SM", "OF_ROWS", "OF_VECTORS", "OF_THREADS")


def chosen(cell, device=H200):
    layout = lay_out(cell)
    framed = FramedCell.at(cell, 1 << 30, 1)
    (part, *_) = parts(framed.problem, layout.batch, device)
    return framed.problem, layout.batch, part.choice


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("letter", "sdbch")
def test_candidates_have_the_sums_of_what_is_chosen(letter, order):
    tiles, sets = program("fit.tiles"), program("fit.tile_sets")
    wanted = [cell for cell in tiles.cells() if (cell.dtype, cell.order) == (letter, order)]
    assert len(wanted) == 12
    numbers = []
    for cell in wanted:
        problem, batch, choice = chosen(cell)
        found = sets.candidates(choice.kernel.name, problem, choice.knobs, 24)
        assert found[0] == choice.knobs and len(found) <= 24
        numbers.append(len(found))
        for knobs in found:
            assert choice.kernel.objection(knobs) is None
            assert all(knobs.get(name) == choice.knobs.get(name) for name in OF_SUMS)
            assert knobs["COUNT"] == choice.knobs["COUNT"]
            choice.kernel.of_batch(problem, H200, knobs, batch)  # the constants go together
    assert max(numbers) > 10


def test_stored_times_are_of_the_right_results_and_the_choices_are_among_the_fastest():
    part = program("pages.tiles_part")
    rows = [row for file in STORED.glob("*.json") for row in json.loads(file.read_text("utf-8"))]
    ratios = []
    for row in rows:
        assert all(each["has_same_bits"] for each in row["sets"]), row["cell"]
        _, _, choice = chosen(Cell(**row["cell"]), part.device_of(row))
        assert get(row["kernel"]).for_vectors is not None
        older = {**get(row["kernel"]).knobs, "PAST_L1": 0, "KEPT": 0}
        known = {name: older[name] for name in choice.knobs if name in older}
        times = [
            each["us"]
            for each in row["sets"]
            if row["kernel"] == choice.kernel.name and {**known, **each["knobs"]} == choice.knobs
        ]
        assert part.now_us(row) == min(times, default=None)
        if times:
            ratios.append(min(times) / min(each["us"] for each in row["sets"]))
    # Of some problems the choice was not timed: it has changed since, or spilled registers.
    assert len(ratios) > len(rows) / 2 and max(ratios) < 1.2


def test_pages_say_how_many_cells_have_another_launch_today():
    today = program("pages.today")
    cells = [Cell(1000, 1000, "b", "N", order, vectors=8) for order in "CF"]
    rows = []
    for cell in cells:
        _, _, choice = chosen(cell)
        known = {field.name: getattr(cell, field.name) for field in dataclasses.fields(cell)}
        rows.append(CellResult(**known, nbytes=1, frames=1, kernel=choice.kernel.name,
                               knobs=dict(choice.knobs), time_s=1e-6))  # fmt: skip
    assert today.changed(rows, H200.name) == ""
    rows[0].knobs["COUNT"] += 1
    assert ": in 1 of these 2 cells" in today.changed(rows, H200.name)
    rows[1].kernel = "several_small"
    assert ": in 2 of these 2 cells" in today.changed(rows, H200.name)
    assert today.changed(rows, "a GPU without a name") == ""


def test_the_page_has_a_table_for_each_gpu_and_what_loses_first(tmp_path):
    part = program("pages.tiles_part")
    assert part.part(tmp_path) == []
    rows = json.loads((STORED / "h100.json").read_text("utf-8"))
    timed = [row for row in rows if part.now_us(row) is not None][:3]
    for row, peer, plain in zip(timed, (3.0, 0.5, 2.0), (0.9, 0.95, 0.4), strict=True):
        now = part.now_us(row)
        row["peers"], row["plain_us"] = {"torch.mm": peer * now}, plain * now
        row["one_us"] = 7.0
    # A set that is not today's constants counts for nothing.
    timed.append(dict(timed[0], sets=[dict(timed[0]["sets"][0], knobs={"LANES": 3})]))
    (tmp_path / "a.json").write_text(json.dumps(timed))
    found = part.part(tmp_path)
    assert found[0] == "### Further problems" and found[2] == "**On an NVIDIA H100 80GB HBM3**"
    assert found[3].startswith("`torch.mm` is faster in 1 of 3 problems.")
    slower, others = (
        [line.split(" | ") for line in text.splitlines() if " x " in line] for text in found[4:]
    )
    assert "<summary>The other 2, those furthest from the floor first</summary>" in found[5]
    assert [line[-2:] for line in slower] == [["0.50", "0.95 |"]]
    assert [line[-2:] for line in others] == [["2.00", "0.40 |"], ["3.00", "0.90 |"]]
    lines = [*slower, *others]
    assert {line[1] for line in lines} == {"7\N{NO-BREAK SPACE}µs"}
    for row in timed:
        del row["one_us"]
    (tmp_path / "b.json").write_text(json.dumps(timed))
    assert part.part(tmp_path) == found, "what was timed without peers says nothing"
