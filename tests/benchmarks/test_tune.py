"""Tuning: candidates are found and checked, a run goes on where it stopped, a table comes out."""

import itertools
import json
import tomllib

import numpy as np
import pytest
from helpers.programs import program

from gemv.measure.clock import copies_past_l2
from gemv.selection.parse import parse
from gemv.selection.select import select
from gemv.selection.table import tables

table_rows = program("tune.rows")


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        yield from _with_few_candidates(vars(program("tune.try_constants")), patch)


def _with_few_candidates(found, patch):
    everything = found["candidates"]

    def few(problem):
        """Some of each kernel: the simulator is slow."""
        kept = {}
        for name, knobs in everything(problem):
            lanes = knobs.get("LANES")
            if lanes in (2, 8, None) and knobs.get("THREADS_PER_BLOCK", 32) <= 256:
                kept.setdefault((name, lanes), []).append(knobs)
        for (name, _), each in kept.items():
            yield from ((name, knobs) for knobs in each[:2])

    patch.setitem(found, "candidates", few)
    yield {**found, "everything": everything}


def from_memory(file):
    """The records of A from memory: a GPU also gives some with A in its cache."""
    records = [json.loads(line) for line in file.read_text().splitlines()]
    return [record for record in records if not record["hot"]]


def test_candidates_agree_and_a_second_run_goes_on(script, tmp_path, capsys):
    file = tmp_path / "results.jsonl"
    script["main"]([str(file), "--shapes", "5x70", "--dtypes", "s", "--views", "whole"])
    first = from_memory(file)
    assert [(record["m"], record["n"], record["op"]) for record in first] == [
        (5, 70, "N"),
        (5, 70, "T"),
    ]
    kernels = [{name for _, name, _, _ in record["tried"]} for record in first]
    assert kernels == [
        {"last_block", "vector_rows", "phased_rows"},  # lines of 280 bytes: two phases
        {
            "last_block",
            "vector_columns",
            "long_columns",
            "phased_columns",
            "short_columns",
            "cluster_columns",
        },  # fmt: skip
    ]
    assert all(len(record["tried"]) > 3 for record in first)
    assert "candidates agree" in capsys.readouterr().out or first[0]["tried"][0][3]
    again = ["--dtypes", "s", "--ops", "N", "--views", "whole"]
    script["main"]([str(file), "--shapes", "5x70,7x9", *again])
    assert len(from_memory(file)) == 3


def test_candidates_are_every_row_of_the_table_and_a_grid_beside_it(script):
    for op, name in (("N", "vector_rows"), ("T", "vector_columns")):
        problem, _ = script["make_problem"](4096, 4096, np.dtype("f"), op, "whole")
        found = [knobs for kernel, knobs in script["everything"](problem) if kernel == name]
        assert len(found) > 20
        for row in tables().rows:
            lanes = row.knobs.get("LANES", 0)
            if row.kernel == name and 64 <= lanes <= 256:
                assert dict(row.knobs) in found


@pytest.mark.parametrize("itemsize", [2, 4, 8, 16])
def test_copies_are_aligned_alike(script, itemsize):
    for elements in (1, 5 * 70, 127, 128, 4099):
        step = script["spacing"](elements, itemsize)
        assert step >= elements and step * itemsize % 256 == 0
        assert (step - elements) * itemsize < 256


@pytest.mark.parametrize("size, copies", [(1400, 512), (1 << 20, 151), (1 << 30, 2)])
def test_as_many_copies_as_the_cache_asks_for(size, copies):
    assert copies_past_l2(size, 50 << 20) == copies


def test_a_wrong_candidate_is_an_error(script, tmp_path, monkeypatch):
    from gemv.engines import backend

    engine = backend.engine()
    run = type(engine).run

    def off_by_one(self, choice, problem, alpha, *rest, **more):
        wrong = alpha * 2 if choice.kernel.name == "vector_rows" else alpha
        return run(self, choice, problem, wrong, *rest, **more)

    monkeypatch.setattr(type(engine), "run", off_by_one)
    with pytest.raises(AssertionError, match="vector_rows .* is wrong on 5 x 70"):
        script["main"]([str(tmp_path / "r.jsonl"), "--shapes", "5x70", "--dtypes", "s"])


