"""Machine code on disk: who finds it, what makes it anew, and what happens where it cannot be kept.

Compiling needs a process without the simulator, so most tests here ask one.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import json
import os
import re
import shutil
import stat
import sys
from pathlib import Path

import pytest
from helpers import forks, processes

import gemv
from gemv.core.binary import Binary
from gemv.engines import cache, cache_folder, fingerprint

PACKAGE = Path(gemv.__file__).parent

#: Gets the machine code of the kernel that takes the compiler least, as the launch path does. What
#: the test wants done before goes in front.
ASK = """
import json, sys, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    exec({before!r})
    from gemv.measure.inputs import make_problem
    from gemv.core.dtypes import DTYPES
    from gemv.core.geometry import Device
    from gemv.engines.binaries import binaries
    from gemv.engines.cache_folder import CacheWarning
    from gemv.selection.select import select

    device = Device("NVIDIA H200", (9, 0), 132)
    problem = make_problem(4096, 4096, DTYPES["s"], "C", "N").at(256, 256)
    choice = select(problem, device, "serial")
    made = binaries(choice.kernel, choice.spec, device.compute_capability)
    again = binaries(choice.kernel, choice.spec, device.compute_capability)
loaded = {{name.partition(".")[0] for name in sys.modules}}
print(json.dumps({{
    "kernel": choice.kernel.name,
    "functions": [[f.name, f.arguments, f.cubin.hex(), f.resource("registers")] for f in made],
    "compiled": "gemv.language.numba_cuda.compile" in sys.modules,
    "numba": sorted(loaded & {{"numba", "llvmlite"}}),
    "warnings": [str(w.message) for w in caught if w.category is CacheWarning],
    "again": again is made,
}}))
"""


def environment_of_users():
    """Without what this run sets: Numba has no simulator there."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("GEMV_", "NUMBA_"))}


def with_path(root):
    """That environment, where the package below `root` comes first."""
    path = os.pathsep.join(map(str, (root, os.environ.get("PYTHONPATH", ""))))
    return environment_of_users() | {"PYTHONPATH": path}


def ask(folder, root=PACKAGE.parent, before="", **environment):
    env = with_path(root) | {"GEMV_CACHE_DIR": str(folder), **environment}
    command = [sys.executable, "-P", "-c", ASK.format(before=before)]
    done = processes.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


#: Imports Numba, and compiles a kernel for what its compiler reads once; the package is not there
#: yet. Forks then take a third of the time of other processes.
FORKS = """
import gc, os, sys
import numba.cuda
from numba import types

def kernel(rows, y):
    for i in range(rows):
        y[i] += y[0]

numba.cuda.compile_ptx(
    kernel, types.void(types.int64, types.CPointer(types.float32)), cc=(9, 0)
)

def main(arguments):
    code, root, *environment = arguments
    os.environ.update(each.split("=", 1) for each in environment)
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    sys.path.insert(0, root)
    assert not any(name.partition(".")[0] == "gemv" for name in sys.modules)
    exec(code, {{"__name__": "__main__"}})
    return 0

sys.path.append({tests!r})
from helpers.forks import fork_for_each_line
gc.freeze()
fork_for_each_line(main)
"""


@pytest.fixture(scope="module")
def asked():
    """:func:`ask`, by forks of one process that has imported Numba, where there are forks."""
    if not hasattr(os, "fork"):
        yield ask
        return
    command = [sys.executable, "-P", "-c", FORKS.format(tests=str(processes.TESTS))]
    with forks.forking(command, Path.cwd(), environment_of_users()) as run:

        def by_fork(folder, root=PACKAGE.parent, before="", **environment):
            environment = {"GEMV_CACHE_DIR": str(folder), **environment}
            facts = (f"{name}={value}" for name, value in environment.items())
            status, said = run(ASK.format(before=before), str(root), *facts)
            assert status == 0, said
            return json.loads(said.splitlines()[-1])

        yield by_fork


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


def test_a_broken_file_is_compiled_anew(filled, asked, tmp_path, monkeypatch):
    folder, first = filled
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[-100] ^= 1
    copy = tmp_path / file.name
    monkeypatch.setenv("GEMV_CACHE_DIR", str(tmp_path))
    for broken in (whole[:-1], bytes(flipped), b"", b"\n"):
        copy.write_bytes(broken)
        cache_folder.warn.cache_clear()
        with pytest.warns(cache_folder.CacheWarning, match="not whole"):
            assert cache.load(file.stem) is None
    answer = asked(tmp_path)
    assert answer["compiled"] and named(answer) == named(first)
    assert cache.load(file.stem) is not None and len(copy.read_bytes()) > 2000


