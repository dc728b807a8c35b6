"""A program that has imported what many tests need, and forks for each of them.

To import Numba and this package takes longer than most of what such tests run.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from helpers import processes


@contextlib.contextmanager
def forking(
    command: Sequence[str], cwd: Path, env: Mapping[str, str]
) -> Iterator[Callable[..., tuple[int, str]]]:
    """A function that hands its arguments to a fork, and returns status and output of that.

    The command ends in :func:`fork_for_each_line`.
    """
    with processes.started(
        command, cwd=cwd, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:

        def run(*arguments: str) -> tuple[int, str]:
            program.stdin.write(json.dumps(arguments) + "\n")
            program.stdin.flush()
            line = program.stdout.readline()
            assert line, f"the process that forks has ended: {program.wait()}"
            status, said = json.loads(line)
            return status, said

        yield run


def fork_for_each_line(main: Callable[[list[str]], int]) -> None:
    """Read arguments from standard input, a list a line, and answer with status and output."""
    lines, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # no fork reads the lines of the next one
    for line in lines:
        with tempfile.TemporaryFile() as said:
            child = os.fork()
            if not child:
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
                _end(main, json.loads(line))
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            said.seek(0)
            print(json.dumps((status, said.read().decode())), file=answers, flush=True)


def _end(main: Callable[[list[str]], int], arguments: list[str]) -> None:
    """End the process with the status of `main`, as Python does."""
    status = 1
    try:
        status = main(arguments)
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
