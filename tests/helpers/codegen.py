"""Machine code of kernels, compiled without a GPU, and what it is disassembled with."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

from helpers import processes

#: Size of a parameter in the constant bank, by argument; pointers and 64-bit integers otherwise.
COEFFICIENT_BYTES = {"float32": 4, "float64": 8, "complex64": 8, "complex128": 16}
COEFFICIENT_BYTES |= {"float16": 4, "bfloat16": 4}
REAL_BYTES = {"float32": 4, "float64": 8, "complex64": 4, "complex128": 8}
REAL_BYTES |= {"float16": 4, "bfloat16": 4}
NARROW = ("float16", "bfloat16")


def access_of(kernel):
    """The only access of a kernel with wide loads; others take either, and get the first."""
    # here: Numba reads its variables when it is imported, and conftest.py sets them
    from gemv.core.dtypes import DTYPES
    from gemv.measure.inputs import make_problem

    objection = kernel.accepts(make_problem(3, 3, DTYPES["s"], "C", "N"))
    return "dot" if objection is None else "axpy"


def widest(dtype):
    """Elements of A and x in a load of 16 bytes."""
    return (8 if dtype in NARROW else 16 // COEFFICIENT_BYTES[dtype],) * 2


def reads_access(kernel):
    """Whether the code of a kernel depends on the storage order of A; most take strides."""
    return "spec.access" in inspect.getsource(inspect.getmodule(kernel.build))


@contextlib.contextmanager
def started(*options):
    """A process without the simulator that compiles what it is asked for."""
    with processes.started(
        [sys.executable, str(Path(__file__).with_name("codegen_worker.py")), *options],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "0"},
    ) as worker:  # fmt: skip
        yield worker
        worker.stdin.close()
        worker.wait(timeout=60)


@pytest.fixture(scope="session")
def worker():
    """The process of :func:`compiler`."""
    with started() as process:
        yield process


@pytest.fixture(scope="session")
def compiler(tmp_path_factory, worker):
    """Ask a process without the simulator for machine code.

    Answers are kept in a folder that the processes of a parallel run share.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of this run; in a single process it would be of every run
    kept = folder / "codegen"
    kept.mkdir(exist_ok=True)
    return asking(worker, kept)


@pytest.fixture
def whole_compiler(tmp_path):
    """The same by a process that goes all ways through the compiler."""
    with started("--whole") as process:
        yield asking(process, tmp_path)


def asking(worker, kept):
    """What asks a process for machine code, and keeps its answers in a folder."""

    def ask(
        kernel, dtype, access=None, compute_capability=(9, 0), knobs=None,
        homes=("arguments", "arguments"), literals=(), widths=None, y_dtype=None,
        accumulate="plain", whole=False, levels=0, conjugate_x=False, table="",
        narrow=None, sparse=False, helpers=1, old_y=False,
    ):  # fmt: skip
        if access is None or not reads_access(kernel):
            access = access_of(kernel)  # one answer for both
        if widths is None:
            widths = widest(dtype) if kernel.wide else (1, 0)
        if narrow is None:  # as for many rows
            from gemv.kernels.grids import loads_for_one

            size = 2 if dtype in NARROW else COEFFICIENT_BYTES[dtype]
            narrow = 1 if kernel.narrow is None else loads_for_one(widths[0], size)
        request = {
            "kernel": kernel.name, "dtype": dtype, "conj": dtype.startswith("c"),
            "access": access, "compute_capability": compute_capability,
            "knobs": dict(knobs or {}),
            "homes": homes, "literals": literals, "widths": widths, "y_dtype": y_dtype,
            "accumulate": accumulate, "whole": whole, "levels": levels,
            "conjugate_x": conjugate_x, "table": table, "narrow": narrow,
            "sparse": sparse, "helpers": helpers, "old_y": old_y,
        }  # fmt: skip
        question = json.dumps(request)
        file = kept / hashlib.sha256(question.encode()).hexdigest()
        if not file.exists():
            worker.stdin.write(question + "\n")
            worker.stdin.flush()
            line = worker.stdout.readline()
            assert line, f"the compiling process ended: {worker.wait()}"
            keep(file, line)
        answer = json.loads(file.read_text())
        assert "error" not in answer, answer["error"]
        return [{**function, "kept": str(kept)} for function in answer]

    return ask


def keep(file, text):
    """Write a file whole or not at all, for whoever looks meanwhile."""
    fresh = file.with_suffix(f".{os.getpid()}")
    fresh.write_text(text)
    fresh.replace(file)


def nvdisasm():
    """The disassembler: on the path, or where its package puts it."""
    found = shutil.which("nvdisasm")
    if found:
        return found
    for path in Path(sysconfig.get_path("purelib")).glob("nvidia/*/bin/nvdisasm"):
        return str(path)
    pytest.fail("nvdisasm is missing; the extra 'test' installs it")


def disassemble(function):
    """Instructions of a function of :func:`compiler`, as text.

    They are kept beside its answers: the disassembler takes half a second to start.
    """
    cubin = function["cubin"]
    file = Path(function["kept"], hashlib.sha256(cubin.encode()).hexdigest() + "-listing")
    if not file.exists():
        keep(file, listing_of(cubin))
    return file.read_text()


def listing_of(cubin):
    """The same for machine code in hexadecimal."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "function.cubin")
        file.write_bytes(bytes.fromhex(cubin))
        # -ndf: without an analysis that takes a third of its time and changes nothing here
        command = [nvdisasm(), "-c", "-ndf", str(file)]
        return processes.run(command, capture_output=True, text=True, check=True).stdout
