"""The course: the climb goes up, its words are complete, and its figures are those of the files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import processes

TOP = Path(__file__).resolve().parents[2]
DOCS = TOP / "docs"


@pytest.fixture
def modules(monkeypatch):
    """The modules that write the climb, which need no Matplotlib."""
    from gemv.engines import backend

    if backend.backend() != "simulator":
        pytest.skip("needs the simulator, which Numba chooses when it is imported")
    monkeypatch.setattr(sys, "path", [str(DOCS / "_ext"), str(DOCS / "figures"), *sys.path])
    import climb_pages
    import steps

    return steps, climb_pages


@pytest.fixture
def cases():
    from benchmarks.pages.ladder_table import load

    return load()


def row(name: str, time_s: float | None) -> dict:
    rate = 1 / time_s if time_s else None
    return {"name": name, "time_s": time_s, "gb_per_s": rate, "share": rate}


def test_a_rung_is_a_step_if_it_is_faster_than_all_before(modules):
    steps, _ = modules
    times = {
        "serial": 8.0, "thread_per_row": 2.0, "block_per_row": 3.0, "atomics": 0.1,
        "tile2d": 2.0, "coalesced": None, "warp_per_row": 1.0,
    }  # fmt: skip
    found = steps.steps({"rows": [row(*item) for item in times.items()]})
    told = [(s.kernel.name, s.is_aside, s.before and s.before.name, s.ratio) for s in found]
    assert told == [
        ("serial", False, None, 1.0),
        ("thread_per_row", False, "serial", 4.0),
        ("block_per_row", True, "thread_per_row", 2 / 3),
        ("tile2d", True, "thread_per_row", 1.0),  # not faster
        ("warp_per_row", False, "thread_per_row", 2.0),
    ]


def test_words_are_of_rungs_and_excerpts_are_there(modules, cases):
    steps, pages = modules
    from gemv.kernels import REGISTRY

    for number, (act, text) in enumerate(steps.words().items()):
        assert set(text["shown"]) <= set(pages.COUNTS), act
        assert set(text["rungs"]) <= set(REGISTRY), act
        for step in steps.steps(cases[text["results"]]):
            said = text["rungs"].get(step.kernel.name)
            if number == 0 and said and not step.is_aside:
                assert said["hypothesis"].strip() and said["left"].strip()
                kind = "python" if step.before is None else "diff"
                assert pages.change(step, said).startswith(f"```{kind}\n")
                assert step.before is None or pages.excerpt(step.before, *said["old"])


def test_a_rung_without_words_is_shown_by_its_lesson(modules, cases, tmp_path, monkeypatch):
    steps, pages = modules
    act = {**steps.words()["square"], "rungs": {}}
    monkeypatch.setattr(steps, "words", lambda: {"square": act})
    monkeypatch.setattr(pages, "OUT", tmp_path)
    case = cases[act["results"]]
    counts = dict.fromkeys(act["shown"], 0)
    told = {step.kernel.name: counts for step in steps.steps(case)}
    (tmp_path / "climb-square.json").write_text(json.dumps(told), encoding="utf-8")
    page, rest = pages.climb_pages(cases, tmp_path)
    assert "**Hypothesis.** One thread takes one row: the first parallel gemv" in page
    assert "diff" not in page and "What it left" not in page and not rest


def test_an_excerpt_that_is_gone_is_named(modules):
    from gemv.kernels import REGISTRY

    _, pages = modules
    with pytest.raises(ValueError, match="serial has no line 'for k in'"):
        pages.excerpt(REGISTRY["serial"], "for k in", "update(")


def test_counts_are_those_of_the_launch_and_of_what_it_touches(modules, cases):
    steps, _ = modules
    from gemv.kernels import REGISTRY

    case = cases["f32-8192x8192"]
    told = steps.counted(REGISTRY["thread_per_row"], case, (32, 8))
    assert told["threads"] == 8192 and told["fill"] == 8192 / (132 * 2048)
    assert told["reading"] == 0.5  # blocks of 64 threads on 32 rows
    assert (told["lines"], told["sectors"], told["useful"]) == (8, 32, 1 / 8)
    assert (told["in_a_row"], told["barriers"]) == (4, 0)
    wide = steps.counted(REGISTRY["vector_rows"], case, (32, 8))
    assert wide["sectors"] == 16 and wide["useful"] == 1 and wide["in_a_row"] == 256


def test_figures_of_a_profiler_are_shown_where_they_are_stored(modules, cases, tmp_path):
    steps, pages = modules
    name = "f32-8192x8192"
    assert pages.profile_of(tmp_path, name) == ("", {})
    rows = [
        {"name": "serial", "metrics": {"sectors per request": "1", "occupancy": "2 %"}},
        {"name": "thread_per_row", "metrics": {"sectors per request": "1", "occupancy": "3 %"}},
    ]
    stored = {"device": "a GPU", "tool": "ncu 1.0", "rows": rows}
    (tmp_path / f"{name}.json").write_text(json.dumps(stored), encoding="utf-8")
    profile = pages.profile_of(tmp_path, name)
    step = steps.steps(cases[name])[1]
    counts = {each: {"threads": 1} for each in ("serial", "thread_per_row")}
    table = pages.before_and_now(step, ["threads"], counts, profile.rows)
    # neither the threads nor the sectors have changed
    assert table.splitlines() == [
        "| | before | now |", "| --- | ---: | ---: |", "| occupancy (ncu) | 2 % | 3 % |"
    ]  # fmt: skip
    assert "(ncu 1.0, a GPU)" in profile.source


def test_a_profiler_is_shown_beside_the_other_climbs(modules, cases, tmp_path, monkeypatch):
    steps, pages = modules
    acts = {name: {**act, "rungs": {}} for name, act in steps.words().items()}
    monkeypatch.setattr(steps, "words", lambda: acts)
    monkeypatch.setattr(pages, "OUT", tmp_path)
    for name, act in acts.items():
        told = dict.fromkeys((each.kernel.name for each in steps.steps(cases[act["results"]])),
                             dict.fromkeys(act["shown"], 0))  # fmt: skip
        (tmp_path / f"climb-{name}.json").write_text(json.dumps(told), encoding="utf-8")
    rows = [
        {"name": "thread_per_row", "metrics": {"sectors per request": "7", "eligible": "9"}},
        {"name": "of_another_matrix", "metrics": {"sectors per request": "8"}},
    ]
    stored = {"device": "a GPU", "tool": "ncu 1.0", "rows": rows}
    (tmp_path / f"{acts['tall']['results']}.json").write_text(json.dumps(stored), encoding="utf-8")
    _, others = pages.climb_pages(cases, tmp_path)
    lines = others.splitlines()
    at = lines.index("| rung | sectors | eligible (ncu) |")
    assert lines[at + 2 : at + 4] == ["| thread_per_row | 7 | 9 |", ""]
    assert others.count("(ncu 1.0, a GPU)") == 1 and "of_another_matrix" not in others


def run(*command: str) -> subprocess.CompletedProcess:
    return processes.run([sys.executable, *command], cwd=TOP, capture_output=True, text=True)


# --------------------------------------------------------------------------------------------------
# short kernels

SHORT = sorted((DOCS / "course" / "short").glob("*.py"))


def test_short_kernels_are_right(tmp_path):
    from gemv.kernels import REGISTRY

    assert len(SHORT) == 4 and {path.stem for path in SHORT} <= set(REGISTRY)
    wrong = tmp_path / "no_barrier.py"
    text = (DOCS / "course" / "short" / "short_columns.py").read_text(encoding="utf-8")
    assert text.count("cuda.syncthreads()") == 1
    wrong.write_text(text.replace("cuda.syncthreads()", "pass"), encoding="utf-8")
    check = "import runpy, sys; main = runpy.run_path(sys.argv[1])['main']"
    check += "; print([main([path]) for path in sys.argv[2:]])"
    done = run("-c", check, str(DOCS / "exercises"), str(wrong), *map(str, SHORT))
    assert done.returncode == 0, done.stderr
    *said, statuses = done.stdout.splitlines()
    assert statuses == "[1, 0, 0, 0, 0]", said
    assert all(len(path.read_text("utf-8").splitlines()) <= 75 for path in SHORT)


def test_a_page_with_a_short_kernel_has_no_more_of_the_idea_than_that(modules):
    from kernel_pages import has_short, idea_alone, sections

    from gemv.kernels import REGISTRY

    for kernel in REGISTRY.values():
        idea = sections(kernel.doc)["Idea"]
        alone = idea_alone(kernel)
        assert idea.startswith(alone) and alone
        if not has_short(kernel):
            assert alone == idea
        elif kernel.name != "cluster_rows":
            assert "\n\n" not in alone


def test_what_a_kernel_does_besides_is_on_another_page(modules):
    pytest.importorskip("matplotlib", reason="matplotlib, the extra 'plot', is not installed")
    from kernel_pages import rung_page

    from gemv.kernels import REGISTRY

    page = rung_page(REGISTRY["vector_rows"], None, {}, [], {})
    assert "By Little's law" in page and "wide_loads" not in page.split("## The idea alone")[0]
    assert "The sums of splits have to meet" not in page and "TURNS" not in page


# --------------------------------------------------------------------------------------------------
# notebooks

#: What a notebook's code prints, one cell after the other, without Jupyter.
RUN_CELLS = """
import json, sys
names = {"__name__": "__main__"}
for cell in json.load(open(sys.argv[1], encoding="utf-8"))["cells"]:
    if cell["cell_type"] == "code":
        exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
