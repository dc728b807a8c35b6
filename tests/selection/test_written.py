"""A machine's file is written as it is read."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from gemv.core.geometry import Device
from gemv.selection import written
from gemv.selection.machine import Constants, machine
from gemv.selection.parse import parse
from gemv.selection.row import CONDITIONS, Row

FOLDER = Path(__file__).resolve().parents[2] / "gemv" / "selection" / "machines"
H200 = Device("NVIDIA H200", (9, 0), 132)


def test_the_file_of_the_package_is_written_as_it_stands():
    text = (FOLDER / "nvidia-h200.toml").read_text("utf-8")
    found, about = machine(H200), tomllib.loads(text)["about"]
    made = 'Written by "make fit", but for the\n# tables host and row.'
    start = written.fitted(made, about, found.numbers, found.factors, found.constants)
    assert start == text.partition("\n[host]")[0]
    assert parse(start + written.kept(found.host, found.exceptions)) == parse(text)


@pytest.mark.parametrize(
    "text",
    ['"', "\\", "a\nb\tc", "\x00\x1f\x7f", "é 漢 😀", "# no = 'comment'", "", "[x]"],
    ids=ascii,
)
def test_any_text_is_read_again_as_it_was(text):
    found = machine(H200)
    values = tuple(77 if name == "lines_min" else None for name in CONDITIONS)
    row = Row("vector_rows", text, values, {"LANES": 8}, text, "any", 1)
    about = {"gpu": "any", "text": text, "versions": {text: [1, 2.5, text]}, "none": {}}
    sets = [Constants("vector_rows", found.constants[2].knobs, {"s": 40})]
    made = written.fitted("It is a test.", about, found.numbers, {}, sets)
    made += written.kept(None, [row])
    assert tomllib.loads(made)["about"] == about
    content = parse(made)
    assert content["rows"] == [["vector_rows", text, list(values), {"LANES": 8}, text]]
    assert content["host"] is None and content["factors"] == {}
    assert content["constants"] == [["vector_rows", dict(sets[0].knobs), {"s": 40}]]


def test_a_row_without_constants_or_a_figure_is_written_without_them():
    row = Row("last_block", "why", (None,) * len(CONDITIONS), {}, None, "any", 1)
    said = written.kept(None, [row])
    assert said == '\n[[row]]\nkernel = "last_block"\nreason = "why"\n'
