"""What tests start ends with them, and so does what it started."""

from __future__ import annotations

import ast
import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import processes

#: A process that starts another one, which has the same pipes, and says so when it runs.
PARENT = """
import signal, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
child += "print('ready', flush=True); time.sleep(1000)"
subprocess.Popen([sys.executable, "-c", child], close_fds=False){after}
"""
pytestmark = pytest.mark.skipif(not hasattr(os, "killpg"), reason="no process groups here")


@contextlib.contextmanager
def everybody_ends():
    """Yield a descriptor to hand on; a pipe is at its end when nobody has it any more."""
    reads, writes = os.pipe()
    try:
        yield writes
        os.close(writes)
        os.set_blocking(reads, False)
        patience = time.monotonic() + 20
        while True:
            try:
                assert os.read(reads, 1) == b""
                return
            except BlockingIOError:
                assert time.monotonic() < patience, "a process goes on"
                time.sleep(0.01)
    finally:
        os.close(reads)


@pytest.mark.parametrize("error", [AssertionError, KeyboardInterrupt])
@pytest.mark.parametrize("after", [".wait()", ""], ids=["parent runs", "parent has ended"])
def test_whatever_ends_a_test_ends_what_it_started(error, after):
    command = [sys.executable, "-c", PARENT.format(after=after)]
    with everybody_ends() as pipe, pytest.raises(error):
        with processes.started(command, stdout=subprocess.PIPE, text=True, pass_fds=[pipe]) as head:
            assert head.stdout.readline() == "ready\n"
            raise error
    assert head.returncode is not None and head.stdout.closed


@pytest.mark.parametrize("after", [".wait()", ""], ids=["parent runs", "parent has ended"])
def test_a_limit_of_time_holds_for_all_that_was_started(after):
    command = [sys.executable, "-c", PARENT.format(after=after)]
    started = time.monotonic()
    with everybody_ends() as pipe, pytest.raises(subprocess.TimeoutExpired):
        processes.run(command, capture_output=True, text=True, timeout=2, pass_fds=[pipe])
    assert time.monotonic() - started < 60


def test_a_program_that_ends_by_itself_is_told_as_usual():
    code = "import sys; print(sys.stdin.read()); print('no', file=sys.stderr); sys.exit(3)"
    command = [sys.executable, "-c", code]
    done = processes.run(command, input="yes", capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (3, "yes\n", "no\n")
    with pytest.raises(subprocess.CalledProcessError, match="exit status 3"):
        processes.run(command, input="yes", capture_output=True, text=True, check=True)


def test_no_test_starts_a_process_in_another_way():
    others = {
        "subprocess": {"run", "Popen", "call", "check_call", "check_output"},
        "os": {"system", "popen", "spawnv", "spawnve", "posix_spawn"},
    }
    found = [
        f"{path.name}:{node.lineno}"
        for path in sorted(Path(__file__).parents[1].rglob("*.py"))
        if path.name != "processes.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if node.attr in others.get(node.value.id, ())
    ]
    assert found == []


def test_a_gpu_is_asked_of_no_program_without_one(monkeypatch):
    monkeypatch.setenv("GEMV_BACKEND", "cuda")  # as conftest.py does where there is a GPU
    asked = {"GEMV_BACKEND": "cuda"}
    for kept in ({"NUMBA_ENABLE_CUDASIM": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}, {}):
        assert processes.environment_of(asked | kept) == asked | kept
    for without in (
        {"NUMBA_ENABLE_CUDASIM": "1"}, {"CUDA_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": "-1"},
    ):  # fmt: skip
        assert processes.environment_of(asked | without) == without
    monkeypatch.delenv("GEMV_BACKEND")
    assert (
        processes.environment_of({**asked, "NUMBA_ENABLE_CUDASIM": "1"})["GEMV_BACKEND"] == "cuda"
    )
