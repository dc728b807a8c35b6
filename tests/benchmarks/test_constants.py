"""The homes of alpha, beta and x: what measures them, the command, the suite and the page."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest
from helpers.programs import program

from gemv.engines import backend
from gemv.kernels.spec import HOMES
from gemv.kernels.t06_where_x_lives import HOMES as X_HOMES
from gemv.measure.clock import Clock

TOP = Path(__file__).resolve().parents[2]
BENCHMARKS = TOP / "benchmarks"

main = program("command").main


@pytest.mark.skipif(backend.backend() == "cuda", reason="minutes of measuring on a GPU")
def test_command_prints_and_keeps_the_figures(tmp_path, capsys):
    output = tmp_path / "constants.json"
    parts = "coefficients,vector"
    assert main(["constants", "--parts", parts, "--json", str(output)]) == 0
    text = capsys.readouterr().out
    for home in ("arguments", "constant", "pointer", "global", "literal", "shared", "value"):
        assert home in text
    assert "65536 bytes (64 KB)" in text
    assert "No time is given" in text
    kept = json.loads(output.read_text(encoding="utf-8"))
    assert kept["backend"] == "simulator"
    assert all(row["time_s"] is None for row in kept["coefficients"] + kept["vector"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--parts", "speed"], "no part speed; known parts: coefficients, vector, turns"),
        (["--json", "x.txt"], "the name must end in .json"),
        (["--plot", "x.gif"], "the name must end in .png or .svg or .pdf"),
    ],
)
def test_command_refuses(arguments, said, capsys):
    assert main(["constants", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_command_without_matplotlib(tmp_path, monkeypatch, capsys):
    found = importlib.util.find_spec

    def without(name, *rest):
        return None if name == "matplotlib" else found(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    assert main(["constants", "--plot", str(tmp_path / "constants.png")]) == 2
    assert "gemv[plot]" in capsys.readouterr().err


def test_picture(tmp_path):
    pytest.importorskip("matplotlib")
    text = (BENCHMARKS / "results" / "constants" / "h200.json").read_text(encoding="utf-8")
    program("pages.plots").plot_constants(
        program("measure.constants_records").ConstantsResults.from_json(text),
        tmp_path / "constants.png",
    )
    assert (tmp_path / "constants.png").stat().st_size > 10_000


def test_page_is_built_from_the_results(monkeypatch):
    monkeypatch.delenv("NUMBA_ENABLE_CUDASIM", raising=False)
    script = vars(program("pages.constants_page"))
    for path, text in script["pages"]().items():
        page = path.read_text(encoding="utf-8")
        assert text == page, "python -m benchmarks.pages.constants_page --write"
    # Numba would take it up as it compiles the next kernel, and put a simulated one into it.
    assert "NUMBA_ENABLE_CUDASIM" not in os.environ


def test_benchmarks_list_every_home():
    listed = vars(program("suites.constants"))
    assert listed["HOMES"] == list(HOMES)
    assert listed["X_HOMES"] == list(X_HOMES)
    kernels = program("measure.constants_coefficients").KERNELS
    assert listed["KERNELS"] == dict(kernels)


@pytest.mark.skipif(backend.backend() != "simulator", reason="asv runs them on a GPU")
def test_benchmarks_run():
    suite = vars(program("suites.constants"))
    for name, parameters in (
        ("CoefficientHome", ("vector_rows", "constant", 64)),
        ("VectorHome", ("value", "one a warp", 64)),
        ("Turns", ("constant", 2)),
    ):
        benchmark = suite[name]()
        benchmark.setup(*parameters)
        (track,) = (getattr(benchmark, each) for each in dir(benchmark) if each[:6] == "track_")
        assert track(*parameters) != track(*parameters), "a simulator's time is NaN"


def test_counters_are_read_from_the_tool():
    script = vars(program("measure.constants_counters"))
    names = list(script["METRICS"])
    head = '"ID","Kernel Name",' + ",".join(f'"{name}"' for name in names)
    rows = [f'"{k}","loads",' + ",".join(f'"{k},{n:03d}"' for n in range(6)) for k in (1, 2)]
    text = "\n".join(["==PROF== Connected", head, '"","",' + ",".join('""' for _ in names), *rows])
    cases = [{"home": "constant"}, {"home": "value"}]
    first, second = script["parse"](text, cases)
    assert first["home"] == "constant" and first["constant_requests"] == 1000
    assert second["replays"] == 2003
    with pytest.raises(ValueError, match="3 launches, but ncu counted 2"):
        script["parse"](text, [*cases, cases[0]])


def test_loads_in_a_row_are_counted():
    loads_in_flight = program("measure.constants_code").loads_in_flight
    lines = ["LDG.E R1", "LDG.E R2", "IADD3 R3", "LDG.E R4", "FFMA R5", "LDG.E R6", "BRA x"]
    assert loads_in_flight(lines) == 3
    assert loads_in_flight([]) == 0


def test_every_home_is_right_and_survives_json():
    constants = program("measure.constants")
    turns = program("measure.constants_turns").turns
    vector = program("measure.constants_vector").vector
    coefficients = program("measure.constants_coefficients").coefficients
    tables = program("pages.constants_tables").tables
    gpu = backend.backend() == "cuda"
    measured = constants.measure([] if gpu else ["coefficients", "vector"])
    if gpu:
        clock = Clock(backend.engine())
        cases = [(home, "blocked", count) for home in ("constant", "shared") for count in (1, 32)]
        # The least of some: other processes may be using this GPU.
        several = [list(turns(clock, cases=cases)) for _ in range(3)]
        measured.turns = several[0]
        times = {
            (row.home, row.distinct): min(rows[k].load_s for rows in several)
            for k, row in enumerate(measured.turns)
        }
        assert times["constant", 32] > 16 * times["constant", 1]
        assert times["shared", 32] < 2 * times["shared", 1]
        one = vector(clock, cases=[("L2", 1 << 16, 16, "F", 1, False)])
        measured.vector = list(one)
        assert all(row.time_s for row in measured.vector)
        few = coefficients(clock, kernels=[("last_block", "C")], sizes=[64])
        measured.coefficients = list(few)
    rows = [*measured.coefficients, *measured.vector]
    assert all(row.error <= 1 for row in rows)
    assert {row.home for row in measured.coefficients} == set(HOMES)
    assert {row.home for row in measured.vector} == set(X_HOMES)
    assert gpu or not any(row.time_s for row in rows)
    assert "65536 bytes (64 KB)" in measured.limits["x"]
    again = program("measure.constants_records").ConstantsResults.from_json(measured.to_json())
    assert again == measured
    assert json.loads(measured.to_json())["backend"] == backend.backend()
    for table in tables(again):
        assert all(len(row) == len(table.headings) for row in table.rows)


def test_there_is_no_such_part():
    with pytest.raises(ValueError, match="no part 'speed'; known: coefficients, vector, turns"):
        program("measure.constants").measure(["speed"])
