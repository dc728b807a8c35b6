"""``python -m gemv tune``: what it refuses, prints and writes. Times come from the formula."""

from __future__ import annotations

import json
import shlex
from functools import partial
from types import SimpleNamespace

import pytest
from helpers.commands import python, refused

import gemv
from gemv.cli.main import main
from gemv.core.geometry import Chip, Device
from gemv.measure import tuning_launches
from gemv.selection.machine import machine, made
from gemv.selection.parse import parse

A100 = Device(
    "NVIDIA A100-SXM4-40GB", (8, 0), 108,
    chip=Chip(2048, 65536, 164 * 1024, 32, 1_410_000, 1_215_000, 5120, 40 << 20),
)  # fmt: skip
WITHOUT_GPU = {"NUMBA_ENABLE_CUDASIM": "0", "CUDA_VISIBLE_DEVICES": "-1", "GEMV_BACKEND": ""}


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """A stand-in for a GPU that is `slower` so many times in memory and in instructions."""
    monkeypatch.chdir(tmp_path)
    usual = machine(A100).numbers
    stand_in = SimpleNamespace(slower=2.0, held_out_is_slower=True, cells=[], error=None)

    class Stopwatch:
        def __init__(self, cells):
            stand_in.cells = list(cells)

        def fits(self, cell):
            return cell != stand_in.cells[0]

        def versions(self):
            return {"gemv": gemv.__version__, "CUDA driver API": "13.0"}

        def __call__(self, cell, launches):
            if stand_in.error is not None:
                raise stand_in.error
            held_out = stand_in.cells.index(cell) % 3 == 2
            factor = stand_in.slower if stand_in.held_out_is_slower or not held_out else 1.0
            slow = usual._replace(
                memory_rate=usual.memory_rate / factor, load=usual.load * factor,
                line=usual.line * factor, multiply_add=usual.multiply_add * factor,
            )  # fmt: skip
            return [each.seconds(slow) for each in launches]

    monkeypatch.setattr("gemv.measure.tune.Stopwatch", Stopwatch)
    few = partial(tuning_launches.problems, count=24)  # half as many take half the time
    monkeypatch.setattr(tuning_launches, "problems", few)
    monkeypatch.setattr("gemv.cli.tune.backend_with_kernels", lambda: "cuda")
    engine = SimpleNamespace(device=lambda: A100)
    monkeypatch.setattr("gemv.engines.backend.engine", lambda *_: engine)
    return stand_in


