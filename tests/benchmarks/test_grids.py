"""Times of the grid become cells of a campaign."""

import dataclasses
import json

import pytest
from helpers.programs import program

from gemv.core.geometry import Device
from gemv.measure.cells import Cell
from gemv.measure.frames import FramedCell

candidates = program("fit.candidates")
grids = program("fit.grids")
samples = program("fit.samples")
store = program("fit.store")

H200 = Device("NVIDIA H200", (9, 0), 132)
CELL = Cell(4096, 4096, "s")
FEW, MANY = (
    {"LANES": lanes, "ROWS": 2, "VECTORS": 4, "THREADS_PER_BLOCK": 256, "MIN_BLOCKS": 2,
     "BLOCKS_PER_SM": 0}
    for lanes in (32, 128)
)  # fmt: skip


def row(knobs, seconds, **named):
    return {
        "m": 4096, "n": 4096, "dtype": "s", "op": "N", "order": "C", "view": "", "hot": False,
        "beta": 0, "nbytes": 1 << 26, "frames": 3, "kernel": "vector_rows", "knobs": knobs,
        "time_s": seconds, "plain_s": seconds * 0.99, "spread": 0.01,
        "peers": {"cuBLAS": 2 * seconds}, "refused": {}, "wrong": None, **named,
    }  # fmt: skip


def grid(*rows, device="NVIDIA H200"):
    return {"device": device, "rows": list(rows)}


@pytest.fixture
def campaign():
    """A campaign without cells that knows the registers of both launches in float32."""
    made = store.Campaign({"gpu": H200.name, "device": [[9, 0], 132]})
    problem = FramedCell.at(CELL, samples.ADDRESS, 1).problem
    for knobs in (FEW, MANY):
        one = candidates.normal("vector_rows", knobs)
        spec = candidates.choice(one, problem, H200).spec
        made.codes[store.code_key(one.constants, spec, "s")] = (64, 0, 0)
    return made


def nobody_knows(made):
    raise AssertionError(f"the campaign knows the code of {made}, and it is asked for")


def test_a_cell_has_the_launches_of_all_grids_and_the_newest_is_the_present_one(campaign):
    older, newer = grid(row(FEW, 2e-5)), grid(row(MANY, 3e-5, peers={"torch.mv": 4e-5}))
    (found,) = grids.cells_of(campaign, [older, newer], nobody_knows)
    assert found.cell == CELL and found.number == grids.GRID[0]
    assert [timed.seconds for timed in found.times] == [2e-5, 3e-5]
    few, many = (candidates.normal("vector_rows", knobs) for knobs in (FEW, MANY))
    assert [timed.candidate for timed in found.times] == [few, many]
    assert found.present == many and found.peers == {"torch.mv": 4e-5}
    assert found.floor_s == pytest.approx(1.98e-5)


def test_what_cannot_be_learned_from_is_left_out(campaign):
    wrong = row(FEW, 1e-5, wrong="y[0]")
    refused = row({**FEW, "LANES": 3}, 1e-5)
    assert grids.cells_of(campaign, [grid(wrong, refused)], nobody_knows) == []
    (found,) = grids.cells_of(campaign, [grid(wrong), grid(row(FEW, 2e-5))], nobody_knows)
    assert [timed.seconds for timed in found.times] == [2e-5]


def test_what_the_campaign_does_not_know_of_a_code_is_asked_for_once(campaign):
    unknown, asked = {**FEW, "VECTORS": 2}, []
    before = len(campaign.codes)

    def facts(made):
        asked.append(dict(made.knobs))
        return (72, 8, 128)

    rows = row(FEW, 2e-5), row(unknown, 1e-5), row(unknown, 1e-5, m=4095)
    few, both = grids.cells_of(campaign, [grid(*rows)], facts)
    assert [len(each.times) for each in (few, both)] == [2, 1]
    assert asked == [unknown] and len(campaign.codes) == before + 1
    assert [*campaign.codes.values()][-1] == (72, 8, 128)


def test_the_facts_of_a_code_are_those_of_the_assembler(monkeypatch):
    """Registers, local memory, and shared memory, which may be none."""
    from gemv.core.binary import Binary
    from gemv.engines import binaries

    log = "ptxas info : used 64 registers, 72 stack, 1 barriers"
    problem = FramedCell.at(CELL, samples.ADDRESS, 1).problem
    made = candidates.choice(candidates.normal("vector_rows", FEW), problem, H200)
    for more, shared in ((", 1028 bytes smem", 1028), ("", 0)):
        binary = Binary("f", (), "", b"", log + more)
        monkeypatch.setattr(
            binaries, "binaries", lambda kernel, spec, capability, found=binary: (found,)
        )
        assert grids.compiled(made, (9, 0)) == (64, 72, shared)


def test_a_grid_of_another_gpu_is_refused(campaign):
    other = grid(row(FEW, 1e-5), device="NVIDIA H100 80GB HBM3")
    with pytest.raises(ValueError, match="NVIDIA H100 80GB HBM3 is not for a campaign on NVIDIA"):
        grids.cells_of(campaign, [other], nobody_knows)


def test_cells_of_the_grid_are_replaced_and_others_stay(campaign, tmp_path, capsys):
    one = candidates.normal("vector_rows", FEW)
    kept = store.Measured(7, CELL, 1, 1e-6, {}, one, [store.Timed(one, 2e-6)])
    campaign.cells += [kept, dataclasses.replace(kept, number=1 << 40)]  # of a draw, and random
    file, of_grid = tmp_path / "campaign.json", tmp_path / "grid.json"
    campaign.save(file)
    for seconds, op in ((2e-5, "N"), (3e-5, "N"), (4e-5, "N")):
        of_grid.write_text(json.dumps(grid(row(FEW, seconds, op=op), row(MANY, 5e-5, m=2048))))
        grids.main([str(file), str(of_grid)])
        found = store.Campaign.load(file)
        assert [each.number for each in found.cells] == [7, 1 << 40, *grids.GRID[:2]]
        assert (found.cells[0].cell, found.cells[0].present) == (kept.cell, one)
        assert found.cells[2].times[0].seconds == pytest.approx(seconds)
        assert "2 cells of the grid, 2 times" in capsys.readouterr().out
    assert len(samples.samples(found, H200).times) == 4
