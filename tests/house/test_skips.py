"""A test that every job skips is found: what runs write down, and what ``.ci/skips.py`` says."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from helpers import processes

TESTS = Path(__file__).resolve().parents[1]
SCRIPT = TESTS.parent / ".ci" / "skips.py"
pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="no part of a source distribution")

KNOWN = {"tests": {"needs an? \\w+ GPU": "CI has none"}, "cases": {"for \\w+": "not accepted"}}


@pytest.fixture
def skips():
    spec = importlib.util.spec_from_file_location("skips", SCRIPT)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def job(*ran, **skipped):
    names = {"file": "t/a.py", "whole": "t/a.py::one", "first": "t/a.py::f[1]"}
    return {"ran": list(ran), "skipped": {names[name]: why for name, why in skipped.items()}}


@pytest.mark.parametrize(
    "jobs, found",
    [
        ([job(whole="no reason"), job("t/a.py::one")], []),
        ([job(whole="no reason"), job(whole="no reason")], ["t/a.py::one: no reason"]),
        ([job(whole="needs an NVIDIA GPU")], []),
        (
            [job(whole="needs an NVIDIA GPU and more")],
            ["t/a.py::one: needs an NVIDIA GPU and more"],
        ),
        ([job("t/a.py::f[2]", first="for others")], []),
        ([job("t/a.py::g[2]", first="for others")], ["t/a.py::f[1]: for others"]),
        ([job("t/a.py::f[2]", first="no reason")], ["t/a.py::f[1]: no reason"]),
        ([job(file="not installed"), job("t/a.py::f[2]")], []),
        ([job(file="not installed"), job("t/ab.py::f")], ["t/a.py: not installed"]),
    ],
)
def test_what_no_job_ran_needs_a_known_reason(skips, jobs, found):
    assert skips.not_run(jobs, KNOWN) == found


def test_the_status_is_that_of_a_machine_without_a_gpu(skips, tmp_path, capsys):
    def status(*jobs):
        for number, each in enumerate(jobs):
            (tmp_path / f"{number}.json").write_text(json.dumps(each))
        return skips.main(str(tmp_path))

    assert status() == 1, "nothing ran"
    assert status(job("t/a.py::g", whole=skips.GPU)) == 0
    assert status(job("t/a.py::g", whole=skips.GPU), job(first="no reason")) == 1
    assert "t/a.py::f[1]: no reason" in capsys.readouterr().out
    assert status(job("t/a.py::one"), job(first="no reason")) == 0, "there is a GPU"


def test_every_listed_reason_says_what_is_good_about_it(skips):
    known = tomllib.loads(skips.LIST.read_text("utf-8"))
    assert set(known) == {"tests", "cases"}
    assert all(why for table in known.values() for why in table.values())


SAMPLE = """
import pytest

@pytest.mark.parametrize("number", [1, 2])
def test_numbers(number):
    if number == 2:
        pytest.skip("two is skipped")

@pytest.mark.gpu
def test_on_a_gpu():
    pytest.skip("needs an NVIDIA GPU")

@pytest.mark.xfail
def test_wrong():
    assert False
"""


def test_a_run_writes_down_what_it_skipped(tmp_path):
    tree, outcomes = tmp_path / "tree", tmp_path / "outcomes"
    outcomes.mkdir()
    for name in ("conftest.py", "helpers"):
        made = shutil.copytree if (TESTS / name).is_dir() else shutil.copy
        (tree / "tests").mkdir(parents=True, exist_ok=True)
        made(TESTS / name, tree / "tests" / name)
    shutil.copy(TESTS.parent / "pyproject.toml", tree)
    (tree / "tests" / "test_sample.py").write_text(SAMPLE)
    (tree / "tests" / "test_gone.py").write_text("import pytest\npytest.importorskip('nowhere')\n")
    done = processes.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tree, capture_output=True, text=True, timeout=120,
        env={**os.environ, "GEMV_TEST_OUTCOMES": str(outcomes)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = outcomes.iterdir()
    sample = "tests/test_sample.py::test_"
    found = json.loads(file.read_text())
    assert sorted(found["ran"]) == [sample + "numbers[1]", sample + "wrong"]
    assert found["skipped"] == {
        sample + "numbers[2]": "two is skipped", sample + "on_a_gpu": "needs an NVIDIA GPU",
        "tests/test_gone.py": "could not import 'nowhere': No module named 'nowhere'",
    }  # fmt: skip
