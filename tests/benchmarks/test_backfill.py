"""Commits of the past: how they are packed, measured beside each other, stored and shown."""

from __future__ import annotations

import ast
import json
import os
import shutil
import sys
import time
from pathlib import Path

import pytest
from helpers.programs import program

from gemv.engines import backend

TOP = Path(__file__).resolve().parents[2]

#: Prepares, waits for its turn, and says two figures, one that has no value, and one more. It notes
#: when it prepares and when it measures. Some trees make it fail, or hang before or after its turn.
STAND_IN = """
import json, os, pathlib, sys, time
tree = pathlib.Path(sys.argv[1])
kind = (tree / "gemv" / "__init__.py").read_text().strip()
notes = pathlib.Path(__file__).with_name("notes")
def note(what):
    with notes.open("a") as file:
        file.write(json.dumps([kind, what, time.monotonic()]) + "\\n")
def say(name, params, value, why=""):
    print(json.dumps({"name": name, "params": params, "value": value, "why": why}), flush=True)
note("prepares")
if kind == "broken":
    raise SystemExit("no GPU today")
if kind == "stuck":
    time.sleep(60)
say("kernels.Floor.track_share", ["float16", "8192x8192"], None, "no such dtype yet")
time.sleep(0.2)
note("prepared")
print("ready", flush=True)
if not sys.stdin.readline():
    note("was not wanted")
    raise SystemExit(0)
note("measures")
say("api.Start.timeraw_import_with_numpy", [], 0.5)
say("kernels.Floor.track_share", ["float32", "8192x8192"], len(kind))
if kind == "slow":
    time.sleep(60)
say("api.Call.track_call", ["numba"], 7.0)
note("measured")
"""
#: What the package of each commit has; None where it has no public functions yet.
KINDS = (None, "first", "broken", "second", "slow", "newest")


