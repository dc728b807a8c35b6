"""Machine code of every kernel, made without a GPU: no spills, no .ftz, the constant bank."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from gemv.kernels import REGISTRY

KERNELS = list(REGISTRY.values())
BY_NAME = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)

#: Size of a parameter in the constant bank, by argument; pointers and 64-bit integers otherwise.
COEFFICIENT_BYTES = {"float32": 4, "float64": 8, "complex64": 8, "complex128": 16}
REAL_BYTES = {"float32": 4, "float64": 8, "complex64": 4, "complex128": 8}


@pytest.fixture(scope="module")
def compiler():
    """Ask a process without the simulator for machine code."""
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0"}
    worker = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("codegen_worker.py"))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip

    def ask(kernel, dtype, access="dot", compute_capability=(9, 0), knobs=None):
        request = {
            "kernel": kernel.name, "dtype": dtype, "conj": dtype.startswith("c"),
            "access": access, "compute_capability": compute_capability, "knobs": knobs,
        }  # fmt: skip
        worker.stdin.write(json.dumps(request) + "\n")
        worker.stdin.flush()
        line = worker.stdout.readline()
        assert line, f"the compiling process ended: {worker.wait()}"
        return json.loads(line)

    yield ask
    worker.stdin.close()
    worker.wait(timeout=60)
    worker.stdout.close()


def nvdisasm():
    """The disassembler: on the path, or where its package puts it."""
    found = shutil.which("nvdisasm")
    if found:
        return found
    for path in Path(sysconfig.get_path("purelib")).glob("nvidia/*/bin/nvdisasm"):
        return str(path)
    pytest.fail("nvdisasm is missing; the extra 'test' installs it")


def disassemble(function, tmp_path):
    cubin = tmp_path / f"{function['name']}.cubin"
    cubin.write_bytes(bytes.fromhex(function["cubin"]))
    run = subprocess.run(
        [nvdisasm(), "-c", str(cubin)], capture_output=True, text=True, check=True
    )
    return run.stdout


@BY_NAME
@pytest.mark.parametrize("dtype", COEFFICIENT_BYTES)
@pytest.mark.parametrize("access", ["dot", "axpy"])
def test_no_stack_no_spills_no_flushed_denormals(kernel, dtype, access, compiler):
    for function in compiler(kernel, dtype, access):
        assert function["stack"] == 0
        assert function["spills"] == 0
        assert ".ftz" not in function["ptx"]
        assert "ld.local" not in function["ptx"]
        assert function["registers"] <= 128, "fewer than two blocks of 256 threads would fit"


@BY_NAME
@pytest.mark.parametrize("compute_capability", [(7, 5), (8, 0), (10, 0), (12, 0)], ids=str)
def test_assembles_for_other_gpus(kernel, compute_capability, compiler):
    for function in compiler(kernel, "float32", "dot", compute_capability):
        assert function["spills"] == 0
        assert len(function["cubin"]) > 0


@BY_NAME
def test_only_the_teaching_kernel_adds_floats_atomically(kernel, compiler):
    text = "".join(function["ptx"] for function in compiler(kernel, "complex64"))
    adds = re.findall(r"\b(?:atom|red)\.\S*add\S*\.f\d\d", text)
    assert bool(adds) == (not kernel.same_bits), adds


def parameter_offsets(ptx, arguments, dtype):
    """Byte offset of each argument in the parameter list, as PTX declares it."""
    declared = re.search(r"\.entry \w+\((.*?)\)", ptx, re.S).group(1)
    sizes = [int(bits) // 8 for bits in re.findall(r"\.param \.\w(\d\d)", declared)]
    offsets, at, sizes = {}, 0, iter(sizes)
    for name in arguments:
        parts = 2 if name in ("alpha", "beta") and dtype.startswith("c") else 1
        for part in range(parts):
            size = next(sizes)
            at = -(-at // size) * size
            offsets.setdefault(name, []).append(at)
            at += size
            assert part == 0 or size == REAL_BYTES[dtype]
    assert next(sizes, None) is None, "PTX declares more parameters than the function has"
    return offsets


@BY_NAME
@pytest.mark.parametrize("dtype", COEFFICIENT_BYTES)
def test_coefficients_are_read_from_the_constant_bank(kernel, dtype, compiler, tmp_path):
    """Kernel arguments live in constant bank 0, from 0x210 on compute capability 9.0."""
    first = 0x210
    seen = set()
    for function in compiler(kernel, dtype):
        offsets = parameter_offsets(function["ptx"], function["arguments"], dtype)
        listing = disassemble(function, tmp_path)
        # A wide load of the bank covers the words behind the address that it names.
        covered = set()
        for line in listing.splitlines():
            width = 8 if ".64" in line else 16 if ".128" in line else 4
            for address in re.findall(r"c\[0x0\]\[(?:\w+\+)?0x([0-9a-f]+)\]", line):
                covered.update(range(int(address, 16), int(address, 16) + width))
        for name in ("alpha", "beta"):
            for offset in offsets.get(name, ()):
                assert first + offset in covered, f"{name} is not read from c[0x0]\n{listing}"
                seen.add(name)
        assert "c[0x3]" not in listing
    assert seen == {"alpha", "beta"}
