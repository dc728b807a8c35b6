"""The page "How a call travels" is true: each function is there, and reached from one before it.

Calls on the simulator are followed as they run. The short way and the GPU's engine are followed by
name: one of the functions before a step has to name it.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import gemv

TOP = Path(__file__).resolve().parents[2]
PAGE = TOP / "docs" / "guide" / "how_a_call_travels.md"
STEP = re.compile(r"^(\d+)\. `([\w.]+)` in `(gemv/[\w/]+\.py)`: \S", re.M)


def lists() -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """By title: how the list is followed, and its steps as name and file."""
    found = {}
    for part in re.split(r"(?=^## )", PAGE.read_text(encoding="utf-8"), flags=re.M)[1:]:
        title, way = re.search(r"^## (.+)$", part, re.M), re.search(r"<!-- (.+?) -->", part)
        steps = STEP.findall(part)
        assert [int(number) for number, _, _ in steps] == list(range(1, len(steps) + 1))
        assert len(steps) == len(re.findall(r"^\d+\. ", part, re.M)), "each line names a function"
        found[title[1]] = way[1], [(name, file) for _, name, file in steps]
    return found


def source_of(name: str, file: str) -> str | None:
    """The text of a function or class of a file, or of what assigns a name; None for no such."""
    text = (TOP / file).read_text(encoding="utf-8")
    body: list[ast.stmt] = ast.parse(text).body
    node: ast.AST | None = None
    for part in name.split("."):
        node = next((each for each in body if part in names_of(each)), None)
        if node is None:
            return None
        body = getattr(node, "body", [])
    return text if isinstance(node, ast.Assign) else ast.get_source_segment(text, node)


def names_of(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.Assign):
        return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return {getattr(node, "name", "")}


def test_the_page_has_four_lists():
    assert [way for way, _ in lists().values()] == ["names", "names", "traced: host",
                                                    "traced: simulator"]  # fmt: skip
    assert all(5 < len(steps) <= 15 for _, steps in lists().values())


@pytest.mark.parametrize("title", lists())
def test_every_function_is_in_its_file(title):
    missing = [step for step in lists()[title][1] if source_of(*step) is None]
    assert not missing


@pytest.mark.parametrize("title", [title for title, (way, _) in lists().items() if way == "names"])
def test_every_step_is_named_by_one_before_it(title):
    _, steps = lists()[title]
    for at, (name, _) in enumerate(steps[1:], 1):
        stem = name.rpartition(".")[2].lstrip("_").removeprefix("write_")
        before = "\n".join(source_of(*step) or "" for step in steps[:at])
        assert re.search(rf"\b_?{stem}\b", before), f"nothing before {name} names it"


def calls_made(function) -> list[tuple[str, str]]:
    """Name and file of every function of ours that a call enters, in order."""
    entered = []

    def enter(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(TOP / "gemv")):
            file = Path(code.co_filename).relative_to(TOP).as_posix()
            entered.append((code.co_qualname, file))

    before = sys.getprofile()
    sys.setprofile(enter)
    try:
        function()
    finally:
        sys.setprofile(before)
    return entered


@pytest.mark.skipif(gemv.backend() != "simulator", reason="followed on the simulator")
@pytest.mark.parametrize("way", ["host", "simulator"])
def test_every_step_is_reached_after_the_one_before(way):
    (steps,) = (steps for followed, steps in lists().values() if followed == f"traced: {way}")
    if way == "host":
        arrays = np.eye(3), np.ones(3)
        # The simulator's engine has the methods of the GPU's.
        steps = [
            (
                name.replace("CudaEngine", "SimulatorEngine").replace(
                    "CudaSession", "SimulatedSession"
                ),
                re.sub("engines/(cuda|transfers)", "engines/simulator", file),
            )
            for name, file in steps
        ]
    else:
        from numba import cuda

        arrays = cuda.to_device(np.eye(3)), cuda.to_device(np.ones(3))
    made = calls_made(lambda: gemv.dgemv(1.0, *arrays))
    at = -1
    for step in steps:
        assert step in made, f"the call does not reach {step}"
        assert made.index(step) > at, f"the call reaches {step} before the one above it"
        at = made.index(step)
