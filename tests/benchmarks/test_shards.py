"""The program that measures shards, on the simulator: what it writes, and that it goes on."""

from __future__ import annotations

import json

import pytest
from helpers.programs import program

import gemv

pytestmark = pytest.mark.skipif(gemv.backend() == "cuda", reason="it measures minutes on a GPU")


@pytest.fixture(scope="module")
def script():
    return vars(program("measure.shards"))


def test_every_way_is_checked_and_a_run_goes_on(script, tmp_path, capsys):
    path = tmp_path / "shards.json"
    assert script["main"]([str(path), "--seconds", "0"]) == 0
    assert "the time is over before small" in capsys.readouterr().out
    assert script["main"]([str(path), "--devices", "0,0"]) == 0
    said = capsys.readouterr().out
    found = json.loads(path.read_text())
    rows = {(row["size"], row["way"]): row for row in found["rows"]}
    assert found["names"] == ["simulator"] * 2 and len(rows) == len(found["rows"]) == 14
    for (_, way), row in rows.items():
        if way.startswith("torch"):
            assert row["failed"] == "RuntimeError: torch.mv needs a GPU"
        else:
            assert row["right"] and "time_s" not in row, row
        assert row.get("same_bits") is (True if way.endswith("shards of rows") else None)
    assert "same bits" in said and said.rstrip().splitlines()[-1].startswith("small, float64")
    assert script["main"]([str(path), "--devices", "0,0"]) == 0
    again = capsys.readouterr().out
    assert "shards of rows: not timed" not in again, "only what failed is done again"


def test_a_wrong_result_and_other_bits_are_told(script, tmp_path):
    machine = script["Simulated"]([0, 0])
    a, x = machine.random((32, 16), "float32", 1), machine.random((16,), "float32", 2)
    y = machine.empty(32, x)
    row = script["cell"](machine, a, x, lambda: lambda: y, b"")
    assert row["right"] is False and row["same_bits"] is False
    with pytest.raises(SystemExit, match="measured with devices"):
        path = tmp_path / "shards.json"
        path.write_text(json.dumps({"devices": [7], "names": [], "rows": []}))
        script["begun"](path, machine)
