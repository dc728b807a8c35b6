"""The planted faults of tests/mutants: each still fits the tree, so it can be planted."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "mutants"


def faults():
    """The module of that folder that reads the lists."""
    spec = importlib.util.spec_from_file_location("mutants_faults", FOLDER / "faults.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_planted_fault_fits_the_tree():
    """The old text is there once, and the tests exist."""
    listed = faults().all_faults()
    assert [each for fault in listed for each in fault.objections()] == []
    assert len(listed) >= 100
    names = Counter(fault.id for fault in listed)
    assert [name for name, times in names.items() if times > 1] == []


def test_what_does_not_fit_is_named(tmp_path):
    (tmp_path / "file.py").write_text("a = 1\nb = 1\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "a.py").touch()
    module = faults()
    good = module.Fault(
        "room", "it", "file.py", "a = 1", "a = 2", "tests/a.py -k it", "host", "a is not 2"
    )
    assert good.objections(tmp_path) == [] and good.applied(tmp_path) == "a = 2\nb = 1\n"
    for wrong, told in (
        ({"old": "= 1"}, "occurs 2 times"), ({"old": "c"}, "occurs 0 times"),
        ({"new": "a = 1"}, "is the old one"),
        ({"file": "none.py"}, "there is no file"), ({"tests": "tests/none.py"}, "no such tests"),
        ({"tests": "-k it"}, "no such tests"), ({"found": "anywhere"}, "found must be one of"),
        ({"wrong": " "}, "nothing says"),
    ):  # fmt: skip
        objections = good._replace(**wrong).objections(tmp_path)
        assert len(objections) == 1 and told in objections[0], wrong
    assert good.syntax_error(tmp_path) is None
    assert "is no Python" in good._replace(new="a =").syntax_error(tmp_path)