@pytest.fixture
def past(tmp_path, monkeypatch):
    """A repository with a commit for each kind, the list of them, and a stand-in for the part."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    git, tree = program("history.since").git, tmp_path / "tree"
    (tree / "gemv" / "kernels").mkdir(parents=True)
    git("init", "--quiet", top=tree)
    hashes = []
    for number, text in enumerate(KINDS):
        name = "gemv/kernels/k.py" if text is None else "gemv/__init__.py"
        (tree / name).write_text(text or "x = 1")
        monkeypatch.setenv("GIT_COMMITTER_DATE", f"{1800000000 + 60 * number} +0000")
        who = ("-c", "user.name=n", "-c", "user.email=e@localhost")
        git("add", ".", top=tree)
        git(*who, "commit", "--quiet", "-m", f"commit {number}", top=tree)
        hashes.append(git("rev-parse", "HEAD", top=tree).strip())
    listed = tmp_path / "commits.txt"
    listed.write_text("".join(f"{each[:7]} what {k} did\n" for k, each in enumerate(hashes)))
    (tmp_path / "part.py").write_text(STAND_IN)
    return tree, listed, hashes


def begun(past, tmp_path, limit_s=60.0):
    """What measures the commits of that repository, and these."""
    script, parts, trees = (program(f"history.{name}") for name in ("backfill", "parts", "trees"))
    tree, listed, _ = past
    commits = trees.wanted(listed, tree, tmp_path / "packed")
    command = [sys.executable, "-P", str(tmp_path / "part.py")]
    run = script.Backfill(
        tmp_path / "results" / "box", {"gpu": "A GPU"},
        lambda unpacked: parts.Part(unpacked, command, limit_s),
        lambda each: trees.packed(each, tree, tmp_path / "packed"),
    )  # fmt: skip
    return run, commits


def noted(tmp_path) -> list[tuple[str, str]]:
    lines = (tmp_path / "notes").read_text().splitlines()
    return [(kind, what) for kind, what, _ in map(json.loads, lines)]


def test_commits_are_packed_once_and_their_archives_know_them(past, tmp_path):
    trees, (tree, listed, hashes) = program("history.trees"), past
    commits = trees.wanted(listed, tree, tmp_path / "packed")
    assert [each.commit for each in commits] == hashes
    assert [each.date for each in commits] == [1800000000 + 60 * k for k in range(len(KINDS))]
    with pytest.raises(trees.NoGit, match="neither in git nor in"):
        trees.wanted(listed, tmp_path / "nowhere", tmp_path / "packed")
    paths = [trees.packed(each, tree, tmp_path / "packed") for each in commits]
    assert len(set(paths)) == len(KINDS)
    # A machine without git: the archives are enough, and none is made again.
    assert trees.wanted(listed, tmp_path / "nowhere", tmp_path / "packed") == commits
    assert trees.packed(commits[0], tmp_path / "nowhere", tmp_path / "packed") == paths[0]
    unpacked = trees.unpacked(paths[1], tmp_path)
    assert (unpacked / "gemv" / "__init__.py").read_text() == "first"


def test_an_order_that_is_even_wherever_it_stops():
    evenly = program("history.trees").evenly
    assert evenly([]) == [] and evenly("a") == ["a"] and evenly("ab") == ["b", "a"]
    assert evenly(range(9)) == [8, 0, 4, 2, 6, 1, 3, 5, 7]
    for count in (10, 37):
        order = evenly(range(count))
        assert sorted(order) == list(range(count))
        for stop in range(2, count):
            some = sorted(order[:stop])
            gaps = [high - low for low, high in zip(some, some[1:], strict=False)]
            assert max(gaps) <= 2 * min(gaps) + 1, "a gap is at most about twice another"


def test_commits_are_prepared_beside_each_other_and_timed_one_after_the_other(
    past, tmp_path, capsys
):
    run, commits = begun(past, tmp_path, limit_s=4.0)
    assert run.run(commits, jobs=3) == 5  # all but the broken one
    told = capsys.readouterr().out
    assert "what 2 did: not stored: 0 figures; exit status 1: no GPU today" in told
    assert "what 4 did: 2 figures; no such dtype yet" in told
    assert program("history.backfill").TOO_OLD in told
    kinds = [kind for kind, what in noted(tmp_path) if what == "prepares"]
    assert set(kinds[:3]) == {"newest", "first", "second"}, "the newest, the oldest, the middle"
    # No commit prepares while another one measures, nor do two of them measure.
    at: list[str] = []
    for kind, what in noted(tmp_path):
        if what == "prepares":
            assert not at or at[-1] == "slow", "it was ended"
        elif what == "measures":
            assert not at or at[-1] == "slow"
            at.append(kind)
        elif what == "measured":
            assert at.pop() == kind


def test_points_of_the_past_have_what_was_said_and_a_second_run_goes_on(past, tmp_path, capsys):
    run, commits = begun(past, tmp_path, limit_s=4.0)
    assert run.run(commits, seconds=0.0) == 1, "only the one that needs no process"
    assert "0 seconds have passed: run it again for 5 more" in capsys.readouterr().out
    run, _ = begun(past, tmp_path, limit_s=4.0)
    assert run.run(commits, jobs=5) == 4
    folder, hashes = tmp_path / "results" / "box", past[2]
    first, slow = (json.loads((folder / f"{hashes[k][:12]}.json").read_text()) for k in (1, 4))
    assert first["commit_hash"] == hashes[1] and first["date"] == 1000 * commits[1].date
    assert first["figures"]["kernels.Floor.track_share"] == [[5], [["float32", "8192x8192"]]]
    assert first["figures"]["api.Call.track_call"] == [[7.0], [["numba"]]]
    why = "no such dtype yet"
    assert first["missing"] == {"kernels.Floor.track_share, float16, 8192x8192": why}
    assert "api.Call.track_call" not in slow["figures"]
    assert slow["missing"]["gemv"].startswith("ended after 4 seconds")

    # A second run measures what is not stored.
    (tmp_path / "part.py").write_text(STAND_IN.replace("SystemExit", "print or SystemExit", 1))
    packed = tmp_path / "packed" / f"{hashes[2]}.tar.gz"
    shutil.copy(tmp_path / "packed" / f"{hashes[3]}.tar.gz", packed)
    (tmp_path / "notes").unlink()
    run, _ = begun(past, tmp_path)
    assert run.run(commits) == 1 and {kind for kind, _ in noted(tmp_path)} == {"second"}

    series = program("history.series")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(series, "BACKFILLED", folder.parent)
        found = series.backfilled()["box"]
    assert [point.commit for point in found] == [each.commit for each in commits]
    assert found[1].title == "what 1 did" and found[1].missing == first["missing"]
    drawn = series.lines(found, series.PANELS[0])
    assert [number for number, _ in drawn["float32"]] == [1, 2, 3, 4, 5]


def test_what_hangs_before_its_turn_is_ended_and_delays_nobody_further(past, tmp_path, capsys):
    tree, listed, hashes = past
    trees = program("history.trees")
    run, commits = begun(past, tmp_path, limit_s=3.0)
    for each in commits:
        trees.packed(each, tree, tmp_path / "packed")
    stuck = tmp_path / "stuck" / "gemv"
    stuck.mkdir(parents=True)
    (stuck / "__init__.py").write_text("stuck")
    archive = tmp_path / "packed" / f"{hashes[3]}.tar.gz"
    archive.unlink()
    shutil.make_archive(str(archive).removesuffix(".tar.gz"), "gztar", stuck.parent, "gemv")
    began = time.monotonic()
    assert run.run(commits, jobs=3, seconds=0.5) == 1
    assert time.monotonic() - began < 20
    told = capsys.readouterr().out
    assert "2 prepared in 3 s" in told and "run it again for 5 more" in told
    # Those that were not wanted any more have taken no times.
    assert not any(what == "measures" for _, what in noted(tmp_path))


def test_a_part_has_the_package_of_its_tree_and_no_other_one_of_ours(tmp_path, monkeypatch):
    environment = program("history.parts").environment
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/tmp/site", str(TOP), "here"]))
    monkeypatch.setenv("GEMV_BACKEND", "cuda")
    found = environment(tmp_path / "tree", tmp_path / "cache", simulated=False)
    paths = found["PYTHONPATH"].split(os.pathsep)
    assert paths == [str(tmp_path / "tree"), "/tmp/site", os.path.abspath("here")]
    assert found["GEMV_CACHE_DIR"] == str(tmp_path / "cache") and found["GEMV_BACKEND"] == "cuda"
    found = environment(tmp_path / "tree", tmp_path / "cache", simulated=True)
    assert found["NUMBA_ENABLE_CUDASIM"] == "1" and "GEMV_BACKEND" not in found


def test_points_of_two_gpus_share_no_folder_and_jobs_fit_in_memory(tmp_path, monkeypatch, capsys):
    script = program("history.backfill")
    (tmp_path / "box").mkdir()
    (tmp_path / "box" / "a.json").write_text(json.dumps({"params": {"gpu": "Another"}}))
    monkeypatch.setattr(script, "RESULTS", tmp_path)
    monkeypatch.setattr(script, "wanted", lambda *places: [])
    monkeypatch.setattr(script, "machine_facts", lambda name: {"machine": name, "gpu": "A GPU"})
    monkeypatch.setattr(script, "gpu_memory_gib", lambda: 79.6)
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "0")
    for arguments, said in (
        (["--machine", "box"], "its points are of the GPU Another, and this is A GPU"),
        (["--machine", "new", "--jobs", "20"], "--jobs must be at most 19 on this GPU"),
        (["--machine", "new", "--jobs", "0"], "--jobs must be at least 1, got 0"),
        (["--machine", "new", "1234567"], "1234567: not in commits.txt"),
        ([], "one of --machine, --list and --trees is needed"),
    ):
        with pytest.raises(SystemExit):
            script.main(arguments)
        assert said in capsys.readouterr().err
    assert script.main(["--machine", "new", "--jobs", "19"]) == 0
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    with pytest.raises(SystemExit):
        script.main(["--machine", "new"])
    assert "figures of the simulator are no history" in capsys.readouterr().err


def test_the_list_of_the_past_names_enough_commits_and_the_part_starts_alone():
    script = program("history.backfill")
    lines = script.COMMITS.read_text(encoding="utf-8").splitlines()
    assert len(lines) >= 24 and len({line.split()[0] for line in lines}) == len(lines)
    assert all(len(line.split()[0]) == 7 and len(line.split()) > 1 for line in lines)
    # It measures packages of other commits, so it may know nothing of this one.
    tree = ast.parse(script.PART.read_text(encoding="utf-8"))
    modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not any((name or "").startswith(("gemv", "benchmarks")) for name in modules)


def test_the_device_part_computes_this_package_right_on_the_simulator(monkeypatch):
    """Also where the GPU was asked for, as these tests do where there is one."""
    monkeypatch.setenv("GEMV_BACKEND", "cuda")
    script = program("history.backfill")
    said = script.simulated(TOP, [sys.executable, "-P", str(script.PART)])
    shares = [each for each in said if each["name"] == "kernels.Floor.track_share"]
    assert len({tuple(each["params"]) for each in shares}) == 9, said
    untimed = [each for each in said if not each["name"].startswith("api.Start")]
    assert len(untimed) == 11, said  # nine products, a call on a small matrix, a first call
    assert all(each["why"].endswith("where no time is taken") for each in untimed), said
    assert all(each["value"] is None for each in untimed), "a simulator's time says nothing"
    imports = [each for each in said if each["name"].startswith("api.Start")]
    assert len(imports) == 2 and all(each["value"] > 0 for each in imports)


# --------------------------------------------------------------------------------------------------
# the page


def backfill_file(folder, commit, date, gpu, share, missing):
    figures = {
        "kernels.Floor.track_share": [[share], [["float32", "8192x8192"]]],
        "kernels.Neighbour.track_ratio": [[1.25], [["float32", "8192x8192"]]],
        "api.Start.timeraw_import_with_numpy": [[0.5], [[]]],
        "api.Start.timeraw_import": [[1.0], [[]]],
    }
    data = {"commit_hash": commit, "date": date, "title": f"what {commit[0]} brought",
            "params": {"machine": folder.name, "gpu": gpu}, "versions": {},
            "figures": figures if share else {}, "missing": missing}  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{commit[:12]}.json").write_text(json.dumps(data), encoding="utf-8")


@pytest.fixture
def two_gpus(tmp_path, monkeypatch):
    """Commits of the past of an H100, and regular points of an H200 and of an H100."""
    series, page = program("history.series"), program("pages.history_page")
    results, past = tmp_path / "history", tmp_path / "backfill"
    for module in (series, program("history.compare")):
        monkeypatch.setattr(module, "RESULTS", results)
    monkeypatch.setattr(series, "BACKFILLED", past)
    h100, h200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"
    why = {"gemv": "gemv had no public functions yet"}
    narrow = dict.fromkeys(("a, float16", "b, float16"), "TypeError: no float16")
    backfill_file(past / "h100", "a" * 40, 1000, h100, None, why)
    backfill_file(past / "h100", "b" * 40, 2000, h100, 80.0, narrow)
    backfill_file(past / "h100", "c" * 40, 3000, h100, 90.0, {})
    for machine, gpu, dates in (("h100", h100, (5,)), ("h200", h200, (4, 6))):
        (results / machine).mkdir(parents=True)
        (results / machine / "machine.json").write_text(json.dumps({"gpu": gpu}))
        for date in dates:
            share = {"kernels.Floor.track_share": [[95.0], [["'float32'"], ["'a'"]]]}
            data = {"commit_hash": str(date) * 40, "date": date * 1000, "params": {"gpu": gpu},
                    "result_columns": ["result", "params"], "results": share}  # fmt: skip
            (results / machine / f"{date}.json").write_text(json.dumps(data))
    return page


def test_the_page_keeps_commits_of_the_past_and_points_of_two_gpus_apart(two_gpus):
    histories = two_gpus.histories()
    assert [(each.name, each.gpu[7:11], each.past, len(each.points)) for each in histories] == [
        ("h100-past", "H100", True, 3), ("h200", "H200", False, 2), ("h100", "H100", False, 1),
    ]  # fmt: skip
    text = two_gpus.history_page(histories)
    heads = [line for line in text.splitlines() if line.startswith("## ")]
    assert heads == ["## NVIDIA H100 80GB HBM3, commits of the past", "## NVIDIA H200, points",
                     "## NVIDIA H100 80GB HBM3, points"]  # fmt: skip
    drawings = [line.split()[-1] for line in text.splitlines() if line.startswith("```{drawing}")]
    assert len(set(drawings)) == len(drawings) == 5
    assert "have not been measured again" not in text
    past, *_ = text.split("## NVIDIA H200")
    rows = [line for line in past.splitlines() if line.startswith("| `")]
    assert rows == ["| `ccccccc` | what c brought | 90 | 1.25 | 2 |",
                    "| `bbbbbbb` | what b brought | 80 | 1.25 | 2 |",
                    "| `aaaaaaa` | what a brought | – | – | – |"]  # fmt: skip
    assert "- `aaaaaaa` (1): gemv had no public functions yet" in past
    assert "- `bbbbbbb` (2): TypeError: no float16" in past


def test_points_of_two_gpus_under_one_name_are_not_joined(two_gpus, tmp_path):
    backfill_file(tmp_path / "backfill" / "h100", "d" * 40, 4000, "NVIDIA H200", 99.0, {})
    found = [each for each in two_gpus.histories() if each.past]
    assert [(each.name, each.gpu, len(each.points)) for each in found] == [
        ("h100-past-1", "NVIDIA H200", 1), ("h100-past", "NVIDIA H100 80GB HBM3", 3),
    ]  # fmt: skip


def test_a_commit_of_the_past_is_a_point_of_its_machine_if_it_has_figures(two_gpus):
    since = program("history.since")
    assert since.measured() == ["h100", "h200"]
    assert since.newest_point(["h200"]).commit == "6" * 40
    assert since.newest_point(["h100"]).commit == "5" * 40
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(since, "points", lambda machine: [])
        assert since.newest_point(["h100"]).commit == "c" * 40
        patch.setattr(since, "machines", list)
        assert since.measured() == ["h100"]


def test_pictures_of_the_page_have_the_points_of_one_history(two_gpus):
    """Each drawing that the page names can be drawn, with a mark for each of its points."""
    pytest.importorskip("matplotlib")
    if backend.backend() != "simulator":
        pytest.skip("needs the simulator, which the modules of figures choose for Numba")
    figures = str(TOP / "docs" / "figures")
    sys.path.insert(0, figures)
    try:
        import history
        import style
    finally:
        sys.path.remove(figures)
    text = two_gpus.history_page(two_gpus.histories())
    named = {line.split()[-1] for line in text.splitlines() if line.startswith("```{drawing}")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "histories", two_gpus.histories)
        drawings = {}
        patch.setattr(
            history, "drawing", lambda name, caption: lambda draw: drawings.update({name: draw})
        )
        history.register()
    assert set(drawings) == named
    for name, count in (("history-h100-past-share", 2), ("history-h200-share", 2)):
        (axes,) = drawings[name](style.LIGHT).axes
        assert [len(line.get_xdata()) for line in axes.lines if line.get_marker() == "o"] == [count]
