"""Sphinx extension: the pages and tables that are made from kernels and measured results.

When a build starts it draws the figures that are out of date (``python docs/figures``), writes
one page for each kernel of the registry to ``course/rungs`` and the tables that pages include to
``generated``. Nothing there is edited by hand, and nothing there is committed.

It adds one directive, ``drawing``: a figure by name, for light and dark pages, with its caption.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.util import logging

DOCS = Path(__file__).resolve().parent.parent
TOP = DOCS.parent
FIGURES = DOCS / "figures"
OUT = FIGURES / "out"
EXERCISES = DOCS / "exercises"
sys.path.insert(0, str(FIGURES))

HEADINGS = ("Idea", "Picture", "Bytes", "Wins", "Loses", "Sums", "Source")

logger = logging.getLogger(__name__)


# --- Lessons --------------------------------------------------------------------------------------


def sections(doc: str) -> dict[str, str]:
    """The lesson of a kernel by heading; under ``""`` its first sentence."""
    found: dict[str, list[str]] = {"": []}
    heading = ""
    for line in doc.strip().splitlines():
        if line.strip() in HEADINGS and not line.startswith(" "):
            heading = line.strip()
            found[heading] = []
        else:
            found[heading].append(line)
    return {name: _dedented("\n".join(lines)) for name, lines in found.items()}


def _dedented(text: str) -> str:
    import textwrap

    return textwrap.dedent(text).strip("\n")


def markdown(text: str) -> str:
    """A lesson's prose and pictures as Markdown, with nothing in it left to be markup by chance."""
    parts = []
    fence: list[str] = []
    prose: list[str] = []

    def close() -> None:
        if fence:
            parts.append("```text\n" + _dedented("\n".join(fence)).rstrip() + "\n```")
            fence.clear()
        if prose:
            parts.append("\n".join(map(_escaped, prose)))
            prose.clear()

    literal = False
    for line in text.splitlines():
        if literal and (line.startswith("    ") or not line.strip()):
            fence.append(line)
            continue
        if literal and line.strip():
            literal = False
            close()
        if line.rstrip().endswith("::"):
            before = line.rstrip()[:-2].rstrip()
            if before:
                prose.append(before + ":")
            close()
            literal = True
        elif not line.strip():
            close()
        else:
            prose.append(line.strip())
    close()
    return "\n\n".join(parts)


def _escaped(line: str) -> str:
    """One line of prose: code stays code, roles and names of arguments become code, and a word
    between asterisks stays stressed; the rest is plain text."""
    line = re.sub(r":[a-z:]+:`~?([^`]*)`", r"``\1``", line)
    line = re.sub(r"(?<!`)`(\w+)`(?!`)", r"``\1``", line)
    pieces = re.split(r"(``.*?``)", line)
    plain = [re.sub(r"([\\`*_\[\]<>|#$~])", r"\\\1", piece) for piece in pieces[::2]]
    plain = [re.sub(r"(?<!\S)\\\*(\w+)\\\*(?=\W|$)", r"*\1*", piece) for piece in plain]
    plain[0] = re.sub(r"^(\d+)\.", r"\1\\.", re.sub(r"^([-+])", r"\\\1", plain[0]))
    code = pieces[1::2]
    return "".join(a + b for a, b in zip(plain, [*code, ""], strict=True))


def bytes_as_code(text: str) -> str:
    """The formula at the start of Bytes, set as code; it may go over two lines."""
    text = " ".join(text.split()) if not text.count("\n\n") and "::" not in text else text
    return re.sub(r"^(\([^`]*?\) \* itemsize)", r"``\1``", text)


# --- Pages ----------------------------------------------------------------------------------------


def stem(kernel) -> str:
    return f"{kernel.rung:02}{'t' if kernel.beside else ''}-{kernel.name}"


def source_of(kernel) -> Path:
    letter = "t" if kernel.beside else "k"
    return TOP / "gemv" / "kernels" / f"{letter}{kernel.rung:02}_{kernel.name}.py"


