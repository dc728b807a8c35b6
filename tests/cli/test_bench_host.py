"""``python -m gemv bench --host``."""

from __future__ import annotations

import json

import numpy as np
import pytest

import gemv
from gemv.cli.main import main
from gemv.engines import backend
from gemv.measure import host_calls


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(host_calls, "_BATCH_S", 1e-5)
    monkeypatch.setattr(host_calls, "ROUNDS", 1)


def test_every_layout_is_measured_and_the_worst_is_first(tmp_path, capsys):
    file, before = tmp_path / "host.json", backend.chosen()
    command = ["bench", "--host", "--shapes", "3x3,5x5", "--dtypes", "s,z", "--json", str(file)]
    assert main(command) == 0
    kept = json.loads(file.read_text())
    rows = {(r["n"], r["dtype"], r["op"], r["layout"]) for r in kept["rows"]}
    layouts = {"by columns", "by rows", "by columns, gaps", "by rows, gaps"}
    assert rows == {(n, d, op, layout) for n in (3, 5) for d in "sz" for op in "NT"
                    for layout in layouts}  # fmt: skip
    assert all(r["ours_s"] > 0 and r["best_s"] > 0 and r["same_s"] > 0 for r in kept["rows"])
    lines = capsys.readouterr().out.splitlines()
    head = next(number for number, line in enumerate(lines) if "ratio" in line)
    ratios = [float(line.split()[-3]) for line in lines[head + 1 :]]
    assert len(ratios) == 32 and ratios == sorted(ratios, reverse=True)
    assert "numpy" in lines[1] and str(kept["cores"]) in lines[1]
    assert backend.chosen() == before


def test_calls_are_those_of_the_host():
    with gemv.trace() as calls:
        list(host_calls.measure({"d": gemv.dgemv}, [3], "d"))
    assert {(call.backend, call.kernel) for call in calls} == {("host", "dgemv")}


@pytest.mark.parametrize("by_name", [True, False])
def test_the_backend_is_chosen_afterwards_as_before(by_name, monkeypatch):
    """By a program that named it, or by nobody but the environment, which may change again."""
    monkeypatch.setenv("GEMV_BACKEND", "host")
    gemv.use_backend("host" if by_name else None)
    list(host_calls.measure({"d": gemv.dgemv}, [3], "d"))
    monkeypatch.delenv("GEMV_BACKEND")
    assert (backend.chosen() == "host") == by_name
    gemv.use_backend(None)


@pytest.mark.parametrize("layout", host_calls.LAYOUTS)
def test_a_layout_is_what_its_name_says(layout):
    values = np.arange(12.0).reshape(3, 4)
    laid = host_calls.LAYOUTS[layout](values)
    assert np.array_equal(laid, values)
    down, along = laid.strides
    by_rows, lines = "rows" in layout, max(down, along)
    assert (along if by_rows else down) == 8
    assert (lines > 8 * (4 if by_rows else 3)) == ("gaps" in layout)


@pytest.mark.parametrize(
    "options, says",
    [
        (["--ops", "N"], "--host goes with --shapes, --dtypes and --json, not with --ops"),
        (["--random", "3"], "not with --random"),
        (["--beta", "0"], "not with --beta"),
        (["--seconds", "0"], "not with --seconds"),
        (["--shapes", "3x4"], "--host takes squares of"),
        (["--dtypes", "h"], "--host takes squares of"),
        (["--json", "x"], "must end in .json"),
    ],
)
def test_what_it_refuses(options, says, capsys):
    assert main(["bench", "--host", *options]) == 2
    assert says in capsys.readouterr().err