@pytest.mark.parametrize("edited", ["language/numba_cuda/intrinsics.py", "language/epilogue.py"])
def test_editing_device_source_compiles_anew(filled, asked, tmp_path, edited):
    folder, first = filled
    mine = tmp_path / "cache"
    shutil.copytree(folder, mine)
    shutil.copytree(PACKAGE, tmp_path / "gemv")
    unchanged = asked(mine, root=tmp_path)
    assert not unchanged["compiled"], "the place of the package does not matter"
    source = tmp_path / "gemv" / edited
    source.write_text(source.read_text("utf-8") + "\n# edited\n", "utf-8")
    answer = asked(mine, root=tmp_path)
    assert answer["compiled"] and named(answer) == named(first)
    assert len(list(mine.iterdir())) == 2


def rename(path, there, here):
    """Give the kernel's function another name, which its machine code shows."""
    text = path.read_text("utf-8")
    for form in ("    def {}(", "return ({},)"):
        assert form.format(there) in text
        text = text.replace(form.format(there), form.format(here))
    path.write_text(text, "utf-8")


#: What a process does before it calls: it edits what it has imported, or what it has hashed.
MOMENTS = {
    "after its import": "import gemv.kernels.k01_serial\n{edit}",
    "after the package's import": "import gemv\n{edit}",
    "after the key was made": "from gemv.engines import cache\n"
    "cache.key('serial', 'any', (9, 0))\n{edit}",
    "before a reload": "import importlib, gemv.kernels.k01_serial\n{edit}\nimportlib.reload(gemv)",
    "before another import": "import sys, gemv.kernels.k01_serial\n{edit}\n"
    "del sys.modules['gemv']\nimport gemv",
}


@pytest.fixture
def copied(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "gemv")
    return tmp_path


def edited_by_itself(asked, copied, moment):
    """A process that edits a kernel at a moment; its answer, and the source before the edit."""
    kernel = copied / "gemv/kernels/k01_serial.py"
    old = kernel.read_text("utf-8")
    rename(kernel, "serial", "edited")
    new = kernel.read_text("utf-8")
    kernel.write_text(old, "utf-8")
    edit = f"import pathlib\npathlib.Path({str(kernel)!r}).write_text({new!r}, 'utf-8')"
    answer = asked(copied / "cache", root=copied, before=MOMENTS[moment].format(edit=edit))
    assert kernel.read_text("utf-8") == new
    move_on(kernel, 2)
    return answer, kernel, old


def move_on(path, seconds):
    """Give an edit a time of its own: Python overlooks one of the same size in the same second."""
    later = path.stat().st_mtime_ns + seconds * 10**9
    os.utime(path, ns=(later, later))


@pytest.mark.parametrize("moment", MOMENTS)
def test_what_is_edited_after_import_leaves_no_machine_code(asked, copied, moment):
    answer, _, _ = edited_by_itself(asked, copied, moment)
    (warning,) = answer["warnings"]
    assert answer["compiled"] and "not kept" in warning
    assert not [*copied.glob("cache/*")]


def test_each_process_runs_the_source_that_is_there(asked, copied):
    """Neither source, the old one and the new one, gets the machine code of the other."""
    _, kernel, old = edited_by_itself(asked, copied, "after the package's import")
    second = asked(copied / "cache", root=copied)
    kernel.write_text(old, "utf-8")
    move_on(kernel, 4)
    third = asked(copied / "cache", root=copied)
    assert second["functions"][0][0] == "edited", "the next process runs what is there"
    assert third["functions"][0][0] == "serial", "and so does one after the edit is undone"
    assert second["compiled"] and third["compiled"]
    assert [third["warnings"], second["warnings"]] == [[], []]


def test_an_edit_does_not_keep_a_process_from_what_its_own_source_made(asked, copied):
    """A key that was made before the edit names code of the source that was imported."""
    folder = copied / "cache"
    asked(folder, root=copied)
    (kept,) = folder.iterdir()
    path = copied / "gemv/language/epilogue.py"
    edit = f"open({str(path)!r}, 'a').write('# edited')"
    answer = asked(folder, root=copied, before=MOMENTS["after the key was made"].format(edit=edit))
    assert not answer["compiled"] and answer["warnings"] == []
    assert list(folder.iterdir()) == [kept]