def test_tune_writes_a_file_which_info_shows_where_it_is_named(gpu, capsys, tmp_path):
    assert main(["tune", "--output", "my gpu.toml", "--json", "times.json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    file = tmp_path / "my gpu.toml"
    *said, wrote, use = out.splitlines()
    assert use == f"GEMV_MACHINE={shlex.quote(str(file))}"
    found = made("my gpu", parse(file.read_text("utf-8")), {})
    assert wrote.startswith("wrote my gpu.toml") and found.hash in wrote
    assert found.numbers.memory_rate == pytest.approx(
        machine(A100).numbers.memory_rate / 2, rel=0.1
    )
    text = "\n".join(said)
    assert "NVIDIA A100-SXM4-40GB, from machine nvidia-h200, scaled" in text
    assert "Its exceptions are dropped" in text and "memory_rate" in text
    # the worst first, and the held-out cells' verdict
    table = said[next(k for k, line in enumerate(said) if line.startswith("Predicted")) + 2 :]
    errors = [abs(1 - float(line.split()[-1])) for line in table[:20]]
    assert errors[0] >= errors[10] >= errors[-1]
    assert "On 8 problems held out, predictions were" in text
    content = json.loads((tmp_path / "times.json").read_text("utf-8"))
    assert content["device"] == A100.name and content["error"][1] < content["error"][0]
    measured = {(row["m"], row["n"], row["dtype"]) for row in content["fitted"]}
    first = gpu.cells[0]
    assert (first.m, first.n, first.dtype) not in measured, "it does not fit into the memory"
    assert_info_shows(file, found.hash)


def assert_info_shows(file, sha256):
    done = python("-m", "gemv", "info", env={**WITHOUT_GPU, "GEMV_MACHINE": str(file)})
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    at = next(k for k, line in enumerate(lines) if line.startswith("machine "))
    name = f"{file.stem}, from the file that GEMV_MACHINE names, {file}"
    assert lines[at].split(maxsplit=1)[1] == name
    assert lines[at + 1].endswith(f"0 exceptions, sha256 {sha256}")


def test_the_usual_name_is_that_of_the_gpu(gpu, capsys, tmp_path):
    assert main(["tune"]) == 0
    assert (tmp_path / "nvidia-a100-sxm4-40gb-tuned.toml").is_file()


def test_a_file_that_is_worse_is_not_written(gpu, capsys, tmp_path):
    gpu.held_out_is_slower = False
    assert main(["tune", "--output", "mine.toml", "--json", "times.json"]) == 1
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert line.startswith("gemv tune: mine.toml was not written. On problems held out")
    assert "GEMV_MACHINE" not in out and "held out" in out
    assert [each.name for each in tmp_path.iterdir()] == ["times.json"]
    assert json.loads((tmp_path / "times.json").read_text("utf-8"))["objections"]


def test_a_file_that_is_there_is_left_when_the_new_one_is_worse(gpu, capsys, tmp_path):
    (tmp_path / "mine.toml").write_text("old", "utf-8")
    gpu.held_out_is_slower = False
    assert main(["tune", "--output", "mine.toml"]) == 1
    assert (tmp_path / "mine.toml").read_text("utf-8") == "old"


def test_a_wrong_result_is_a_failed_check(gpu, capsys, tmp_path):
    gpu.error = ArithmeticError("vector_rows is wrong on a cell")
    assert main(["tune"]) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", "gemv tune: wrong result: vector_rows is wrong on a cell\n")
    assert list(tmp_path.iterdir()) == []


def test_too_little_time_is_one_line(gpu, capsys, tmp_path):
    line = refused(capsys, "--seconds", "1e-9", command="tune")
    assert "only 0 problems to fit could be timed in 1e-09 seconds, and 12 are needed" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--seconds", "0"], "argument --seconds: '0' is no time in seconds (60 and 2.5 are)"),
        (["--seconds", "nan"], "argument --seconds: 'nan' is no time in seconds"),
        (["--seconds", "soon"], "argument --seconds: 'soon' is no time in seconds"),
        (["--output", "mine.json"], "cannot write mine.json: the name must end in .toml"),
        (["--output", "none/mine.toml"], "cannot write none/mine.toml: there is no directory"),
        (["--json", "mine.toml"], "cannot write mine.toml: the name must end in .json"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_options_are_refused_before_anything_is_timed(gpu, capsys, arguments, said):
    assert said in refused(capsys, *arguments, command="tune")
    assert gpu.cells == []


def test_a_machine_that_cannot_be_used_is_named(gpu, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("GEMV_MACHINE", str(tmp_path / "none.toml"))
    machine.cache_clear()
    try:
        line = refused(capsys, command="tune")
    finally:
        machine.cache_clear()
    assert "GEMV_MACHINE = " in line and "cannot be read" in line


def test_exceptions_of_a_file_for_the_same_gpu_are_kept(gpu, capsys, monkeypatch, tmp_path):
    """A second tuning begins with the file of the first, to which a user has added an exception."""
    assert main(["tune", "--output", "first.toml"]) == 0
    row = '\n[[row]]\naccess = "dot"\nkernel = "last_block"\nreason = "mine, \\"as\\" measured"\n'
    file = tmp_path / "first.toml"
    file.write_text(file.read_text("utf-8") + row + "lines_min = 123456\n", encoding="utf-8")
    monkeypatch.setenv("GEMV_MACHINE", str(file))
    machine.cache_clear()
    gpu.slower = 3.0
    try:
        assert main(["tune", "--output", "second.toml"]) == 0
    finally:
        machine.cache_clear()
    text = (tmp_path / "second.toml").read_text("utf-8")
    (kept,) = made("second", parse(text), {}).exceptions
    assert kept.reason == 'mine, "as" measured' and kept.conditions["lines_min"] == 123456
    other = text.replace('gpu = "NVIDIA A100-SXM4-40GB"', 'gpu = "another"')
    file.write_text(other, encoding="utf-8")
    gpu.slower = 4.0
    try:
        assert main(["tune", "--output", "third.toml"]) == 0
    finally:
        machine.cache_clear()
    assert "[[row]]" not in (tmp_path / "third.toml").read_text("utf-8")


@pytest.mark.parametrize(
    "environment, said",
    [
        ({}, "it times kernels on a GPU, and there is none; see python -m gemv info"),
        ({"NUMBA_ENABLE_CUDASIM": "1"}, "times of the simulator say nothing about one"),
        ({"GEMV_BACKEND": "host"}, "the host backend was chosen, and it has no kernels"),
    ],
    ids=["no GPU", "simulator", "host"],
)
def test_without_a_gpu_it_is_an_error_in_words(tmp_path, environment, said):
    done = python("-m", "gemv", "tune", env={**WITHOUT_GPU, **environment}, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("gemv tune: ") and said in line
    assert list(tmp_path.iterdir()) == []
