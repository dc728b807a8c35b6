"""The race of constant memory as a command, its benchmarks and its page."""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
from pathlib import Path

import pytest

from gemv import _cli
from gemv.engines import backend

TOP = Path(__file__).resolve().parents[2]
BENCHMARKS = TOP / "benchmarks"


@pytest.mark.skipif(backend.backend() == "cuda", reason="minutes of measuring on a GPU")
def test_command_prints_and_keeps_the_race(tmp_path, capsys):
    output = tmp_path / "race.json"
    parts = "coefficients,vector"
    assert _cli.main(["constants", "--parts", parts, "--json", str(output)]) == 0
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
        (["--json", "race.txt"], "the name must end in .json"),
        (["--plot", "race.gif"], "the name must end in .png or .svg or .pdf"),
    ],
)
def test_command_refuses(arguments, said, capsys):
    assert _cli.main(["constants", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_command_without_matplotlib(tmp_path, monkeypatch, capsys):
    found = importlib.util.find_spec

    def without(name, *rest):
        return None if name == "matplotlib" else found(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    assert _cli.main(["constants", "--plot", str(tmp_path / "race.png")]) == 2
    assert "gemv[plot]" in capsys.readouterr().err


def test_picture(tmp_path):
    pytest.importorskip("matplotlib")
    from gemv import _race

    text = (BENCHMARKS / "results" / "constants" / "h200.json").read_text(encoding="utf-8")
    _race.plot(_race.Race.from_json(text), tmp_path / "race.png")
    assert (tmp_path / "race.png").stat().st_size > 10_000


def test_page_is_built_from_the_results(monkeypatch):
    monkeypatch.delenv("NUMBA_ENABLE_CUDASIM", raising=False)
    script = runpy.run_path(str(BENCHMARKS / "constants_page.py"))
    page = (TOP / "docs" / "constants.md").read_text(encoding="utf-8")
    assert script["load"]() == page, "python benchmarks/constants_page.py --write"
    # Numba would take it up as it compiles the next kernel, and put a simulated one into it.
    assert "NUMBA_ENABLE_CUDASIM" not in os.environ


def test_benchmarks_list_every_home():
    from gemv import _race
    from gemv.kernels.spec import HOMES

    listed = runpy.run_path(str(BENCHMARKS / "constants.py"))
    assert listed["HOMES"] == list(HOMES)
    assert listed["X_HOMES"] == list(_race.X_HOMES)
    assert listed["KERNELS"] == [name for name, _ in _race.COEFFICIENT_KERNELS]


@pytest.mark.skipif(backend.backend() != "simulator", reason="asv runs them on a GPU")
def test_benchmarks_run():
    suite = runpy.run_path(str(BENCHMARKS / "constants.py"))
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
    script = runpy.run_path(str(BENCHMARKS / "constants_counters.py"))
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
    from gemv._race import loads_in_flight

    lines = ["LDG.E R1", "LDG.E R2", "IADD3 R3", "LDG.E R4", "FFMA R5", "LDG.E R6", "BRA x"]
    assert loads_in_flight(lines) == 3
    assert loads_in_flight([]) == 0
