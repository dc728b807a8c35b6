"""``python -m gemv run``: files and options that it refuses, in one line."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import python, refused, whole

import gemv
from gemv.cli.main import main

LONG_DOUBLE = np.dtype(np.longdouble)


@pytest.mark.parametrize("name", ["A", "x", "y"])
@pytest.mark.parametrize(("long", "chosen"), [(np.longdouble, "d"), (np.clongdouble, "z")])
def test_run_refuses_long_doubles_unless_a_dtype_is_chosen(folder, capsys, name, long, chosen):
    if np.dtype(long).char not in "gG" or LONG_DOUBLE.itemsize == 8:
        pytest.skip("a long double is a double here, and a file does not tell them apart")
    np.save(name, np.load(f"{name}.npy").astype(long))
    arguments = "--a A.npy --x x.npy --y y.npy --beta 1 -o out.npy".split()
    line = refused(capsys, *arguments)
    assert f"{name} has dtype {np.dtype(long)}, and nothing here is that precise" in line
    assert f"--dtype {chosen} computes in" in line
    assert not Path("out.npy").exists()
    assert main(["run", *arguments, "--dtype", chosen]) == 0


#: Headers that promise more than the 280 bytes behind them, or less than nothing; some products of
#: these sizes, in 64 bits, are none of that.
PROMISES = {
    "large.npy": (2**30, 2**30),
    "wraps.npy": (2**32, 2**32),
    "narrow.npy": (2**60, 16),
    "negative.npy": (5, -7),
    "both_negative.npy": (-5, -7),
    "long.npy": (2**17, 2**17),
}


def write_broken(name):
    """Files that are not what their name says."""
    if name == "garbage.npy":
        Path(name).write_bytes(b"\x93NUMPY but not really")
    elif name == "garbage.mtx":
        Path(name).write_text("%%MatrixMarket matrix array real general\n3 three\n")
    elif name in ("empty.npy", "empty.mtx"):
        Path(name).write_bytes(b"")
    elif name == "cut.npy":
        Path(name).write_bytes(Path("A.npy").read_bytes()[:-20])
    elif name == "pickled.npy":
        np.save(name, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    elif name == "several.npy":
        file = io.BytesIO()
        np.savez(file, a=np.ones(2))
        Path(name).write_bytes(file.getvalue())
    elif name.startswith("zero."):
        Path(name).symlink_to("/dev/zero")
    elif name.startswith("fifo."):
        os.mkfifo(name)
    elif name.startswith("directory."):
        Path(name).mkdir()
    elif name in PROMISES:
        file = io.BytesIO()
        header = {"descr": "<f8", "fortran_order": False, "shape": PROMISES[name]}
        np.lib.format.write_array_header_2_0(file, header)
        Path(name).write_bytes(file.getvalue() + bytes(280))
    elif name.endswith("large.mtx"):
        kind = "coordinate" if "sparse" in name else "array"
        size = f"{2**30} {2**30}{' 1' if kind == 'coordinate' else ''}"
        values = "1 1 2\n" if kind == "coordinate" else "1\n2\n"
        Path(name).write_text(f"%%MatrixMarket matrix {kind} real general\n{size}\n{values}")
    elif name == "words.npy":
        np.save(name, np.array([["a", "b"]]))
    elif name == "flat.npy":
        np.save(name, np.ones(7))
    elif name == "cube.npy":
        np.save(name, np.ones((2, 3, 4)))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("missing.npy", "No such file"),
        ("missing.mtx", "No such file"),
        (".", "must end in .npy or .mtx"),
        ("A.csv", "must end in .npy or .mtx"),
        ("garbage.npy", "cannot read garbage.npy"),
        ("garbage.mtx", "cannot read garbage.mtx"),
        ("empty.npy", "cannot read empty.npy"),
        ("empty.mtx", "cannot read empty.mtx"),
        ("cut.npy", "promises 280 bytes, shape (5, 7) of float64, but 260 bytes follow"),
        ("zero.npy", "cannot read zero.npy: it is a device or a pipe"),
        ("zero.mtx", "cannot read zero.mtx: it is a device or a pipe"),
        ("fifo.npy", "cannot read fifo.npy: it is a device or a pipe"),
        ("fifo.mtx", "cannot read fifo.mtx: it is a device or a pipe"),
        ("directory.npy", "cannot read directory.npy: it is a directory"),
        ("directory.mtx", "cannot read directory.mtx: it is a directory"),
        ("large.npy", f"its header promises {2**63} bytes, shape ({2**30}, {2**30}) of float64"),
        ("wraps.npy", f"its header promises {2**67} bytes"),
        ("narrow.npy", f"its header promises {2**67} bytes"),
        ("negative.npy", "its header gives the shape (5, -7), which no array has"),
        ("both_negative.npy", "its header gives the shape (-5, -7), which no array has"),
        ("long.npy", f"its header promises {2**37} bytes"),
        ("large.mtx", "cannot read large.mtx"),
        ("sparse_large.mtx", f"as a dense matrix {2**30} x {2**30} numbers do not fit into"),
        ("pickled.npy", "cannot read pickled.npy"),
        ("several.npy", "several arrays"),
        ("words.npy", "is no number"),
        ("flat.npy", "A needs two dimensions"),
        ("cube.npy", "A needs two dimensions"),
    ],
)
@pytest.mark.parametrize("mapped", [False, True], ids=["read", "mapped"])
def test_run_refuses_matrix(folder, capsys, monkeypatch, name, says, mapped):
    if mapped:
        monkeypatch.setattr("gemv.cli.array_files.LARGE_BYTES", -1)
    if name.startswith(("zero.", "fifo.")) and not Path("/dev/zero").exists():
        pytest.skip("no such files here")
    write_broken(name)
    assert says in refused(capsys, "--a", name, "--x", "x.npy", "-o", "out.npy")
    assert not Path("out.npy").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--x missing.npy", "No such file"),
        ("--x A.npy", "a vector has one dimension"),
        ("--x y.npy", "x has 5 elements, but op(A) is 5 x 7 (A 5 x 7, trans N) and needs 7"),
        ("--x x.npy --trans T", "x has 7 elements, but op(A) is 7 x 5 (A 5 x 7, trans T)"),
        ("--x x.npy --y x.npy", "y has 7 elements"),
        ("--x x.npy --alpha two", "argument --alpha: 'two' is no number"),
        ("--x x.npy --beta", "argument --beta: expected one argument"),
        ("--x x.npy --trans H", "argument --trans: 'H' is none of N, T, C"),
        ("--x x.npy --dtype half", "argument --dtype: 'half' is none of s, f32, float32"),
        ("--x x.npy --dtype d --alpha 1j", "alpha is complex, and float64 would lose"),
        ("--x z.npy --dtype s", "x is complex, and float32 would lose"),
        ("--x x.npy --backend tpu", "argument --backend: invalid choice: 'tpu'"),
        ("--x x.npy --rows 3", "unrecognized arguments: --rows 3"),
        ("", "the following arguments are required: --x"),
    ],
)
def test_run_refuses_options(folder, capsys, options, says):
    np.save("z.npy", whole(7, dtype="complex128"))
    assert says in refused(capsys, "--a", "A.npy", "-o", "out.npy", *options.split())
    assert not Path("out.npy").exists()


def test_run_refuses_unknown_kernel_and_lists_the_known(folder, capsys):
    if gemv.backend() == "host":
        pytest.skip("the host backend has no kernels")
    line = refused(capsys, *"--a A.npy --x x.npy -o out.npy --kernel fastest".split())
    assert "fastest" in line
    assert "thread_per_row" in line


@pytest.mark.parametrize(
    ("output", "says"),
    [
        ("nowhere/out.npy", "there is no directory nowhere"),
        ("folder.npy", "it is a directory"),
        ("out.txt", "must end in .npy or .mtx"),
        ("x.npy/out.npy", "there is no directory x.npy"),
    ],
)
def test_run_refuses_output_before_it_reads(folder, capsys, output, says):
    Path("folder.npy").mkdir()
    assert says in refused(capsys, "--a", "missing.npy", "--x", "x.npy", "-o", output)


def test_run_refuses_full_device(folder, capsys):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    Path("full.npy").symlink_to("/dev/full")
    line = refused(capsys, *"--a A.npy --x x.npy -o full.npy".split())
    assert "cannot write full.npy: No space left on device" in line


def test_run_refuses_the_gpu_where_there_is_none(folder):
    done = python(
        *"-m gemv run --a A.npy --x x.npy -o out.npy --backend cuda".split(),
        env={"NUMBA_ENABLE_CUDASIM": "0", "CUDA_VISIBLE_DEVICES": "-1"},
    )
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("gemv run: the cuda backend was asked for")


def test_run_without_gpu_says_that_scipy_computes(folder):
    done = python(
        *"-m gemv run --a A.npy --x x.npy -o out.npy".split(),
        env={"NUMBA_ENABLE_CUDASIM": "0", "CUDA_VISIBLE_DEVICES": "-1", "GEMV_BACKEND": ""},
    )
    assert done.returncode == 0, done.stderr
    (note,) = done.stderr.splitlines()
    assert note.startswith("gemv run: note: ")
    assert " on host" in done.stdout
    assert np.array_equal(np.load("out.npy"), np.load("A.npy") @ np.load("x.npy"))
