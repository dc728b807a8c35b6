"""The two halves of the language define every declared function, with the same parameters."""

import inspect
import json
import os
import re
import runpy
import sys
from pathlib import Path

import pytest
from helpers import processes

from gemv.language import vocabulary

TOP = Path(__file__).resolve().parents[2]

#: Prints the parameters of the functions that the process has; Numba gives intrinsics one more.
SCRIPT = """
import inspect, json
from gemv.language import vocabulary

def parameters(function):
    definition = getattr(function, "_defn", None)
    names = list(inspect.signature(definition or function).parameters)
    return names[1:] if definition else names

functions = {name: parameters(getattr(vocabulary, name)) for name in vocabulary.VOCABULARY}
print(json.dumps([vocabulary.SIMULATOR, functions]))
"""


@pytest.mark.parametrize("simulator", [False, True], ids=["numba_cuda", "simulator"])
def test_a_half_defines_what_is_declared(simulator):
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": str(int(simulator))}
    run = processes.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment, cwd=TOP
    )
    assert run.returncode == 0, run.stderr
    declared = {
        name: list(inspect.signature(function).parameters)
        for name, function in vocabulary.VOCABULARY.items()
    }
    assert json.loads(run.stdout) == [simulator, declared]


def test_declarations_say_what_functions_do():
    for name, function in vocabulary.VOCABULARY.items():
        first = (function.__doc__ or "").splitlines()[0]
        assert first and first[-1] in ".:", f"{name}: a declaration begins with one sentence"


def test_the_language_hands_every_function_on():
    from gemv import language

    for name in vocabulary.VOCABULARY:
        assert getattr(language, name) is getattr(vocabulary, name), name


def test_the_course_lists_every_function():
    pages = runpy.run_path(str(TOP / "docs" / "_ext" / "kernel_pages.py"))
    table = pages["vocabulary_table"]()
    for name, function in vocabulary.VOCABULARY.items():
        call = f"`{name}({', '.join(inspect.signature(function).parameters)})`"
        assert table.count(f"| {call} | ") == 1
    page = (TOP / "docs" / "course" / "functions.md").read_text(encoding="utf-8")
    assert "<!-- functions:begin -->" in page


def test_the_course_names_only_what_there_is():
    """The page of registers explains some functions at length: their names and parameters."""
    text = (TOP / "docs" / "course" / "registers.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\| `(\w+)\((.*?)\)` \|", text, re.M)
    assert len(shown) >= 10
    for name, parameters in shown:
        declared = inspect.signature(vocabulary.VOCABULARY[name]).parameters
        assert len(declared) == len(parameters.split(", ")), name
