"""The command line: what it computes, what it prints, and how it refuses."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import processes
from helpers.problems import largest_file

import gemv
from gemv.cli.main import main

TOP = Path(__file__).resolve().parents[2]
RNG = np.random.default_rng(7)


def python(*arguments, env=None, **options):
    """``python ARGUMENTS`` in a process of its own, output piped."""
    options = {"capture_output": True, "text": True, "encoding": "utf-8", "timeout": 300} | options
    # found from any working directory, installed or not
    path = os.pathsep.join(filter(None, [str(TOP), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8", **(env or {})}
    return processes.run([sys.executable, *arguments], env=environment, **options)


def whole(*shape, dtype="float64"):
    """Small whole numbers: every sum is exact, so answers can be compared for equality."""
    values = RNG.integers(-4, 5, shape).astype(dtype)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * RNG.integers(-4, 5, shape).astype(values.real.dtype)
    return values.astype(dtype)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with A (5 x 7), x of 7, y of 5 and some broken files."""
    monkeypatch.chdir(tmp_path)
    np.save("A.npy", whole(5, 7))
    np.save("x.npy", whole(7))
    np.save("y.npy", whole(5))
    return tmp_path


def refused(capsys, *arguments, command="run"):
    """Run in process; assert exit status 2 and one line on standard error; return the line."""
    try:
        status = main([command, *map(str, arguments)])
    except SystemExit as leaving:
        status = leaving.code
    out, err = capsys.readouterr()
    assert status == 2, (out, err)
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith(f"gemv {command}: ")
    return line


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


# --------------------------------------------------------------------------------------------------
# run


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


# --------------------------------------------------------------------------------------------------
# info


def test_info_is_the_default_and_passes_its_check(capsys, tmp_path, monkeypatch):
    # A directory that no other test fills in the meantime.
    monkeypatch.setenv("GEMV_CACHE_DIR", str(tmp_path))
    assert main([]) == 0
    capsys.readouterr()
    assert main([]) == 0
    plain = capsys.readouterr().out
    assert main(["info"]) == 0
    assert capsys.readouterr().out == plain
    for text in (gemv.__version__, "numba-cuda ", "thread_per_row", f"on {gemv.backend()}"):
        assert text in plain
    assert "self-check     passed" in plain


BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise {error}
sys.meta_path.insert(0, Blocker())
from gemv.cli.main import main
sys.exit(main({arguments!r}))
"""


@pytest.mark.parametrize(
    ("blocked", "error"),
    [
        (["numpy"], "ModuleNotFoundError(f'no module {name}')"),
        (["numpy"], "RuntimeError('built for another NumPy')"),
        (["numba"], "ImportError('broken')"),
        (["numpy", "numba", "scipy", "rich", "greenlet"], "ImportError('gone')"),
    ],
)
def test_info_prints_whatever_is_broken(blocked, error):
    code = BLOCKED.format(blocked=blocked, error=error, arguments=["info"])
    done = python("-c", code)
    assert done.returncode in (0, 1)
    assert done.stderr == ""
    for title in ("gemv", "Python", "packages", "GPU", "backend", "kernels", "self-check"):
        assert f"\n{title} " in f"\n{done.stdout}"
    if "numpy" in blocked:
        assert done.returncode == 1
        assert "self-check     failed" in done.stdout


def test_run_without_numpy_is_one_line(tmp_path):
    arguments = "run --a A.npy --x x.npy -o out.npy".split()
    code = BLOCKED.format(blocked=["numpy"], error="ImportError('gone')", arguments=arguments)
    done = python("-c", code, cwd=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("gemv run: ")


def test_info_into_a_closed_pipe():
    command = [sys.executable, "-m", "gemv"]
    with processes.started(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline().startswith("gemv ")
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(300) == 0


def test_unknown_command_is_one_line(capsys):
    with pytest.raises(SystemExit) as leaving:
        main(["dance"])
    assert leaving.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gemv: ")


# --------------------------------------------------------------------------------------------------
# ladder

SMALL = "ladder --m 9 --n 17 --kernels serial,block_per_row".split()


@pytest.mark.parametrize("dtype", ["f32", "c128"])
def test_ladder_in_the_simulator(tmp_path, dtype):
    # without a GPU the command starts itself again in the simulator; with one it is told to
    done = python(
        *("-m", "gemv", *SMALL, "--dtype", dtype, "--order", "F", "--op", "C"),
        *("--json", str(tmp_path / "ladder.json")),
        env={"NUMBA_ENABLE_CUDASIM": "0", "CUDA_VISIBLE_DEVICES": "-1", "GEMV_BACKEND": ""},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no bar where nobody watches
    first, *rest = done.stdout.splitlines()
    assert first.startswith("No GPU here")
    text = "\n".join(rest)
    assert text.isprintable() or "\x1b" not in text, "plain when piped"
    assert "9 x 17" in text
    assert "simulator's time says nothing" in text
    for name in ("serial", "block_per_row"):
        (row,) = [line.split() for line in rest if name in line.split()]
        assert row[-4:-1] == ["–", "–", "–"]
        assert 0 <= float(row[-1]) <= 1

    stored = json.loads((tmp_path / "ladder.json").read_text("utf-8"))
    assert stored["backend"] == "simulator"
    assert [row["name"] for row in stored["rows"]] == ["serial", "block_per_row"]
    assert all(row["time_s"] is None for row in stored["rows"])


def test_ladder_reports_a_wrong_kernel(capsys, monkeypatch):
    if gemv.backend() == "host":
        pytest.skip("the host backend has no kernels")

    from gemv.measure import ladder

    measure = ladder.ladder

    def wrong(*arguments, **keywords):
        measured = measure(*arguments, **keywords)
        object.__setattr__(measured.rows[0], "error", float("nan"))
        return measured

    monkeypatch.setattr(ladder, "ladder", wrong)
    assert main(SMALL) == 1
    assert capsys.readouterr().err == "gemv ladder: error above the bound: serial\n"


def test_ladder_names_the_refusal(capsys):
    if gemv.backend() == "host":
        pytest.skip("the host backend has no kernels")
    assert main("ladder --m 3 --n 1500 --kernels threads_are_columns,warp_per_row".split()) == 0
    out = capsys.readouterr().out
    (row,) = [line for line in out.splitlines() if "threads_are_columns" in line]
    assert "refused: " in row


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--m 0", "argument --m: '0' is no whole number of at least 1"),
        ("--n many", "argument --n: 'many' is no whole number"),
        ("--dtype f8", "argument --dtype: 'f8' is none of"),
        ("--order K", "argument --order: invalid choice: 'K'"),
        ("--op H", "argument --op: invalid choice: 'H'"),
        ("--kernels serial,fastest", "fastest"),
        ("--json nowhere/x.json", "there is no directory nowhere"),
        ("--json x.txt", "must end in .json"),
    ],
)
def test_ladder_refuses(folder, capsys, options, says):
    if gemv.backend() == "host" and "kernels" in options:
        pytest.skip("the host backend has no kernels")
    assert says in refused(capsys, *options.split(), command="ladder")


def test_ladder_refuses_the_host_backend():
    done = python("-m", "gemv", *SMALL, env={"GEMV_BACKEND": "host"})
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("gemv ladder: the host backend was chosen")
