"""CI fails where one of its steps fails: ``.ci/run`` with stand-ins for what it starts."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from helpers import processes

RUN = Path(__file__).resolve().parents[2] / ".ci" / "run"
pytestmark = [
    pytest.mark.skipif(not RUN.exists(), reason="no part of a source distribution"),
    pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash"),
]

#: Writes down how it was called, makes what the next steps look for, and hangs or fails if told to.
STAND_IN = r"""#!/usr/bin/env bash
call="$(basename "$(dirname "$(dirname "$0")")")/$(basename "$0") $*"
call="$(sed -E 's|[^ =]*/tmp\.[A-Za-z0-9]+|SCRATCH|g' <<<"$call")"
call="${NUMBA_ENABLE_CUDASIM:+simulated }$call"
echo "$call" >>"$CALLS"
programs() {
    mkdir -p "$1/bin"
    for name in python pytest; do ln -sf "$STAND_IN" "$1/bin/$name"; done
}
case "$*" in
*VENV=*/bin/python) venv="${1#VENV=}"; programs "$venv" ;;
"-m venv "*) programs "$4" ;;
*--outdir*)
    mkdir -p "$4" "$4/gemv-0/tests"
    touch "$4/gemv-0-py3-none-any.whl"
    tar czf "$4/gemv-0.tar.gz" -C "$4" gemv-0
    rm -r "$4/gemv-0" ;;
*lowest.py*) echo "numpy==2.0" ;;
*" list "*) echo "numpy 2.0" ;;
"-m gemv info") echo "self-check     ..." ;;
esac
[ "$call" != "$HANGS" ] || sleep 1000
[ "$call" != "$FAILS" ]
"""


@pytest.fixture
def ci(tmp_path):
    """Run ``.ci/run`` with one call that fails; its status, and all calls."""
    tree = tmp_path / "tree"
    (tree / ".ci").mkdir(parents=True)
    shutil.copy(RUN, tree / ".ci" / "run")
    programs = tmp_path / "programs" / "bin"
    programs.mkdir(parents=True)
    stand_in, calls = programs / "make", tmp_path / "calls"
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)
    (tmp_path / "scratch").mkdir()

    def run(fails, hangs="nothing"):
        calls.write_text("")
        done = processes.run(
            ["bash", str(tree / ".ci" / "run")], capture_output=True, text=True, timeout=60,
            env={
                "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
                "TMPDIR": str(tmp_path / "scratch"), "PYTHON": sys.executable,
                "STAND_IN": str(stand_in), "CALLS": str(calls), "FAILS": fails, "HANGS": hangs,
            },
        )  # fmt: skip
        assert not list((tmp_path / "scratch").iterdir()), "a job that goes on has written again"
        return done, calls.read_text().splitlines()

    return run


def test_ci_fails_with_each_of_its_steps(ci):
    done, calls = ci("nothing")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(set(calls)) == len(calls) > 10
    told = {call: ci(call)[0].returncode for call in calls}
    assert all(told.values()), [call for call, status in told.items() if status == 0]


def test_a_step_that_fails_ends_the_jobs_beside_it(ci):
    _, calls = ci("nothing")
    (docs,) = (call for call in calls if call.endswith(" docs"))
    beside = next(call for call in calls if call.startswith("lowest/pytest"))
    done, _ = ci(docs, hangs=beside)  # within its limit of time
    assert done.returncode == 1


def test_ci_has_no_step_that_the_stand_ins_do_not_know(ci):
    """Whatever .ci/run starts from an environment is seen to be started."""
    _, calls = ci("nothing")
    text = RUN.read_text(encoding="utf-8")
    commands = re.findall(r'"\$(?:venv|lowest|libraries)/bin/(\w+)"|^ *(make) ', text, re.M)
    assert len(calls) == len(commands)
