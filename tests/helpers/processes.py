"""The programs that tests start: none outlives the test that started it, nor does what it started.

Each is the head of a process group of its own, which is killed in the end, whatever the end is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
#: Seconds that no program of the tests takes.
ENDLESS = 600


def environment_of(env: Mapping[str, str] | None) -> dict[str, str]:
    """The environment of a program: the GPU that tests ask for is asked of no program without one.

    See conftest.py, which asks for it.
    """
    found = dict(os.environ if env is None else env)
    simulated = found.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")
    hidden = found.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    inherited = os.environ.get("GEMV_BACKEND") == found.get("GEMV_BACKEND") == "cuda"
    if inherited and (simulated or hidden):
        del found["GEMV_BACKEND"]
    return found


@contextlib.contextmanager
def started(command: Sequence[Any], **options: Any) -> Iterator[subprocess.Popen]:
    """``subprocess.Popen``, until the end of the block."""
    options["env"] = environment_of(options.get("env"))
    process = subprocess.Popen(command, start_new_session=True, **options)
    try:
        yield process
    finally:
        if hasattr(os, "killpg"):
            # Nobody is left, or, on macOS, nobody but a process that has ended.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # of what it never read
                    stream.close()
        process.wait()


def run(
    command: Sequence[Any],
    *,
    input: Any = None,
    capture_output: bool = False,
    check: bool = False,
    timeout: float = ENDLESS,
    **options: Any,
) -> subprocess.CompletedProcess:
    """``subprocess.run``, whose limit of time holds for what the program starts as well."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with started(command, **options) as process:
        out, err = process.communicate(input, timeout)
        done = subprocess.CompletedProcess(command, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def printed_by(code: str, timeout: float = 120, **options: Any) -> str:
    """What a program prints that imports from the folder of tests; it ends well, without errors."""
    command = [sys.executable, "-c", f"import sys\nsys.path.insert(0, {str(TESTS)!r})\n{code}"]
    done = run(command, capture_output=True, text=True, timeout=timeout, **options)
    assert (done.returncode, done.stderr) == (0, ""), done
    return str(done.stdout)
