"""The README's ladder table from ``benchmarks/results/ladder/*.json``.

    python -m benchmarks.pages.ladder_table           prints the table
    python -m benchmarks.pages.ladder_table --write   puts it between the markers of README.md
    python -m benchmarks.pages.ladder_table --check   exit status 1 if README.md is not up to date

``make ladder`` measures those files on a GPU and writes the table.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
README = TOP / "README.md"
RESULTS = TOP / "benchmarks" / "results" / "ladder"
BEGIN = "<!-- ladder:begin -->"
END = "<!-- ladder:end -->"
DTYPES = {
    "s": "float32", "d": "float64", "c": "complex64", "z": "complex128", "h": "float16",
    "b": "bfloat16",
}  # fmt: skip


def load(folder: Path = RESULTS) -> list[dict]:
    """Every measured case, float32 before float64, square before tall and wide."""
    cases = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    for case in cases:
        if case["backend"] != "cuda":
            raise ValueError("a ladder without a GPU carries no figures and belongs in no table")
    order = list(DTYPES).index
    return sorted(
        cases,
        key=lambda c: (order(c["dtype"]), c["m"] != c["n"], -c["m"], c["order"], c["op"]),
    )


def heading(case: dict) -> str:
    text = f"{DTYPES[case['dtype']]}<br>{case['m']} x {case['n']}"
    if (case["order"], case["op"]) != ("C", "N"):
        text += f"<br>{case['order']}, {case['op']}"
    return text


def cell(case: dict, name: str) -> str:
    for row in case["rows"]:
        if row["name"] == name:
            if row.get("refused"):
                return "refuses"
            if row.get("gb_per_s") is None:
                break
            share = "" if row.get("share") is None else f" ({row['share']:.0%})"
            # three digits: neither a slow kernel rounds to nothing nor a fast one shows noise
            rate = float(f"{row['gb_per_s']:.3g}")
            return f"{rate:g}{share}"
    return "–"


def table(cases: list[dict]) -> str:
    """Markdown, a row for each kernel of the registry."""
    from gemv.kernels import REGISTRY

    kernels = sorted(REGISTRY.values(), key=lambda k: (k.rung, k.beside, k.name))
    headings = ["rung", "kernel", "idea", *map(heading, cases)]
    lines = [
        "| " + " | ".join(headings) + " |",
        "| ---: | --- | --- |" + " ---: |" * len(cases),
    ]
    for kernel in kernels:
        name = f"`{kernel.name}`" + (" (teaching)" if kernel.beside else "")
        cells = [str(kernel.rung), name, kernel.idea.replace("|", "\\|").rstrip(".")]
        lines.append("| " + " | ".join(cells + [cell(case, kernel.name) for case in cases]) + " |")
    lines.append("")
    if cases:
        devices = ", ".join(sorted({case["device"] for case in cases}))
        lines.append(f"GB/s and the share of the read ceiling of the same run, on {devices}.")
    else:
        lines.append("No figures yet: `make ladder` measures them on a GPU.")
    return "\n".join(lines)


def replaced(readme: str, text: str) -> str:
    head, rest = readme.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n{text}\n{END}{tail}"


def main(arguments: list[str]) -> int:
    text = table(load())
    if not arguments:
        print(text)
        return 0
    if arguments not in (["--write"], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    old = README.read_text(encoding="utf-8")
    new = replaced(old, text)
    if arguments == ["--write"]:
        from gemv.core.files import write_text

        write_text(README, new)
        return 0
    if new != old:
        print("README.md is not up to date: make table", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
