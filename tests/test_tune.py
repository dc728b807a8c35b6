"""The tuning script finds candidates, checks them, and goes on where it stopped."""

import json
import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "benchmarks" / "tune.py"


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(SCRIPT))


def test_candidates_agree_and_a_second_run_goes_on(script, tmp_path, capsys):
    file = tmp_path / "results.jsonl"
    script["main"]([str(file), "--shapes", "5x70", "--dtypes", "s"])
    first = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(record["m"], record["n"], record["op"]) for record in first] == [
        (5, 70, "N"),
        (5, 70, "T"),
    ]
    kernels = [{name for _, name, _, _ in record["tried"]} for record in first]
    assert kernels == [{"vector_rows"}, {"vector_columns"}]
    assert all(len(record["tried"]) > 5 for record in first)
    assert "candidates agree" in capsys.readouterr().out or first[0]["tried"][0][3]
    script["main"]([str(file), "--shapes", "5x70,7x9", "--dtypes", "s", "--ops", "N"])
    assert len(file.read_text().splitlines()) == 3


@pytest.mark.parametrize("itemsize", [2, 4, 8, 16])
def test_copies_are_aligned_alike(script, itemsize):
    for elements in (1, 5 * 70, 127, 128, 4099):
        step = script["spacing"](elements, itemsize)
        assert step >= elements and step * itemsize % 256 == 0
        assert (step - elements) * itemsize < 256


@pytest.mark.parametrize("size, copies", [(1400, 512), (1 << 20, 151), (1 << 30, 2)])
def test_as_many_copies_as_the_cache_asks_for(script, size, copies):
    assert script["copies_of"](size, 50 << 20) == copies


def test_a_wrong_candidate_is_an_error(script, tmp_path, monkeypatch):
    from gemv import _backend

    engine = _backend.engine()
    run = type(engine).run

    def off_by_one(self, choice, problem, alpha, *rest, **more):
        wrong = alpha * 2 if choice.kernel.name == "vector_rows" else alpha
        return run(self, choice, problem, wrong, *rest, **more)

    monkeypatch.setattr(type(engine), "run", off_by_one)
    with pytest.raises(AssertionError, match="vector_rows .* is wrong on 5 x 70"):
        script["main"]([str(tmp_path / "r.jsonl"), "--shapes", "5x70", "--dtypes", "s"])


def test_the_summary_names_the_best_and_what_the_table_reaches(script):
    record = {
        "m": 8, "n": 9, "dtype": "s", "op": "N", "bytes": 4e9, "read_gb_per_s": 8.0,
        "tried": [
            ["the table's", "vector_rows", {"LANES": 8}, 2.0],
            ["candidate", "vector_rows", {"LANES": 4}, 1.0],
        ],
    }  # fmt: skip
    line = script["summary"](record)
    assert "best 4 GB/s, 0.50 of the read rate" in line and "the table reaches 0.50 of it" in line
