"""The README's ladder table from ``benchmarks/results/ladder/*.json``.

    python -m benchmarks.pages.ladder_table             prints the README
    python -m benchmarks.pages.ladder_table --write     puts the table between its markers there
    python -m benchmarks.pages.ladder_table --check     exit status 1 if it is not up to date

``make ladder`` measures those files on a GPU and writes the table.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from benchmarks.pages.page import RESULTS, TOP, between_markers, command, markdown, three_digits
from gemv.cli.options import DTYPE_OF_PREFIX

README = TOP / "README.md"
LADDERS = RESULTS / "ladder"
#: Those that the README shows; the page of the ladder has all of them.
SHORT = ("f32-8192x8192", "f32F-8192x8192")


def load(folder: Path = LADDERS) -> dict[str, dict]:
    """Every ladder by the name of its file, float32 before float64, square before tall and wide."""
    order = list(DTYPE_OF_PREFIX).index

    def place(case: dict) -> tuple:
        return order(case["dtype"]), case["m"] != case["n"], -case["m"], case["order"], case["op"]

    cases = {}
    for path in sorted(folder.glob("*.json")):
        case = json.loads(path.read_text(encoding="utf-8"))
        if case["backend"] != "cuda":
            raise ValueError(f"{path.name}: a ladder without a GPU carries no figures")
        cases[path.stem] = case
    return dict(sorted(cases.items(), key=lambda item: place(item[1])))


def title(case: dict) -> str:
    """``float32, 8192 x 8192``, and storage and op where they are not the usual ones."""
    text = f"{DTYPE_OF_PREFIX[case['dtype']]}, {case['m']} x {case['n']}"
    if (case["order"], case["op"]) != ("C", "N"):
        text += f", order {case['order']}, op {case['op']}"
    return text


def short(cases: dict[str, dict]) -> dict[str, dict]:
    """The cases of the README."""
    return {name: case for name, case in cases.items() if name in SHORT}


def heading(case: dict) -> str:
    """The heading of a case's column."""
    along = "rows" if case["order"] == "C" else "columns"
    op = "" if case["op"] == "N" else f", op {case['op']}"
    return f"{DTYPE_OF_PREFIX[case['dtype']]}<br>{case['m']} x {case['n']}<br>by {along}{op}"


def cell(case: dict, name: str) -> str:
    """The rate of one kernel, and its share of the ceiling."""
    for row in case["rows"]:
        if row["name"] == name:
            if row.get("refused"):
                return "refuses"
            if row.get("gb_per_s") is None:
                break
            share = "" if row.get("share") is None else f" ({row['share']:.0%})"
            return three_digits(row["gb_per_s"]) + share
    return "–"


def climb(cases: dict[str, dict]) -> dict[str, set[str]]:
    """The kernels that are faster than all rungs before, and the names of the cases where."""
    found: dict[str, set[str]] = {}
    for name, case in cases.items():
        best = 0.0
        for row in sorted(case["rows"], key=lambda row: (row["rung"], row["teaching"])):
            rate = row.get("gb_per_s") or 0.0
            if rate > best and not row["teaching"]:
                best = rate
                found.setdefault(row["name"], set()).add(name)
    return found


def table(cases: dict[str, dict]) -> str:
    """The climb in Markdown: each kernel that is the fastest so far on one of the cases."""
    from gemv.kernels import REGISTRY

    faster = climb(cases)
    ordered = sorted(REGISTRY.values(), key=lambda k: (k.rung, k.beside, k.name))
    rows = []
    for kernel in (each for each in ordered if each.name in faster):
        figures = [
            f"**{cell(case, kernel.name)}**" if name in faster[kernel.name]
            else cell(case, kernel.name)
            for name, case in cases.items()
        ]  # fmt: skip
        idea = re.split("[:,]", kernel.idea)[0].replace("|", "\\|").rstrip(".")
        rows.append([f"{kernel.rung} `{kernel.name}`: {idea}", *figures])
    headings = ["rung: idea", *map(heading, cases.values())]
    text = markdown(headings, "w" + "f" * len(cases), rows)
    if not cases:
        return f"{text}\n\nNo figures yet: `make ladder` measures them on a GPU."
    devices = ", ".join(sorted({case["device"] for case in cases.values()}))
    beside = [k for k in ordered if k.beside]
    others = [k for k in ordered if not k.beside and k.name not in faster]
    return (
        f"{text}\n\nA figure is GB/s on an {devices} and, in brackets, its share of the ceiling."
        " The ceiling is the rate of the fastest read of the same run. A figure is bold where no"
        " earlier rung is faster."
        " *By rows* and *by columns* say how A is stored. A kernel refuses the order that it is not"
        f" made for.\n\nThe other rungs serve other matrices, or are steps between these:"
        f" {named(others)}. {named(beside)} are side steps: each shows a mistake or an alternative."
    )


def named(kernels: list) -> str:
    """Rungs and names in a sentence."""
    words = [f"`{kernel.name}` ({kernel.rung})" for kernel in kernels]
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def replaced(readme: str, text: str) -> str:
    """The README with that table."""
    return between_markers(readme, "ladder", text)


def pages() -> dict[Path, str]:
    """The README as it should be."""
    return {README: replaced(README.read_text(encoding="utf-8"), table(short(load())))}


if __name__ == "__main__":
    sys.exit(command(__doc__ or "", sys.argv[1:], pages))