def rung_page(kernel, following, cases: dict[str, dict], grids, drawings) -> str:
    """The page of one kernel; `following` is the next rung, or None."""
    from rungs import COUNTED, SPECIAL

    lesson = sections(kernel.doc)
    kind = "Beside rung" if kernel.beside else "Rung"
    figures = [f"matrix-{kernel.name}", f"lines-{kernel.name}"]
    figures += SPECIAL.get(kernel.name, [])
    figures.append(f"banks-{kernel.name}")
    drawn = [name for name in figures if name in drawings and (OUT / f"{name}.light.svg").exists()]
    page = [
        "% Made by docs/_ext/gemv_pages.py from the kernel's own file; edit that instead.",
        f"({kernel.name})=",
        f"# {kind} {kernel.rung}: `{kernel.name}`",
        f"*{_escaped(lesson[''].splitlines()[0])}*",
    ]
    if kernel.beside:
        page.append(
            "This one stands beside the ladder: it is there to show something, and `gemv` selects"
            f' it only when asked by name, `kernel="{kernel.name}"`.'
        )
    page += ["## Idea", markdown(lesson["Idea"])]
    page += ["## Picture", _drawing(drawn[0]), markdown(lesson["Picture"])]
    page += [_drawing(name) for name in drawn[1:]]
    page += ["## Bytes", markdown(bytes_as_code(lesson["Bytes"]))]
    page += [
        f"The simulator counted, on {COUNTED[0]} x {COUNTED[1]} in float32 with the kernel's own"
        " blocks (a *request* is one load of one warp, a *line* 128 bytes of memory):",
        counted_table(kernel.name),
    ]
    page += ["## Measured", measured_table(kernel, cases)]
    page += selected_cells(kernel, grids)
    page += ["## When it wins, when it loses"]
    page += ["**Wins.** " + markdown(lesson["Wins"]), "**Loses.** " + markdown(lesson["Loses"])]
    page += ["## Order of the sum", markdown(lesson["Sums"])]
    page += ["## The code", code(kernel)]
    page += ["## Exercise", exercise(kernel)]
    page += ["## What the next rung repairs", next_rung(kernel, following)]
    page += ["## Source", markdown(lesson["Source"])]
    return "\n\n".join(page) + "\n"


def _drawing(name: str) -> str:
    return f"```{{drawing}} {name}\n```"


