"""The pages of the second part of the course that are made from kernel files."""

from __future__ import annotations

import ast
import json

from kernel_pages import (
    OUT,
    TOP,
    bytes_as_code,
    escaped,
    markdown,
    sections,
)

from benchmarks.pages.page import drawing, folded

#: What the table of a page was counted on, in words.
_COUNTED = {
    "small_items": "The simulator ran {2} products of {0} x {1} float32, by this kernel and by that"
    " with a thread for each row:",
    "small_matrix": "The simulator ran one product of {0} x {1} float32, by this kernel and by that"
    " for many of them:",
    "staged": "The simulator ran {} products of {} x {} float32, stored along {}, by this kernel"
    " and by {{ref}}`{}`, whose sums it has:",
    "several": "The simulator ran this kernel for several vectors, and {{ref}}`{}` for one, with"
    " the constants that an H200 gets. A is {} x {} in float32, stored along {}:",
    "several_short_rows": "The simulator ran this kernel for several vectors as it runs for many"
    " rows of 2-byte numbers, and {{ref}}`{}` for one. A is {} x {} in float32, stored along {}:",
    "several_small": "The simulator ran this kernel as it runs for thousands of vectors, and"
    " {{ref}}`{}` for one. A is {} x {} in float32, stored along {}:",
    "list": "64 MiB of matrices in each dtype, stored along {}, whose rows and columns are"
    " log-uniform from 4 to 512, as an H200 gets them. A tile is what a warp computes at once:",
}


#: Kernels whose figure shows what they do, and not a time.
_IN_PICTURES = ("small_matrix", "small_items", "staged_rows", "staged_columns")


def kernels() -> list:
    """The kernels of batches, in reading order."""
    from gemv.kernels import BATCHED, get

    return [get(name) for name in BATCHED]


def stem(kernel) -> str:
    from gemv.kernels import BATCHED

    folder = BATCHED[kernel.name].split(".")[0]
    return f"{folder}-{kernel.rung:02}-{kernel.name}"


def beyond_page(kernel) -> str:
    """The page of one kernel for batches."""
    import items
    import items_of_lists

    lesson = sections(kernel.doc)
    page = [
        "% Made by docs/_ext/gemv_pages.py from the kernel's own file; edit that instead.",
        f"({kernel.name})=",
        f"# `{kernel.name}`",
        f"*{escaped(lesson[''].splitlines()[0])}*",
        "## Idea",
        markdown(lesson["Idea"]),
        "## Picture",
        markdown(lesson["Picture"]),
        *([drawing(f"items-{kernel.name}")] if kernel.name in _IN_PICTURES else []),
        *([drawing(f"lists-{kernel.name}")] if kernel.name in items_of_lists.ORDERS else []),
        "## Bytes",
        markdown(bytes_as_code(lesson["Bytes"])),
        *([_counted(kernel)] if kernel.name not in items.NARROW + items.LARGE else []),
        "## Measured",
        *([drawing(f"items-{kernel.name}")] if items.of_vectors(kernel.name) else []),
        measured_table(kernel.name),
        "## Wins and losses",
        "**Wins.** " + markdown(lesson["Wins"]),
        "**Loses.** " + markdown(lesson["Loses"]),
        "## Order of the sum",
        markdown(lesson["Sums"]),
        "## The code",
        _code(kernel),
        "## Source",
        markdown(lesson["Source"]),
    ]
    return "\n\n".join(page) + "\n"


def _counted(kernel) -> str:
    import items
    import items_of_lists

    facts = json.loads((OUT / f"counted-{kernel.name}.json").read_text(encoding="utf-8"))
    small = {"small_items": items.SMALL_ITEMS, "small_matrix": items.SMALL_MATRIX}
    if kernel.name in small:
        text = _COUNTED[kernel.name].format(*small[kernel.name])
    elif kernel.name in items.STAGED:
        single, order, m, n = items.STAGED[kernel.name]
        along = "rows" if order == "C" else "columns"
        text = _COUNTED["staged"].format(items.STAGED_ITEMS, m, n, along, single)
    elif kernel.name in items_of_lists.ORDERS:
        order = items_of_lists.ORDERS[kernel.name]
        text = _COUNTED["list"].format("rows" if order == "C" else "columns")
    else:
        single, order, m, n = items.SEVERAL[kernel.name]
        text = _COUNTED.get(kernel.name, _COUNTED["several"])
        text = text.format(single, m, n, "rows" if order == "C" else "columns")
    head = "vectors" if kernel.name in items.SEVERAL else ""
    lines = [f"| {head} | " + " | ".join(facts) + " |", "| --- |" + " ---: |" * len(facts)]
    for key in next(iter(facts.values())):
        lines.append(f"| {key} | " + " | ".join(str(fact[key]) for fact in facts.values()) + " |")
    return text + "\n\n" + "\n".join(lines)


def measured_table(name: str) -> str:
    """The stored float32 cells in which the kernel was selected."""
    from items import LARGE, NARROW, SEVERAL, measured

    from benchmarks.pages.page import duration

    if name.startswith("list_"):
        return "{doc}`/several` has the times of lists, and of other ways to compute them."
    if name in NARROW:
        return "The kernel is for numbers of 2 bytes; {doc}`/several` has the times of these."
    if name in LARGE:
        return "The kernel is for large matrices; {doc}`/several` has the times of these."
    rows = measured(name)
    if not rows:
        return "There is no measured figure of this kernel yet: `make several` makes it on a GPU."
    what, number = ("vectors", "vectors") if name in SEVERAL else ("items", "batch")
    lines = [f"| A, float32 | {what} | time | of the floor | beside the peer |"]
    lines.append("| --- | ---: | ---: | ---: | ---: |")
    for row in rows:
        of_op = f"{row.m} x {row.n} {row.order}{row.op}"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        lines.append(
            f"| {of_op} | {getattr(row, number)} | {duration(row.time_s)}"
            f" | {row.share:.2f} | {ratio} |"
        )
    note = (
        "C and F are the storage orders, N and T the plain and the transposed product. The floor is"
        " the time of a plain kernel that moves the bytes of A, x and y once. {doc}`/several` has"
        " the other dtypes, and every cell in which a peer is faster."
    )
    return "\n".join(lines) + "\n\n" + note


def _code(kernel) -> str:
    from gemv.kernels import BATCHED

    where = f"gemv/kernels/{BATCHED[kernel.name].replace('.', '/')}.py"
    text = (TOP / where).read_text(encoding="utf-8")
    first = ast.parse(text).body[1].lineno
    lines = len(text.splitlines()) - first
    listing = f"```{{literalinclude}} ../../../{where}\n:language: python\n:lines: {first}-\n```"
    return f"All of `{where}` below its lesson.\n\n" + folded(f"The {lines} lines", listing)


def beyond_list() -> str:
    """The table of the kernels for batches."""
    lines = ["| kernel | idea |", "| --- | --- |"]
    lines += [
        f"| {{doc}}`{kernel.name} <beyond/{stem(kernel)}>` | {escaped(kernel.idea)} |"
        for kernel in kernels()
    ]
    return "\n".join(lines) + "\n"