def test_what_python_runs_from_old_bytecode_leaves_no_machine_code(asked, copied):
    """An edit in the second of the one before, of the same size, is one that Python overlooks."""
    kernel, folder = copied / "gemv/kernels/k01_serial.py", copied / "cache"
    writes = {"PYTHONDONTWRITEBYTECODE": ""}
    second = 1_700_000_000 * 10**9
    os.utime(kernel, ns=(second, second))
    command = [sys.executable, "-P", "-c", "import gemv.kernels.k01_serial"]
    processes.run(command, env=with_path(copied) | writes, check=True)
    bytecode = Path(importlib.util.cache_from_source(kernel))
    os.utime(bytecode, ns=(second + 10**8, second + 10**8))
    rename(kernel, "serial", "editor")
    os.utime(kernel, ns=(second + 2 * 10**8, second + 2 * 10**8))
    answer = asked(folder, root=copied, **writes)
    assert answer["functions"][0][0] == "serial", "Python has overlooked the edit"
    assert "older code" in answer["warnings"][0] and not folder.exists()
    bytecode.unlink()
    answer = asked(folder, root=copied, **writes)
    assert answer["functions"][0][0] == "editor" and answer["warnings"] == []
    assert asked(folder, root=copied, **writes)["compiled"] is False


def test_source_in_no_directory_is_compiled_in_each_process(tmp_path):
    archive = shutil.make_archive(str(tmp_path / "zipped"), "zip", PACKAGE.parent, "gemv")
    code = (
        "import warnings, gemv\nfrom gemv.engines import cache, cache_folder\n"
        "warnings.simplefilter('error')\n"
        "try:\n    cache.kept('copy', 'any', (9, 0), list)\n"
        "except cache_folder.CacheWarning as warning:\n    print(gemv.__file__, warning)"
    )
    env = {**os.environ, "PYTHONPATH": archive, "GEMV_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-P", "-c", code]
    done = processes.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(archive) and "gemv cannot be read" in done.stdout


def test_a_compiler_installed_since_its_import_leaves_no_machine_code(monkeypatch, folder):
    import llvmlite

    made = binary(256)
    monkeypatch.setattr(llvmlite, "__version__", "0.1.2")
    fingerprint.fingerprint.cache_clear()
    with pytest.warns(
        cache_folder.CacheWarning, match=r"llvmlite .* is installed, and 0\.1\.2 runs"
    ):
        assert cache.kept("serial", "any", (9, 0), lambda: (made,)) == (made,)
    assert list(folder.iterdir()) == []
    monkeypatch.undo()
    monkeypatch.setenv("GEMV_CACHE_DIR", str(folder))
    installed = fingerprint.versions()
    later = [*installed[:-1], "nvidia-nvvm 99.0"]

    def compiled():
        monkeypatch.setattr(cache, "versions", lambda: later)
        return (made,)

    with pytest.warns(cache_folder.CacheWarning, match="a compiler was installed"):
        assert cache.kept("serial", "any", (9, 0), compiled) == (made,)
    assert list(folder.iterdir()) == []


def test_a_compiler_installed_by_another_tool_is_named(monkeypatch):
    """Its metadata is not in a dist-info directory, and no metadata at all means no cache."""
    import importlib.metadata

    found = fingerprint.installed_versions()
    (named,) = [each for each in fingerprint.versions() if each.startswith("llvmlite ")]
    without = {name: version for name, version in found.items() if name != "llvmlite"}
    monkeypatch.setattr(fingerprint, "installed_versions", lambda: without)
    assert named in fingerprint.versions()

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(fingerprint.Unknown, match="llvmlite can be imported"):
        fingerprint.versions()


