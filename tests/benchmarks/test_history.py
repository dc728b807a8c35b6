"""Points of the history: what one measures, how it is stored, and how two are compared."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from pathlib import Path

import pytest
from helpers.programs import program

import gemv

TOP = Path(__file__).resolve().parents[2]


def test_a_point_of_the_history_takes_minutes():
    """Few processes have a context and a compiler; those of a suite that measures once look up."""
    measuring, looking = 0, 0
    for name in ("kernels", "api", "shards", "lists"):
        suite = vars(program(f"suites.{name}"))
        for each in filter(lambda value: isinstance(value, type), suite.values()):
            kinds = ("track", "time", "timeraw", "peakmem")
            methods = [m for m in dir(each) if m.split("_")[0] in kinds]
            sets = len(methods) * math.prod(map(len, getattr(each, "params", ())))
            if hasattr(each, "setup_cache"):
                measuring, looking = measuring + 1, looking + sets
            else:
                measuring += sets
    assert 5 < measuring <= 60
    assert 200 < looking <= 310


def test_calls_on_numpy_arrays_are_measured_on_the_gpu(monkeypatch):
    """They are copied there, as at every point of the history before."""
    suite = program("suites.api")
    monkeypatch.setenv("GEMV_BACKEND", "")  # restored afterwards, whatever the suite does
    for name, asked in (("cuda", "cuda"), ("simulator", "")):
        monkeypatch.setattr(gemv, "backend", lambda name=name: name)
        os.environ["GEMV_BACKEND"] = ""
        assert suite._backend() == name
        assert os.environ["GEMV_BACKEND"] == asked


def test_figures_of_several_gpus_are_skipped_where_there_is_one():
    suite = vars(program("suites.shards"))
    scaling, missing = suite["Scaling"](), suite["Missing"]("4 GPUs are needed")
    ratios = {("2", "plan", "1 GiB"): 1.7, ("4", "plan", "1 GiB"): missing}
    scaling.setup(ratios, "2", "plan", "1 GiB")
    assert scaling.track_ratio(ratios, "2", "plan", "1 GiB") == 1.7
    with pytest.raises(NotImplementedError, match="4 GPUs are needed"):
        scaling.setup(ratios, "4", "plan", "1 GiB")
    with pytest.raises(AssertionError, match="same bits False"):
        wrong = suite["Wrong"]("shards of rows: same bits False")
        scaling.setup({("2", "call", "1 GiB"): wrong}, "2", "call", "1 GiB")
    unit = vars(program("history.compare"))["SPREAD"]
    assert scaling.track_ratio.unit in unit
    shapes = vars(program("measure.shards"))["SIZES"]
    assert set(suite["SIZES"]) < set(shapes)


@pytest.mark.skipif(gemv.backend() == "cuda", reason="it measures minutes on a GPU")
def test_several_gpus_are_played_by_the_simulator(monkeypatch):
    suite = program("suites.shards")
    monkeypatch.setattr(suite, "GPUS", ["2"])
    monkeypatch.setattr(suite, "SIZES", ["1 GiB"])
    found = suite.scaling()
    assert set(found) == {("2", way, "1 GiB") for way in suite.WAYS}
    assert all(math.isnan(each) for each in found.values()), found


@pytest.mark.skipif(gemv.backend() == "cuda", reason="it measures minutes on a GPU")
def test_figures_of_lists_are_checked_or_skipped(monkeypatch):
    suite = program("suites.lists")
    floor = suite.Floor()
    found = suite.shares()
    if gemv.backend() == "simulator":
        assert set(found) == set(suite.DTYPES)
        assert all(math.isnan(each) for each in found.values()), found
    with pytest.raises(AssertionError, match="item 3 differs"):
        floor.setup({"float32": suite.Wrong("item 3 differs")}, "float32")
    floor.setup({"float32": 0.5}, "float32")
    assert floor.track_share({}, "float32") == 50
    monkeypatch.setattr(gemv, "backend", lambda: "host")
    with pytest.raises(NotImplementedError, match="no GPU"):
        floor.setup(suite.shares(), "float32")
    assert floor.track_share.unit in vars(program("history.compare"))["SPREAD"]


def test_benchmarks_list_every_rung():
    from gemv.kernels import REGISTRY

    listed = program("suites.kernels").KERNELS
    assert listed == [kernel.name for kernel in REGISTRY.values() if not kernel.beside]
    # What the pages of the history show is what this file has.
    path = TOP / "benchmarks" / "results" / "history" / "benchmarks.json"
    shown = json.loads(path.read_text("utf-8"))["kernels.Bandwidth.track_bandwidth"]["params"][0]
    assert shown == [repr(name) for name in listed]


def test_a_point_is_measured_below_asv_and_then_stored(tmp_path, monkeypatch, capsys):
    script = vars(program("history.point"))
    main = script["main"]
    with pytest.raises(SystemExit):
        main(["--machine", "h200", "--commit", "abc"])
    assert "all 40 digits" in capsys.readouterr().err

    seen = []
    monkeypatch.setattr(
        script["subprocess"], "run", lambda command, **options: seen.append((command, options))
    )
    for name, value in (("WORK", tmp_path / ".asv"), ("CONFIG", tmp_path / "local.json")):
        monkeypatch.setitem(main.__globals__, name, value)
    assert main(["--machine", "h200", "--commit", "ab" * 20, "--date", "5"]) == 0
    config = json.loads((tmp_path / "local.json").read_text())
    assert config["results_dir"] == ".asv/results"
    assert config["benchmark_dir"] == "benchmarks/suites"
    git, commit, machine, *rest = (command for command, _ in seen)
    assert git[:2] == ["git", "init"] and commit[0] == "git" and "machine" in machine
    # Part by part, so that a run that is cut off keeps what it has.
    runs, stores = rest[::2], rest[1::2]
    assert tuple(run[run.index("--bench") + 1] for run in runs) == script["PARTS"]
    assert not any("--dry-run" in run for run in runs)
    assert [store[-4:] for store in stores] == [["--commit", "ab" * 20, "--date", "5"]] * len(runs)
    assert seen[3][1]["env"]["ASV_PYTHONPATH"].startswith(str(TOP))

    seen.clear()
    some = ["--bench", "Floor", "--bench", "^api"]
    assert main(["--machine", "h200", "--commit", "ab" * 20, *some]) == 0
    asked = [command for command, _ in seen if "--bench" in command]
    assert [run[run.index("--bench") + 1] for run in asked] == ["Floor", "^api"]

    seen.clear()
    assert main(["--smoke"]) == 0
    assert all(options["env"]["NUMBA_ENABLE_CUDASIM"] == "1" for _, options in seen[2:])
    assert "--dry-run" in seen[-1][0]


def test_stored_benchmark_results_name_no_path(tmp_path):
    store = program("history.store").store
    raw = tmp_path / "raw"
    (raw / "h200").mkdir(parents=True)
    (raw / "benchmarks.json").write_text("{}")
    (raw / "h200" / "machine.json").write_text("{}")
    python = str(tmp_path / "venv" / "bin" / "python")
    result = {"env_name": f"existing-{python}", "python": python, "params": {"python": python}}
    result |= {"commit_hash": "0" * 40, "date": 1, "results": {"x": 1}}
    (raw / "h200" / "00000000-existing.json").write_text(json.dumps(result))

    facts = {"machine": "h200", "gpu": "A GPU", "python": "3.12", "version": 1}
    (written,) = store(raw, tmp_path / "results", facts, "ab" * 20, 5000)
    assert written.relative_to(tmp_path).as_posix() == (
        "results/h200/abababababab-existing-py3.12.json"
    )
    text = written.read_text(encoding="utf-8")
    assert str(tmp_path) not in text
    stored = json.loads(text)
    assert (stored["commit_hash"], stored["date"]) == ("ab" * 20, 5000)
    assert stored["results"] == {"x": 1}
    # A newer library begins no graph of its own.
    assert stored["params"] == {"machine": "h200", "gpu": "A GPU"}
    assert stored["versions"] == {"python": "3.12", "version": 1}

    # What was missing is added, what was measured again is replaced; another GPU's is refused.
    result["results"] = {"x": 2, "y": 3}
    (raw / "h200" / "00000000-existing.json").write_text(json.dumps(result))
    store(raw, tmp_path / "results", {**facts, "torch": "2"}, "ab" * 20, 5000)
    stored = json.loads(written.read_text(encoding="utf-8"))
    assert stored["results"] == {"x": 2, "y": 3} and stored["versions"]["torch"] == "2"
    result["results"] = {"z": 4}
    (raw / "h200" / "00000000-existing.json").write_text(json.dumps(result))
    store(raw, tmp_path / "results", facts, "ab" * 20, 5000)
    assert json.loads(written.read_text("utf-8"))["results"] == {"x": 2, "y": 3, "z": 4}
    before = written.read_bytes()
    with pytest.raises(SystemExit, match="was measured with gpu A GPU: remove it"):
        store(raw, tmp_path / "results", {**facts, "gpu": "Another"}, "ab" * 20, 5000)
    assert written.read_bytes() == before

    # Of a benchmark without a point asv would make an empty panel.
    (raw / "benchmarks.json").write_text(json.dumps({"version": 2, "x": {"unit": "s"}, "w": {}}))
    store(raw, tmp_path / "results", facts, "ab" * 20, 5000)
    shown = json.loads((tmp_path / "results" / "benchmarks.json").read_text("utf-8"))
    assert shown == {"version": 2, "x": {"unit": "s"}}


def test_asv_s_pages_have_no_empty_panel():
    results = TOP / "benchmarks" / "results" / "history"
    described = json.loads((results / "benchmarks.json").read_text("utf-8"))
    assert program("history.store").with_points(described, results) == described


def point(
    folder: Path, name: str, date: int, rate: float, seconds: float, more: dict | None = None
) -> Path:
    results = {
        "kernels.Bandwidth.track_bandwidth": [
            [rate, None, float("nan")], [["'serial'", "'tile2d'", "'last_block'"]]
        ],
        "api.Start.timeraw_import": [[seconds], []],
        **(more or {}),
    }  # fmt: skip
    data = {"date": date, "result_columns": ["result", "params"], "results": results}
    path = folder / name
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def test_two_runs_of_one_commit_agree_within_the_spread():
    script = vars(program("history.compare"))
    folder = TOP / "benchmarks" / "results" / "spread"
    machines = {path.name.rsplit("-", 1)[0] for path in folder.glob("*.json")}
    assert machines
    for machine in machines:
        first, second = (folder / f"{machine}-{which}.json" for which in ("first", "second"))
        both = [json.loads(path.read_text(encoding="utf-8")) for path in (first, second)]
        assert both[0]["commit_hash"] == both[1]["commit_hash"]
        rows = script["compare"](first, second)
        rates = [(old, new) for _, old, new, unit, _, _ in rows if unit == "GB/s"]
        assert len(rates) > 90 and all(old != new for old, new in rates)
        assert {verdict for *_, verdict in rows} == {"same"}


def test_compare_shows_a_regression_beyond_the_spread(tmp_path, capsys):
    script = vars(program("history.compare"))
    units = {"kernels.Bandwidth.track_bandwidth": {"unit": "GB/s"}, "version": 2}
    units["api.Start.timeraw_import"] = {"unit": "seconds"}
    (tmp_path / "benchmarks.json").write_text(json.dumps(units))
    old = str(point(tmp_path, "old.json", 1, 1000.0, 1.0))

    within = str(point(tmp_path, "within.json", 2, 980.0, 1.1))
    assert script["main"]([old, within]) == 0
    assert "0 worse, 2 same" in capsys.readouterr().out

    slower = str(point(tmp_path, "slower.json", 2, 900.0, 0.5))
    assert script["main"]([old, slower]) == 1
    lines = capsys.readouterr().out.splitlines()[1:]
    assert lines[0].split()[:2] == ["worse", "-10.0%"] and "track_bandwidth(serial)" in lines[0]
    assert lines[1].split()[:2] == ["better", "+100.0%"]
    assert lines[2] == "1 better, 1 worse, 0 same"

    # Three times as slow as NumPy's import is: the host. As slow where that halves: not the host.
    control = "api.Start.timeraw_import_with_numpy"
    units[control] = {"unit": "seconds"}
    (tmp_path / "benchmarks.json").write_text(json.dumps(units))
    before = str(point(tmp_path, "before.json", 1, 1000.0, 1.0, {control: [[0.1], []]}))
    host = str(point(tmp_path, "host.json", 2, 1000.0, 3.0, {control: [[0.3], []]}))
    faster = str(point(tmp_path, "faster.json", 2, 1000.0, 1.0, {control: [[0.05], []]}))
    assert script["main"]([before, host]) == 0
    told = capsys.readouterr().out
    assert "0.1 -> 0.3 seconds" in told and "0 better, 0 worse, 3 same" in told
    assert script["main"]([before, faster]) == 1
    assert "worse   -50.0%  1 -> 1 seconds  api.Start.timeraw_import\n" in capsys.readouterr().out

    # A figure that only one point has: a rung that is gone is no good news.
    assert script["main"]([before, old]) == 1
    told = capsys.readouterr().out.splitlines()
    assert told[-2] == f"gone   1 figure of {control}"
    assert told[-1] == "0 better, 0 worse, 2 same, 1 gone"
    assert script["main"]([old, before]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[-2:] == [f"new    1 figure of {control}", "0 better, 0 worse, 2 same, 1 new"]
    assert script["main"]([old, before, "--all"]) == 0
    assert f"new    0.1 seconds  {control}" in capsys.readouterr().out

    assert script["main"](["--machine", "nowhere"]) == 2


def test_compare_finds_the_machine_with_this_gpu(tmp_path, monkeypatch, capsys):
    script = program("history.compare")
    monkeypatch.setattr(script, "RESULTS", tmp_path)
    assert script.machine_here() is None and script.main([]) == 2
    assert "has 0" in capsys.readouterr().err
    for name, gpu, dates in (("old", "A", (1, 2)), ("new", "B", (3, 4))):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "machine.json").write_text(json.dumps({"gpu": gpu}))
        for date in dates:
            point(folder, f"{date}.json", date, 1000.0, 1.0)
    for gpu, machine in (("A", "old"), ("B", "new"), ("C", "new"), (None, "new")):
        monkeypatch.setattr(script, "this_gpu", lambda gpu=gpu: gpu)
        assert script.machine_here() == machine
    assert script.main([]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "from 3 to 4"


# --------------------------------------------------------------------------------------------------
# the page of the history, and what changed since the newest point


def point_file(folder, commit, date, **figures):
    """A file as asv leaves one, with one figure for each benchmark."""
    results = {name.replace("__", "."): [[value], []] for name, value in figures.items()}
    data = {"commit_hash": commit, "date": date, "params": {"gpu": "A GPU"}, "results": results,
            "result_columns": ["result", "params"]}  # fmt: skip
    (folder / f"{commit[:12]}-py.json").write_text(json.dumps(data), encoding="utf-8")


def test_page_of_the_history_has_every_point_and_says_what_is_better(tmp_path, monkeypatch):
    series, page = program("history.series"), program("pages.history_page")
    for module in (series, program("history.compare")):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    monkeypatch.setattr(series, "BACKFILLED", tmp_path / "none")
    assert "make bench" in page.history_page(page.histories())
    folder = tmp_path / "box"
    folder.mkdir()
    (folder / "machine.json").write_text("{}")
    control = {"api__Start__timeraw_import_with_numpy": 0.5}
    first = {"api__FirstCall__timeraw_first_call": 1.5}
    point_file(folder, "b" * 40, 2000, **first, **control)
    point_file(folder, "a" * 40, 1000, kernels__Floor__track_share=90.0)
    text = page.history_page(page.histories())
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == ["bbbbbbb", "aaaaaaa"]  # the newest first
    assert rows[0].endswith("| – | 3 |") and rows[1].endswith("| 90 | – |")
    assert "### Share of the floor (A): higher is better" in text
    assert "### Import and first call (A): lower is better" in text
    assert "### Beside the fastest peer" not in text  # no point has it
    share = series.PANELS[0]
    assert series.lines(series.points("box"), share) == {"share": [(0, 90.0)]}
    assert "have not been measured again" in text and "Why figures are missing" not in text
    assert "Higher is better in the columns % of the floor. Lower is better" in text


def test_no_heading_of_the_history_comes_twice():
    page = program("pages.history_page")
    stored = page.histories()
    assert len({(each.gpu, each.past, is_of_several(each)) for each in stored}) == len(stored) > 1
    text = page.history_page(stored)
    heads = [line for line in text.splitlines() if line.startswith("#")]
    assert len(set(heads)) == len(heads)


def test_a_point_of_several_gpus_says_so_and_makes_no_other_point_needless():
    page, script = program("pages.history_page"), program("history.since")
    (scaling,) = (each for each in page.histories() if each.gpu == SEVERAL and is_of_several(each))
    day, *_ = scaling.points
    for points, text in (([day], "One point, of 2026-"), ([day, day], "2 points, from 2026-")):
        first, second, *_ = page.section(dataclasses.replace(scaling, points=points))
        assert first == f"## Several {SEVERAL}, points"
        assert second.startswith(text)
    (words,) = (part for part in page.section(scaling) if part.startswith("The newest"))
    assert words.endswith("of each picture. Higher is better.")
    without = dataclasses.replace(scaling, points=[dataclasses.replace(day, figures={})])
    assert page.section(without)[0] == f"## {SEVERAL}, points"
    assert script.newest_point(["h100-2", "h200"]) in script.points("h200")
    assert script.newest_point(["h100-2"]) is None


SEVERAL = "NVIDIA H100 80GB HBM3"


def is_of_several(history):
    return all(name.startswith("shards.") for each in history.points for name, _ in each.figures)


def test_a_line_of_the_history_is_the_mean_over_shapes_of_the_best_rung():
    series = program("history.series")
    rung = next(panel for panel in series.PANELS if panel.of_best)
    (name,) = rung.names
    shares = {("serial", "a"): 1.0, ("tile2d", "a"): 80.0, ("serial", "b"): 60.0}
    figures = {(name, (kernel, "float32", shape)): v for (kernel, shape), v in shares.items()}
    point = series.Point("a" * 40, None, figures, {})
    assert series.values(point, rung) == {"float32": 70.0}
    ratio = next(panel for panel in series.PANELS if panel.key == "ratio")
    figures = {(ratio.names[0], ("float64", shape)): v for shape, v in (("a", 1.0), ("b", 4.0))}
    point = series.Point("a" * 40, None, figures, {})
    assert series.values(point, ratio) == {"float64": pytest.approx(2.0)}
    assert series.middle(point, rung) is None


def test_a_point_is_due_when_code_of_the_gpu_changed(tmp_path, monkeypatch, capsys):
    import shutil

    if shutil.which("git") is None:
        pytest.skip("needs git")
    script = program("history.since")
    tree = tmp_path / "tree"
    kernels = tree / "gemv" / "kernels"
    kernels.mkdir(parents=True)

    def commit(title, text, name="gemv/kernels/k.py"):
        (tree / name).write_text(text)
        who = ("-c", "user.name=n", "-c", "user.email=e@localhost")
        script.git("add", ".", top=tree)
        script.git(*who, "commit", "--quiet", "-m", title, top=tree)
        return script.git("rev-parse", "HEAD", top=tree).strip()

    script.git("init", "--quiet", top=tree)
    first = commit("first", '"""A kernel."""\nx = 1\n')
    commit("words", '"""A kernel, said better."""\nx = 1  # one\n')
    commit("elsewhere", "x = 3\n", "other.py")
    assert script.changed_since(first, tree) == []
    commit("faster", '"""A kernel, said better."""\nx = 2\n')
    (line,) = script.changed_since(first, tree)
    assert line.endswith(" faster")

    point = script.Point(first, script.points("h200")[-1].date, {}, {})
    monkeypatch.setattr(script, "newest_point", lambda wanted: point)
    assert script.main([], tree) == 0 and "a point is due" in capsys.readouterr().out
    assert script.main(["--most", "0"], tree) == 1
    assert "faster" in capsys.readouterr().out
    # where there is no git, as in a source distribution, nothing fails
    assert script.main(["--most", "0"], tmp_path / "nowhere") == 0
    assert "unknown what changed" in capsys.readouterr().out
