"""The device part of a commit, as a process that prepares, waits for its turn, and then times."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.history.device_part import READY


class Part:
    """A device part that has been started.

    Attributes
    ----------
    said : list of dict
        The figures, and the reasons for those that are missing. Where the process was ended or
        failed, the last entry says so.
    """

    def __init__(
        self, tree: Path, command: Sequence[str], limit_s: float, simulated: bool = False
    ) -> None:
        self.said: list[dict] = []
        self._limit_s = limit_s  # of the time in which it does not wait
        self._began, self._spent_s, self._over = time.monotonic(), 0.0, False
        self._scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._errors = Path(self._scratch.name) / "errors"
        self._prepared, self._silent = threading.Event(), threading.Event()
        cache = Path(self._scratch.name) / "cache"
        cache.mkdir(mode=0o700)
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [*command, str(tree)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                stderr=errors, cwd=self._scratch.name, start_new_session=True,
                env=environment(tree, cache, simulated),
            )  # fmt: skip
        assert self._process.stdin is not None
        self._input = self._process.stdin
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if line.strip() == READY:
                    self._spent_s = time.monotonic() - self._began
                    self._prepared.set()
                elif line.startswith("{") and line.endswith("}\n"):
                    self.said.append(json.loads(line))
        self._silent.set()
        self._prepared.set()

    def prepared(self) -> bool:
        """Wait until it is ready for its turn; False if it has ended instead."""
        left_s = self._began + self._limit_s - time.monotonic()
        if not self._prepared.wait(max(0.0, left_s)):
            self.end(f"ended after {self._limit_s:g} seconds")
        elif self._silent.is_set():
            self._finish()
        return not self._over

    def measure(self) -> None:
        """Let it take its times, and wait until it has."""
        with suppress(BrokenPipeError):
            self._input.write("go\n")
            self._input.flush()
        if self._silent.wait(max(0.0, self._limit_s - self._spent_s)):
            self._finish()
        else:
            self.end(f"ended after {self._limit_s:g} seconds")

    def _finish(self) -> None:
        """What is to be said of a process that has closed its output."""
        try:
            status = self._process.wait(10)
        except subprocess.TimeoutExpired:
            self.end("closed its output, but did not end")
        else:
            self.end(f"exit status {status}" if status else "")

    def end(self, why: str = "") -> None:
        """End the process and what it has started, for a reason that is a line of what it said."""
        if self._over:
            return
        self._over = True
        if self._process.poll() is None:  # else its number may be another one's by now
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._listener.join(10)
        with suppress(BrokenPipeError):
            self._input.close()
        if why:
            told = self._errors.read_text(encoding="utf-8", errors="replace").strip() or "nothing"
            why = f"{why}: {told.splitlines()[-1]}"
            self.said.append({"name": "gemv", "params": [], "value": None, "why": why})
        self._scratch.cleanup()


def environment(tree: Path, cache: Path, simulated: bool) -> dict[str, str]:
    """Variables for a process that has the package of a tree, and no other one of ours."""
    top = Path(__file__).resolve().parents[2]
    paths = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    others = [path for path in map(os.path.abspath, paths) if Path(path).resolve() != top]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tree), *others])}
    found["GEMV_CACHE_DIR"] = str(cache)
    if simulated:
        found["NUMBA_ENABLE_CUDASIM"] = "1"
        found.pop("GEMV_BACKEND", None)  # which may ask for the GPU
    return found
