"""Rules for the tests themselves."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
#: What the names of functions have that check something.
CHECKS = ("assert", "raises", "warns", "check", "fail", "run")


def checks(function, known, depth=3):
    """Whether a function asserts anything, by itself or by functions of its own file."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if any(word in name for word in CHECKS):
                return True
            called = known.get(name.rpartition(".")[2])
            if depth and called not in (None, function) and checks(called, known, depth - 1):
                return True
    return False


def without_a_check(source):
    """Names of the tests in a file that can only fail by an error."""
    tree = ast.parse(source)
    known = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return [
        name
        for name, function in known.items()
        if name.startswith("test_") and not checks(function, known)
    ]


def test_every_test_checks_something():
    found = {
        path.name: names
        for path in sorted(TESTS.rglob("test_*.py"))
        if (names := without_a_check(path.read_text(encoding="utf-8")))
    }
    assert found == {}


def test_what_checks_nothing_is_found():
    source = "def helper():\n    {}\n\ndef test_it():\n    helper()\n"
    assert without_a_check(source.format("len([])")) == ["test_it"]
    assert without_a_check(source.format("assert 1")) == []
