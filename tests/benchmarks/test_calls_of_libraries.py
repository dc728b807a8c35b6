"""``benchmarks/measure/calls_of_libraries.py``: its table, and what it does without a GPU."""

from __future__ import annotations

import json
import sys

import pytest
from helpers import processes
from helpers.programs import program

import gemv

script = program("measure.calls_of_libraries")


def test_each_row_stands_beside_its_peer():
    runs = {
        "before": {"gemv.torch.mv": 6.0, "torch.mv": 8.0, "matvec": 9.0},
        "after": {"gemv.torch.mv": 4.0, "torch.mv": 8.0, "matvec": 9.0, "jnp.matmul": 9.0},
    }
    head, *lines = script.table(runs)
    assert head.split() == ["us", "a", "call", *["before", "peer", "ratio"],
                            *["after", "peer", "ratio"], "wanted"]  # fmt: skip
    assert len(lines) == len(script.PEERS)
    by_name = {line[:44].strip(): line[44:].split() for line in lines}
    assert by_name["gemv.torch.mv"] == ["6.00", "8.00", "0.75", "4.00", "8.00", "0.50", "0.65"]
    assert by_name["matvec"] == ["–", "–", "–", "9.00", "9.00", "1.00", "1.20"]
    assert by_name["gemv.torch.addmv"] == ["–"] * 6 + ["0.65"]


def test_the_page_has_what_loses_first(tmp_path):
    part = program("pages.libraries_part").part
    assert part(tmp_path) == "No results are stored yet.\n"
    us = {"matvec": 9.0, "jnp.matmul": 10.0, "gemv.gemv of JAX": 12.0, "jit of matvec": 1.0}
    run = {"library": "jax", "device": "a GPU", "gemv": "gemv", "us": us}
    (tmp_path / "a.json").write_text(
        json.dumps([{"tree": "before", **run}, {"tree": "after", **run}])
    )
    title, _, head, _, *rows = part(tmp_path).splitlines()
    assert title == "## JAX, a GPU" and head.startswith("| call | µs | compared with | its µs |")
    assert rows == [
        "| `gemv.gemv of JAX` | 12.00 | `jnp.matmul` | 10.00 | 1.20 | 1.20 |",
        "| `matvec` | 9.00 | `jnp.matmul` | 10.00 | 0.90 | 1.20 |",
    ]


def test_a_tree_is_that_of_its_process(tmp_path, monkeypatch):
    """Without a GPU a process says why, and the table goes on without its rows."""
    if gemv.backend() == "cuda":
        pytest.skip("there is a GPU")
    found = script.in_process("torch", str(tmp_path))
    assert found["us"] == {} and found["failed"]
    file = tmp_path / "calls.json"
    done = processes.run(
        [sys.executable, script.__file__, str(file), "--repeats", "1"], capture_output=True
    )
    assert done.returncode == 0
    text = done.stdout.decode()
    assert "the cost of calls can only be measured on a GPU" in text
    runs = json.loads(file.read_text())
    assert [(each["tree"], each["library"]) for each in runs] == [
        ("after", "torch"), ("after", "jax"),
    ]  # fmt: skip
