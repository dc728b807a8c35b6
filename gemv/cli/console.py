"""What all commands share: refusals and warnings in one line, progress, tables and files."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn


class Refused(Exception):
    """What the user asked for cannot be done; the message is one line for them."""


class Parser(argparse.ArgumentParser):
    """An argument parser that refuses in one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        complain(self.prog, message)
        raise SystemExit(2)


def complain(prog: str, message: str) -> None:
    """One line on standard error."""
    print(f"{prog}: {' '.join(message.split())}", file=sys.stderr)


def reason(exception: BaseException) -> str:
    """The message of an exception on one line, or its kind where it has none."""
    text = " ".join(str(exception).split())
    return text or type(exception).__name__


@contextmanager
def one_line_warnings(prog: str) -> Iterator[None]:
    """Print a warning as one line, without the line of source that Python adds."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        complain(prog, f"note: {message}")

    previous = warnings.showwarning
    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = previous


@contextmanager
def one_line_failures(*more: type[Exception]) -> Iterator[None]:
    """Refuse with the message of what fails in a measurement; anything else is a bug of ours."""
    usual = (ValueError, TypeError, MemoryError, RuntimeError, ImportError)
    failures: tuple[type[Exception], ...] = (*usual, *more)
    try:
        yield
    except failures as error:
        raise Refused(reason(error)) from error


@contextmanager
def progress(description: str, show: bool = True) -> Iterator[Callable[[int, int, str], None]]:
    """Yield ``report(done, total, what)``: a bar on standard error, where that is a terminal."""
    if not (show and sys.stderr.isatty()):
        yield lambda done, total, what: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=None)

        def report(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=f"{description}: {what}")

        yield report


class Report:
    """Text and tables on standard output.

    Where that is no terminal there are no lines and no colours, and a table is as wide as it wants
    to be, up to 240 characters.
    """

    def __init__(self) -> None:
        from rich.console import Console

        self._piped = not sys.stdout.isatty()
        self._console = Console(width=240, no_color=True) if self._piped else Console()

    def say(self, text: str = "") -> None:
        """Print a line."""
        self._console.print(text, highlight=False, markup=False)

    def table(self, headings: Sequence[str], kinds: str, rows: Sequence[Sequence[str]]) -> None:
        """Print a table; `kinds` has "w" for a column of words, "f" of figures, "n" of notes."""
        from rich import box
        from rich.table import Table

        shown = Table(box=None if self._piped else box.SIMPLE_HEAD, pad_edge=False)
        for heading, kind in zip(headings, kinds, strict=True):
            shown.add_column(
                heading, justify="right" if kind == "f" else "left", no_wrap=kind != "n"
            )
        for row in rows:
            shown.add_row(*row)
        self._console.print(shown, markup=False)


def number(value: float | None, form: str = ".2f", scale: float = 1.0) -> str:
    """A figure of a table; a dash where nothing was measured."""
    return "–" if value is None else format(value * scale, form)


def output_path(text: str, suffixes: tuple[str, ...]) -> Path:
    """Where a result is to be written; what could not be written is refused before the work."""
    from gemv.core.files import replaced_file

    path = Path(text)
    if path.suffix.lower() not in suffixes:
        raise Refused(f"cannot write {text}: the name must end in {' or '.join(suffixes)}")
    with refused_writes(path):
        replaced_file(path)
    return path


def json_path(options: argparse.Namespace) -> Path | None:
    """Where ``--json`` writes."""
    return None if options.json is None else output_path(options.json, (".json",))


def picture_path(options: argparse.Namespace) -> Path | None:
    """Where ``--plot`` writes."""
    if options.plot is None:
        return None
    path = output_path(options.plot, (".png", ".svg", ".pdf"))
    if importlib.util.find_spec("matplotlib") is None:
        raise Refused("--plot needs matplotlib, which is not installed: pip install gemv[plot]")
    return path


@contextmanager
def refused_writes(path: Path) -> Iterator[None]:
    """Say in one line why a file could not be written."""
    try:
        yield
    except OSError as error:
        raise Refused(f"cannot write {path}: {error.strerror or reason(error)}") from error


def write_json(path: Path | None, measured: Any) -> None:
    """Write what ``--json`` asked for."""
    from gemv.core.files import write_text

    if path is not None:
        with refused_writes(path):
            write_text(path, measured.to_json())


def draw(prog: str, plot: Callable[[Any, Path], None], measured: Any, path: Path | None) -> None:
    """Draw what ``--plot`` asked for; where there are no times to draw, say so."""
    if path is None:
        return
    try:
        with refused_writes(path):
            plot(measured, path)
    except ValueError as error:
        complain(prog, f"note: {reason(error)}")
