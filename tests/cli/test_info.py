"""``python -m gemv info``, with whatever is broken."""

from __future__ import annotations

import subprocess
import sys

import pytest
from helpers import processes
from helpers.commands import python

import gemv
from gemv.cli.main import main


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


def test_the_version(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"gemv {gemv.__version__}\n"


def test_info_onto_a_full_disk():
    try:
        full = open("/dev/full", "w")
    except FileNotFoundError:
        pytest.skip("no /dev/full here")
    with (
        full,
        processes.started(
            [sys.executable, "-m", "gemv", "info"], stdout=full, stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        said = process.stderr.read()
        assert process.wait(300) == 1
    assert said.count("\n") == 1 and said.startswith("gemv info: [Errno 28]")
