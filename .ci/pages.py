"""Look at the built pages in a browser: do they fit a phone and a desktop, and can they be read?

    python .ci/pages.py [docs/_build/html] [--pictures FOLDER]

Loads each page that ``make docs`` builds, and the README as GitHub shows it, 390 and 1280 pixels
wide, for readers of light and of dark pages, and unfolds what is folded. Prints the height of each
page and the code and figures that scroll sideways, which they may. Exit status 1 if

- a page or a table scrolls sideways, or a text is cut off;
- texts lie on each other, on the page or in a drawing;
- a page that is read as a whole is 6,000 pixels high or more; lists in which one looks something up
  may be;
- a text is fainter than WCAG's level AA asks for, or is very small, on the page or in a drawing;
- a picture is missing, or has no text in its place.

``--pictures`` keeps a picture of each page. Without a browser it says so, and nothing is looked at.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlparse

from browser import Browser, installed

HERE = Path(__file__).resolve().parent
TOP = HERE.parent
WIDTHS = (390, 1280)
HIGHEST = 6000
#: Pixels of letters that can still be read, on a page and in a drawing that shrank with it.
SMALLEST, SMALLEST_DRAWN = 9.0, 6.0
#: Lists in which a reader looks something up.
LISTS = {
    "cells.html", "changelog.html", "course/ideas.html", "genindex.html", "problems.html",
    "promises.html", "reference.html",
}  # fmt: skip
#: GitHub's letters and tables are too large for a phone to be held to this.
LONG = {("README.md", 390)}
PAGE = """<!doctype html><meta charset="utf-8"><title>README</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{style}</style><body>{body}</body>
"""


def readme(folder: Path) -> Path:
    """The README as a page, in `folder`."""
    from markdown_it import MarkdownIt  # comes with what builds the pages

    text = (TOP / "README.md").read_text(encoding="utf-8")
    body = MarkdownIt("commonmark").enable("table").render(text)
    body = body.replace('src="docs/', f'src="{TOP.as_uri()}/docs/')
    style = (HERE / "github.css").read_text(encoding="utf-8")
    page = folder / "README.html"
    page.write_text(PAGE.format(style=style, body=body), encoding="utf-8")
    return page


@cache
def letters(drawing: Path) -> float:
    """The smallest letters of a drawing, as a share of its width; 0 if it has none."""
    text = drawing.read_text(encoding="utf-8")
    box = re.search(r'viewBox="[\d.]+ [\d.]+ ([\d.]+) ', text)
    sizes = [float(each) * 100 for each in re.findall(r"scale\(([\d.]+) -[\d.]+\)", text)]
    return min(sizes) / float(box[1]) if box and sizes else 0.0


def faults(name: str, width: int, seen: dict) -> list[str]:
    """What is wrong with a page, from what the browser saw at a width."""
    found = []
    if seen["width"] > width:
        found.append(f"the page is {seen['width']} pixels wide")
    if seen["height"] >= HIGHEST and name not in LISTS and (name, width) not in LONG:
        found.append(f"the page is {seen['height']} pixels high")
    for kind, wide, room, text in seen["scrolls"]:
        if kind == "table":
            found.append(f"a table of {wide} pixels in {room}: {text}")
    found += [f"cut off: {text}" for text in seen["cut"]]
    found += [f'"{one}" lies on "{other}"' for one, other in seen["overlaps"]]
    found += [f"faint, contrast {ratio}: {text}" for ratio, text in seen["faint"]]
    found += [f"{size:.1f} pixels: {text}" for size, text in seen["small"] if size < SMALLEST]
    for source, shown, said in seen["pictures"]:
        path = Path(unquote(urlparse(source).path))
        if said:
            found.append(f"{path.name}: {said}")
        elif path.suffix == ".svg" and 0 < (size := letters(path) * shown) < SMALLEST_DRAWN:
            found.append(f"{path.name}: letters of {size:.1f} pixels")
    return found


def looked(
    browser: Browser, pages: dict[str, Path], pictures: Path | None
) -> Iterator[tuple[str, int, dict, list[str]]]:
    """Name and width of each page, what was seen of it, and its faults."""
    look = (HERE / "pages.js").read_text(encoding="utf-8")
    for name, path in pages.items():
        for width in WIDTHS:
            wrong: dict[str, None] = {}
            browser.open(path, width)
            # A page is as high as its reader finds it, and all that can be unfolded is looked at.
            height = browser.evaluate("document.documentElement.scrollHeight")
            if pictures:
                browser.picture(pictures / f"{width}-folded" / f"{name}.png")
            browser.evaluate("document.querySelectorAll('details').forEach(e => e.open = true)")
            for scheme in ("light", "dark"):
                browser.colours(scheme)
                seen = {**browser.evaluate(look), "height": height}
                wrong |= dict.fromkeys(faults(name, width, seen))
                if pictures:
                    browser.picture(pictures / f"{width}-{scheme}" / f"{name}.png")
            yield name, width, seen, list(wrong)


def looked_at_drawings(browser: Browser, drawings: list[Path]) -> Iterator[tuple[str, list[str]]]:
    """Name of each drawing, and its faults; dark ones have the same lines and texts."""
    look = (HERE / "drawing.js").read_text(encoding="utf-8")
    for path in drawings:
        browser.open(path, 1280)
        yield path.name, browser.evaluate(look)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=TOP / "docs" / "_build" / "html")
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="keep a picture of each")
    options = parser.parse_args(arguments)
    program = installed()
    if program is None:
        print("no page was looked at: there is no Chromium on this machine")
        return 0
    folder = options.folder.resolve()
    paths = sorted(path for path in folder.rglob("*.html") if path.name != "search.html")
    if not paths:
        print(f"there is no page in {folder}: run make docs", file=sys.stderr)
        return 1
    wrong = 0
    with TemporaryDirectory() as scratch, Browser(program) as browser:
        pages = {path.relative_to(folder).as_posix(): path for path in paths}
        pages = {"README.md": readme(Path(scratch)), **pages}
        for name, width, seen, found in looked(browser, pages, options.pictures):
            print(f"{width:5} {seen['height']:6}  {name}")
            for kind, wide, room, text in seen["scrolls"]:
                print(f"              {kind} of {wide} in {room}: {text}")
            for fault in found:
                print(f"              WRONG: {fault}")
            wrong += len(found)
        drawings = sorted((folder / "_images").glob("*.light.svg"))
        for name, found in looked_at_drawings(browser, drawings):
            for fault in found:
                print(f"{name}\n              WRONG: {fault}")
            wrong += len(found)
    print(f"{len(pages)} pages, {len(drawings)} drawings: {wrong} faults")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