def test_two_versions_in_a_folder_are_both_named(tmp_path, monkeypatch):
    """An installer that fails may leave the old one's metadata; a folder later counts for less."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, name in (
        (first, "some.tool-1.0"), (first, "Some_Tool-2.0"), (second, "some_tool-3.0"),
        (second, "other-4.0"),
    ):  # fmt: skip
        (folder / f"{name}.dist-info").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(first), str(second)])
    found = fingerprint.installed_versions()
    assert sorted(found.pop("some_tool").split()) == ["1.0", "2.0"]
    assert found == {"other": "4.0"}


def test_settings_of_numba_compile_anew(monkeypatch, folder):
    from numba.core import config

    def name():
        return cache.key("serial", "spec", (9, 0))

    plain = name()
    names = [plain, cache.key("serial", "another spec", (9, 0))]
    names += [cache.key("serial", "spec", (8, 0))]
    for variable, value in (
        ("OPT", "0"),
        ("CUDA_DEBUGINFO", "1"),
        ("FORCE_CUDA_CC", "8.0"),
        ("DEBUG_JIT", "1"),
    ):
        monkeypatch.setenv(f"NUMBA_{variable}", value)
        names.append(name())
        monkeypatch.delenv(f"NUMBA_{variable}")
        assert name() == plain, "Numba reads its variables again for each compilation"
    assert len(set(names)) == len(names)
    for variable, value in (("OPT", "3"), ("CACHE_DIR", "/a/job"), ("NUM_THREADS", "2")):
        monkeypatch.setenv(f"NUMBA_{variable}", value)
        assert name() == plain, "the machine code is the same"
        monkeypatch.delenv(f"NUMBA_{variable}")
    assert name() == plain
    with monkeypatch.context() as changed:
        changed.setattr(config, "OPT", 0)
        assert name() == names[3], "set in the process or in the environment"

    def compiled():
        monkeypatch.setattr(config, "OPT", 0)
        return (binary(256),)

    with pytest.warns(cache_folder.CacheWarning, match="settings changed"):
        cache.kept("serial", "spec", (9, 0), compiled)
    assert list(folder.iterdir()) == []

    def refuse():
        raise RuntimeError("the threads run already")

    monkeypatch.setattr(config, "reload_config", refuse)
    with pytest.warns(cache_folder.CacheWarning, match="the threads run already"):
        assert cache.kept("serial", "spec", (9, 0), lambda: (binary(256),)) == (binary(256),)


KEY = """
import sys
from gemv.engines import cache
print(cache.key("serial", "spec", (9, 0)), "numba" in sys.modules)
"""


def key_of_process(place, **environment):
    env = environment_of_users() | {"PYTHONPATH": str(PACKAGE.parent), **environment}
    command = [sys.executable, "-P", "-c", KEY]
    done = processes.run(command, env=env, cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_job_with_directories_of_its_own_finds_what_others_compiled(tmp_path):
    plain, numba = key_of_process(tmp_path)
    assert numba == "False"
    own = {"NUMBA_CACHE_DIR": "/jobs/17", "NUMBA_NUM_THREADS": "2", "NUMBA_CUDA_LOG_LEVEL": "INFO"}
    assert key_of_process(tmp_path, **own) == [plain, "False"]
    counted, _ = key_of_process(tmp_path, NUMBA_CUDA_ENABLE_NRT="1")
    unoptimized, _ = key_of_process(tmp_path, NUMBA_OPT="0")
    assert len({plain, counted, unoptimized}) == 3
    pytest.importorskip("yaml")
    (tmp_path / ".numba_config.yaml").write_text('opt: "0"\n')
    assert key_of_process(tmp_path) == [unoptimized, "True"], "Numba reads this file too"


#: Names in numba-cuda's source of what changes no kernel: compiled with each of them, PTX is the
#: same. (Nor do the ones of which these are the beginning.)
IDLE = (
    "ALWAYS_WARN", "BOUNDSCHECK", "CACHE_DIR", "CHROME_TRACE", "COLOR_SCHEME", "CPU_",
    "CUDA_ARRAY_INTERFACE", "CUDA_DEALLOCS", "CUDA_DEFAULT_PTX_CC", "CUDA_DRIVER",
    "CUDA_INCLUDE_PATH", "CUDA_LOG", "CUDA_LOW_OCCUPANCY", "CUDA_MAX_PENDING",
    "CUDA_MEMORY_MANAGER", "CUDA_NRT_STATS", "CUDA_NVRTC", "CUDA_PER_THREAD", "CUDA_USE_NVIDIA",
    "CUDA_VERBOSE", "CUDA_WARN", "DEBUG_ARRAY", "DEBUG_CACHE", "DEBUG_FRONTEND", "DEBUG_INLINE",
    "DEBUG_NRT", "DEBUG_PRINT", "DEBUG_TYPEINFER", "DEBUGINFO", "DEVELOPER_MODE", "DIFF_IR",
    "DISABLE_", "DUMP_", "ENABLE_", "EXTEND_VARIABLE", "FULL_TRACEBACKS", "FUNCTION_CACHE",
    "GDB_BINARY", "HIGHLIGHT_DUMPS", "JIT_COVERAGE", "LLVM_", "LOOP_VECTORIZE", "NRT_STATS",
    "NUM_THREADS", "PARALLEL_", "PARFOR_", "SHOW_HELP", "SLP_VECTORIZE", "THREADING_LAYER",
    "TRACE", "USE_LLVMLITE",
)  # fmt: skip


def test_every_variable_that_numba_cuda_reads_is_known_to_shape_code_or_not():
    """A release of numba-cuda that reads another one fails here, until somebody has looked."""
    spec = importlib.util.find_spec("numba_cuda")
    read = set()
    for path in Path(spec.origin).parent.rglob("*.py"):
        if "tests" not in path.parts:
            text = path.read_text("utf-8")
            read |= set(re.findall(r"""(?:_readenv|environ\.get)\(\s*["']NUMBA_(\w+)""", text))
    assert len(read) > 80
    shaping = {name.removeprefix("NUMBA_") for name in fingerprint._SETTINGS}
    assert shaping < read
    unknown = {name for name in read - shaping if name != "DEBUG" and not name.startswith(IDLE)}
    assert not unknown