def counted_table(name: str) -> str:
    facts = json.loads((OUT / f"counted-{name}.json").read_text(encoding="utf-8"))
    heads = {"C": "A along rows", "F": "A along columns"}
    lines = ["| | " + " | ".join(heads[order] for order in facts) + " |"]
    lines.append("| --- |" + " ---: |" * len(facts))
    for key in next(iter(facts.values())):
        values = [facts[order][key] for order in facts]
        if any(values) or "lines" in key:
            shown = [f"{v:g}" if isinstance(v, float) else str(v) for v in values]
            lines.append(f"| {key} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def measured_table(kernel, cases: dict[str, dict]) -> str:
    """This kernel's figures from the committed results, and the step from the rung before."""
    from results import title

    from benchmarks.pages.page import three_digits
    from gemv.kernels import REGISTRY

    rungs = [each.name for each in REGISTRY.values() if not each.beside]
    before = None
    if kernel.name in rungs[1:]:
        before = rungs[rungs.index(kernel.name) - 1]
    lines = []
    devices = set()
    for case in cases.values():
        rows = {row["name"]: row for row in case["rows"]}
        mine = rows.get(kernel.name)
        if mine is None:
            continue
        devices.add(case["device"])
        if mine["refused"]:
            lines.append(f"| {title(case)} | refuses | | |")
            continue
        step = ""
        if before in rows and rows[before].get("time_s"):
            step = f"{rows[before]['time_s'] / mine['time_s']:.3g} times as fast"
        share = f"{mine['share']:.1%}"
        lines.append(f"| {title(case)} | {three_digits(mine['gb_per_s'])} | {share} | {step} |")
    if not lines:
        return (
            "There is no measured figure of this kernel yet: `make ladder` makes it on a GPU, and"
            " this page shows it then."
        )
    if all(line.endswith("refuses | | |") for line in lines):
        return (
            f"It refuses the {len(lines)} problems that all rungs are measured on"
            " ({doc}`/ladder`); what it is selected for is below."
        )
    than = f"than `{before}`" if before else ""
    head = f"| problem | GB/s | of the ceiling | {than} |\n| --- | ---: | ---: | ---: |"
    note = (
        f"On {', '.join(sorted(devices))}; {{doc}}`/ladder` has all kernels side by side and"
        " {doc}`/measure` says how this is measured."
    )
    return "\n".join([head, *lines]) + "\n\n" + note


def selected_cells(kernel, grids) -> list[str]:
    """Cells of the committed grids that the table gives to this kernel, both ends of the list."""
    from benchmarks.pages.grid_page import listed
    from gemv.measure.records import summary

    rows = [row for grid in grids for row in grid.rows if row.ratio is not None]
    mine = sorted((row for row in rows if row.kernel == kernel.name), key=lambda row: -row.ratio)
    if not mine:
        return []
    all_ = summary(mine)
    shapes = {(row.m, row.n, row.op, row.view): row for row in reversed(mine)}
    furthest = sorted(shapes.values(), key=lambda row: -row.ratio)[:4]
    least = [row for row in mine if row not in furthest][-2:]
    return [
        "## Selected",
        f"In {len(mine)} of {len(rows)} cells of {{doc}}`/roofline`, `gemv` selects this kernel; it"
        f" is {all_.ratio:.2f} times as fast as the fastest peer there, in the mean, and at"
        f" {all_.share:.0%} of the floor. The shapes where it is furthest ahead, and the two cells"
        " where it is least:",
        listed([*furthest, *least]),
    ]


def code(kernel) -> str:
    path = source_of(kernel)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    first = tree.body[1].lineno
    where = path.relative_to(TOP).as_posix()
    return (
        f"All of `{where}` below its lesson. `build` makes the kernel for a dtype and block size,"
        " `geometry` lays out the grid; {doc}`/course/reading` explains the rest.\n\n"
        f"```{{literalinclude}} ../../../{where}\n:language: python\n:lines: {first}-\n```"
    )


def exercise(kernel) -> str:
    path = EXERCISES / f"{kernel.name}.py"
    if not path.exists():
        return (
            "Take a barrier, a fence or a bound out of a copy of this file and let the simulator"
            " find the damage: copy"
            f" `{source_of(kernel).relative_to(TOP).as_posix()}` to `mine.py`, change it, and run"
            "\n\n"
            "```sh\npython docs/exercises mine.py\n```\n\n"
            "The check runs it under several orders of its threads and on sizes around its tile."
            " Which changes does it notice, and which go unpunished?"
        )
    task = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    # an exercise marks code as Markdown does, a lesson as reStructuredText
    title, _, rest = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", task).partition("\n")
    answer = EXERCISES / "answers" / path.name
    text = [
        f"**{_escaped(title)}**",
        markdown(rest.strip()),
        f"Start from `docs/exercises/{path.name}`, change it, and check it without a GPU:",
        f"```sh\npython docs/exercises docs/exercises/{path.name}\n```",
        f"```{{literalinclude}} ../../exercises/{path.name}\n:language: python\n"
        ":start-at: def build\n:end-before: KERNEL =\n```",
    ]
    if answer.exists():
        text += [
            "<details><summary>One answer</summary>",
            f"```{{literalinclude}} ../../exercises/answers/{path.name}\n:language: python\n"
            ":start-at: def build\n:end-before: KERNEL =\n```",
            "</details>",
        ]
    return "\n\n".join(text)


def next_rung(kernel, following) -> str:
    if following is None:
        return (
            "The ladder ends here for now. {doc}`/add_kernel` shows how to put a rung on top, and"
            " {doc}`/ladder` how far there is still to go."
        )
    idea = _escaped(following.idea.rstrip("."))
    return f"{{doc}}`Rung {following.rung}, {following.name} <{stem(following)}>`: {idea}."


def rung_list(cases: dict[str, dict]) -> str:
    """The table of the course's front page."""
    from gemv.kernels import REGISTRY

    lines = ["| rung | kernel | idea |", "| ---: | --- | --- |"]
    for kernel in REGISTRY.values():
        mark = " (beside the ladder)" if kernel.beside else ""
        lines.append(
            f"| {kernel.rung} | {{doc}}`{kernel.name} <rungs/{stem(kernel)}>`{mark}"
            f" | {_escaped(kernel.idea)} |"
        )
    return "\n".join(lines) + "\n"


def ladder_page(cases: dict[str, dict]) -> str:
    """Tables and plots of the ladder page: what each kernel loses comes first."""
    from results import title

    from benchmarks.pages.page import duration, three_digits
    from gemv.kernels import REGISTRY

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
    parts += ["\n".join(lines), "## Under one roof", _drawing("ladder-roofline")]
    parts.append("## All kernels, problem by problem")
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
            f"### {title(case)}",
            _drawing(f"ladder-{name}"),
            "\n".join(rows),
            f"{case['device']}; {versions}.",
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
                    lines.append(f"| {row['name']} | {time} | {_escaped(row['note'])} |")
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
    import results

    from benchmarks.pages import grid_page
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
    for path in (DOCS / "course" / "rungs").glob("*.md"):
        if path not in wanted:
            path.unlink()
    write(DOCS / "generated" / "rungs.md", rung_list(cases))
    write(DOCS / "generated" / "reference.md", reference())
    write(DOCS / "generated" / "ladder.md", ladder_page(cases))
    write(DOCS / "generated" / "calls.md", calls_page(load_calls()))
    pages = [grid_page.random_page(drawn), grid_page.page(grids)]
    write(DOCS / "generated" / "roofline.md", "\n".join(pages))


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
