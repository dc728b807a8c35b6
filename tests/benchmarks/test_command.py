"""``python -m benchmarks calls`` and ``memories``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.programs import program

import gemv

main = program("command").main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(capsys, command, *arguments):
    """The one line of a command that is refused."""
    assert main([command, *arguments]) == 2
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert out == "" and line.startswith(f"benchmarks {command}: ")
    return line


def test_memories_needs_a_gpu(capsys):
    if gemv.backend() == "cuda":
        pytest.skip("there is one")
    assert "there is none here" in refused(capsys, "memories")


@pytest.mark.gpu
def test_memories_measures_and_checks(folder, capsys):
    assert main(["memories", "--n", "1024", "--json", "m.json"]) == 0
    out, _ = capsys.readouterr()
    assert "mapped" in out and "managed" in out
    measured = json.loads(Path("m.json").read_text())
    assert all(row["same_bits"] is not False for row in measured["rows"])
    # Only another GPU's memory may be missing, on a machine with one, and the row then says so.
    missing = [row for row in measured["rows"] if not row["time_s"]]
    assert all(row["memory"] == "peer" and row["note"] for row in missing), missing


def test_calls_without_a_gpu_says_so(folder, capsys):
    if gemv.backend() == "cuda":
        pytest.skip("there is a GPU")
    text = refused(capsys, "calls", "--json", "calls.json")
    assert "the cost of calls can only be measured on a GPU" in text
    assert not (folder / "calls.json").exists()
    assert "must end in .json" in refused(capsys, "calls", "--json", "x")


def test_calls_for_lists_are_timed_without_a_gpu_as_well(capsys, monkeypatch, folder):
    if gemv.backend() == "host":
        pytest.skip("no GPU and no simulator")
    script = program("measure.list_calls")
    measured = script.measure(counts=(1, 3), rounds=1)
    monkeypatch.setattr(script, "measure", lambda progress: measured)
    assert main(["calls", "--lists", "--json", "lists.json"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("plan()") == len({row.group for row in measured.rows})
    assert ("launches are left out" in printed) == (gemv.backend() == "simulator")
    rows = json.loads((folder / "lists.json").read_text())["rows"]
    assert all(row["time_s"] > 0 and row["note"].endswith("of Python") for row in rows)
    # The next call launches again.
    (found,) = gemv.gemv_batched(1, [[[2.0]]], [[3.0]])
    assert found.tolist() == [6]


def test_the_time_of_selection_needs_no_gpu(capsys, monkeypatch, folder):
    script = program("measure.new_shapes")
    measured = script.measure(rounds=1, shapes=300)
    monkeypatch.setattr(script, "measure", lambda progress: measured)
    assert main(["calls", "--selection", "--json", "selection.json"]) == 0
    printed = capsys.readouterr().out
    groups = {row.group for row in measured.rows} - {"a new shape, no cell"}
    assert groups == {"data", "a new shape, cell known", "a new shape, cell new"}
    assert all(row.time_s > 0 and row.name in printed for row in measured.rows)
    assert (folder / "selection.json").exists()
    assert "two measurements" in refused(capsys, "calls", "--selection", "--lists")


def test_calls_prints_every_row(capsys, monkeypatch, folder):
    calls, records = program("measure.calls"), program("measure.calls_records")
    table = records.CallResults("A GPU", {"torch": "9.9"})
    table.rows = [
        records.CallRow("64 x 64", "gemv, torch, in place", 3e-6),
        records.CallRow("64 x 64", "torch.mv(out=)", 6e-6),
        records.CallRow("64 x 64", "cupy [broken]", None, "ImportError: gone"),
        records.CallRow("selection", "a new shape", 1e-6),
    ]
    monkeypatch.setattr(calls, "measure", lambda progress: table)
    assert main(["calls", "--json", "calls.json"]) == 0
    printed = capsys.readouterr().out
    assert "A GPU; torch 9.9" in printed
    lines = printed.splitlines()
    ours = next(line for line in lines if "gemv, torch, in place" in line)
    assert "3.00" in ours and "0.50" in ours
    assert any("cupy [broken]" in line and "ImportError: gone" in line for line in lines)
    stored = json.loads((folder / "calls.json").read_text())
    assert [row["name"] for row in stored["rows"]] == [row.name for row in table.rows]
    assert table.time_s("64 x 64", "torch.mv(out=)") == 6e-6
    with pytest.raises(KeyError):
        table.time_s("64 x 64", "cupy [broken]")


@pytest.mark.gpu
def test_calls_of_every_kind_are_timed():
    calls = program("measure.calls")
    table = calls.measure(rounds=1, calls=20)
    names = {row.name for row in table.rows if row.time_s is not None}
    assert {"gemv, numba, in place", "plan, numba, bound", "packed cuLaunchKernel"} <= names
    assert {"a new shape", "a known shape"} <= names
    assert all(row.time_s is not None or row.note for row in table.rows)