def test_editing_any_file_that_shapes_machine_code_makes_another_key(copied):
    """Every file of the rooms that kernels come from, and no file of another room."""
    shaping = {
        str(copied / "gemv" / path.relative_to(PACKAGE))
        for room in fingerprint.ROOMS
        for path in (PACKAGE / room).rglob("*.py")
    }
    shaping.add(str(copied / "gemv" / "engines" / "binaries.py"))
    elsewhere = {str(path) for path in (copied / "gemv").rglob("*.py")} - shaping
    code = (
        "import json, pathlib, sys\n"
        "keys = []\n"
        "for edited in json.load(sys.stdin):\n"
        "    texts = {path: path.read_text('utf-8') for path in map(pathlib.Path, edited)}\n"
        "    for path, text in texts.items():\n"
        "        path.write_text(text + '# ', 'utf-8')\n"
        "    for name in [n for n in sys.modules if n.partition('.')[0] == 'gemv']:\n"
        "        del sys.modules[name]\n"
        "    import gemv.engines.cache\n"
        "    keys.append(gemv.engines.cache.key('serial', 'spec', (9, 0)))\n"
        "    for path, text in texts.items():\n"
        "        path.write_text(text, 'utf-8')\n"
        "print(*keys)"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA_")}
    env["PYTHONPATH"] = str(copied)
    command = [sys.executable, "-P", "-c", code]
    # None; each by itself; and all that must change nothing together.
    edits = [[], *([path] for path in sorted(shaping)), sorted(elsewhere)]
    done = processes.run(command, env=env, capture_output=True, text=True, input=json.dumps(edits))
    assert done.returncode == 0, done.stderr
    keys = done.stdout.split()
    assert len(keys) == len(edits) and len(elsewhere) > 100
    assert keys[-1] == keys[0] and len(set(keys)) == len(shaping) + 1
    assert {Path(each).name for each in shaping} >= {"compile.py", "loads.py", "epilogue.py"}


def test_device_code_comes_from_the_rooms_whose_source_is_hashed():
    """What a kernel's compilation imports of the package, and nothing of it lies elsewhere."""
    code = (
        "import sys\n"
        "from gemv.kernels import REGISTRY\n"
        "from gemv.kernels.spec import Spec\n"
        "import numpy as np\n"
        "from gemv.language.numba_cuda import compile\n"
        "from gemv.driver import machine_ir\n"
        "for kernel in REGISTRY.values():\n"
        "    constants = tuple(sorted(kernel.knobs.items()))\n"
        "    kernel.functions(Spec(np.dtype('f'), False, 'dot', constants, widths=(4, 4)))\n"
        "print(*(n for n in sys.modules if n.startswith('gemv.')))"
    )
    path = os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0", "PYTHONPATH": path}
    done = processes.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rooms = {name.split(".")[1] for name in done.stdout.split()}
    assert rooms <= set(fingerprint.ROOMS) and "language" in rooms


def test_the_hash_of_source_is_that_of_its_files(tmp_path):
    """Names, contents and which is which, in the rooms that shape machine code.

    Not copies that cannot be imported, nor other rooms.
    """

    def written(**files):
        shutil.rmtree(tmp_path / "of", ignore_errors=True)
        for name, text in files.items():
            path = tmp_path / "of" / "core" / (name.replace("_of_", "/") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return fingerprint.source_hash(tmp_path / "of")

    plain = written(a="1", rooms_of_b="2")
    assert plain == written(rooms_of_b="2", a="1")
    others = [written(a="1", rooms_of_b="3"), written(a="2", rooms_of_b="1"), written(a="1")]
    others += [written(a="1", rooms_of_c="2"), written(a="12", rooms_of_b="")]
    assert len({plain, *others}) == 6
    written(a="1", rooms_of_b="2")
    for place in (
        "core/.ipynb_checkpoints/a.py", "core/__pycache__/a.py", "core/.#a.py", "core/notes.txt",
        "calls/a.py", "a.py",
    ):  # fmt: skip
        path = tmp_path / "of" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("copy")
    assert fingerprint.source_hash(tmp_path / "of") == plain


@pytest.mark.skipif(os.name == "nt", reason="a file in the way is another error there")
def test_without_a_writable_directory_everything_works_with_one_warning(filled, asked, tmp_path):
    (tmp_path / "file").write_text("in the way")
    answer = asked(tmp_path / "file" / "below")
    assert answer["compiled"] and named(answer) == named(filled[1])
    (warning,) = answer["warnings"]
    assert "GEMV_CACHE_DIR" in warning and "GEMV_CACHE=0" in warning


def test_switched_off(asked, tmp_path):
    answer = asked(tmp_path, GEMV_CACHE="0")
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
    assert cache.load("nothing") is None
    cache.store("two", (binary(256), binary(512, "g")))
    first, second = cache.load("two")
    assert (first.name, first.arguments, first.ptx) == ("f", ("rows", "a"), "")
    assert first.cubin == binary(256).cubin and second.cubin == binary(512).cubin
    assert second.name == "g" and second.resource("registers") == 40


def test_the_files_used_longest_ago_make_room(folder, monkeypatch):
    monkeypatch.setattr(cache, "MAX_BYTES", 4000)
    for number in range(3):
        cache.store(f"file{number}", (binary(1024),))
        os.utime(folder / f"file{number}.gemv", (number + 1, number + 1))
    assert cache.load("file0") is not None  # used now
    cache.store("file3", (binary(1024),))
    assert {path.stem for path, _, _ in cache.entries()} == {"file0", "file2", "file3"}
    assert sum(size for _, size, _ in cache.entries()) <= 4000


def test_what_dead_processes_left_is_swept(folder):
    (folder / ".new-old").write_bytes(b"x")
    os.utime(folder / ".new-old", (1, 1))
    (folder / ".new-young").write_bytes(b"x")
    cache.store("file", (binary(256),))
    assert sorted(p.name for p in folder.iterdir()) == [".new-young", "file.gemv"]


def test_clear(folder):
    cache.store("one", (binary(256),))
    (folder / "mine.txt").write_text("not ours")
    assert cache.clear() == 1
    assert [p.name for p in folder.iterdir()] == ["mine.txt"]


def test_processes_that_write_at_once_leave_whole_files(folder):
    code = (
        "from gemv.engines import cache\nfrom gemv.core.binary import Binary\n"
        "for turn in range(200):\n"
        "    cache.store('same', (Binary('f', (), '', bytes(50000), ''),))\n"
        "    found = cache.load('same')\n"
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
        assert cache_folder.directory() == Path("somewhere", "else", "gemv")
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("HOME", os.path.join("a", "user"))
        assert cache_folder.directory() == Path("a", "user", ".cache", "gemv")
    for off in ("0", "off"):
        monkeypatch.setenv("GEMV_CACHE", off)
        assert cache_folder.directory() is None and cache.entries() == []


# What is trusted ----------------------------------------------------------------------------------

posix = pytest.mark.skipif(os.name == "nt", reason="owners and access are kept otherwise there")


@pytest.fixture
def once():
    """Let each cause warn again that an earlier test has met."""
    cache_folder.warn.cache_clear()


def refused(why, name="one"):
    """Load what is refused, with one warning that says why, however often it is asked for."""
    with pytest.warns(cache_folder.CacheWarning) as caught:
        assert cache.load(name) is None
        assert cache.load(name) is None
    (warning,) = caught
    assert why in str(warning.message)


def belongs_to_another(path, monkeypatch):
    user = os.geteuid()
    if user == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)


@posix
@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_belongs_to_another_user_is_not_loaded(folder, once, monkeypatch, what):
    cache.store("one", (binary(256),))
    place = folder if what == "folder" else folder / "one.gemv"
    belongs_to_another(place, monkeypatch)
    refused("belongs to another user")


@posix
@pytest.mark.parametrize("mode", [0o020, 0o002])
@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_others_may_write_is_not_loaded(folder, once, what, mode):
    cache.store("one", (binary(256),))
    place = folder if what == "folder" else folder / "one.gemv"
    before = stat.S_IMODE(place.stat().st_mode)
    place.chmod(before | mode)
    refused("may write to it, which chmod go-w changes")
    place.chmod(before)
    assert cache.load("one") is not None


@posix
def test_nothing_is_left_where_others_may_write(folder, once):
    folder.chmod(0o777)
    with pytest.warns(cache_folder.CacheWarning, match="GEMV_CACHE_DIR"):
        cache.store("one", (binary(256),))
    assert list(folder.iterdir()) == []
    with pytest.raises(PermissionError, match="may write to it"):
        cache.entries()
    with pytest.raises(PermissionError, match="may write to it"):
        cache.clear()


@posix
def test_a_directory_of_ours_in_one_of_everybody_is_trusted(tmp_path, monkeypatch):
    tmp_path.chmod(0o1777)
    monkeypatch.setenv("GEMV_CACHE_DIR", str(tmp_path / "mine"))
    before = os.umask(0)
    try:
        cache.store("one", (binary(256),))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "mine").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "mine" / "one.gemv").stat().st_mode) == 0o600
    assert cache.load("one") is not None


