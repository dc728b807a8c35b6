"""The planted faults of tests/mutants: each still fits the tree, so it can be planted."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from pathlib import Path

from helpers import words

FOLDER = Path(__file__).resolve().parents[1] / "mutants"


def module_of(name):
    """A module of that folder."""
    spec = importlib.util.spec_from_file_location(f"mutants_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def faults():
    """The module that reads the lists."""
    return module_of("faults")


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


def test_faults_of_the_gpus_half_are_for_a_gpu_as_well(monkeypatch):
    """Each has small kernels that exist, or something is said of why no number shows it."""
    monkeypatch.syspath_prepend(str(FOLDER))
    on_gpu, listed = module_of("on_gpu"), faults().all_faults()
    half = {
        fault.id: Path(fault.file).name for fault in listed if fault.file.startswith(on_gpu.HALF)
    }
    assert set(on_gpu.UNSEEN) <= set(half) and all(on_gpu.UNSEEN.values())
    assert {half[name] for name in set(half) - set(on_gpu.UNSEEN)} == set(on_gpu.KERNELS)
    ids = ["-".join(case) for case in words.cases()]
    for expression in on_gpu.KERNELS.values():
        for word in re.findall(r"\w+", expression):
            assert word in ("or", "and") or any(word in each for each in ids), word
    chosen = {fault.id for fault in on_gpu.chosen()}
    assert chosen == set(half) - set(on_gpu.UNSEEN) | {
        fault.id for fault in listed if fault.found == "gpu"
    }
