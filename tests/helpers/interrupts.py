"""Ctrl-C in the middle of a call, at a moment that is chosen."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gemv

#: Ends of ``with``, finalizers and generators, which end as they are forgotten.
_LEFT_OUT = ("__exit__", "__del__", "<genexpr>")


class Interrupting:
    """Raises as Ctrl-C does, at one of the functions of the package that a call begins.

    Python looks for a signal whenever a function begins. Kernels and what simulates them are left
    out: on a GPU no signal reaches them. So are the end of a ``with``, which begins after its
    body, and what Python calls as it forgets an object, where it prints errors and passes over
    them.
    """

    def __init__(self) -> None:
        self.begun = 0
        self._at: int | None = None
        self._top = str(Path(gemv.__file__).parent)

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        room, _, _ = code.co_filename[len(self._top) + 1 :].partition("/")
        inside = code.co_filename.startswith(self._top) and room not in ("kernels", "language")
        if event == "call" and inside and code.co_name not in _LEFT_OUT:
            self.begun += 1
            if self.begun == self._at:
                raise KeyboardInterrupt

    def run(self, call: Callable[[], Any], at: int | None = None) -> Any:
        """What `call` returns; `begun` counts its functions, and number `at` is interrupted."""
        self.begun, self._at = 0, at
        before = sys.gettrace()
        sys.settrace(self)
        try:
            return call()
        finally:
            sys.settrace(before)