@posix
def test_only_regular_files_are_opened(folder, once, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "one.gemv"
    cache.store("one", (binary(256),))
    shutil.move(folder / "one.gemv", outside)
    path = folder / "one.gemv"
    os.mkfifo(path)
    refused("no regular file")  # and does not wait for a writer
    for target in ("/dev/zero", outside, folder / "nothing"):
        path.unlink()
        path.symlink_to(target)
        cache_folder.warn.cache_clear()
        refused("symbolic links")
    path.unlink()
    path.mkdir()
    cache_folder.warn.cache_clear()
    refused("no regular file")
    path.rmdir()
    os.mkfifo(path)
    cache.store("one", (binary(512),))
    assert cache.load("one")[0].cubin == binary(512).cubin, "a pipe in the way is replaced"


def test_a_file_too_large_is_neither_written_nor_read(folder, once, monkeypatch):
    cache.store("one", (binary(4096),))
    for module in (cache, cache_folder):
        monkeypatch.setattr(module, "MAX_FILE_BYTES", 4000)
    refused("bytes")
    with pytest.warns(cache_folder.CacheWarning, match="two would have"):
        cache.store("two", (binary(4096),))
    assert [path.name for path in folder.iterdir()] == ["one.gemv"]


def sealed(header, cubins=b""):
    """A file whose checksum is right."""
    body = (header if isinstance(header, bytes) else json.dumps(header).encode()) + b"\n" + cubins
    return cache._MAGIC + hashlib.sha256(body).digest() + body


ENTRY = {"name": "f", "arguments": ["a"], "bytes": 4, "log": "", "waits": False}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        sealed(b"[" * 200_000),
        sealed(b'{"a":' * 200_000),
        sealed(b"\xff\xfe\x00"),
        sealed(b"null"),
        sealed({"key": "one", "functions": []}),
        sealed({"key": "one", "functions": [ENTRY]}, b"123"),
        sealed({"key": "one", "functions": [ENTRY]}, b"12345"),
        sealed({"key": "other", "functions": [ENTRY]}, b"1234"),
        sealed({"key": "one", "functions": {"f": ENTRY}}, b"1234"),
        *[
            sealed({"key": "one", "functions": [{**ENTRY, **wrong}]}, b"1234")
            for wrong in (
                {"bytes": -4},
                {"bytes": 4.0},
                {"bytes": True},
                {"bytes": 10**4000},
                {"name": "\ud800"},
                {"name": 3},
                {"arguments": "ab"},
                {"arguments": [["a"]]},
                {"log": None},
                {"waits": 1},
            )
        ],
    ],
    ids=lambda content: str(content[50:80]),
)
def test_a_header_that_is_none_is_refused(folder, once, content):
    (folder / "one.gemv").write_bytes(sealed({"key": "one", "functions": [ENTRY]}, b"1234"))
    assert [each.cubin for each in cache.load("one")] == [b"1234"]
    (folder / "one.gemv").write_bytes(content)
    refused("is not used")
    assert cache.kept("one", "any", (9, 0), lambda: (binary(256),)) == (binary(256),)


