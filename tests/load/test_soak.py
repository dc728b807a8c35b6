"""The soak is alive: it compares, counts, notices a fault, stops and goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import processes
from load import soak

import gemv

SCRIPT = Path(soak.__file__)


@pytest.fixture
def small(monkeypatch):
    """A few small products, so that the simulator is soon done."""
    monkeypatch.setattr(soak, "DTYPES", {k: soak.DTYPES[k] for k in "dc"})
    monkeypatch.setattr(soak, "SHAPES_SIMULATED", [(3, 7, 0, "C", None), (4, 6, 1, "C", None)])
    monkeypatch.setattr(soak, "BATCHES_SIMULATED", [])
    monkeypatch.setattr(soak, "LISTS_SIMULATED", [])


def test_it_goes_on_where_it_stopped(small, tmp_path, capsys):
    state = tmp_path / "soak.json"
    # The device's memory may be other processes' as well.
    common = ["--threads", "2", "--batch", "2", "--shared", "--state", str(state)]
    assert soak.main(["--calls", "8", *common]) == 0
    first = json.loads(state.read_text())
    assert first["calls"] >= 8 and not first["faults"]
    assert soak.main(["--calls", str(first["calls"] + 6), *common]) == 0
    second = json.loads(state.read_text())
    assert second["calls"] >= first["calls"] + 6
    assert sum(second["modes"].values()) == second["calls"]
    assert soak.main(["--calls", "8", *common]) == 0  # nothing left to do
    assert json.loads(state.read_text()) == second
    assert "faults: 0" in capsys.readouterr().out
    assert soak.main(["--calls", "10000000", "--seconds", "0", *common]) == 3  # no time


def test_a_part_of_the_products_has_all_kinds(monkeypatch):
    monkeypatch.setattr(soak, "LISTS_SIMULATED", soak.LISTS_SIMULATED * 2)
    options = {"calls": 1, "seconds": 1, "threads": 1, "batch": 1}
    all_, part = (soak.Soak(soak.Progress(), **options, every=k).cases for k in (1, 5))
    names = {case.name for case in part}
    assert len(part) == len(names) == len(all_) // 5 < len(all_)
    assert names < {case.name for case in all_}
    assert {type(case) for case in part} == {type(case) for case in all_}


def test_one_wrong_bit_is_a_fault(small, tmp_path, capsys, monkeypatch):
    right, run, count, running = gemv.gemv, soak.Soak.run, iter(range(10**6)), []

    def counted(self, *args):
        running.append(True)
        return run(self, *args)

    def wrong_once(*args, **kwargs):
        y = right(*args, **kwargs)
        # Not while the products are made: there are more of them on a GPU.
        if running and next(count) == 30:
            soak.array_maker().synchronize()
            host = y.copy_to_host() if hasattr(y, "copy_to_host") else y.cpu().numpy()
            host.view("u1")[0] ^= 1
            if hasattr(y, "copy_to_device"):
                y.copy_to_device(host)
            else:
                y.copy_(soak.array_maker().torch.from_numpy(host))
        return y

    monkeypatch.setattr(gemv, "gemv", wrong_once)
    monkeypatch.setattr(soak.Soak, "run", counted)
    monkeypatch.setattr(soak, "MODES", ("call",))
    state = tmp_path / "soak.json"
    arguments = "--calls 40 --threads 1 --batch 2 --shared --state".split()
    assert soak.main([*arguments, str(state)]) == 1
    (fault,) = json.loads(state.read_text())["faults"]
    assert "other bits (call, row " in fault
    assert fault in capsys.readouterr().out


def test_an_item_of_a_list_that_is_left_out_is_a_fault(small, tmp_path, monkeypatch):
    monkeypatch.setattr(soak, "SHAPES_SIMULATED", [])
    monkeypatch.setattr(soak, "SHAPES", [])
    monkeypatch.setattr(soak, "BATCHES", [])
    monkeypatch.setattr(soak, "LISTS_SIMULATED", [([(3, 5), (2, 4)], 0)])
    monkeypatch.setattr(soak, "DTYPES", {"d": soak.DTYPES["d"]})
    monkeypatch.setattr(soak, "MODES", ("call",))
    state = tmp_path / "soak.json"
    arguments = ["--threads", "1", "--batch", "2", "--shared", "--state", str(state)]
    assert soak.main(["--calls", "8", *arguments]) == 0
    right, count = gemv.gemv_batched, iter(range(10**6))

    def wrong_once(alpha, a, x, beta, ys, trans, **named):
        # a whole item is left out once
        y = right(alpha, a, x, beta, ys, trans, **named)
        if next(count) == 12:
            right(0.0, a[-1:], x[-1:], 0.0, ys[-1:], trans, **named)
        return y

    monkeypatch.setattr(gemv, "gemv_batched", wrong_once)
    assert soak.main(["--calls", "32", *arguments]) == 1
    (fault,) = json.loads(state.read_text())["faults"]
    assert "list of" in fault and "other bits (call, row " in fault


@pytest.mark.skipif(not soak.RESIDENT.exists(), reason="host memory is read on Linux")
def test_a_leak_is_a_fault(small, tmp_path, monkeypatch):
    state, kept, run = tmp_path / "soak.json", [], soak.Batch.run
    arguments = ["--calls", "1000" if gemv.backend() == "cuda" else "200", "--threads", "2"]
    arguments += ["--batch", "2", "--shared", "--state", str(state)]
    assert soak.main(arguments) == 0
    assert json.loads(state.read_text())["watched"]
    state.unlink()

    def leaking(self, *args):
        kept.append(b"x" * (1 << 20))
        return run(self, *args)

    monkeypatch.setattr(soak.Batch, "run", leaking)
    assert soak.main(arguments) == 1
    (fault,) = json.loads(state.read_text())["faults"]
    assert "more host memory than once warm" in fault


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is another thing there")
def test_ctrl_c_stops_it_and_leaves_the_state(tmp_path):
    """In the background too, where a shell has its programs ignore the signal."""
    state = tmp_path / "soak.json"
    command = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", sys.executable, str(SCRIPT)]
    command += ["--calls", "100000000", "--threads", "2"]
    command += ["--batch", "2", "--shared", "--state", str(state)]
    path = os.pathsep.join([str(SCRIPT.parents[1]), os.environ.get("PYTHONPATH", "")])
    with processes.started(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as process:  # fmt: skip
        patience = time.monotonic() + 240
        while not state.exists() and process.poll() is None and time.monotonic() < patience:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (3, ""), out
    kept = json.loads(state.read_text())
    assert not kept["faults"] and str(kept["calls"]) in out


@pytest.mark.gpu
def test_thirty_thousand_calls_on_the_gpu(capsys):
    status = soak.main("--calls 30000 --seconds 120 --threads 6 --shared".split())
    assert status == 0, capsys.readouterr().out
