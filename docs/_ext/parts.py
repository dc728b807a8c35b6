"""The parts of the repository's pages that are made from kernels and from measured results.

    python docs/_ext/parts.py            names the pages that are out of date; status 1 if any is
    python docs/_ext/parts.py --write    brings them up to date

A reader on GitHub sees a page as it is in the repository. So tables stand in the pages themselves,
between two marks, and links are those of Markdown (:mod:`links`). ``make docs`` refuses a page that
is out of date. The scripts of the rungs (:mod:`rung_scripts`) are kept in the same way.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Collection
from pathlib import Path

if __name__ == "__main__":  # docs/conf.py does this for a build
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    _DOCS = Path(__file__).resolve().parent.parent
    sys.path[:0] = [str(_DOCS.parent), str(_DOCS / "figures")]

import beyond_pages
import climb_pages
import links
import result_pages
import rung_scripts
import selection_pages
from kernel_pages import DOCS, FIGURES, OUT, TOP, rung_list, vocabulary_table

RESULTS = "benchmarks/results"
#: Folders of ``docs`` whose pages a build writes; they are not in the repository.
MADE = ("_build", "course/rungs", "course/beyond")
MARK = re.compile(r"<!-- (\w+):begin -->")


def _ladders() -> dict[str, dict]:
    from benchmarks.pages.ladder_table import load

    return load()


def _grids(name: str) -> dict:
    from benchmarks.pages import grid_page

    return grid_page.load(grid_page.RESULTS / name)


def _roofline(of_reference: bool) -> str:
    """What is told of the reference GPU, or of all others."""
    from benchmarks.pages import compiled_part, grid_page
    from gemv.selection.machine import REFERENCE

    drawn, compiled, chosen = (
        {
            name: grid
            for name, grid in _grids(folder).items()
            if (grid.device == REFERENCE.name) == of_reference
        }
        for folder in ("random", "compiled", "grid")
    )
    parts = [
        grid_page.random_page(drawn),
        grid_page.page(chosen),
        compiled_part.part(compiled),
    ]
    return "\n".join(filter(None, parts))


def _cells() -> str:
    from benchmarks.pages import grid_page

    return grid_page.cells_page(_grids("grid"))


def _history() -> str:
    from benchmarks.pages import history_page

    return history_page.history_page(history_page.histories())


def _libraries() -> str:
    from benchmarks.pages import libraries_part

    return libraries_part.part()


#: Each part by the name between its marks: what it is made from, and what makes it.
PARTS: dict[str, tuple[str, Callable[[], str]]] = {
    "alike": (f"{RESULTS}/fit", selection_pages.alike_page),
    "beyond": ("gemv/kernels", beyond_pages.beyond_list),
    "calls": (f"{RESULTS}/calls", lambda: result_pages.calls_page(result_pages.load_calls())),
    "cells": (f"{RESULTS}/grid", _cells),
    "climb": (f"{RESULTS}/ladder", lambda: climb_pages.climb_pages(_ladders())[0]),
    "climb_shapes": (f"{RESULTS}/ladder", lambda: climb_pages.climb_pages(_ladders())[1]),
    "example": ("gemv/selection", selection_pages.example),
    "fit": (f"{RESULTS}/fit", lambda: selection_pages.fit_page(selection_pages.fits())),
    "functions": ("gemv/language", vocabulary_table),
    "history": (f"{RESULTS}/history", _history),
    "ladder": (f"{RESULTS}/ladder", lambda: result_pages.ladder_page(_ladders())),
    "libraries": (f"{RESULTS}/calls_of_libraries", _libraries),
    "numbers": ("gemv/selection", selection_pages.numbers),
    "problems": (f"{RESULTS}/ladder", lambda: result_pages.problems_page(_ladders())),
    "reference": ("gemv", result_pages.reference),
    "roofline": (f"{RESULTS}/grid", lambda: _roofline(True)),
    "roofline_others": (f"{RESULTS}/grid", lambda: _roofline(False)),
    "rungs": ("gemv/kernels", lambda: rung_list(_ladders())),
}
#: For these the simulator counts; ``python docs/figures`` does that, and keeps the counts.
COUNTED = ("climb", "climb_shapes")
_made = functools.cache(lambda name: PARTS[name][1]().strip())


def pages() -> list[Path]:
    """Every page of ``docs`` that is in the repository."""
    made = {DOCS / folder for folder in MADE}
    found = (path for path in DOCS.rglob("*.md") if not made & set(path.parents))
    return sorted(path for path in found if path.name != "changelog.md")


def written(page: Path, text: str, but: Collection[str] = ()) -> str:
    """The text of a page with plain links, and with its parts made anew, except those in `but`."""
    from benchmarks.pages.page import between_markers

    for name in MARK.findall(text):
        if name in PARTS and name not in but:
            said = f"<!-- Written by docs/_ext/parts.py from {PARTS[name][0]}. -->"
            text = between_markers(text, name, f"{said}\n\n{_made(name)}\n")
    return links.plain(page, text)


def stale(but: Collection[str] = ()) -> dict[Path, str]:
    """What should be in the pages that are out of date."""
    found = {}
    for page in pages():
        text = page.read_text(encoding="utf-8")
        wanted = written(page, text, but)
        if wanted != text:
            found[page] = wanted
    return found


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--write"]):
        print(__doc__, file=sys.stderr)
        return 2
    but: Collection[str] = ()
    if not (OUT / "climb-square.json").exists():
        where = FIGURES.relative_to(TOP).as_posix()
        names = " and ".join(COUNTED)
        print(f"{names} are left as they are: python {where} counts for them", file=sys.stderr)
        but = COUNTED
    found = stale(but)
    for page, text in found.items():
        print(page.relative_to(TOP).as_posix())
        if arguments:
            page.write_text(text, encoding="utf-8")
    scripts = rung_scripts.stale()
    for path in scripts:
        print(path.relative_to(TOP).as_posix())
    if arguments:
        rung_scripts.write()
    return 1 if (found or scripts) and not arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
