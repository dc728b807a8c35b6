"""The program that measures Dask's workers beside one process, on a small matrix, and its page."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from helpers.programs import program

pytest.importorskip("distributed", reason="Dask is not installed")


@pytest.fixture
def script(monkeypatch):
    measure = program("measure.machines")
    monkeypatch.setattr(measure, "SIZES", {"small": (40, 30), "smaller": (30, 30)})
    for name, number in {"FEW": 2, "MANY": 6, "ROUNDS": 1, "PRODUCTS": 1}.items():
        monkeypatch.setattr(measure, name, number)
    return measure


def test_every_way_is_measured_and_a_run_goes_on(script, tmp_path, capsys, monkeypatch):
    path = tmp_path / "machines.json"
    script.main([str(path), "--workers", "2", "--sizes", "small"])
    found = json.loads(path.read_text())
    assert found["device"] == "host" and found["workers"] == 2 and "dask" in found["versions"]
    part = program("pages.machines_part")
    ways = [part.PROCESS, part.WORKERS, part.TASKS, part.DASK]
    assert [(row["size"], row["way"]) for row in found["rows"]] == [("small", way) for way in ways]
    for row in found["rows"]:
        # The time of an iteration is a difference, and may be anything for so few of them.
        assert row["right"] and row["found"] > 0 and (row["time_s"] > 0 or "lsmr" in row["way"])
        assert (row["rows"], row["columns"]) == (80, 30)
    assert "WRONG" not in capsys.readouterr().out

    measured = []
    monkeypatch.setattr(script, "measure", lambda *what: measured.append(what) or found["rows"])
    script.main([str(path), "--workers", "2"])
    assert measured == [("smaller", (30, 30), 2)], "only what is missing"
    with pytest.raises(SystemExit):
        script.main([str(path), "--workers", "3"])
    assert "has workers 2, here: 3" in capsys.readouterr().err


def test_numbers_that_differ_are_marked(script, monkeypatch):
    def on_workers(client, rows, columns):
        yield "lsmr, workers", {"time_s": 1.0, "found": 3.00001}
        yield "matvec, workers", {"time_s": 1.0, "found": 5.0}
        yield "dask.array @", {"time_s": 1.0, "found": 5.0 + 1e-9}

    monkeypatch.setattr(script, "in_one_process", lambda *what: {"time_s": 1.0, "found": 3.0})
    monkeypatch.setattr(script, "on_workers", on_workers)
    rows = script.measure("some", (4, 3), 1)
    assert [row["right"] for row in rows] == [False, False, True, True]


def test_an_iteration_takes_what_more_of_them_take_longer(script, monkeypatch):
    now = [0.0]

    def solve(limit):
        now[0] += 5 + 0.25 * limit
        return "x", 7, limit, 3.5, "and others"

    monkeypatch.setattr(script, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    assert script.each_iteration(solve) == {"time_s": 0.25, "found": 3.5}
