"""The pages of the course that are made from kernel files: a page a kernel, and the tables of both
kernels and device functions.

Nothing here needs Sphinx: :mod:`gemv_pages` calls it when a build starts, and tests call it. Some
functions import modules of ``docs/figures``, which the caller puts on the path.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from pathlib import Path

from benchmarks.pages.page import folded

DOCS = Path(__file__).resolve().parent.parent
TOP = DOCS.parent
FIGURES = DOCS / "figures"
OUT = FIGURES / "out"
EXERCISES = DOCS / "exercises"
#: Kernels of about a page, each with the idea of a rung and nothing else, named for the rung.
SHORT_KERNELS = DOCS / "course" / "short"

#: A page shows this many lines of code at once; more of them are folded.
SHORT = 80

#: Headings of a kernel's docstring, in their order.
HEADINGS = ("Idea", "Picture", "Bytes", "Wins", "Loses", "Sums", "Source")


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
            parts.append("\n".join(map(escaped, prose)))
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


def escaped(line: str) -> str:
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
    return re.sub(r"^((?:items \* )?\([^`]*?\) \* itemsize)", r"``\1``", text)


# --- Pages ----------------------------------------------------------------------------------------


def stem(kernel) -> str:
    return f"{kernel.rung:02}{'t' if kernel.beside else ''}-{kernel.name}"


def source_of(kernel) -> Path:
    letter = "t" if kernel.beside else "k"
    return TOP / "gemv" / "kernels" / f"{letter}{kernel.rung:02}_{kernel.name}.py"


def rung_page(kernel, following, cases: dict[str, dict], grids, drawings) -> str:
    """The page of one kernel; `following` is the next rung, or None.

    Where a shorter kernel shows the idea, what the kernel itself does is on :func:`inside_page`.
    """
    from rungs import SPECIAL

    from benchmarks.pages.page import drawing

    lesson = sections(kernel.doc)
    kind = "Beside rung" if kernel.beside else "Rung"
    special = [drawing(name) for name in SPECIAL.get(kernel.name, []) if name in drawings]
    page = [
        "% Made by docs/_ext/gemv_pages.py from the kernel's own file; edit that instead.",
        f"({kernel.name})=",
        f"# {kind} {kernel.rung}: `{kernel.name}`",
        f"*{escaped(lesson[''].splitlines()[0])}*",
    ]
    if kernel.beside:
        page.append(
            "This one stands beside the ladder: it is there to show something, and `gemv` selects"
            f' it only when asked by name, `kernel="{kernel.name}"`.'
        )
    page += ["## Idea", markdown(idea_alone(kernel))]
    page += short_kernel(kernel)
    page += ["## Picture", drawing(f"matrix-{kernel.name}")]
    if has_short(kernel):
        page += [
            *special,
            "## The kernel itself",
            f"{{doc}}`Inside {kernel.name} <{stem(kernel)}-inside>`: what else it does, what it"
            " reads, what was measured, when it wins and loses, and all of its code.",
        ]
    else:
        page += [markdown(lesson["Picture"]), *special]
        page += inside(kernel, lesson, cases, grids, drawings)
    page += [
        f"{{download}}`This page as a notebook <../notebooks/{stem(kernel)}.ipynb>` runs the kernel"
        " in the simulator."
    ]
    page += ["## Exercise", exercise(kernel)]
    page += ["## The next rung", next_rung(kernel, following)]
    page += ["## Source", markdown(lesson["Source"])]
    return "\n\n".join(page) + "\n"


def inside_page(kernel, cases: dict[str, dict], grids, drawings) -> str:
    """The second page of a kernel whose first one shows its idea by a shorter kernel."""
    page = [
        "% Made by docs/_ext/gemv_pages.py from the kernel's own file; edit that instead.",
        f"# Inside `{kernel.name}`",
        f"{{ref}}`{kernel.name}` shows the idea of this kernel by a shorter one.",
    ]
    lesson = sections(kernel.doc)
    page += ["## The whole idea", markdown(lesson["Idea"]), markdown(lesson["Picture"])]
    page += inside(kernel, lesson, cases, grids, drawings)
    return "\n\n".join(page) + "\n"


def inside(kernel, lesson: dict[str, str], cases: dict[str, dict], grids, drawings) -> list[str]:
    """What a kernel reads, how fast it is, when it wins and loses, its sums and its code."""
    from rungs import COUNTED

    from benchmarks.pages.page import drawing

    figures = [f"{subject}-{kernel.name}" for subject in ("lines", "banks")]
    drawn = [name for name in figures if name in drawings and (OUT / f"{name}.light.svg").exists()]
    return [
        "## Bytes",
        markdown(bytes_as_code(lesson["Bytes"])),
        f"The simulator counted, on {COUNTED[0]} x {COUNTED[1]} in float32"
        " ({doc}`/course/memory` explains requests, sectors and lines):",
        counted_table(kernel.name),
        *map(drawing, drawn),
        "## Measured",
        measured_table(kernel, cases),
        *selected_cells(kernel, grids),
        "## Wins and losses",
        "**Wins.** " + markdown(lesson["Wins"]),
        "**Loses.** " + markdown(lesson["Loses"]),
        "## Order of the sum",
        markdown(lesson["Sums"]),
        "## The code",
        code(kernel),
    ]


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
    from benchmarks.pages.ladder_table import title
    from benchmarks.pages.page import markdown as table
    from benchmarks.pages.page import three_digits
    from gemv.kernels import REGISTRY

    rungs = [each.name for each in REGISTRY.values() if not each.beside]
    before = None
    if kernel.name in rungs[1:]:
        before = rungs[rungs.index(kernel.name) - 1]
    measured, refused = [], 0
    devices = set()
    for case in cases.values():
        rows = {row["name"]: row for row in case["rows"]}
        mine = rows.get(kernel.name)
        if mine is None:
            continue
        devices.add(case["device"])
        if mine["refused"]:
            refused += 1
            continue
        step = ""
        if before in rows and rows[before].get("time_s"):
            step = f"{rows[before]['time_s'] / mine['time_s']:.3g} times as fast"
        share = f"{mine['share']:.1%}"
        measured.append([title(case), three_digits(mine["gb_per_s"]), share, step])
    if not measured and not refused:
        return (
            "There is no measured figure of this kernel yet: `make ladder` makes it on a GPU, and"
            " this page shows it then."
        )
    if not measured:
        return (
            f"It refuses the {refused} problems that all rungs are measured on"
            " ({doc}`/ladder`); what it is selected for is below."
        )
    headings = ["problem", "GB/s", "of the ceiling", f"than `{before}`"]
    if not any(step for *_, step in measured):
        headings, measured = headings[:3], [row[:3] for row in measured]
    others = f" It refuses {refused} of the ladder's problems." if refused else ""
    note = (
        f"On {', '.join(sorted(devices))}.{others} {{doc}}`/problems` has all kernels side by side."
    )
    return table(headings, "w" + "f" * (len(headings) - 1), measured) + "\n\n" + note


def selected_cells(kernel, grids) -> list[str]:
    """Cells of the committed grids in which this kernel was selected, both ends of the list."""
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
        f"In {len(mine)} of {len(rows)} cells of {{doc}}`/roofline`, `gemv` selected this kernel."
        f" There it is {all_.ratio:.2f} times as fast as the fastest peer, in the mean, and at"
        f" {all_.share:.0%} of the floor.",
        folded(
            "The shapes where it is furthest ahead, and the two cells where it is least ahead",
            listed([*furthest, *least]),
        ),
    ]


#: Where the short kernel of a rung is that has no file of its own.
_ELSEWHERE = {
    "long_columns": "The answer to the exercise below is the short kernel with this idea.",
    "phased_rows": "The answer to the exercise below is the short kernel with this idea.",
    "phased_columns": "The answer to the exercise of {ref}`phased_rows` is a short kernel with this"
    " idea, along the rows.",
    "cluster_columns": "{ref}`cluster_rows` has a short kernel with this idea, along the rows.",
}


#: How many paragraphs of a lesson the short kernel is about, where it is not one.
_PARAGRAPHS = {"cluster_rows": 2}


def idea_alone(kernel) -> str:
    """The idea of a rung; where a shorter kernel shows it, only as much of it as that one has."""
    idea = sections(kernel.doc)["Idea"]
    if not has_short(kernel):
        return idea
    return "\n\n".join(idea.split("\n\n")[: _PARAGRAPHS.get(kernel.name, 1)])


def has_short(kernel) -> bool:
    """Whether a shorter kernel shows the idea of this one."""
    return kernel.name in _ELSEWHERE or (SHORT_KERNELS / f"{kernel.name}.py").exists()


def short_kernel(kernel) -> list[str]:
    """A kernel with the idea of a rung alone, before the rung itself; nothing for simple rungs."""
    if not has_short(kernel):
        return []
    if kernel.name in _ELSEWHERE:
        return ["## The idea alone", _ELSEWHERE[kernel.name]]
    path = SHORT_KERNELS / f"{kernel.name}.py"
    lesson = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    first, _, rest = lesson.partition("\n")
    return [
        "## The idea alone",
        escaped(first) + f" `python docs/exercises docs/course/short/{path.name}` checks it.",
        listed_code(f"course/short/{path.name}"),
        "**What it leaves out.** " + markdown(rest.strip()),
    ]


def code(kernel) -> str:
    path = source_of(kernel)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    first = tree.body[1].lineno
    where = path.relative_to(TOP).as_posix()
    listing = f"```{{literalinclude}} ../../../{where}\n:language: python\n:lines: {first}-\n```"
    lines = len(path.read_text(encoding="utf-8").splitlines()) - first
    if lines > SHORT:
        listing = folded(f"The {lines} lines", listing)
    script = f"rung.py {kernel.name}" if kernel.beside else f"rung_{kernel.rung:02}.py"
    return (
        f"{{doc}}`/course/reading` explains the parts of `{where}`."
        f" `python docs/course/{script}` runs it and"
        " prints what changed since the rung before.\n\n" + listing
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
        f"**{escaped(title)}**",
        markdown(rest.strip()),
        f"Change `docs/exercises/{path.name}`, and check it without a GPU:",
        f"```sh\npython docs/exercises docs/exercises/{path.name}\n```",
        folded("Its code", listed_code(f"exercises/{path.name}")),
    ]
    if answer.exists():
        text.append(folded("One answer", listed_code(f"exercises/answers/{path.name}")))
    return "\n\n".join(text)


def listed_code(where: str) -> str:
    """The functions of a file of exercises."""
    return (
        f"```{{literalinclude}} ../../{where}\n:language: python\n"
        ":start-at: def build\n:end-before: KERNEL =\n```"
    )


def next_rung(kernel, following) -> str:
    if following is None:
        return (
            "The ladder ends here for now. {doc}`/add_kernel` shows how to put a rung on top, and"
            " {doc}`/ladder` how far there is still to go."
        )
    idea = escaped(following.idea.rstrip("."))
    return f"{{doc}}`Rung {following.rung}, {following.name} <{stem(following)}>`: {idea}."


def rung_list(cases: dict[str, dict]) -> str:
    """The table of the course's front page."""
    from gemv.kernels import REGISTRY

    lines = ["| rung | kernel | idea |", "| ---: | --- | --- |"]
    for kernel in REGISTRY.values():
        mark = " (beside the ladder)" if kernel.beside else ""
        lines.append(
            f"| {kernel.rung} | {{doc}}`{kernel.name} <rungs/{stem(kernel)}>`{mark}"
            f" | {escaped(kernel.idea)} |"
        )
    return "\n".join(lines) + "\n"


def vocabulary_table() -> str:
    """The declared device functions, each with the first paragraph of its declaration."""
    from gemv.language import VOCABULARY

    lines = ["| function | what it does |", "| --- | --- |"]
    for name, function in VOCABULARY.items():
        first = inspect.cleandoc(function.__doc__).split("\n\n")[0]
        call = f"{name}({', '.join(inspect.signature(function).parameters)})"
        lines.append(f"| `{call}` | {escaped(' '.join(first.split()))} |")
    return "\n".join(lines) + "\n"
