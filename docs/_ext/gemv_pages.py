"""Sphinx extension: the pages and tables that are made from kernels and measured results.

When a build starts it draws the figures that are out of date (``python docs/figures``), writes
one page for each kernel of the registry to ``course/rungs`` and the parts that pages include to
``generated``. Nothing there is edited by hand, and nothing there is committed.

It adds one directive, ``drawing``: a figure by name, for light and dark pages, with its caption.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import beyond_pages
from climb_pages import climb_pages
from docutils import nodes
from docutils.parsers.rst import Directive
from kernel_pages import (
    DOCS,
    FIGURES,
    OUT,
    TOP,
    drawing,
    escaped,
    rung_list,
    rung_page,
    stem,
    vocabulary_table,
)
from selection_pages import example, fit_page, fits, numbers
from sphinx.util import logging

sys.path[:0] = [str(FIGURES), str(DOCS / "course")]

logger = logging.getLogger(__name__)


def ladder_page(cases: dict[str, dict]) -> str:
    """The best kernel of each problem, the furthest from the ceiling first, and all in one plot."""
    from results import title

    from benchmarks.pages.page import three_digits

    if not cases:
        return "No results are stored yet: `make ladder` measures them on a GPU.\n"
    parts = ["## Where the best kernel is furthest from the ceiling"]
    losing = []
    for case in cases.values():
        rungs = [r for r in case["rows"] if r.get("gb_per_s") and not r["teaching"]]
        best = max(rungs, key=lambda row: row["gb_per_s"])
        losing.append((best["share"], case, best))
    losing.sort(key=lambda entry: entry[0])
    lines = ["| problem | best rung | GB/s | ceiling | share |"]
    lines.append("| --- | --- | ---: | ---: | ---: |")
    for share, case, best in losing:
        lines.append(
            f"| {title(case)} | {_link(best['name'])} | {three_digits(best['gb_per_s'])}"
            f" | {three_digits(case['ceiling_gb_per_s'])} | {share:.0%} |"
        )
    parts += ["\n".join(lines), "## Under one roof", drawing("ladder-roofline")]
    return "\n\n".join(parts) + "\n"


def problems_page(cases: dict[str, dict]) -> str:
    """A plot and a table of all kernels for each problem of the ladder."""
    from results import title

    from benchmarks.pages.page import duration, three_digits
    from gemv.kernels import REGISTRY

    if not cases:
        return "No results are stored yet: `make ladder` measures them on a GPU.\n"
    parts = []
    for name, case in cases.items():
        rows = [
            "| rung | kernel | time | GB/s | of the ceiling | error, in bounds |",
            "| ---: | --- | ---: | ---: | ---: | ---: |",
        ]
        for row in case["rows"]:
            if row["name"] not in REGISTRY:
                continue
            if row["refused"]:
                rows.append(f"| {row['rung']} | {_link(row['name'])} | refuses | | | |")
                continue
            rows.append(
                f"| {row['rung']} | {_link(row['name'])} | {duration(row['time_s'])}"
                f" | {three_digits(row['gb_per_s'])} | {row['share']:.1%} | {row['error']:.2g} |"
            )
        versions = ", ".join(f"{key} {value}" for key, value in case["versions"].items())
        parts += [
            f"## {title(case)}",
            drawing(f"ladder-{name}"),
            "<details><summary>In numbers</summary>",
            "\n".join(rows),
            f"{case['device']}; {versions}.",
            "</details>",
        ]
    return "\n\n".join(parts) + "\n"


def calls_page(tables: dict[str, dict]) -> str:
    """What calls cost, group by group, each beside what it is compared with."""
    if not tables:
        return "No results are stored yet: `make calls` measures them on a GPU.\n"
    parts = []
    for table in tables.values():
        parts.append(f"## {table['device']}")
        times = {(row["group"], row["name"]): row["time_s"] for row in table["rows"]}
        aims = ["| call | us | compared with | us | ratio | aim |"]
        aims.append("| --- | ---: | --- | ---: | ---: | ---: |")
        for group, mine, other, aim in _AIMS:
            own, peer = times.get((group, mine)), times.get((group, other))
            if own and peer:
                aims.append(
                    f"| {mine} | {own * 1e6:.2f} | {other} | {peer * 1e6:.2f}"
                    f" | {own / peer:.2f} | {aim:.2f} |"
                )
        parts += ["### Beside what was aimed at", "\n".join(aims)]
        for group in dict.fromkeys(row["group"] for row in table["rows"]):
            lines = ["| call | us | |", "| --- | ---: | --- |"]
            for row in table["rows"]:
                if row["group"] == group:
                    time = "–" if row["time_s"] is None else f"{row['time_s'] * 1e6:.2f}"
                    lines.append(f"| {row['name']} | {time} | {escaped(row['note'])} |")
            parts += [f"### {group[0].upper()}{group[1:]}", "\n".join(lines)]
        parts.append(", ".join(f"{key} {value}" for key, value in table["versions"].items()) + ".")
    return "\n\n".join(parts) + "\n"


#: Rows of the tables of calls, what each is measured against, and the ratio aimed at.
_AIMS = [
    *(
        ("64 x 64", f"gemv, {kind}, in place", peer, aim)
        for kind in ("numba", "cupy", "torch")
        for peer, aim in (("torch.mv(out=)", 0.75), ("cupy.cublas.gemv", 0.5))
    ),
    *(
        ("64 x 64", f"gemv, {kind}, new y", "torch.mv", 1.0)
        for kind in ("numba", "cupy", "torch")
    ),
    *(
        ("64 x 64", f"plan, {kind}, {form}", "packed cuLaunchKernel", aim)
        for form, aim in (("bound", 1.2), ("new x and y", 1.6))
        for kind in ("numba", "cupy", "torch")
    ),
]  # fmt: skip


def reference() -> str:
    """Every public name of the package: products, then functions, then classes and errors."""
    import gemv

    groups: dict[str, list[str]] = {"Products": [], "Other functions": [], "Classes": []}
    for name in sorted(gemv.__all__, key=lambda name: (name != "gemv", name)):
        value = getattr(gemv, name)
        if isinstance(value, type):
            kind = "exception" if issubclass(value, BaseException) else "class"
            what = ["   :members:", "   :special-members: __call__"]
            ours = [base.__module__.startswith("gemv.") for base in value.__mro__]
            if any(ours[1:]):  # what it has from a class of ours is its own, for a reader
                foreign = value.__mro__[ours.index(False)]
                what.append(f"   :inherited-members: {foreign.__name__}")
            groups["Classes"].append("\n".join((f".. auto{kind}:: gemv.{name}", *what)))
        else:
            title = "Products" if name.endswith("gemv") else "Other functions"
            groups[title].append(f".. autofunction:: gemv.{name}")
    parts = []
    for title, entries in groups.items():
        parts += [f"## {title}", "```{eval-rst}\n" + "\n".join(entries) + "\n```"]
    return "\n\n".join(parts) + "\n"


def load_calls() -> dict[str, dict]:
    """Every stored table of calls by the name of its file."""
    folder = TOP / "benchmarks" / "results" / "calls"
    return {
        path.stem: json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))
    }


def _link(name: str) -> str:
    return f"{{ref}}`{name}`"


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

    from benchmarks.pages import grid_page, history_page
    from gemv.kernels import REGISTRY

    cases, grids = results.load(), grid_page.load()
    drawn = grid_page.load(grid_page.RANDOM)
    everything = [*grids.values(), *drawn.values()]
    kernels = list(REGISTRY.values())
    wanted = set()
    for place, kernel in enumerate(kernels):
        following = next((k for k in kernels[place + 1 :] if not k.beside), None)
        path = DOCS / "course" / "rungs" / f"{stem(kernel)}.md"
        wanted.add(path)
        write(path, rung_page(kernel, following, cases, everything, gallery.DRAWINGS))
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
    write(DOCS / "generated" / "beyond.md", beyond_pages.beyond_list())
    write(DOCS / "generated" / "rungs.md", rung_list(cases))
    first, others = climb_pages(cases)
    write(DOCS / "generated" / "climb.md", first)
    write(DOCS / "generated" / "climb_shapes.md", others)
    write(DOCS / "generated" / "vocabulary.md", vocabulary_table())
    write(DOCS / "generated" / "reference.md", reference())
    write(DOCS / "generated" / "ladder.md", ladder_page(cases))
    write(DOCS / "generated" / "problems.md", problems_page(cases))
    write(DOCS / "generated" / "calls.md", calls_page(load_calls()))
    write(DOCS / "generated" / "example.md", example() + "\n")
    write(DOCS / "generated" / "numbers.md", numbers() + "\n")
    write(DOCS / "generated" / "fit.md", fit_page(fits()))
    pages = [grid_page.random_page(drawn), grid_page.page(grids)]
    write(DOCS / "generated" / "roofline.md", "\n".join(pages))
    history = history_page.history_page(history_page.histories())
    write(DOCS / "generated" / "history.md", history)
    write(DOCS / "generated" / "cells.md", grid_page.cells_page(grids))


class DrawingDirective(Directive):
    """``drawing`` NAME: a figure of ``docs/figures`` for light and for dark pages."""

    required_arguments = 1

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
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
