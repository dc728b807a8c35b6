"""What the programs that make pages have in common: tables, figures, markers and options."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from gemv.selection.machine import REFERENCE

TOP = Path(__file__).resolve().parents[2]
RESULTS = TOP / "benchmarks" / "results"

Item = TypeVar("Item")


def markdown(headings: Sequence[str], kinds: str, rows: Sequence[Sequence[str]]) -> str:
    """A table; `kinds` has "w" for a column of words and "f" for one of figures."""
    rules = ["---" if kind == "w" else "---:" for kind in kinds]
    return "\n".join(
        "".join(f"| {cell} " if cell else "| " for cell in row) + "|"
        for row in (headings, rules, *rows)
    )


def number(value: float | None, form: str = ".2f") -> str:
    """A figure; a dash where nothing was measured."""
    return "–" if value is None else format(value, form)


def three_digits(value: float | None) -> str:
    """Neither a slow kernel rounds to nothing nor a fast one shows noise."""
    return "–" if value is None else f"{float(f'{value:.3g}'):g}"


def duration(seconds: float | None) -> str:
    """Three digits and the unit that suits them."""
    if seconds is None:
        return "–"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size or unit == "µs":
            return f"{three_digits(seconds / size)} {unit}"
    raise AssertionError


def versions(found: dict[str, str]) -> str:
    """Names and versions in a row."""
    return ", ".join(f"{name} {version}" for name, version in found.items())


def by_device(items: Iterable[Item], device: Callable[[Item], str]) -> list[Item]:
    """Items in the order in which a page has their GPUs: the reference first, then by name."""
    return sorted(items, key=lambda item: (device(item) != REFERENCE.name, device(item)))


def drawing(name: str) -> str:
    """A figure that ``make docs`` draws; GitHub shows the words in its place."""
    return f"```{{drawing}} {name}\nmake docs draws this figure: {name}\n```"


def folded(summary: str, text: str) -> str:
    """Text that shows when a reader asks for it."""
    return f"<details><summary>{summary}</summary>\n\n{text}\n\n</details>"


def in_part(headings: Sequence[str], kinds: str, rows: Sequence[Sequence[str]], seen: int) -> str:
    """A table, of which a reader sees that many rows and asks for the others.

    A table has a heading of its own, so the first one of the folded part begins with "other".
    """
    text = markdown(headings, kinds, rows[:seen])
    if rest := rows[seen:]:
        others = markdown([f"other {headings[0]}", *headings[1:]], kinds, rest)
        text += f"\n\n{folded(f'The other {len(rest)}', others)}"
    return text


def between_markers(text: str, name: str, part: str) -> str:
    """The text with another part between the markers of that name."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    head, rest = text.split(begin)
    _, tail = rest.split(end)
    return f"{head}{begin}\n{part}\n{end}{tail}"


def command(
    doc: str,
    arguments: list[str],
    pages: Callable[[], dict[Path, str]],
    draw: Callable[[], None] = lambda: None,
    drawn: Callable[[], bool] = lambda: True,
) -> int:
    """Print pages, or with ``--write`` write them, or with ``--check`` say which are out of date.

    Parameters
    ----------
    doc : str
        What is printed for other arguments.
    pages : callable
        Makes the whole text of each file.
    draw, drawn : callable
        Draws the picture that belongs to the pages, and says whether it is up to date.
    """
    if arguments not in ([], ["--write"], ["--check"]):
        print(doc, file=sys.stderr)
        return 2
    from gemv.core.files import write_text

    stale = [] if arguments != ["--check"] or drawn() else ["the picture"]
    for path, text in pages().items():
        if arguments == ["--write"]:
            write_text(path, text)
        elif not arguments:
            print(text, end="")
        elif path.read_text(encoding="utf-8") != text:
            stale.append(path.relative_to(TOP).as_posix())
    if arguments == ["--write"]:
        draw()
    if stale:
        print(f"not up to date: {', '.join(stale)}: make table", file=sys.stderr)
    return 1 if stale else 0