def test_a_file_under_the_name_of_another_is_refused(folder, once):
    cache.store("one", (binary(256),))
    shutil.copy(folder / "one.gemv", folder / "two.gemv")
    refused("kept under another name", "two")


def test_a_file_of_the_same_kernel_for_other_source_is_refused(folder, once):
    cache.store("serial-sm_90-1111", (binary(256),))
    shutil.copy(folder / "serial-sm_90-1111.gemv", folder / "serial-sm_90-2222.gemv")
    refused("kept under another name", "serial-sm_90-2222")


def test_a_bit_that_changed_in_the_machine_code_is_seen(folder, once):
    cache.store("one", (binary(256),))
    data = bytearray((folder / "one.gemv").read_bytes())
    data[-1] ^= 1
    (folder / "one.gemv").write_bytes(data)
    refused("not whole", "one")


def test_a_directory_that_is_a_file_warns_once(folder, once, monkeypatch):
    (folder / "file").write_text("in the way")
    monkeypatch.setenv("GEMV_CACHE_DIR", str(folder / "file"))
    made = binary(256)
    with pytest.warns(cache_folder.CacheWarning, match="NotADirectoryError") as caught:
        assert cache.kept("serial", "any", (9, 0), lambda: (made,)) == (made,)
    assert len(caught) == 1 and (folder / "file").read_text() == "in the way"


