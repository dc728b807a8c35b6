"""Machine code on disk: who finds it, what makes it anew, and what happens where it cannot be kept.

Compiling needs a process without the simulator, so most tests here ask one.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from pathlib import Path

import processes
import pytest

import gemv
from gemv import _cache
from gemv._cache import Binary

PACKAGE = Path(gemv.__file__).parent

#: Selects a kernel for an H200 and gets its machine code, as the launch path does.
ASK = """
import json, sys, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from gemv import _cache
    from gemv._measure import make_problem
    from gemv._problem import DTYPES, Device
    from gemv._select import select

    device = Device("NVIDIA H200", (9, 0), 132)
    problem = make_problem(4096, 4096, DTYPES["s"], "C", "N").at(256, 256)
    choice = select(problem, device)
    made = _cache.binaries(choice.kernel, choice.spec, device.compute_capability)
    again = _cache.binaries(choice.kernel, choice.spec, device.compute_capability)
loaded = {name.partition(".")[0] for name in sys.modules}
print(json.dumps({
    "kernel": choice.kernel.name,
    "functions": [[f.name, f.arguments, f.cubin.hex(), f.resource("registers")] for f in made],
    "compiled": "gemv._compile" in sys.modules,
    "numba": sorted(loaded & {"numba", "llvmlite"}),
    "warnings": [str(w.message) for w in caught if w.category is _cache.CacheWarning],
    "again": again is made,
}))
"""


def ask(folder, root=PACKAGE.parent, **environment):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("GEMV_", "NUMBA_"))}
    path = os.pathsep.join(map(str, (root, os.environ.get("PYTHONPATH", ""))))
    env |= {"PYTHONPATH": path, "GEMV_CACHE_DIR": str(folder), **environment}
    command = [sys.executable, "-P", "-c", ASK]
    done = processes.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def named(answer):
    """Names and arguments; the bytes of two compilations may differ, by the names of symbols."""
    return [function[:2] for function in answer["functions"]]


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A directory, and what the process said that compiled into it."""
    folder = tmp_path_factory.mktemp("cache") / "made" / "by us"
    return folder, ask(folder)


def test_a_second_process_compiles_nothing_and_does_not_import_numba(filled):
    folder, first = filled
    assert first["compiled"] and "numba" in first["numba"] and first["warnings"] == []
    assert len(list(folder.iterdir())) == 1, "one file a kernel, and no temporary one"
    second = ask(folder)
    assert second["functions"] == first["functions"]
    assert not second["compiled"] and second["numba"] == []
    assert second["again"] and len(second["functions"][0][2]) > 2000


def test_a_broken_file_is_compiled_anew(filled, tmp_path):
    folder, first = filled
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[-100] ^= 1
    copy = tmp_path / file.name
    for broken in (whole[:-1], bytes(flipped), b"", b"\n"):
        copy.write_bytes(broken)
        assert load_from(tmp_path, file.stem) is None
    answer = ask(tmp_path)
    assert answer["compiled"] and named(answer) == named(first)
    assert load_from(tmp_path, file.stem) is not None and len(copy.read_bytes()) > 2000


def load_from(folder, name):
    os.environ["GEMV_CACHE_DIR"], before = str(folder), os.environ.get("GEMV_CACHE_DIR")
    try:
        return _cache.load(name)
    finally:
        if before is None:
            del os.environ["GEMV_CACHE_DIR"]
        else:
            os.environ["GEMV_CACHE_DIR"] = before


@pytest.mark.parametrize("edited", ["_intrinsics.py", "kernels/_device.py"])
def test_editing_device_source_compiles_anew(filled, tmp_path, edited):
    folder, first = filled
    mine = tmp_path / "cache"
    shutil.copytree(folder, mine)
    shutil.copytree(PACKAGE, tmp_path / "gemv", ignore=shutil.ignore_patterns("__pycache__"))
    unchanged = ask(mine, root=tmp_path)
    assert not unchanged["compiled"], "the place of the package does not matter"
    source = tmp_path / "gemv" / edited
    source.write_text(source.read_text("utf-8") + "\n# edited\n", "utf-8")
    answer = ask(mine, root=tmp_path)
    assert answer["compiled"] and named(answer) == named(first)
    assert len(list(mine.iterdir())) == 2


