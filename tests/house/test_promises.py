"""The page of promises: each test that it names exists, and runs where the page says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
PAGE = TOP / "docs" / "promises.md"
ROW = re.compile(
    r"^\| (?P<promise>.+?) \| `(?P<path>\S+?)::(?P<name>\w+)` \| (?P<runs>.+?) \|$", re.M
)
#: Where a test runs, by the folder that it is in.
LIBRARIES = {"with_torch": "with PyTorch", "with_jax": "with JAX", "with_dask": "with Dask"}


def rows(text):
    return [found.groups() for found in ROW.finditer(text)]


def runs_where(top, path, name):
    """In the words of the page; None if there is no such test."""
    file = top / path
    if not file.is_file():
        return None
    tree = ast.parse(file.read_text(encoding="utf-8"))
    whole = any(
        isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "pytestmark"
        and "pytest.mark.gpu" in ast.unparse(node.value)
        for node in tree.body
    )
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            # Cases of a test may need a GPU where others do not.
            own = [ast.unparse(decorator) for decorator in node.decorator_list]
            if whole or "pytest.mark.gpu" in own:
                return "on a GPU"
            return LIBRARIES.get(file.parent.name, "on any machine")
    return None


@pytest.mark.parametrize("row", rows(PAGE.read_text(encoding="utf-8")), ids=lambda row: row[2])
def test_a_promise_has_a_test_that_runs_where_the_page_says(row):
    _, path, name, runs = row
    assert name.startswith("test_")
    assert runs_where(TOP, path, name) == runs


def test_every_row_of_the_page_is_read():
    text = PAGE.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    heads = [line for line in lines if line.startswith(("| promise", "| what", "| ---"))]
    assert len(rows(text)) == len(lines) - len(heads) >= 50
    assert len({promise for promise, *_ in rows(text)}) >= 50


def test_what_is_wrong_is_seen(tmp_path):
    (tmp_path / "a.py").write_text(
        "import pytest\n@pytest.mark.gpu\ndef test_gpu():\n    pass\ndef test_it():\n    pass\n"
    )
    assert runs_where(tmp_path, "a.py", "test_gpu") == "on a GPU"
    assert runs_where(tmp_path, "a.py", "test_it") == "on any machine"
    assert runs_where(tmp_path, "a.py", "test_other") is None
    assert runs_where(tmp_path, "b.py", "test_it") is None
    assert rows("| said | tests | runs |\n") == []


def test_the_page_is_linked():
    index = (TOP / "docs" / "index.md").read_text(encoding="utf-8")
    extend = index[index.index(":caption: Extend") :].partition("```")[0]
    assert "\npromises\n" in extend
    assert "docs/promises.md" in (TOP / "CONTRIBUTING.md").read_text(encoding="utf-8")
