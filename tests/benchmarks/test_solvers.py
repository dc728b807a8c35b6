"""The solvers of the documentation on a few rows, their file, and the pages of the results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.programs import program

TOP = Path(__file__).resolve().parents[2]
BENCHMARKS = TOP / "benchmarks"


@pytest.fixture(scope="module")
def script():
    return vars(program("measure.solvers"))


def test_every_contender_solves_every_problem(script):
    found = script["measure"](script["SMALL"], rounds=1)
    rows = {(row["problem"], row["by"]): row for row in found["rows"]}
    assert {problem for problem, _ in rows} == set(script["SIZES"]) == set(script["SMALL"])
    for (problem, by), row in rows.items():
        assert row["error"] < 1e-5, (problem, by)
        iterations = rows[problem, "SciPy"]["iterations"]
        assert abs(row["iterations"] - iterations) <= 1, (problem, by)


def test_pagerank_reads_a_file(script, tmp_path):
    path = tmp_path / "links.mtx"
    script["write_links"](path, 30)
    assert path.read_text().startswith("%%MatrixMarket matrix coordinate")
    a = script["pagerank_matrix"](path)
    assert a.shape == (30, 30) and a.dtype == np.float32
    assert np.allclose(a.sum(0), 1, atol=1e-5)
    v, iterations = script["power_iteration"](
        lambda v: a @ v, np.full(30, 1 / 30, np.float32), 1e-6, np.linalg.norm
    )
    values, vectors = np.linalg.eig(a.astype(np.float64))
    leading = np.abs(vectors[:, np.argmax(values.real)])
    assert np.allclose(v, leading / leading.sum(), atol=1e-5)
    assert 2 < iterations < 100


def test_pages_are_built_from_the_results():
    pages = program("pages.memories_page").PAGES
    for path, make in pages.items():
        assert path.read_text(encoding="utf-8") == make(), "make table"


def test_the_results_are_those_of_a_gpu_and_all_right():
    results = program("measure.memories").MemoryResults
    text = (BENCHMARKS / "results" / "memories" / "h200.json").read_text(encoding="utf-8")
    found = results.from_json(text)
    assert results.from_json(found.to_json()) == found
    assert all(row.same_bits for row in found.rows if row.same_bits is not None)
    # What the package promises of a call on host arrays.
    pinned = found.row("pinned", "driver's copy").gb_per_s
    assert found.row("pinned", "gemv.gemv").gb_per_s >= 0.9 * pinned
    assert found.row("registered", "gemv.gemv").gb_per_s >= 0.9 * pinned
    pageable = found.row("pageable", "driver's copy").gb_per_s
    assert found.row("pageable", "gemv.gemv").gb_per_s >= 4 * pageable


def test_memories_are_measured_on_a_gpu_only():
    import gemv

    if gemv.backend() == "cuda":
        pytest.skip("there is one")
    with pytest.raises(ValueError, match="there is none here"):
        program("measure.memories").measure(8)