"""


def test_a_notebook_opens_and_its_cells_run(tmp_path):
    done = run(str(DOCS / "course" / "notebook.py"), "2", "--folder", str(tmp_path))
    assert done.returncode == 0, done.stderr
    path = tmp_path / "02-thread_per_row.ipynb"
    assert done.stdout.strip() == str(path)
    check_notebook(json.loads(path.read_text(encoding="utf-8")))
    done = run("-c", RUN_CELLS, str(path))
    assert done.returncode == 0, done.stderr
    first, *_, last = done.stdout.splitlines()
    assert first == "right" and last.startswith("not yet: ")
    assert "lines that a request for A touches: 32\nsectors that it moves: 32\n" in done.stdout


def check_notebook(book: dict) -> None:
    """What the format 4.5 of Jupyter asks of a notebook with text and code."""
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert book["metadata"]["kernelspec"].keys() >= {"name", "display_name"}
    names = [cell["id"] for cell in book["cells"]]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in names)
    for cell in book["cells"]:
        own = {"cell_type", "id", "metadata", "source"}
        if cell["cell_type"] == "code":
            own |= {"execution_count", "outputs"}
        assert cell.keys() == own
        assert cell["cell_type"] in ("markdown", "code") and "".join(cell["source"]).strip()


def test_every_kernel_has_a_notebook(monkeypatch):
    from gemv.kernels import REGISTRY

    monkeypatch.setattr(sys, "path", [str(DOCS / "course"), *sys.path])
    import notebook

    for kernel in REGISTRY.values():
        book = json.loads(notebook.text_of(kernel))
        check_notebook(book)
        code = ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "code"]
        for text in code:
            compile(text, kernel.name, "exec")
        assert "KERNEL = Kernel(" in code[1] and "\nIdea\n" not in code[1]
