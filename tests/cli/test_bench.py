"""``python -m gemv bench``."""

from __future__ import annotations

import importlib.util
import json

import pytest
from helpers.results import timed_grid, timed_lists

from gemv.cli.main import main
from gemv.core.dtypes import DTYPES
from gemv.engines import backend
from gemv.measure.cells import RANDOM_BYTES, random_cells
from gemv.measure.ragged_records import RaggedResults
from gemv.measure.records import GridResults

simulated_only = pytest.mark.skipif(
    backend.backend() == "cuda", reason="figures of a GPU belong to no test"
)


@simulated_only
def test_command_checks_and_claims_no_time(tmp_path, capsys):
    file = tmp_path / "grid.json"
    command = ["bench", "--shapes", "5x7,6x8", "--dtypes", "f32", "--view", "[:, 1:]"]
    command += ["--view", ":, :", "--json", str(file)]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "8 results checked. No time is given" in text and "float32 cold A[:, 1:]" in text
    kept = json.loads(file.read_text())
    assert len(kept["rows"]) == 8 and kept["backend"] == "simulator"
    now = kept["versions"]["gemv"]
    kept["versions"]["gemv"] = "0.0 (another table)"
    file.write_text(json.dumps(kept))
    for _ in range(2):  # the second time nothing is open
        assert main([*command, "--resume", "--ops", "C"]) == 0
    assert "4 results checked" in capsys.readouterr().out
    kept = json.loads(file.read_text())
    assert len(kept["rows"]) == 12
    assert kept["versions"]["gemv"] == f"0.0 (another table), later {now}"


@simulated_only
@pytest.mark.parametrize("option, count", [("batch", 3), ("vectors", 2)])
def test_command_checks_several_products(option, count, tmp_path, capsys):
    file = tmp_path / "grid.json"
    command = ["bench", f"--{option}", str(count), "--shapes", "5x7", "--dtypes", "s", "--json"]
    assert main([*command, str(file)]) == 0
    text = capsys.readouterr().out
    assert "2 results checked. No time is given" in text
    assert {"batch": "batch of 3", "vectors": "2 vectors"}[option] in text
    rows = GridResults.load(file).rows
    assert [getattr(row, option) for row in rows] == [count] * 2
    assert all(row.wrong is None and row.frames == 1 for row in rows)