def test_settings_of_numba_compile_anew(filled, monkeypatch):
    names = []
    for value in ("0", "3"):
        monkeypatch.setenv("NUMBA_OPT", value)
        _cache._fingerprint.cache_clear()
        names.append(_cache.key("serial", "spec", (9, 0)))
    monkeypatch.undo()
    _cache._fingerprint.cache_clear()
    names.append(_cache.key("serial", "spec", (9, 0)))
    names.append(_cache.key("serial", "another spec", (9, 0)))
    names.append(_cache.key("serial", "spec", (8, 0)))
    assert len(set(names)) == 5


def test_the_key_covers_every_module_that_can_reach_a_kernel(tmp_path):
    for path in PACKAGE.rglob("*.py"):
        (tmp_path / path.relative_to(PACKAGE)).parent.mkdir(exist_ok=True)
        shutil.copy(path, tmp_path / path.relative_to(PACKAGE))
    before = _cache.source_hash(tmp_path)
    assert before == _cache.source_hash(PACKAGE)
    for name in ("_intrinsics.py", "_vectors.py", "_compile.py", "kernels/_base.py"):
        text = (tmp_path / name).read_text("utf-8")
        (tmp_path / name).write_text(text + " ", "utf-8")
        assert _cache.source_hash(tmp_path) != before
        (tmp_path / name).write_text(text, "utf-8")


@pytest.mark.skipif(os.name == "nt", reason="a file in the way is another error there")
def test_without_a_writable_directory_everything_works_with_one_warning(filled, tmp_path):
    (tmp_path / "file").write_text("in the way")
    answer = ask(tmp_path / "file" / "below")
    assert answer["compiled"] and named(answer) == named(filled[1])
    (warning,) = answer["warnings"]
    assert "GEMV_CACHE_DIR" in warning and "GEMV_CACHE=0" in warning


def test_switched_off(filled, tmp_path):
    answer = ask(tmp_path, GEMV_CACHE="0")
    assert answer["compiled"] and answer["warnings"] == []
    assert list(tmp_path.iterdir()) == []


def binary(size, name="f"):
    cubin = bytes(range(256)) * (size // 256)
    return Binary(name, ("rows", "a"), "ptx", cubin, "Used 40 registers")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMV_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_what_is_stored_is_loaded_but_for_the_ptx(folder):
    assert _cache.load("nothing") is None
    _cache.store("two", (binary(256), binary(512, "g")))
    first, second = _cache.load("two")
    assert (first.name, first.arguments, first.ptx) == ("f", ("rows", "a"), "")
    assert first.cubin == binary(256).cubin and second.cubin == binary(512).cubin
    assert second.name == "g" and second.resource("registers") == 40


def test_the_files_used_longest_ago_make_room(folder, monkeypatch):
    monkeypatch.setattr(_cache, "MAX_BYTES", 4000)
    for number in range(3):
        _cache.store(f"file{number}", (binary(1024),))
        os.utime(folder / f"file{number}.gemv", (number + 1, number + 1))
    assert _cache.load("file0") is not None  # used now
    _cache.store("file3", (binary(1024),))
    assert {path.stem for path, _, _ in _cache.entries()} == {"file0", "file2", "file3"}
    assert sum(size for _, size, _ in _cache.entries()) <= 4000


def test_what_dead_processes_left_is_swept(folder):
    (folder / ".new-old").write_bytes(b"x")
    os.utime(folder / ".new-old", (1, 1))
    (folder / ".new-young").write_bytes(b"x")
    _cache.store("file", (binary(256),))
    assert sorted(p.name for p in folder.iterdir()) == [".new-young", "file.gemv"]


def test_clear(folder):
    _cache.store("one", (binary(256),))
    (folder / "mine.txt").write_text("not ours")
    assert _cache.clear() == 1
    assert [p.name for p in folder.iterdir()] == ["mine.txt"]


def test_processes_that_write_at_once_leave_whole_files(folder):
    code = (
        "from gemv import _cache\nfrom gemv._cache import Binary\n"
        "for turn in range(200):\n"
        "    _cache.store('same', (Binary('f', (), '', bytes(50000), ''),))\n"
        "    found = _cache.load('same')\n"
        "    assert found is not None and found[0].cubin == bytes(50000), turn\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-P", "-c", code]
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(processes.started(command, env=env)) for _ in range(3)]
        assert [process.wait(timeout=120) for process in running] == [0, 0, 0]
    assert [p.name for p in folder.iterdir()] == ["same.gemv"]


