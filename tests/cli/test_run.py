"""``python -m gemv run``: what it computes, and what it writes."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import python, refused, whole
from helpers.problems import largest_file

import gemv
from gemv.cli.main import main


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("trans", ["N", "T", "C"])
def test_run_computes(folder, capsys, dtype, trans):
    a = whole(5, 7, dtype=dtype)
    op = {"N": a, "T": a.T, "C": a.conj().T}[trans]
    x, y = whole(op.shape[1], dtype=dtype), whole(op.shape[0], dtype=dtype)
    for name, array in (("A", a), ("x", x), ("y", y)):
        np.save(name, array)
    status = main(
        "run --a A.npy --x x.npy --y y.npy --alpha 2 --beta -1 -o out.npy --trans".split() + [trans]
    )
    out, err = capsys.readouterr()
    assert (status, err) == (0, "")
    got = np.load("out.npy")
    assert got.dtype == a.dtype
    assert np.array_equal(got, 2 * (op @ x) - y)
    # one line that tells what ran, on the backend of this process
    (line,) = out.splitlines()
    assert f"A 5 x 7 {dtype}" in line
    assert f" on {gemv.backend()}" in line
    assert ("first-call" in line) == (gemv.backend() != "simulator")


def test_run_kernel_by_name(folder, capsys):
    if gemv.backend() == "host":
        pytest.skip("the host backend has no kernels")
    assert main("run --a A.npy --x x.npy --kernel serial -o out.npy".split()) == 0
    assert f": serial on {gemv.backend()}" in capsys.readouterr().out
    assert np.array_equal(np.load("out.npy"), np.load("A.npy") @ np.load("x.npy"))


@pytest.mark.parametrize(
    ("alpha", "value"), [("-1+2j", -1 + 2j), ("1 - 1j", 1 - 1j), ("-3", -3), ("-2e0", -2)]
)
def test_run_scalars(folder, alpha, value):
    assert main(["run", *"--a A.npy --x x.npy -o out.npy --alpha".split(), alpha]) == 0
    got = np.load("out.npy")
    assert got.dtype.kind == ("c" if isinstance(value, complex) else "f")
    assert np.array_equal(got, value * (np.load("A.npy") @ np.load("x.npy")))


@pytest.mark.parametrize(
    ("stored", "asked", "computed"),
    [
        ("int16", None, "float64"),
        ("bool", None, "float64"),
        ("float16", None, "float32"),
        (">f8", None, "float64"),
        ("float64", "s", "float32"),
        ("float32", "complex128", "complex128"),
    ],
)
def test_run_dtype(folder, stored, asked, computed):
    a, x = whole(5, 7).astype(stored), whole(7).astype(stored)
    np.save("A.npy", a)
    np.save("x.npy", x)
    options = [] if asked is None else ["--dtype", asked]
    assert main(["run", *"--a A.npy --x x.npy -o out.npy".split(), *options]) == 0
    got = np.load("out.npy")
    assert got.dtype == computed
    assert np.array_equal(got, a.astype("float64") @ x.astype("float64"))


def test_run_fortran_order_and_mapped_file(folder, monkeypatch):
    # every file is mapped instead of read when the limit is 0
    monkeypatch.setattr("gemv.cli.array_files.LARGE_BYTES", 0)
    a = np.asfortranarray(np.load("A.npy"))
    np.save("A.npy", a)
    assert main("run --a A.npy --x x.npy -o out.npy".split()) == 0
    assert np.array_equal(np.load("out.npy"), a @ np.load("x.npy"))


def test_run_matrix_market(folder, capsys):
    from scipy.io import mmread, mmwrite
    from scipy.sparse import coo_array

    a, x = np.load("A.npy"), np.load("x.npy")
    mmwrite("dense.mtx", a)
    mmwrite("sparse.mtx", coo_array(a))
    mmwrite("x.mtx", x.reshape(-1, 1))

    assert main("run --a dense.mtx --x x.mtx -o out.npy".split()) == 0
    assert capsys.readouterr().err == ""
    assert np.array_equal(np.load("out.npy"), a @ x)

    assert main("run --a sparse.mtx --x x.npy -o out.mtx".split()) == 0
    (note,) = capsys.readouterr().err.splitlines()
    assert note == "gemv run: note: sparse.mtx is sparse; it is computed as a dense matrix"
    assert np.array_equal(mmread("out.mtx").reshape(-1), a @ x)


@pytest.mark.parametrize("suffix", ["npy", "mtx"])
def test_run_streams_a_matrix_that_does_not_fit(folder, capsys, suffix):
    a, x = whole(64, 24), whole(24)
    if suffix == "npy":
        np.save("large.npy", a)
    else:
        from scipy.io import mmwrite

        mmwrite("large.mtx", a)
    np.save("v.npy", x)
    arguments = ["--a", f"large.{suffix}", "--x", "v.npy", "-o", "out.npy"]
    arguments += ["--kernel", "block_per_row"]
    assert main(["run", *arguments, "--device-memory-limit", "7K"]) == 0
    out, err = capsys.readouterr()
    assert " panels on " in out and err == ""
    assert np.load("out.npy").tolist() == (a @ x).tolist()
    line = refused(capsys, *arguments, "--device-memory-limit", "100")
    assert "takes 12288 bytes" in line and "device_memory_limit is 100 bytes" in line


@pytest.mark.parametrize("text", ["0", "-5", "4X", "many", "1.5", "nanG"])
def test_run_refuses_a_limit_that_is_none(folder, capsys, text):
    line = refused(
        capsys, "--a", "A.npy", "--x", "x.npy", "-o", "o.npy", f"--device-memory-limit={text}"
    )
    assert "is no number of bytes" in line


def test_progress_of_a_stream_is_shown(folder, monkeypatch):
    seen = []
    monkeypatch.setattr("gemv.cli.array_files.LARGE_BYTES", 0)

    @contextlib.contextmanager
    def progress(description, show):
        assert show
        yield lambda done, total, what: seen.append((done, total))

    monkeypatch.setattr("gemv.cli.run.progress", progress)
    a, x = whole(64, 24), whole(24)
    np.save("large.npy", a)
    np.save("v.npy", x)
    files = ["--a", "large.npy", "--x", "v.npy", "-o", "out.npy", "--kernel", "block_per_row"]
    assert main(["run", *files, "--device-memory-limit", "7K"]) == 0
    assert (a.nbytes, a.nbytes) in seen
    assert len([done for done, total in seen if total == a.nbytes]) > 2


@pytest.mark.parametrize("named", ["A.npy", "x.npy", "y.npy"])
@pytest.mark.parametrize("how", ["itself", "another path", "symlink", "hard link"])
def test_run_refuses_an_output_that_is_an_input(folder, capsys, named, how):
    output = {"itself": named, "another path": f"../{folder.name}/{named}"}.get(how, "link.npy")
    if how == "symlink":
        Path(output).symlink_to(named)
    elif how == "hard link":
        os.link(named, output)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    line = refused(capsys, *"--a A.npy --x x.npy --y y.npy --beta 1 -o".split(), output)
    assert f"cannot write {output}: it is the file of --{named[0].lower()} ({named})" in line
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.skipif(sys.platform == "win32", reason="limits are set another way there")
@pytest.mark.parametrize("name", ["out.npy", "out.mtx", "link.npy"])
@pytest.mark.parametrize("there", [True, False], ids=["over a file", "new"])
def test_run_on_a_full_disk_leaves_the_old_file_whole(folder, capsys, name, there):
    np.save("A.npy", whole(5000, 2))
    np.save("x.npy", whole(2))
    if name == "link.npy":
        Path("elsewhere").mkdir()
        Path(name).symlink_to("elsewhere/out.npy")
    if there:
        Path(name).write_bytes(b"what was there")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with largest_file(8192):
        line = refused(capsys, *"--a A.npy --x x.npy --backend host -o".split(), name)
    assert line == f"gemv run: cannot write {name}: File too large"
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert after == before


@pytest.mark.skipif(sys.platform == "win32", reason="permissions are another thing there")
def test_run_writes_with_the_permissions_of_any_new_file(folder):
    command = "run --a A.npy --x x.npy -o".split()
    Path("linked.npy").symlink_to("out.npy")
    before = os.umask(0o027)
    try:
        assert main([*command, "out.npy"]) == 0
        assert Path("out.npy").stat().st_mode & 0o777 == 0o640
        # those that the old file has stay, and a link stays a link
        Path("out.npy").chmod(0o604)
        assert main([*command, "linked.npy"]) == 0
    finally:
        os.umask(before)
    assert Path("out.npy").stat().st_mode & 0o777 == 0o604
    assert Path("linked.npy").is_symlink() and not Path("out.npy").is_symlink()
    assert np.array_equal(np.load("out.npy"), np.load("A.npy") @ np.load("x.npy"))
    assert sorted(path.name for path in folder.iterdir()) == [
        "A.npy", "linked.npy", "out.npy", "x.npy", "y.npy"
    ]  # fmt: skip


def test_run_writes_where_a_link_points_that_points_nowhere_yet(folder, capsys):
    Path("there").mkdir()
    Path("out.npy").symlink_to("there/new.npy")
    Path("lost.npy").symlink_to("nowhere/new.npy")
    Path("loop.npy").symlink_to("loop.npy")
    files = "--a A.npy --x x.npy -o".split()
    assert main(["run", *files, "out.npy"]) == 0
    assert Path("out.npy").is_symlink()
    assert np.array_equal(np.load("there/new.npy"), np.load("A.npy") @ np.load("x.npy"))
    capsys.readouterr()
    assert "there is no directory " in refused(capsys, *files, "lost.npy")
    assert "cannot write loop.npy: Too many levels" in refused(capsys, *files, "loop.npy")


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="no /dev/stdout here")
@pytest.mark.parametrize("suffix", ["npy", "mtx"])
def test_run_writes_to_standard_output_and_to_devices(folder, suffix):
    Path(f"out.{suffix}").symlink_to("/dev/stdout")
    Path("null.npy").symlink_to("/dev/null")
    files = [*"-m gemv run --a A.npy --x x.npy --backend host -o".split()]
    done = python(*files, f"out.{suffix}", text=False, encoding=None)
    assert (done.returncode, done.stderr) == (0, b"")
    if suffix == "npy":
        got = np.load(io.BytesIO(done.stdout))
    else:
        from scipy.io import mmread

        got = mmread(io.BytesIO(done.stdout[: done.stdout.index(b"dgemv")])).reshape(-1)
    assert np.array_equal(got, np.load("A.npy") @ np.load("x.npy"))
    assert python(*files, "null.npy").returncode == 0
    assert Path("null.npy").is_symlink() and Path("/dev/null").is_char_device()
