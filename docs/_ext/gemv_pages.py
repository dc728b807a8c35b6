"""Sphinx extension: figures, the pages of kernels, and the check of what was written into pages.

When a build starts it draws the figures that are out of date (``python docs/figures``) and writes
one page for each kernel to ``course/rungs`` or ``course/beyond``, and ``changelog.md``. None of
these is edited by hand, and none is committed. It warns of a page whose parts are out of date.

It adds one directive, ``drawing``: a figure by name, for light and dark pages, with its caption.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import beyond_pages
import links
import parts
import rung_scripts
from docutils import nodes
from docutils.parsers.rst import Directive
from kernel_pages import DOCS, FIGURES, OUT, TOP, has_short, inside_page, rung_page, stem
from sphinx.util import logging

sys.path[:0] = [str(FIGURES), str(DOCS / "course")]

logger = logging.getLogger(__name__)


def write(path: Path, text: str) -> None:
    """Only if it changed, so that Sphinx reads again only what is new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


# --- Sphinx ---------------------------------------------------------------------------------------


def draw_figures() -> None:
    """Run ``python docs/figures`` in a process of its own, unless all figures are newer."""
    sources = [
        *FIGURES.glob("*.py"),
        *(TOP / "gemv").rglob("*.py"),
        *(TOP / "gemv").rglob("*.toml"),
        *(TOP / "benchmarks" / "results").rglob("*.json"),
    ]
    newest = max(path.stat().st_mtime for path in sources)
    listing = "\n".join(sorted(path.name for path in sources))
    stamp = OUT / "stamp.txt"
    fresh = stamp.exists() and stamp.stat().st_mtime > newest and stamp.read_text() == listing
    if fresh:
        return
    logger.info("drawing figures ...")
    command = [sys.executable, "-W", "ignore", str(FIGURES)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=TOP)
    if done.returncode:
        raise RuntimeError(f"python docs/figures failed:\n{done.stdout}{done.stderr}")
    stamp.write_text(listing)


def make_pages(app) -> None:
    draw_figures()
    import gallery
    import notebook
    import results

    from benchmarks.pages import grid_page
    from gemv.kernels import REGISTRY

    cases, grids = results.load(), grid_page.load()
    drawn = grid_page.load(grid_page.RANDOM)
    everything = [*grids.values(), *drawn.values()]
    # What a page says of the cells in which a kernel was selected is said of one GPU.
    everything = [grid for grid in everything if grid.device == everything[0].device]
    kernels = list(REGISTRY.values())
    wanted = set()
    for place, kernel in enumerate(kernels):
        following = next((k for k in kernels[place + 1 :] if not k.beside), None)
        path = DOCS / "course" / "rungs" / f"{stem(kernel)}.md"
        wanted.add(path)
        write(path, rung_page(kernel, following, cases, everything, gallery.DRAWINGS))
        if has_short(kernel):
            path = path.with_name(f"{stem(kernel)}-inside.md")
            wanted.add(path)
            write(path, inside_page(kernel, cases, everything, gallery.DRAWINGS))
        path = DOCS / "course" / "notebooks" / f"{stem(kernel)}.ipynb"
        wanted.add(path)
        write(path, notebook.text_of(kernel))
    for kernel in beyond_pages.kernels():
        path = DOCS / "course" / "beyond" / f"{beyond_pages.stem(kernel)}.md"
        wanted.add(path)
        write(path, beyond_pages.beyond_page(kernel))
    for folder in ("rungs", "beyond", "notebooks"):
        for path in (DOCS / "course" / folder).iterdir():
            if path not in wanted:
                path.unlink()
    write(DOCS / "changelog.md", "```{include} ../CHANGELOG.md\n```\n")
    for page in (*parts.stale(), *rung_scripts.stale()):
        where = page.relative_to(DOCS).as_posix()
        logger.warning("%s is out of date: python docs/_ext/parts.py --write", where)


def read(app, name: str, source: list[str]) -> None:
    """Give Sphinx a page as it should read it."""
    source[0] = links.for_sphinx(source[0])


class DrawingDirective(Directive):
    """``drawing`` NAME: a figure of ``docs/figures`` for light and for dark pages."""

    required_arguments = 1
    has_content = True  # GitHub shows that

    def run(self):
        import gallery

        name = self.arguments[0]
        if name not in gallery.DRAWINGS:
            raise self.error(f"no figure {name!r}; there are: {', '.join(gallery.DRAWINGS)}")
        caption = gallery.DRAWINGS[name].caption
        fine = name.split("-")[0] in ("matrix", "lines", "banks")
        figure = nodes.figure(classes=["drawing", "fine"] if fine else ["drawing"])
        for theme in ("light", "dark"):
            image = nodes.image(uri=f"/figures/out/{name}.{theme}.svg", alt=caption)
            image["classes"].append(f"only-{theme}")
            figure += image
        figure += nodes.caption("", caption)
        figure["names"].append(nodes.fully_normalize_name(name))
        self.state.document.note_explicit_target(figure, figure)
        return [figure]


def setup(app):
    app.add_directive("drawing", DrawingDirective)
    app.connect("builder-inited", make_pages)
    app.connect("source-read", read)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
