"""What is made from the stored grids: the README, its picture and the page of the roofline."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from helpers.programs import program
from helpers.results import row, timed_grid, timed_lists

from gemv.cli.bench import add_commands, cells_of
from gemv.engines import backend
from gemv.measure.records import GridResults

TOP = Path(__file__).resolve().parents[2]

simulated_only = pytest.mark.skipif(
    backend.backend() == "cuda", reason="figures of a GPU belong to no test"
)


@pytest.fixture(scope="module")
def pages():
    return program("pages.grid_page")


@pytest.fixture(scope="module")
def front():
    return program("pages.readme_page")


def test_readme_and_its_picture_are_made_from_the_results(pages, front):
    grids = pages.load()
    text = (TOP / "README.md").read_text(encoding="utf-8")
    assert front.replaced(text, *front.results()) == text, "make table"
    if grids:
        assert front.fingerprint(grids).encode() in front.PICTURE.read_bytes(), "make table"


def test_readme_counts_and_lists_every_cell_in_which_a_peer_is_faster(front):
    found = front.kinds([each for each in timed_grid().rows if each.time_s], [])
    lines = front.by_kind(found, "a GPU", "A in memory").splitlines()
    assert lines[0] == f"| A in memory | a side below {front.SKINNY} |"
    assert "| a peer is faster in | 4 of 8 |" in lines
    listed = front.behind(timed_grid().rows).splitlines()[2:]
    assert len(listed) == 4 and all(" | 0.500 (0.50) | " in each for each in listed)
    many = front.behind(3 * timed_grid().rows)
    seen, folded = many.split("<details><summary>The other 8</summary>")
    assert (seen.count(" | 0.500 ("), folded.count(" | 0.500 (")) == (4, 8)
    assert front.behind([]) == "None."
    assert "make grid" in front.picture({}) and "make grid" in front.pays({}, {}, {})


def test_readme_has_two_tables_of_kinds_and_those_of_several_products(front):
    text = front.pays(*front.results())
    heads = [line for line, rule in zip(text.splitlines(), text.splitlines()[1:], strict=False)
             if rule.startswith("| ---")]  # fmt: skip
    assert len(set(heads)) == len(heads) >= 5, "no two tables have the same heading"
    assert all(kind in "".join(heads) for kind in front.PLAIN)
    one, many = timed_grid().rows[:2], timed_grid().rows[2:4]
    for each in one:
        each.vectors = 2
    for each in many:
        each.batch = 64
    for each in (*one, *many):
        each.dtype = "d"
    first, second = front.products([*one, *many], "A GPU: ").split("\n\n")
    assert first.startswith("| A GPU: vectors with one matrix | 2 |\n")
    assert second.startswith(
        f"| A GPU: many matrices | 64 of {many[0].m}² to {many[1].m}² |\n"
    )  # fmt: skip
    assert all(each.splitlines()[2].startswith("| float64 | ") for each in (first, second))
    slower = sum(each.ratio < 1 for each in (*one, *many))
    assert front.losing_of([*one, *many]) == f"{slower} of 4" and slower
    shapes = dict.fromkeys(f"{r.m} x {r.n}" for r in one)
    assert front.shapes_of([*one, *many]) == " or ".join(shapes)


def test_readme_says_what_several_gpus_gain():
    times = {"gemv.plan, one GPU": 6.0, "plan, shards of rows": 4.0,
             "plan, shards of columns": 12.0, "shards of rows": 3.0}  # fmt: skip
    found = {
        "devices": [0, 1],
        "rows": [
            {"size": size, "way": way, "time_s": time_s}
            for size in ("144 MB", "1 GiB")
            for way, time_s in times.items()
        ],
    }
    lines = program("pages.programs_part").on_several(found)
    assert [line[-1] for line in lines] == ["1.50, 1.50", "0.50, 0.50", "2.00, 2.00"]


def test_page_has_losing_cells_first_and_every_figure(pages):
    text = pages.page({"h": timed_grid()})
    losing = text.split("### Where a peer is faster")[1].split("###")[0]
    assert "In 4 of 8 cells the fastest peer is faster." in losing
    text = text.replace("\N{NO-BREAK SPACE}", " ")
    losing = losing.replace("\N{NO-BREAK SPACE}", " ")
    first = "| float32, cold: 16 x 4, N | 0.500 | 0.50 | 1000.0 | 500.0 | torch.mv | `"
    assert losing.split("| --- |")[-1].splitlines()[1].startswith(first)
    means = text.split("### Means")[1].splitlines()
    (line,) = (line for line in means if line.startswith("| float64, cold |"))
    assert line.endswith("| 2 of 4 |"), line
    text = pages.cells_page({"h": timed_grid()}).replace("\N{NO-BREAK SPACE}", " ")
    assert "| 8 x 9 | 1000.0 | 0.90 | 2.00 | 1000.0 | 0.90 | 2.00 |" in text
    assert "```{drawing} grid-h-1\n" in text
    assert "make grid" in pages.page({}) and "make grid" in pages.cells_page({})


def test_random_cells_have_a_section(pages):
    text = pages.random_page({"h": timed_grid()}).replace("\N{NO-BREAK SPACE}", " ")
    losing = text.split("In 4 of 8 cells the fastest peer is faster:")[1].split("Furthest")[0]
    first = losing.split("| --- |")[-1].splitlines()[1]
    assert first.startswith("| float32, cold: 16 x 4, N | 0.500 |")
    table = text.split("peer is faster |")[1].split("In 4 of 8")[0]
    slower = [line.strip("| ").split(" | ")[-1] for line in table.splitlines()[2:5]]
    assert slower == ["2 of 4", "2 of 4", "4 of 8"]
    assert pages.random_page({}) == ""


def test_means_have_the_rate_of_the_datasheet_of_a_gpu_that_has_one(pages):
    for device, said in (("NVIDIA H200", "0.62"), ("Another", "–")):
        grid = timed_grid()
        grid.device = device
        for text in (pages.page({"h": grid}), pages.random_page({"h": grid})):
            means = text.partition("| of the datasheet |")[2].splitlines()
            line = next(each for each in means if each.startswith("| float64"))
            assert line.split(" | ")[2] == said, line
            assert ("4.8 TB/s that the maker" in text) == (device == "NVIDIA H200")
    (one,) = [each for each in timed_grid().rows if each.time_s][:1]
    rate = pages.of_datasheet([one], "NVIDIA H200") * 4.8e12
    assert rate == pytest.approx(one.nbytes / one.time_s)
    one.hot = True
    assert pages.of_datasheet([one], "NVIDIA H200") is None


def test_a_grid_without_a_gpu_makes_no_page(pages, tmp_path):
    GridResults("simulator", "simulator", rows=[row()]).store(tmp_path / "x.json")
    with pytest.raises(ValueError, match="without a GPU"):
        pages.load(tmp_path)


@simulated_only
def test_all_parts_of_the_grid_run(tmp_path, capsys):
    script = vars(program("measure.all_parts"))
    file = tmp_path / "grid" / "here.json"
    assert script["main"]([str(file), "--parts", "cold,conjugate"]) == 0
    stored = GridResults.load(file)
    assert [(each.op, each.wrong) for each in stored.rows] == [
        ("N", None),
        ("T", None),
        ("C", None),
    ]
    with pytest.raises(SystemExit):
        script["main"]([str(file), "--parts", "warm"])
    assert "there are: cold, hot" in capsys.readouterr().err
    parser = argparse.ArgumentParser()
    add_commands(parser.add_subparsers())
    for part in script["PARTS"].values():
        assert cells_of(parser.parse_args(["bench", *part]), simulated=False)


def test_the_page_of_several_products_is_made_from_the_results():
    several = program("pages.several_page")
    for path, text in several.pages().items():
        assert path.read_text(encoding="utf-8") == text, "make table"


def test_the_page_of_several_products_has_losing_cells_first(tmp_path, monkeypatch):
    several = program("pages.several_page")
    grid = timed_grid()
    for each, count in zip(grid.rows, (2, 4, 8, 2, 1, 1, 1, 1, 1), strict=True):
        each.vectors, each.batch = count, 1 if count > 1 else 64
    grid.store(tmp_path / "some.json")
    monkeypatch.setattr(several, "FOLDER", tmp_path)
    text = several.page()
    assert f"{len(grid.rows)} cells, 0 wrong" in text
    one, many = text.split("## Several matrices")
    for part, count in ((one, 2), (many, 2)):
        lines = part.split("in which a peer is faster")[1].splitlines()
        ratios = [line.split(" | ")[3] for line in lines if line.startswith("| ") and ": 1" in line]
        assert len(ratios) == count and ratios == sorted(ratios)
    grid.rows = [row for row in grid.rows if row.peers and row.peers["torch.mv"] > 1e-3]
    grid.store(tmp_path / "some.json")
    assert several.page().count("In no cell is a peer faster.") == 2


def test_the_page_has_lists_that_lose_first_once_they_are_measured(tmp_path, monkeypatch):
    part, several = program("pages.ragged_part"), program("pages.several_page")
    assert part.part(part.load(tmp_path)) == []
    found = timed_lists()
    found.store(tmp_path / "a.json")
    monkeypatch.setattr(part, "load", lambda load=part.load: load(tmp_path))
    text = several.page().split("## Matrices of different sizes")[1].split("\n## ")[0]
    assert "4 lists, 0 wrong; in 2 of 4 another way is faster" in text
    assert "24.5 times as many elements" in text and "torch 9" in text
    lines = text.split("| --- |")[1].splitlines()[1:5]
    assert lines[0] == "| 1474 float64 C, N | 2 | 100 µs (0.50) | 50.00 | 0.50 |"
    assert [line.split()[2] for line in lines] == ["float64"] * 2 + ["float32"] * 2
    for each in found.rows:
        each.time_s = None
    with pytest.raises(ValueError, match="a file without times, of A GPU"):
        part.part([found])


def test_the_page_says_from_which_size_on_several_gpus_are_faster(tmp_path):
    part = program("pages.shards_part")

    def row(size, way, m, time_s, **more):
        return {"size": size, "way": way, "m": m, "n": 1024, "dtype": "float32", **more} | (
            {"time_s": time_s} if time_s else {"failed": "RuntimeError: no memory"}
        )

    plan, call = "plan, shards of rows", "shards of rows"
    for gpus, fast in ((4, 0.5), (2, 1.0)):
        rows = [
            row("large", part.ONE, 1 << 20, 4.0), row("large", plan, 1 << 20, 2 * fast),
            row("small", part.ONE, 1 << 10, 1.0), row("small", plan, 1 << 10, 2.0),
            row("large", call, 1 << 20, 8.0, right=True), row("small", call, 1 << 10, None),
            row("unfinished", plan, 1 << 12, 1.0),
        ]  # fmt: skip
        found = {"names": ["Some GPU"] * gpus, "rows": rows}
        (tmp_path / f"{gpus}.json").write_text(json.dumps(found), encoding="utf-8")
    two, four = part.load(tmp_path)
    assert (two.gpus, four.gpus) == (2, 4) and two.sizes == ["small", "large"]
    assert two.scaling(plan) == [(1 << 22, 0.5), (1 << 32, 2.0)]
    assert four.scaling(plan)[-1] == (1 << 32, 4.0) and two.scaling(call) == [(1 << 32, 0.5)]
    _, picture, words, table, *others = part.part([two, four])
    assert picture.startswith("```{drawing} scaling\n")
    assert "`Matrix.plan`, cut by rows is faster from large on, at most 2.00 times (large)" in words
    assert "`A @ x`, cut by rows is not faster than one GPU at the largest size" in words
    assert "`Matrix.plan`, cut by columns was not measured" in words
    assert "small: 1024 x 1024 float32; large: 1048576 x 1024 float32." in words
    assert "| `A @ x`, cut by rows | – | 8 s (0.50) |" in table and len(others) == 2
    assert not any("CUDA graph of 20" in each for each in others), "no file has such times"
    assert part.part([]) == [] and part.name(two, [two, four]) == "2 GPUs"
    other = four._replace(model="Another")
    assert part.name(other, [two, other]) == "4 GPUs (Another)"
    for (_, way), each in four.rows.items():
        each["in_graph_s"] = {part.ONE: 3.0, plan: 1.5}.get(way)
        each["until_y_s"] = {part.ONE: 3.0, call: 12.0}.get(way)
    four.rows["small", plan]["right"] = False
    *_, words_of_y, table_of_y, words, table = part.part([four])
    assert words_of_y.startswith("The same products until the GPU of y is idle")
    assert "| `A @ x`, cut by rows | 12 s (0.25) | 12 s (0.25) |" in table_of_y
    assert "`Matrix.plan`, cut by rows" not in table_of_y
    assert words.startswith("The same products in a CUDA graph of 20")
    assert "| | small | large |" in table and "| 3 s (1.00) | 3 s (1.00) |" in table
    assert "| `Matrix.plan`, cut by rows | – | 1.5 s (2.00) |" in table and "`A @ x`" not in table


def test_the_page_compares_workers_with_one_process_and_with_dask(tmp_path):
    part = program("pages.machines_part")
    ways = {part.PROCESS: 2.0, part.WORKERS: 3.0, part.TASKS: 0.05, part.DASK: 30.0}

    def rows(size, height, **wrong):
        return [
            {"size": size, "way": way, "rows": height, "columns": 4, "time_s": seconds,
             "right": way not in wrong.get("wrong", ())}
            for way, seconds in ways.items()
        ]  # fmt: skip

    for device, workers in (("host", 2), ("Some GPU", 4), ("Some GPU", 2)):
        found = {"device": device, "workers": workers}
        found["rows"] = rows("large", 80) + rows("small", 40, wrong=[part.WORKERS])
        path = tmp_path / f"{device[0]}{workers}.json"
        path.write_text(json.dumps(found), encoding="utf-8")
    runs = part.load(tmp_path)
    assert [(run.device, run.workers) for run in runs] == [
        ("Some GPU", 2), ("Some GPU", 4), ("host", 2)
    ]  # fmt: skip
    heading, _, first, table, *_, last, _ = part.part(runs)
    assert heading.startswith("## ") and first == "2 workers with one Some GPU each:"
    assert last == "2 workers with one thread each, no GPU:"
    small, large = table.splitlines()[2:]
    assert small == "| small | 2 s | – | 50 ms | 30 s | – | – |", "a wrong result has no time"
    assert large == "| large | 2 s | 3 s | 50 ms | 30 s | 1.50 | 20.00 |"
    (row,) = [row for (size, way), row in runs[0].rows.items()
              if (size, way) == ("large", part.PROCESS)]  # fmt: skip
    row["time_s"] = -1e-3
    assert runs[0].time("large", part.PROCESS) is None
    assert part.part([]) == []
    told = part.part([runs[0]._replace(about="It is old.")])
    assert told[-1] == "It is old." and len(told) == len(part.part(runs[:1])) + 1