def test_the_summary_names_the_best_and_what_the_table_reaches(script):
    record = {
        "m": 8, "n": 9, "dtype": "s", "op": "N", "view": "whole", "hot": False,
        "bytes": 4e9, "read_gb_per_s": 8.0,
        "tried": [
            ["the table's", "vector_rows", {"LANES": 8}, 2.0],
            ["candidate", "vector_rows", {"LANES": 4}, 1.0],
        ],
    }  # fmt: skip
    line = script["summary"](record)
    assert "best 4 GB/s, 0.50 of the read rate" in line and "the table reaches 0.50 of it" in line


def test_views_are_aligned_as_they_say(script):
    for op in "NT":
        whole, begin = script["make_problem"](6, 8, np.dtype("f"), op, "whole")
        assert (begin, max(whole.row_stride, whole.col_stride)) == (0, 8)
        odd, begin = script["make_problem"](6, 8, np.dtype("f"), op, "odd")
        assert (begin, max(odd.row_stride, odd.col_stride)) == (1, 9)
        assert odd.at(256 + 4 * begin, 256).widths[0] == 1 < whole.at(256, 256).widths[0]


class StandIn:
    """A clock that says what it is told: which kernel with which lanes is fast."""

    l2_bytes = 1 << 20

    def time(self, calls, rounds):
        choice = calls[0].args[1]
        lanes = choice.knobs.get("LANES", 0)
        fast = 8 if choice.spec.widths[0] > 1 else 2
        return (1 if lanes == fast else 2) * 1e-6 + lanes * 1e-12

    def read_ceiling(self, pointers, nbytes):
        assert all(pointer % 16 == 0 for pointer in pointers), "the true clock refuses"
        return 100.0

    def versions(self):
        return {"CUDA driver API": "13.0"}


def test_a_table_is_written_and_selects_what_was_fastest(script, tmp_path, monkeypatch, capsys):
    from gemv.engines import backend
    from gemv.selection import select as selection_select
    from gemv.selection import table

    monkeypatch.setitem(script["main"].__globals__, "make_clock", lambda engine: StandIn())
    device = backend.engine().device()
    place = tmp_path / f"{table.file_names(device)[0]}.toml"
    command = [str(tmp_path / "r.jsonl"), "--shapes", "12x16,20x64", "--dtypes", "s"]
    script["main"]([*command, "--table", str(place)])
    assert f"rows in {place.name}" in capsys.readouterr().out
    records = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert len(records) == 2 * 2 * 2 * 2, "shapes, ops, views; cold and hot"
    assert {record["hot"] for record in records} == {True, False}
    rows = parse(place.read_text(), last=False)
    assert tomllib.loads(place.read_text())["about"]["versions"] == StandIn().versions()
    assert 2 <= len(rows) <= 4 and all(row.figure for row in rows)
    monkeypatch.setenv("GEMV_TABLES", str(tmp_path))
    for forget in (tables.cache_clear, selection_select._choices.clear):
        forget()
    try:
        for op, view in itertools.product("NT", ("whole", "odd")):
            problem, begin = script["make_problem"](20, 64, np.dtype("f"), op, view)
            lanes = 8 if view == "whole" else 2
            choice = select(problem.at(256 + 4 * begin, 256), device)
            assert choice.knobs["LANES"] == lanes and "measured" in choice.reason
    finally:
        monkeypatch.undo()
        for forget in (tables.cache_clear, selection_select._choices.clear):
            forget()


def record_of(line_bytes, lines, times, access="dot", element=4, load=16, hot=False):
    """A record whose candidates are vector_rows with so many LANES."""
    tried = [["candidate", "vector_rows", {"LANES": lanes}, t] for lanes, t in times.items()]
    return {
        "m": lines, "n": line_bytes // element, "dtype": {4: "s", 8: "d"}[element], "op": "N",
        "view": "whole", "hot": hot, "access": access, "line_bytes": line_bytes, "lines": lines,
        "element_bytes": element, "load_bytes": load, "bytes": line_bytes * lines, "tried": tried,
    }  # fmt: skip


