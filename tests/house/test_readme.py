"""README, CONTRIBUTING, CHANGELOG: commands exist, examples run, tables show what was measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from helpers.programs import program

import gemv
from gemv.kernels import REGISTRY

TOP = Path(__file__).resolve().parents[2]
README = TOP / "README.md"


def test_readme_commands_are_targets_of_the_makefile():
    targets = set(re.findall(r"^([a-z-]+):", (TOP / "Makefile").read_text("utf-8"), re.M))
    for name in ("README.md", "CONTRIBUTING.md"):
        text = (TOP / name).read_text(encoding="utf-8")
        # in a block of code or between backticks; in prose "make" is a verb
        named = re.findall(r"(?:^|`)make ([a-z][a-z -]*[a-z])", text, re.M)
        words = {word for group in named for word in group.split()}
        assert words >= {"demo", "test"} or name != "README.md"
        assert words <= targets, name


def test_readme_examples_run():
    if gemv.backend() == "host":
        pytest.skip("the examples use device arrays")
    names: dict = {}
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.M | re.S)
    assert len(blocks) >= 2
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    host = {name: names[name].copy_to_host() for name in ("a", "x", "y")}
    assert np.array_equal(host["y"], host["a"] @ host["x"])


def test_readme_table_has_every_kernel():
    text = README.read_text(encoding="utf-8")
    table = text.split("<!-- ladder:begin -->")[1].split("<!-- ladder:end -->")[0]
    for name in REGISTRY:
        assert f"`{name}`" in table


def test_readme_table_is_built_from_the_results():
    script = vars(program("pages.ladder_table"))
    text = README.read_text(encoding="utf-8")
    assert script["replaced"](text, script["table"](script["short"](script["load"]()))) == text, (
        "make table"
    )


def test_ladder_table_has_the_climb_and_names_the_other_rungs(tmp_path):
    script = vars(program("pages.ladder_table"))
    rates = {"serial": 0.01234, "thread_per_row": 50.0, "threads_are_columns": None,
             "block_per_row": 40.0, "tile2d": 1234.5, "atomics": 2000.0}  # fmt: skip
    rungs = {"serial": 1, "thread_per_row": 2, "threads_are_columns": 3, "block_per_row": 3,
             "tile2d": 4, "atomics": 6}  # fmt: skip
    case = {
        "m": 4,
        "n": 8,
        "dtype": "s",
        "order": "C",
        "op": "T",
        "device": "A GPU",
        "backend": "cuda",
        "ceiling_gb_per_s": 2000.0,
        "rows": [
            {"name": name, "rung": rungs[name], "teaching": name == "atomics", "gb_per_s": rate,
             "share": rate and rate / 2000, "refused": None if rate else "too wide"}
            for name, rate in rates.items()
        ],
    }  # fmt: skip
    (tmp_path / "case.json").write_text(json.dumps(case), encoding="utf-8")
    lines = script["table"](script["load"](tmp_path)).splitlines()
    assert "4 x 8<br>by rows, op T" in lines[0]
    cells = {line.split("`")[1]: line.split("|")[-2].strip() for line in lines[2:5]}
    assert cells == {"serial": "**0.0123 (0%)**", "thread_per_row": "**50 (2%)**",
                     "tile2d": "**1230 (62%)**"}  # fmt: skip
    assert "A GPU" in lines[6]
    others, beside = lines[-1].split(". ", 1)
    assert "`block_per_row` (3), `coalesced` (5)" in others and "`atomics` (6)" in beside
    assert script["cell"](case, "threads_are_columns") == "refuses"
    assert script["cell"](case, "coalesced") == "–"

    (tmp_path / "case.json").write_text(json.dumps({**case, "backend": "simulator"}))
    with pytest.raises(ValueError, match="without a GPU"):
        script["load"](tmp_path)


def test_changelog_and_version_agree():
    text = (TOP / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[([^\]]+)\]", text, re.M)
    assert versions[0] == "Unreleased"
    assert len(versions) == 1 or gemv.__version__.startswith(versions[1].rsplit(".", 1)[0])


def test_contributing_names_every_room():
    rooms = {path.parent.name for path in (TOP / "gemv").glob("*/__init__.py")}
    named = re.findall(r"^\| `gemv/(\w+)/` \|", (TOP / "CONTRIBUTING.md").read_text("utf-8"), re.M)
    assert set(named) >= rooms and len(rooms) >= 9
