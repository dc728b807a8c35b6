"""The parts of pages that are made from measured results, and the list of the public names.

Nothing here needs Sphinx: :mod:`parts` writes them into their pages.
"""

from __future__ import annotations

import inspect
import json

from kernel_pages import TOP, escaped

from benchmarks.pages.page import by_device, drawing, folded


def ladder_page(cases: dict[str, dict]) -> str:
    """The best kernel of each problem, the furthest from the ceiling first, and all in one plot."""
    from benchmarks.pages.ladder_table import title
    from benchmarks.pages.page import three_digits

    if not cases:
        return "No results are stored yet: `make ladder` measures them on a GPU.\n"
    gpus = " and on an ".join(dict.fromkeys(case["device"] for case in cases.values()))
    parts = ["## Where the best kernel is furthest from the ceiling", f"On an {gpus}:"]
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
    from benchmarks.pages.ladder_table import title
    from benchmarks.pages.page import duration, three_digits
    from gemv.kernels import REGISTRY

    if not cases:
        return "No results are stored yet: `make ladder` measures them on a GPU.\n"
    parts = []
    for name, case in cases.items():
        rows = [
            "| kernel | time | GB/s | of the ceiling | error, in bounds |",
            "| --- | ---: | ---: | ---: | ---: |",
        ]
        for row in case["rows"]:
            if row["name"] not in REGISTRY:
                continue
            if row["refused"]:
                rows.append(f"| {row['rung']} {_link(row['name'])} | refuses | | | |")
                continue
            rows.append(
                f"| {row['rung']} {_link(row['name'])} | {duration(row['time_s'])}"
                f" | {three_digits(row['gb_per_s'])} | {row['share']:.1%} | {row['error']:.2g} |"
            )
        versions = ", ".join(f"{key} {value}" for key, value in case["versions"].items())
        parts += [
            f"## {title(case)}",
            drawing(f"ladder-{name}"),
            folded("In numbers", "\n".join(rows) + f"\n\n{case['device']}; {versions}."),
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
        aims = ["| call | µs | compared with | its µs | ratio | aim |"]
        aims.append("| --- | ---: | --- | ---: | ---: | ---: |")
        for group, mine, other, aim in _AIMS:
            own, peer = times.get((group, mine)), times.get((group, other))
            if own and peer:
                aims.append(
                    f"| {mine} | {own * 1e6:.2f} | {other} | {peer * 1e6:.2f}"
                    f" | {own / peer:.2f} | {aim:.2f} |"
                )
        parts += [
            "### Compared with our aims",
            "A 64 x 64 matrix of float32. *Ratio* is our time over the other one, so lower is"
            " better; *aim* is the ratio that we wanted.",
            "\n".join(aims),
        ]
        for group in dict.fromkeys(row["group"] for row in table["rows"]):
            lines = ["| call | µs | |", "| --- | ---: | --- |"]
            for row in table["rows"]:
                if row["group"] == group:
                    time = "–" if row["time_s"] is None else f"{row['time_s'] * 1e6:.2f}"
                    lines.append(f"| {row['name']} | {time} | {escaped(row['note'])} |")
            parts.append(folded(f"{group[0].upper()}{group[1:]}: all times", "\n".join(lines)))
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
    """Every public name of the package: products, then functions, then classes and errors.

    A table with the file of each, and for Sphinx all of what its docstring says.
    """
    import gemv

    groups: dict[str, list[str]] = {"Products": [], "Other functions": [], "Classes": []}
    for name in sorted(gemv.__all__, key=lambda name: (name != "gemv", name)):
        value = getattr(gemv, name)
        kind = "Products" if name.endswith("gemv") else "Other functions"
        groups["Classes" if isinstance(value, type) else kind].append(name)
    parts = []
    for title, names in groups.items():
        lines = ["| name | what it is |", "| --- | --- |"]
        for name in names:
            said = (inspect.getdoc(getattr(gemv, name)) or "").split("\n\n")[0]
            said = escaped(" ".join(said.split()))
            lines.append(f"| {{py:obj}}`{name} <gemv.{name}>` | {said} |")
        entries = "\n".join(map(_entry, names))
        hidden = f"<!-- sphinx\n```{{eval-rst}}\n{entries}\n```\n-->"
        parts += [f"## {title}", "\n".join(lines), hidden]
    return "\n\n".join(parts) + "\n"


def _entry(name: str) -> str:
    """What Sphinx is to write of a public name."""
    import gemv

    value = getattr(gemv, name)
    if not isinstance(value, type):
        return f".. autofunction:: gemv.{name}"
    kind = "exception" if issubclass(value, BaseException) else "class"
    what = ["   :members:", "   :special-members: __call__"]
    ours = [base.__module__.startswith("gemv.") for base in value.__mro__]
    if any(ours[1:]):  # what it has from a class of ours is its own, for a reader
        foreign = value.__mro__[ours.index(False)]
        what.append(f"   :inherited-members: {foreign.__name__}")
    return "\n".join((f".. auto{kind}:: gemv.{name}", *what))


def load_calls() -> dict[str, dict]:
    """Every stored table of calls by the name of its file, the reference GPU's first."""
    folder = TOP / "benchmarks" / "results" / "calls"
    found = {
        path.stem: json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))
    }
    return dict(by_device(found.items(), lambda item: item[1]["device"]))


def _link(name: str) -> str:
    return f"{{ref}}`{name}`"