def lanes_by_place(rows, places):
    """The LANES that the first row gives, by length and number of lines."""

    def fits(row, line_bytes, lines):
        return (
            row.get("line_bytes_min", 0) <= line_bytes <= row.get("line_bytes_max", 1 << 60)
            and row.get("lines_min", 0) <= lines <= row.get("lines_max", 1 << 60)
        )  # fmt: skip

    return [next(r for r in rows if fits(r, *place))["knobs"]["LANES"] for place in places]


def test_neighbours_with_one_answer_within_two_percent_are_one_row():
    times = [{8: 1.0, 16: 1.015}, {8: 1.03, 16: 1.015}, {8: 1.5, 16: 1.0}]
    records = [record_of(1024, 10**k, each) for k, each in enumerate(times)]
    rows = table_rows.rows(records)
    assert len(rows) == 1 and rows[0]["knobs"] == {"LANES": 16}
    assert set(rows[0]) == {"access", "kernel", "knobs", "reason", "figure"}
    times[0] = {8: 1.0, 16: 1.03}
    records = [record_of(1024, 10**k, each) for k, each in enumerate(times)]
    rows = table_rows.rows(records)
    assert lanes_by_place(rows, [(1024, 1), (1024, 31), (1024, 32), (1 << 30, 1)]) == [8, 8, 16, 8]
    assert (rows[0]["lines_max"], rows[1]["lines_min"]) == (31, 32), "half-way, as a ratio"


def test_bands_join_where_that_takes_no_more_rows():
    fast8, fast16 = {8: 1.0, 16: 2.0}, {8: 2.0, 16: 1.0}
    records = [
        record_of(64, 10, fast8), record_of(64, 1000, fast16),
        record_of(256, 10, fast8), record_of(256, 1000, fast16),
        record_of(1 << 20, 10, fast16), record_of(1 << 20, 1000, fast8),
    ]  # fmt: skip
    rows = table_rows.rows(records)
    assert len(rows) == 4
    places = [(64, 10), (200, 1000), (16000, 99), (16384, 99), (1 << 20, 1000)]
    assert lanes_by_place(rows, places) == [8, 16, 8, 16, 8]
    assert {row.get("line_bytes_max") for row in rows} == {16383, None}


def test_elements_that_lose_get_a_row_before_the_others():
    records = [
        record_of(1024, 100, {8: 1.0, 16: 1.5}),
        record_of(1024, 100, {8: 1.0, 16: 1.5}, hot=True),
        record_of(1024, 100, {8: 1.2, 16: 1.0}, element=8),
    ]
    first, second = table_rows.rows(records)
    assert first["element_bytes_min"] == first["element_bytes_max"] == 8
    assert (first["knobs"], second["knobs"]) == ({"LANES": 16}, {"LANES": 8})
    assert "element_bytes_min" not in second and first["reason"] != second["reason"]


def test_memory_and_cache_are_weighed_alike():
    cold, hot = {8: 1.0, 16: 1.1}, {8: 1.3, 16: 1.0}
    (row,) = table_rows.rows([record_of(64, 64, cold), record_of(64, 64, hot, hot=True)])
    assert row["knobs"] == {"LANES": 16}


def test_narrow_loads_come_first_and_untimed_records_do_not_count():
    records = [
        record_of(1024, 100, {8: 1.0}), record_of(1024, 100, {4: 1.0}, load=4),
        record_of(1024, 100, {2: None}),
    ]  # fmt: skip
    narrow, wide = table_rows.rows(records)
    assert narrow["load_bytes_max"] == 8 and "load_bytes_max" not in wide
    text = table_rows.to_toml([narrow, wide], {"gpu": 'A "GPU"', "compute_capability": [9, 0]})
    assert tomllib.loads(text)["about"]["gpu"] == 'A "GPU"'
    assert [row.knobs for row in parse(text, last=False)] == [{"LANES": 4}, {"LANES": 8}]
    assert table_rows.rows([]) == []
