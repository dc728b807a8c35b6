"""The compiled form of the tables holds what their TOML says, and is used while it does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest
from helpers import processes

from gemv.selection import compiled
from gemv.selection import table as selection_table
from gemv.selection.parse import parse
from gemv.selection.table import Tables, table, tables

TOP = Path(__file__).resolve().parents[2]
TABLES = sorted(resources.files("gemv.selection").joinpath("tables").glob("*.toml"))
BY_FILE = pytest.mark.parametrize("file", TABLES, ids=lambda file: file.stem)


@BY_FILE
def test_every_table_is_compiled_and_says_the_same(file):
    toml = file.read_bytes()
    parsed = parse(toml.decode("utf-8"), file.stem == "default", str(file))
    compact = file.with_suffix(".json")
    do = "run: python -m gemv.selection.compiled"
    assert compact.exists(), do
    assert compiled.rows_of(compact.read_bytes(), toml, str(file)) == parsed, do
    assert compact.read_text("utf-8") == compiled.text_of(toml, parsed), do


def test_the_hash_is_that_of_the_toml():
    file = next(file for file in TABLES if file.stem == "default")
    parsed = parse(file.read_text("utf-8"), source=str(file))
    assert Tables({"default": parsed}).hash == tables().hash


def test_every_row_reads_as_it_is_written():
    """Conditions, constants and places, one by one, as the TOML has them."""
    import tomllib

    file = next(file for file in TABLES if file.stem == "default")
    entries = tomllib.loads(file.read_text("utf-8"))["row"]
    assert len(entries) == len(table())
    for number, (entry, row) in enumerate(zip(entries, table(), strict=True), start=1):
        words = {name: entry.pop(name) for name in ("kernel", "reason")}
        assert (row.kernel, row.reason) == tuple(words.values())
        assert row.knobs == entry.pop("knobs", {}) and row.figure == entry.pop("figure", None)
        assert row.conditions == entry
        assert row.place == f"selection table {file}, row {number}"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The tables of the package, in a folder that a test may change."""
    folder = tmp_path / "tables"
    shutil.copytree(TABLES[0].parent, folder)
    monkeypatch.setattr(selection_table, "_PACKAGE", folder)
    tables.cache_clear()
    yield folder
    tables.cache_clear()


def test_an_edited_toml_is_read_in_place_of_the_compiled_form(package):
    before = len(table())
    file = package / "default.toml"
    row = '[[row]]\nkernel = "last_block"\nreason = "new"\nlines_max = 3\n\n'
    file.write_text(row + file.read_text("utf-8"), encoding="utf-8")
    tables.cache_clear()
    assert len(table()) == before + 1 and table()[0].reason == "new"


@pytest.mark.parametrize("content", [None, "", "{", "[]", "{}", '{"toml": 1}'])
def test_a_compiled_form_that_is_none_is_not_used(package, content):
    file = package / "default.json"
    file.unlink()
    if content is not None:
        file.write_text(content)
    rows = table()
    assert rows == parse((package / "default.toml").read_text("utf-8"), source=rows[0].source)


def test_a_table_of_ones_own_needs_no_compiled_form(package, monkeypatch, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    shutil.copy(package / "default.json", own)  # is not looked at
    (own / "default.toml").write_text('[[row]]\nkernel = "last_block"\nreason = "own"\n')
    monkeypatch.setenv("GEMV_TABLES", str(own))
    tables.cache_clear()
    assert [row.reason for row in table()] == ["own"]


def test_a_process_parses_no_toml():
    code = (
        "import json, sys; from gemv.selection.table import table; rows = table();"
        "print(json.dumps([len(rows), 'tomllib' in sys.modules]))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "GEMV_TABLES"}
    run = processes.run(
        [sys.executable, "-c", code], cwd=TOP, env=environment, stdout=subprocess.PIPE, check=True
    )
    assert json.loads(run.stdout) == [len(table()), False]


def test_the_command_writes_every_table(package, monkeypatch, capsys):
    (package / "default.json").unlink()
    monkeypatch.setattr(compiled, "__file__", str(package.parent / "compiled.py"))
    compiled.main()
    assert "default.json" in capsys.readouterr().out
    for file in TABLES:
        written = (package / file.name).with_suffix(".json")
        assert written.read_bytes() == file.with_suffix(".json").read_bytes()