@simulated_only
@pytest.mark.parametrize("kind", [["--shapes", "5x7"], ["--ragged", "3"]])
@pytest.mark.parametrize(
    "content",
    [
        b"no JSON", b"\xff", b"null", b"[]", b"{}", b'{"rows": []}', b"[" * 100_000,
        b'{"device": "d", "backend": "b", "rows": [5]}',
        b'{"device": "d", "backend": "b", "rows": [{"of_another_version": 5}]}',
        b'{"device": "d", "backend": "b", "of_another_version": 5, "rows": []}',
        b'{"device": "d", "backend": "b", "versions": 5, "rows": []}',
    ],
    ids=range(11),
)  # fmt: skip
def test_a_file_that_holds_other_results_is_not_resumed(kind, content, tmp_path, capsys):
    file = tmp_path / "grid.json"
    file.write_bytes(content)
    assert main(["bench", *kind, "--json", str(file), "--resume"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and f"cannot resume {file}: it holds no results of this kind of bench" in err
    assert len(err.splitlines()) == 1 and file.read_bytes() == content


@simulated_only
def test_command_checks_lists(tmp_path, capsys):
    file = tmp_path / "lists.json"
    command = ["bench", "--ragged", "3", "--dtypes", "s", "--ops", "N", "--json", str(file)]
    assert main([*command, "--seed", "7"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("2 results checked. No time is given")
    assert lines[2].startswith("Sizes are log-uniform from 4 to 40, seed 7: ")
    assert len(lines[2].split(",")) == 4 and "3 matrices float32 order F" in lines[-2]
    assert main([*command, "--seed", "7", "--resume", "--ops", "T", "--seconds=-1"]) == 0
    assert "Time is up: 0 of 2 lists" in capsys.readouterr().out
    rows = RaggedResults.load(file).rows
    assert [(row.op, row.order, row.seed, row.wrong) for row in rows] == [
        ("N", "C", 7, None), ("N", "F", 7, None)
    ]  # fmt: skip


def test_command_prints_lists_that_lose_first(monkeypatch, capsys):
    found = timed_lists()
    monkeypatch.setattr("gemv.cli.bench_ragged.backend_with_kernels", lambda: "cuda")
    monkeypatch.setattr("gemv.measure.ragged_bench.measure", lambda *more: iter([found]))
    command = ["bench", "--ragged", "1474", "--dtypes", "s,d", "--order", "C", "--against", ""]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = [line for line in lines if "1474 matrices" in line]
    assert [line.split()[2] for line in shown] == ["float64"] * 2 + ["float32"] * 2
    words = shown[0].split()
    assert words[3:] == ["N", "100.0", "3.00", "0.50", "2", "50.00", "0.50"]
    assert "cuBLAS gemv, one by one: not here" in "".join(shown[2:])
    found.rows[1].wrong, found.rows[1].time_s = "item 3, 5 x 7, differs", None
    assert main(command) == 1
    out, err = capsys.readouterr()
    assert "float32 T: item 3, 5 x 7, differs" in err and "–" in out


@simulated_only
def test_command_stops_in_time(capsys):
    assert main(["bench", "--shapes", "5x7", "--dtypes", "s", "--seconds=-1"]) == 0
    assert "Time is up: 0 of 2 cells" in capsys.readouterr().out


def test_command_draws_shapes(tmp_path, capsys):
    file = tmp_path / "drawn.json"
    assert main(["bench", "--random", "4", "--seed", "3", "--json", str(file)]) == 0
    small = backend.backend() == "simulator"
    assert ("4 results checked" in capsys.readouterr().out) == small
    first = [row.cell for row in GridResults.load(file).rows]
    sizes = (1, 1 << 11) if small else RANDOM_BYTES
    assert first == random_cells(4, 3, list(DTYPES), sizes=sizes)


@pytest.mark.parametrize(
    "options, says",
    [
        (["--shapes", "5"], "'5' is no shape"),
        (["--shapes", "0x4"], "no whole number of at least 1"),
        (["--dtypes", "int"], "'int' is none of"),
        (["--view", "1:"], "a view is two slices"),
        (["--beta", "3"], "invalid choice: 3"),
        (["--ops", "X"], "op must be N, T or C"),
        (["--against", "numpy"], "cannot import numpy"),
        (["--resume"], "--resume needs the file of --json"),
        (["--json", "x.txt"], "must end in .json"),
        (["--plot", "x.gif"], "must end in .png"),
        (["--random", "3", "--hot", "--shapes", "5x5"], "itself, without --shapes, --hot"),
        (["--random", "3", "--vectors", "5"], "itself, without --vectors"),
        (["--batch", "3", "--vectors", "5"], "--batch has one vector for each matrix"),
        (["--batch", "0"], "no whole number of at least 1"),
        (["--host", "--batch", "3"], "not with --batch"),
        (["--seed", "3"], "--seed is that of --random and --ragged"),
        (["--ragged", "3", "--beta", "0"], "and --resume, not with --beta"),
        (["--ragged", "--random", "3"], "and --resume, not with --random"),
        (["--ragged", "--host"], "not with --ragged"),
        (["--ragged", "--resume"], "--resume needs the file of --json"),
        (["--ragged", "--ops", "X"], "op must be N, T or C"),
    ],
)
def test_command_refuses(options, says, capsys):
    try:
        assert main(["bench", *options]) == 2
    except SystemExit as leaving:
        assert leaving.code == 2
    out, err = capsys.readouterr()
    assert out == "" and says in err and len(err.splitlines()) == 1


@pytest.mark.skipif(backend.backend() != "simulator", reason="a GPU takes it")
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--shapes 5x7,1000x1000", "1000 x 1000 is too much for the simulator"),
        ("--batch 300 --shapes 50x50", "300 matrices of 50 x 50 is too much"),
    ],
)
def test_bench_refuses_what_takes_the_simulator_hours(options, says, capsys):
    assert main(["bench", *options.split()]) == 2
    out, err = capsys.readouterr()
    assert out == "" and says in err and len(err.splitlines()) == 1


def test_command_prints_figures_and_means(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("gemv.cli.bench.backend_with_kernels", lambda: "cuda")
    monkeypatch.setattr("gemv.measure.grid.measure", lambda *arguments: iter([timed_grid()]))
    monkeypatch.setattr("gemv.measure.peers.installed", lambda name: name == "torch")
    command = ["bench", "--shapes", "8x9,16x4,8x77", "--dtypes", "s,d"]
    if importlib.util.find_spec("matplotlib"):
        command += ["--plot", str(tmp_path / "grid.png")]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "gemv bench on A GPU" and lines[1] == "torch 9"
    first = next(line for line in lines if "8 x 9" in line).split()
    assert first == ["float32", "cold", "8", "x", "9", "N", "1000.0", "3.00", "0.90", "2000.0",
                     "2.00", "torch.mv"]  # fmt: skip
    assert any("too big" in line for line in lines)
    everything = next(line for line in lines if line.startswith("all")).split()
    assert everything[:2] == ["all", "8"] and everything[-2:] == ["4", "50%"]
    assert lines[-2].startswith("Worst beside the peer: float32 cold 16 x 4 N 0.50")
    assert lines[-1].startswith("Time is up: 9 of 12")
    assert not any("lose most" in line for line in lines)
    if "--plot" in command:
        assert (tmp_path / "grid.png").stat().st_size > 10_000


def test_command_prints_batches_that_lose_first(monkeypatch, capsys):
    found = timed_grid()
    for each in found.rows:
        each.batch = 5
    monkeypatch.setattr("gemv.cli.bench.backend_with_kernels", lambda: "cuda")
    monkeypatch.setattr("gemv.measure.grid.measure", lambda *arguments: iter([found]))
    command = ["bench", "--batch", "5", "--shapes", "8x9,16x4,8x77", "--dtypes", "s,d"]
    assert main([*command, "--against", ""]) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = [line for line in lines if "batch of 5" in line and " x " in line][:9]
    ratios = [float(line.split()[-2]) for line in shown if "torch.mv" in line]
    assert ratios == sorted(ratios) and len(set(ratios)) == 2 and "too big" in shown[0]
