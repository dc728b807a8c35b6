"""Host or GPU for arrays in host memory: the two predicted times, and the numbers behind them."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

from gemv.core import processors
from gemv.selection.host_or_gpu import Comparison, Numbers, Work, compared, most_bytes
from gemv.selection.machine import host_numbers

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
H200 = host_numbers("NVIDIA H200")
#: Numbers with which every term of a time is a whole number of seconds.
PLAIN = Numbers(
    start=1.0, item=2.0, rate=8.0, thread_rate=2.0, convert=3.0, narrow=5.0, gather=7.0,
    gpu_start=100.0, link_rate=4.0, link_thread_rate=1.0,
)  # fmt: skip


def results(name):
    return json.loads((RESULTS / name).read_text("utf-8"))


def test_the_numbers_of_the_h200_are_those_that_were_measured():
    memories = results("memories/h200.json")
    smallest = memories["sizes"][0]
    rates = {(row["memory"], row["way"]): row["gb_per_s"] for row in memories["rows"]}
    assert H200.start == pytest.approx(smallest["host_s"], rel=0.01)
    assert H200.gpu_start == pytest.approx(smallest["call_s"], rel=0.01)
    assert H200.rate == pytest.approx(1e9 * rates["pageable", "SciPy"], rel=0.01)
    assert H200.link_rate == pytest.approx(1e9 * rates["pageable", "gemv.gemv"], rel=0.01)
    assert H200.link_thread_rate == pytest.approx(
        1e9 * rates["pageable", "driver's copy"], rel=0.01
    )
    one_thread = [
        row["n"] ** 2 * 4 / row["ours_s"]
        for row in results("host/xeon-1-thread.json")["rows"]
        if (row["n"], row["dtype"], row["layout"]) == (4096, "s", "by columns")
    ]
    assert H200.thread_rate == pytest.approx(sum(one_thread) / 2, rel=0.03)


def test_of_the_sizes_that_were_measured_the_faster_one_is_chosen():
    sizes = results("memories/h200.json")["sizes"]
    assert len(sizes) >= 6
    for each in sizes:
        nbytes = each["n"] ** 2 * 4
        found = compared(H200, Work(nbytes, nbytes))
        assert found.chosen == ("host" if each["host_s"] <= each["call_s"] else "cuda"), each


def test_each_number_has_its_part_in_the_times():
    assert compared(PLAIN, Work(0, 0)) == ("host", 1, 100)
    assert compared(PLAIN, Work(80, 40)) == ("host", 1 + 10, 100 + 10)
    assert compared(PLAIN, Work(0, 0, items=4)).host_s == 1 + 3 * 2
    assert compared(PLAIN, Work(0, 0, converted=4)).host_s == 1 + 4 * 3
    assert compared(PLAIN, Work(0, 0, narrow=4)).host_s == 1 + 4 * 5
    assert compared(PLAIN, Work(0, 0, gathered=4)).host_s == 1 + 4 * 7
    assert compared(PLAIN, Work(0, 0, prepared=4)).gpu_s == 100 + 4 * 3
    assert compared(PLAIN, Work(0, 0, items=51)) == ("cuda", 101, 100)
    assert compared(PLAIN._replace(gpu_start=1.0), Work(0, 0)).chosen == "host"  # as fast


def test_threads_bound_the_rates():
    found = PLAIN.with_threads(3, 2)
    assert found == PLAIN._replace(rate=6.0, link_rate=2.0)
    assert PLAIN.with_threads(64, 8) == PLAIN
    large = Work(2**30, 2**30)
    # One thread of BLAS beside eight that copy: the GPU is ahead, from some size on.
    assert compared(H200.with_threads(1, 8), large).chosen == "cuda"
    assert compared(H200.with_threads(32, 8), large).chosen == "host"
    assert compared(H200.with_threads(2, 1), large).chosen == "host"


@pytest.mark.parametrize("copying", [1, 8])
@pytest.mark.parametrize("blas", [1, 2, 64])
def test_without_numbers_of_its_own_a_machine_keeps_what_blas_takes_as_it_lies(blas, copying):
    unknown = host_numbers("NVIDIA GeForce RTX 9999").with_threads(blas, copying)
    assert host_numbers("") == host_numbers("NVIDIA GeForce RTX 9999") != H200
    assert most_bytes(unknown) == sys.maxsize
    for exponent in range(0, 60, 4):
        assert compared(unknown, Work(2**exponent, 2**exponent)).chosen == "host"
    elements = 10**8
    assert compared(unknown, Work(4 * elements, 2 * elements, narrow=elements)).chosen == "cuda"


def test_the_bound_is_where_the_choice_changes():
    draw = random.Random(24)
    changed = 0
    for _ in range(300):
        numbers = Numbers(*(10 ** draw.uniform(-9, 0) for _ in Numbers._fields))
        numbers = numbers._replace(
            rate=10 ** draw.uniform(6, 12), link_rate=10 ** draw.uniform(6, 12)
        )
        for size in (None, 4):
            most = most_bytes(numbers, size)
            at = 4 * (most // 4)
            for nbytes in (8, at // 2, at, at + 8, 2 * at + 64):
                if not 0 < nbytes < 2**62:
                    continue
                gathered = 0 if size is None else nbytes // size
                found = compared(numbers, Work(nbytes, nbytes, gathered=gathered))
                equal = abs(found.host_s - found.gpu_s) <= 1e-9 * found.gpu_s
                if nbytes <= most:
                    assert found.chosen == "host" or equal, (numbers, size, nbytes)
                elif numbers.start <= numbers.gpu_start:
                    assert found.chosen == "cuda" or equal, (numbers, size, nbytes)
                    changed += 1
    assert changed > 100


def test_a_comparison_is_a_sentence():
    assert str(Comparison("host", 7.7e-6, 2.36e-4)) == (
        "SciPy's BLAS on the host is expected to take 7.7 us, the GPU with the copy of A 236 us."
    )
    assert "1.04 ms" in str(Comparison("cuda", 1.0363e-3, 2.36e-4))


@pytest.mark.parametrize(
    "variables, threads",
    [
        ({}, 6),
        ({"OMP_NUM_THREADS": "2"}, 2),
        ({"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "3"}, 3),
        ({"OPENBLAS_NUM_THREADS": "64"}, 6),
        ({"OPENBLAS_NUM_THREADS": "0", "OMP_NUM_THREADS": "x"}, 6),
        ({"OMP_NUM_THREADS": "4,2"}, 6),
    ],
)
def test_threads_of_blas(variables, threads, monkeypatch):
    for name in ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(processors, "processors", lambda: 6)
    assert processors.blas_threads() == threads


@pytest.mark.parametrize("processors_, threads", [(None, 2), (1, 1), (3, 1), (6, 4), (256, 8)])
def test_threads_that_copy(processors_, threads, monkeypatch):
    monkeypatch.setattr(processors.os, "cpu_count", lambda: processors_)
    assert processors.copying_threads() == threads
