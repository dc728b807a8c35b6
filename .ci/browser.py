"""Chromium, driven from Python through two pipes: no package is needed, and no port is opened."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

#: Names under which a browser of this kind is installed.
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
#: The browser reads commands from the first and writes what it has to say to the second.
READS, WRITES = 3, 4


def installed() -> str | None:
    """The path of a browser, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser(contextlib.AbstractContextManager):
    """One tab of a browser without a window. Messages follow its DevTools protocol.

    Parameters
    ----------
    program : str
        The path of the browser.
    """

    def __init__(self, program: str) -> None:
        self._home = tempfile.TemporaryDirectory()
        ours = [_above_the_browsers(end) for end in (*os.pipe(), *os.pipe())]
        reads, self._to, self._from, writes = ours

        def lend() -> None:
            os.dup2(reads, READS)
            os.dup2(writes, WRITES)

        command = [
            program, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
            "--hide-scrollbars", f"--user-data-dir={self._home.name}", "about:blank",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command, env={**os.environ, "HOME": self._home.name}, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            pass_fds=(READS, WRITES), preexec_fn=lend,
        )  # fmt: skip
        os.close(reads)
        os.close(writes)
        self._rest = b""
        self._count = 0
        self._session: str | None = None
        self._events: list[dict] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.call("Page.enable")

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        self._home.cleanup()

    def _read(self) -> dict:
        while b"\0" not in self._rest:
            more = os.read(self._from, 1 << 20)
            if not more:
                raise RuntimeError("the browser has ended")
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def call(self, method: str, **params: Any) -> dict:
        """Send a command and wait for its result."""
        self._count += 1
        sent = {"id": self._count, "method": method, "params": params}
        if self._session is not None:
            sent["sessionId"] = self._session
        data = json.dumps(sent).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        while True:
            message = self._read()
            if message.get("id") == self._count:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]
            self._events.append(message)

    def open(self, page: Path, width: int, scheme: str = "light") -> None:
        """Load a page into a window of `width` pixels, of a phone if that is narrow."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=1, mobile=width < 500,
        )  # fmt: skip
        self.colours(scheme)
        self._events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not any(each.get("method") == "Page.loadEventFired" for each in self._events):
            self._events.append(self._read())

    def colours(self, scheme: str) -> None:
        """Show the page as it is for a reader who prefers a ``"light"`` or a ``"dark"`` one."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def evaluate(self, script: str) -> Any:
        """The value of an expression in JavaScript, in the page."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in done:
            told = done["exceptionDetails"]
            raise RuntimeError(told.get("exception", {}).get("description") or told["text"])
        return done["result"].get("value")

    def picture(self, path: Path) -> None:
        """Write the whole page to a PNG file."""
        done = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(done["data"]))


def _above_the_browsers(end: int) -> int:
    """The same end of a pipe under a number that the browser's two ends cannot take."""
    moved = fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, WRITES + 1)
    os.close(end)
    return moved
