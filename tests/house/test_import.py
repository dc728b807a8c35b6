"""What importing the package loads, and what it says where something is broken."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from helpers import processes

import gemv

ROOT = Path(gemv.__file__).parents[1]


def run(code, *, path=(), **environment):
    """Run `code` in a fresh interpreter and return what it printed."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_", "GEMV_"))}
    inherited = filter(None, [os.environ.get("PYTHONPATH")])
    env["PYTHONPATH"] = os.pathsep.join([*map(str, path), str(ROOT), *inherited])
    done = processes.run(
        [sys.executable, "-W", "error", "-c", code],
        env=env | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_loads_nothing_heavy():
    loaded = run(
        "import sys, gemv\n"
        "dir(gemv), gemv.__all__, gemv.__version__, gemv.__doc__\n"
        "print(*sorted(sys.modules), sep='\\n')"
    ).split()
    assert "gemv" in loaded
    packages = {name.partition(".")[0] for name in loaded}
    assert not packages & {"numpy", "scipy", "numba", "numba_cuda", "cuda", "llvmlite", "rich"}
    own = {name for name in loaded if name.startswith("gemv.")}
    assert own <= {"gemv.core", "gemv.core.source"}, "only the note of what is imported"


def test_names_load_no_more_than_they_need():
    loaded = run(
        "import sys, gemv\ngemv.sgemv, gemv.explain, gemv.trace, gemv.backend\n"
        "print(*sorted(sys.modules), sep='\\n')"
    ).split()
    assert not {name.partition(".")[0] for name in loaded} & {"scipy", "numba", "cuda", "rich"}


def test_every_public_name_exists():
    assert gemv.__all__ == sorted(gemv.__all__, key=lambda name: (name.islower(), name))
    for name in gemv.__all__:
        assert getattr(gemv, name) is not None
        assert name in dir(gemv)
    assert gemv.gemv.__module__ == "gemv.blas"
    with pytest.raises(AttributeError, match="module 'gemv' has no attribute 'hgemv'"):
        gemv.hgemv  # noqa: B018
    assert not hasattr(gemv, "sgemm")


def test_version():
    major, minor, *_ = gemv.__version__.split(".")
    assert (int(major), int(minor)) >= (0, 1)


def test_marked_as_typed():
    assert (Path(gemv.__file__).parent / "py.typed").is_file()


@pytest.mark.parametrize(
    ("source", "detail"),
    [
        ("raise ImportError('no such shared library')", "ImportError: no such shared library"),
        ("raise OSError('disk on fire')", "OSError: disk on fire"),
        ("", "AttributeError: module 'numpy' has no attribute 'dtype'"),
    ],
    ids=["import_error", "other_error", "empty"],
)
def test_broken_numpy(tmp_path, source, detail):
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").write_text(source)
    printed = run(
        "import gemv\n"
        "print(gemv.__version__)\n"
        "for call in ('gemv.sgemv(1, [[1]], [1])', 'gemv.explain(1, [[1]], [1])'):\n"
        "    try:\n"
        "        eval(call)\n"
        "    except ImportError as error:\n"
        "        print(error)\n"
        "try:\n"
        "    from gemv import gemv\n"
        "except ImportError as error:\n"
        "    print(error)\n",
        path=[tmp_path],
    ).splitlines()
    assert printed[0] == gemv.__version__
    for line, name in zip(printed[1:], ("sgemv", "explain", "gemv"), strict=True):
        assert line.startswith(f"gemv.{name} needs NumPy, and NumPy cannot be used here")
        assert detail in line and "pip install" in line


@pytest.mark.parametrize("library", ["torch", "jax", "dask"])
def test_modules_for_a_library_name_their_extra(library):
    printed = run(
        f"import sys; sys.modules['{library}'] = None\n"
        "try:\n"
        f"    import gemv.{library}\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    assert f"pip install 'gemv[{library}]'" in printed


@pytest.fixture
def broken_numba(tmp_path):
    (tmp_path / "numba").mkdir()
    (tmp_path / "numba" / "__init__.py").write_text("raise ImportError('built for another Python')")
    return tmp_path


#: Runs before anything is imported: greenlet is as good as not installed.
WITHOUT_GREENLET = "import sys; sys.modules['greenlet'] = None\n"


def test_without_greenlet_the_simulator_names_its_extra():
    printed = run(
        WITHOUT_GREENLET + "import gemv\n"
        "for call in ('gemv.dgemv(1, [[2]], [3])', 'gemv.explain(1, [[2.0]], [3.0])') * 2:\n"
        "    try:\n"
        "        eval(call)\n"
        "    except gemv.BackendError as error:\n"
        "        print(error)\n",
        NUMBA_ENABLE_CUDASIM="1",
    ).splitlines()
    assert len(printed) == 4 and len(set(printed)) == 1
    assert "NUMBA_ENABLE_CUDASIM=1" in printed[0] and "greenlet" in printed[0]
    assert "pip install 'gemv[simulator]'" in printed[0]


@pytest.mark.parametrize("backend", ["host", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_without_greenlet_other_backends_work(backend):
    printed = run(
        WITHOUT_GREENLET + "import gemv\nprint(gemv.dgemv(1, [[2]], [3]), gemv.backend())",
        GEMV_BACKEND=backend,
    )
    assert printed == f"[6.] {backend}\n"


@pytest.mark.gpu
def test_broken_numba_is_named_where_there_is_a_gpu(broken_numba):
    printed = run(
        "import gemv\n"
        "try:\n"
        "    gemv.dgemv(1, [[2]], [3])\n"
        "except gemv.BackendError as error:\n"
        "    print(error)\n",
        path=[broken_numba],
        GEMV_BACKEND="cuda",  # of themselves, arrays so small stay on the host
        GEMV_CACHE="0",  # with machine code on disk, the call does without Numba
    )
    assert printed.startswith("numba-cuda, which compiles kernels, cannot be imported")
    assert "built for another Python" in printed and "pip install" in printed


def test_broken_numba_falls_back_to_the_host(broken_numba):
    if gemv.backend() == "cuda":
        pytest.skip("this machine has a GPU, on which the call has to run")
    printed = run(
        "import warnings, gemv\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    print(gemv.dgemv(1, [[2]], [3]))\n"
        "print(caught[0].category.__name__, caught[0].message)\n"
        "print(gemv.backend())",
        path=[broken_numba],
    )
    assert printed.startswith("[6.]\nHostFallbackWarning ")
    assert "built for another Python" in printed and printed.endswith("host\n")
