"""From the arguments of ``python -m gemv`` to an exit status."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import gemv
from gemv.cli import bench, info, ladder, run, tune
from gemv.cli.console import Parser, Refused, complain, one_line_warnings


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    That is 0, 1 for a failed check or what the operating system refuses, 2 for a bad request.
    """
    return execute(_parser(), sys.argv[1:] if argv is None else argv)


def _parser() -> Parser:
    parser = Parser(
        prog="gemv",
        description="Matrix-vector products y := alpha*op(A)*x + beta*y on the GPU.",
    )
    parser.set_defaults(command="info", act=info.info)
    parser.add_argument("--version", action="version", version=f"gemv {gemv.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")
    for module in (info, run, ladder, bench, tune):
        module.add_commands(commands)
    return parser


def execute(parser: argparse.ArgumentParser, argv: Sequence[str]) -> int:
    """Run the command that `argv` asks for; whatever it refuses is one line on standard error.

    The parser sets `command`, a word, and `act`, a function that takes the options and returns the
    exit status. The options also have `program`, the parser's name, and `arguments`, which are
    those of `argv`.
    """
    for stream in (sys.stdout, sys.stderr):
        # a terminal that lacks a character of a table shows a question mark, not a traceback
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    arguments = _join_scalars(argv)
    options, unknown = parser.parse_known_args(arguments)
    options.program, options.arguments = parser.prog, arguments
    prog = f"{parser.prog} {options.command}"
    if unknown:
        complain(prog, f"unrecognized arguments: {' '.join(unknown)}")
        return 2
    try:
        with one_line_warnings(prog):
            return options.act(options)
    except Refused as refusal:
        complain(prog, str(refusal))
        return 2
    except KeyboardInterrupt:
        complain(prog, "interrupted")
        return 130
    except BrokenPipeError:
        # the reader of a pipe left; Python would complain once more when it flushes at exit
        _say_no_more()
        return 0
    except OSError as error:  # a full disk, say, below standard output
        complain(prog, str(error))
        _say_no_more()
        return 1


def _say_no_more() -> None:
    """Throw away what standard output still holds."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _join_scalars(argv: Sequence[str]) -> list[str]:
    """``--alpha -1+2j`` as ``--alpha=-1+2j``: argparse takes the former for another option."""
    joined: list[str] = []
    for argument in argv:
        if joined and joined[-1] in ("--alpha", "--beta"):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined
