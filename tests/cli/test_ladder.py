"""``python -m gemv ladder``."""

from __future__ import annotations

import json

import pytest
from helpers.commands import python, refused

import gemv
from gemv.cli.main import main

SMALL = "ladder --m 9 --n 17 --kernels serial,block_per_row".split()


@pytest.mark.parametrize("dtype", ["f32", "c128"])
def test_ladder_in_the_simulator(tmp_path, dtype):
    # without a GPU the command starts itself again in the simulator; with one it is told to
    done = python(
        *("-m", "gemv", *SMALL, "--dtype", dtype, "--order", "F", "--op", "C"),
        *("--json", str(tmp_path / "ladder.json")),
        env={"NUMBA_ENABLE_CUDASIM": "0", "CUDA_VISIBLE_DEVICES": "-1", "GEMV_BACKEND": ""},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no bar where nobody watches
    first, *rest = done.stdout.splitlines()
    assert first.startswith("No GPU here")
    text = "\n".join(rest)
    assert text.isprintable() or "\x1b" not in text, "plain when piped"
    assert "9 x 17" in text
    assert "simulator's time says nothing" in text
    for name in ("serial", "block_per_row"):
        (row,) = [line.split() for line in rest if name in line.split()]
        assert row[-4:-1] == ["–", "–", "–"]
        assert 0 <= float(row[-1]) <= 1

    stored = json.loads((tmp_path / "ladder.json").read_text("utf-8"))
    assert stored["backend"] == "simulator"
    assert [row["name"] for row in stored["rows"]] == ["serial", "block_per_row"]
    assert all(row["time_s"] is None for row in stored["rows"])


def test_ladder_reports_a_wrong_kernel(capsys, monkeypatch):
    if gemv.backend() == "host":
        pytest.skip("the host backend has no kernels")

    from gemv.measure import ladder

    measure = ladder.ladder

    def wrong(*arguments, **keywords):
        measured = measure(*arguments, **keywords)
        object.__setattr__(measured.rows[0], "error", float("nan"))
        return measured

    monkeypatch.setattr(ladder, "ladder", wrong)
    assert main(SMALL) == 1
    assert capsys.readouterr().err == "gemv ladder: error above the bound: serial\n"


def test_ladder_names_the_refusal(capsys):
    if gemv.backend() == "host":
        pytest.skip("the host backend has no kernels")
    assert main("ladder --m 3 --n 1500 --kernels threads_are_columns,warp_per_row".split()) == 0
    out = capsys.readouterr().out
    (row,) = [line for line in out.splitlines() if "threads_are_columns" in line]
    assert "refused: " in row


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--m 0", "argument --m: '0' is no whole number of at least 1"),
        ("--n many", "argument --n: 'many' is no whole number"),
        ("--dtype f8", "argument --dtype: 'f8' is none of"),
        ("--order K", "argument --order: invalid choice: 'K'"),
        ("--op H", "argument --op: invalid choice: 'H'"),
        ("--kernels serial,fastest", "fastest"),
        ("--json nowhere/x.json", "there is no directory nowhere"),
        ("--json x.txt", "must end in .json"),
    ],
)
def test_ladder_refuses(folder, capsys, options, says):
    if gemv.backend() == "host" and "kernels" in options:
        pytest.skip("the host backend has no kernels")
    assert says in refused(capsys, *options.split(), command="ladder")


def test_ladder_refuses_what_takes_the_simulator_hours(capsys):
    if gemv.backend() != "simulator":
        pytest.skip("a GPU runs it, and the host starts another process")
    said = refused(capsys, "--m", "8192", "--n", "8192", command="ladder")
    assert "8192 x 8192 is too much for the simulator" in said and "131072 elements" in said


def test_ladder_refuses_the_host_backend():
    done = python("-m", "gemv", *SMALL, env={"GEMV_BACKEND": "host"})
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("gemv ladder: the host backend was chosen")