@posix
def test_no_such_home_directory(once, monkeypatch, capsys):
    from gemv.cli.main import main

    monkeypatch.setenv("GEMV_CACHE_DIR", "~nosuchuser/x")
    made = binary(256)
    with pytest.warns(cache_folder.CacheWarning, match="no such home directory") as caught:
        assert cache.kept("serial", "any", (9, 0), lambda: (made,)) == (made,)
        assert cache.load("one") is None
        cache.store("one", (made,))
    assert len(caught) == 1
    assert main(["cache"]) == 0
    assert "~nosuchuser/x\nnot used, because there is no such home" in capsys.readouterr().out


def test_an_unreadable_directory_is_no_error(folder, once, monkeypatch, capsys):
    from gemv.cli.main import main

    def refuse(*arguments, **named):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))

    made = binary(256)
    monkeypatch.setattr(os, "open", refuse)
    with pytest.warns(cache_folder.CacheWarning, match="Permission denied"):
        assert cache.kept("serial", "any", (9, 0), lambda: (made,)) == (made,)
    if os.name != "nt":
        assert main(["cache"]) == 0
        assert "not used, because Permission denied" in capsys.readouterr().out


@posix
def test_listing_and_clearing_follow_no_links(folder, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "kept.gemv"
    outside.write_bytes(b"x" * 1000)
    cache.store("one", (binary(256),))
    (folder / "link.gemv").symlink_to(outside)
    (folder / "folder.gemv").mkdir()
    assert [path.name for path, _, _ in cache.entries()] == ["one.gemv"]
    assert cache.clear() == 1
    assert outside.exists() and (folder / "folder.gemv").is_dir()


@posix
def test_a_directory_that_is_exchanged_stays_the_one_that_was_looked_at(folder):
    mine, other = folder / "mine", folder / "other"
    other.mkdir()
    with cache_folder.Folder(mine, create=True) as opened:
        mine.rename(folder / "moved")
        mine.symlink_to(other)
        opened.write("one.gemv", b"data")
        assert opened.read("one.gemv") == b"data"
        assert [name for name, _, _ in opened.files()] == ["one.gemv"]
    assert list(other.iterdir()) == [] and (folder / "moved" / "one.gemv").exists()


def test_no_descriptor_is_left_open(folder, once):
    fds = Path("/proc/self/fd")
    if not fds.is_dir():
        pytest.skip("needs a list of this process's descriptors")
    before = len(list(fds.iterdir()))
    cache.store("one", (binary(256),))
    (folder / "two.gemv").write_bytes(b"")
    (folder / "three.gemv").mkdir()
    for name in ("one", "nothing"):
        cache.load(name)
    for name in ("two", "three"):
        refused("not used", name)
    folder.chmod(0o777)
    refused("may write")
    assert len(list(fds.iterdir())) == before


def test_processes_that_write_while_another_clears(folder):
    write = (
        "import warnings\nwarnings.simplefilter('error')\n"
        "from gemv.engines import cache\nfrom gemv.core.binary import Binary\n"
        "for turn in range(200):\n"
        "    cache.store('same', (Binary('f', (), '', bytes(50000), ''),))\n"
        "    found = cache.load('same')\n"
        "    assert found is None or found[0].cubin == bytes(50000), turn\n"
    )
    clear = (
        "import warnings\nwarnings.simplefilter('error')\n"
        "from gemv.engines import cache\n"
        "for turn in range(400):\n    cache.clear(), cache.entries()\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    codes = (write, write, clear)
    with contextlib.ExitStack() as programs:
        running = [
            programs.enter_context(processes.started([sys.executable, "-P", "-c", code], env=env))
            for code in codes
        ]
        assert [process.wait(timeout=120) for process in running] == [0, 0, 0]
    assert {p.name for p in folder.iterdir()} <= {"same.gemv"}


def test_the_command_line_shows_and_clears(folder, capsys):
    from gemv.cli.main import main

    cache.store("one", (binary(1 << 20),))
    assert main(["cache"]) == 0
    shown = capsys.readouterr().out
    assert str(folder) in shown and "1 compiled kernel, 1.0 MiB of 128" in shown
    assert main(["cache", "--clear"]) == 0
    assert "removed 1 compiled kernel\n" in capsys.readouterr().out
    assert list(folder.iterdir()) == []


HALVES = """
import json, sys
from gemv.kernels import REGISTRY
from gemv.measure.inputs import make_problem
from gemv.core.dtypes import DTYPES
from gemv.core.geometry import Device
from gemv.selection.select import select

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
from gemv.selection.select import select
whole = all(k.build.__name__ == "build" for k in REGISTRY.values())
print(json.dumps([without, len(functions) >= len(REGISTRY), whole, said == shown()]))
"""


def test_selection_needs_no_numba_and_gives_the_same_with_it():
    """A kernel file gives its knobs, geometry and refusals before Numba is imported."""
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