def test_directory(monkeypatch):
    monkeypatch.delenv("GEMV_CACHE_DIR", raising=False)
    monkeypatch.delenv("GEMV_CACHE", raising=False)
    if os.name != "nt":
        monkeypatch.setenv("XDG_CACHE_HOME", os.path.join("somewhere", "else"))
        assert _cache.directory() == Path("somewhere", "else", "gemv")
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("HOME", os.path.join("a", "user"))
        assert _cache.directory() == Path("a", "user", ".cache", "gemv")
    for off in ("0", "off"):
        monkeypatch.setenv("GEMV_CACHE", off)
        assert _cache.directory() is None and _cache.entries() == []


def test_the_command_line_shows_and_clears(folder, capsys):
    from gemv._cli import main

    _cache.store("one", (binary(1 << 20),))
    assert main(["cache"]) == 0
    shown = capsys.readouterr().out
    assert str(folder) in shown and "1 compiled kernel, 1.0 MiB of 128" in shown
    assert main(["cache", "--clear"]) == 0
    assert "removed 1 compiled kernel\n" in capsys.readouterr().out
    assert list(folder.iterdir()) == []


HALVES = """
import json, sys
from gemv.kernels import REGISTRY
from gemv._measure import make_problem
from gemv._problem import DTYPES, Device
from gemv._select import select

def shown():
    found = []
    for name, kernel in REGISTRY.items():
        for order in "CF":
            for shape in ((1, 1), (300, 2), (3, 700), (5000, 5000)):
                problem = make_problem(*shape, DTYPES["c"], order, "N").at(8, 16)
                refusal = kernel.accepts(problem)
                if refusal is None:
                    refusal = repr(select(problem, Device("a GPU", (9, 0), 100), name).geometry)
                found.append([name, kernel.rung, kernel.doc, sorted(kernel.knobs.items()), refusal])
    return found

said = shown()
without = "numba" not in sys.modules
functions = [f.__name__ for k in REGISTRY.values() for f in k.functions(k.spec(
    make_problem(8, 8, DTYPES["s"], "F" if k.name == "vector_columns" else "C", "N").at(16, 16)))]
for name in [name for name in sys.modules if name.startswith("gemv")]:
    del sys.modules[name]
import numba.cuda
from gemv.kernels import REGISTRY
from gemv._select import select
whole = all(k.build.__name__ == "build" for k in REGISTRY.values())
print(json.dumps([without, len(functions) >= len(REGISTRY), whole, said == shown()]))
"""


def test_the_hosts_half_of_a_kernel_file_is_the_whole_file_without_numba():
    """Before Numba is imported a kernel file gives the same knobs, geometry and refusals."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA_")}
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "-P", "-c", HALVES]
    done = processes.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [True, True, True, True]


FIRST_CALL = """
import sys, torch
a = torch.ones((512, 700), device="cuda")
x, y = torch.ones(700, device="cuda"), torch.zeros(512, device="cuda")
torch.cuda.synchronize()
import gemv
gemv.gemv(1.0, a, x, 0.0, y, overwrite_y=1)
torch.cuda.synchronize()
assert (y == 700).all()
print("numba" in sys.modules)
"""


@pytest.mark.gpu
def test_a_second_process_calls_with_tensors_and_without_numba(tmp_path):
    pytest.importorskip("torch")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("GEMV_", "NUMBA_"))}
    env |= {"PYTHONPATH": os.pathsep.join(sys.path), "GEMV_CACHE_DIR": str(tmp_path)}
    said = []
    for _ in range(2):
        command = [sys.executable, "-P", "-c", FIRST_CALL]
        done = processes.run(command, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.strip())
    assert said == ["True", "False"]
