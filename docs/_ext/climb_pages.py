"""The pages of the climb: the rungs of the ladder as steps on one problem, each with its reason.

The words are those of ``docs/course/climb.toml``, the counts those of ``docs/figures/steps.py``,
the changes are cut out of the kernels' files, and the figures are ``benchmarks/results/ladder``'s.
If ``benchmarks/results/profiler`` has a file of the same name, the tables show its figures, too::

    {"device": "NVIDIA H200", "tool": "ncu 2025.3",
     "rows": [{"name": "coalesced", "metrics": {"sectors per request": "4"}}]}

``benchmarks/measure/profiler.py`` writes such files.
"""

from __future__ import annotations

import ast
import difflib
import json
import textwrap
from pathlib import Path
from typing import NamedTuple

from kernel_pages import OUT, TOP, escaped, source_of

from benchmarks.pages.page import drawing, folded

PROFILES = TOP / "benchmarks" / "results" / "profiler"

#: A page shows a change of so many lines at once; a longer one is folded.
LONG = 20

#: What is counted: its heading in long tables and in wide ones, and how a number is written.
COUNTS = {
    "threads": ("threads", "threads", "{:,}"),
    "fill": ("of the GPU's room", "of its room", "{:.2%}"),
    "reading": ("threads that read A", "read A", "{:.0%}"),
    "lines": ("lines per request", "lines", "{:.3g}"),
    "sectors": ("sectors per request", "sectors", "{:.3g}"),
    "useful": ("share of their bytes used", "used", "{:.1%}"),
    "in_a_row": ("bytes at a time", "bytes", "{}"),
    "barriers": ("barriers per row", "barriers", "{:.3g}"),
}

#: Figures of a profiler, by the names that they are stored under: their headings in wide tables.
PROFILED = {
    "sectors per request": "sectors",
    "bytes from memory, of those of A": "bytes",
    "warps, of those there is room for": "warps",
    "time of a warp: waits for memory": "memory",
    "time of a warp: waits at barriers": "barriers",
}


def climb_pages(cases: dict[str, dict], profiles: Path = PROFILES) -> tuple[str, str]:
    """The first act step by step, and the others with a table each."""
    from steps import words

    acts = []
    for number, (act, text) in enumerate(words().items()):
        case = cases.get(text["results"])
        if case is None:
            acts.append(f"## {text['title']}\n\nIt is not measured yet: `make ladder` does that.\n")
            continue
        counts = json.loads((OUT / f"climb-{act}.json").read_text(encoding="utf-8"))
        tell = _told if number == 0 else _listed
        parts = [
            f"## {text['title']}",
            " ".join(text["text"].split()),
            drawing(f"climb-{act}"),
            *tell(text, case, counts, profile_of(profiles, text["results"])),
        ]
        acts.append("\n\n".join(parts) + "\n")
    return acts[0], "\n".join(acts[1:])


class Profile(NamedTuple):
    """What a profiler told of the kernels on a problem.

    Attributes
    ----------
    source : str
        Profiler and GPU, as a sentence; empty if nothing is stored.
    rows : dict
        Figures by their heading, for each kernel.
    """

    source: str
    rows: dict[str, dict[str, str]]


def profile_of(folder: Path, name: str) -> Profile:
    """What a profiler told of each kernel on a problem; nothing where no file is stored."""
    path = folder / f"{name}.json"
    if not path.exists():
        return Profile("", {})
    stored = json.loads(path.read_text(encoding="utf-8"))
    return Profile(
        f"A profiler told what is marked *ncu* ({stored['tool']}, {stored['device']}).",
        {
            row["name"]: {f"{key} (ncu)": str(value) for key, value in row["metrics"].items()}
            for row in stored["rows"]
        },
    )


# --- The first act --------------------------------------------------------------------------------


def _told(text: dict, case: dict, counts: dict[str, dict], profile: Profile) -> list[str]:
    """Steps with hypothesis, change, counts, figure and what is left; then the side steps."""
    from steps import steps

    from benchmarks.pages.page import three_digits

    every = steps(case)
    climbed = [step for step in every if not step.is_aside]
    first, last = climbed[0], climbed[-1]
    parts = [
        f"From {three_digits(first.gb_per_s)} GB/s with step 1 to {three_digits(last.gb_per_s)}"
        f" with step {len(climbed)}: {last.gb_per_s / first.gb_per_s:,.0f} times as fast."
        f" The fastest read of the same run had {three_digits(case['ceiling_gb_per_s'])} GB/s."
        + (f" {profile.source}" if profile.source else "")
    ]
    for number, step in enumerate(climbed, 1):
        name = step.kernel.name
        rung = text["rungs"].get(name, {})
        parts += [
            f"### Step {number}: rung {step.kernel.rung}, {{ref}}`{name}`",
            f"**Hypothesis.** {_said(rung.get('hypothesis'), step, counts)}",
            *([shown_change(step, rung)] if "new" in rung else []),
            before_and_now(step, text["shown"], counts, profile.rows),
            f"**Measured.** {_measured(step)}",
        ]
        if "left" in rung:
            parts.append(f"**What it left.** {_said(rung['left'], step, counts)}")
    aside = [step for step in every if step.is_aside]
    if aside:
        told = [
            f"- {{ref}}`{step.kernel.name}`, {three_digits(step.gb_per_s)} GB/s, {step.ratio:.2f}"
            f" times `{step.before.name}`. "
            + _said(text["rungs"].get(step.kernel.name, {}).get("aside"), step, counts)
            for step in aside
        ]
        parts += [
            "### Side steps",
            f"{len(aside)} rungs are slower on this matrix than a rung before them. They are on the"
            " ladder for what they show, or for other matrices.",
            folded("What each of them shows", "\n\n".join(told)),
        ]
    return parts


def _measured(step) -> str:
    from benchmarks.pages.page import three_digits

    share = f"{step.share:.1%}" if step.share > 0.001 else f"{100 * step.share:.1g}%"
    rate = f"{three_digits(step.gb_per_s)} GB/s, {share} of the ceiling"
    if step.before is None:
        return f"{rate}."
    return f"{rate}: {_times(step.ratio)} times as fast as `{step.before.name}`."


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"


def shown_change(step, rung: dict) -> str:
    """The change, folded if it is long."""
    text = change(step, rung)
    lines = text.count("\n") - 1
    return folded(f"The change: {lines} lines", text) if lines > LONG else text


def change(step, rung: dict) -> str:
    """The excerpt of the step's kernel, as a difference from that of the step before.

    If a new measurement has made another rung the step before, all lines are new.
    """
    new = excerpt(step.kernel, *rung["new"])
    if step.before is None:
        return "```python\n" + "\n".join(new) + "\n```"
    try:
        old = excerpt(step.before, *rung["old"])
    except (KeyError, ValueError):
        old = []
    lines = list(difflib.unified_diff(old, new, n=len(old) + len(new), lineterm=""))
    return "```diff\n" + "\n".join(lines[3:]) + "\n```"


def excerpt(kernel, first: str, last: str) -> list[str]:
    """Lines of a kernel's `build`, from one that begins with `first` to one that does with `last`.

    Comments are left out. A ValueError says which text a file does not have.
    """
    text = source_of(kernel).read_text(encoding="utf-8")
    build = next(node for node in ast.parse(text).body if getattr(node, "name", "") == "build")
    lines = text.splitlines()[build.lineno - 1 : build.end_lineno]
    found = [k for k, line in enumerate(lines) if line.strip().startswith(first)]
    ends = [k for k in range(found[0] if found else 0, len(lines))
            if lines[k].strip().startswith(last)]  # fmt: skip
    if not found or not ends:
        raise ValueError(f"{kernel.name} has no line {last if found else first!r}: climb.toml")
    cut = [line for line in lines[found[0] : ends[0] + 1] if not line.strip().startswith("#")]
    return textwrap.dedent("\n".join(cut)).splitlines()


def before_and_now(step, shown: list[str], counts: dict[str, dict], profile: dict) -> str:
    """A table of what was counted, and what a profiler told, of the step before and of this one.

    It has the rows that differ, and all rows of the first step.
    """
    kernels = [kernel for kernel in (step.before, step.kernel) if kernel is not None]
    heads = ["before", "now"][-len(kernels) :]
    lines = ["| | " + " | ".join(heads) + " |", "| --- |" + " ---: |" * len(kernels)]
    rows = [
        (COUNTS[key][0], [COUNTS[key][2].format(counts[k.name][key]) for k in kernels])
        for key in shown
    ]
    for key in dict.fromkeys(key for k in kernels for key in profile.get(k.name, {})):
        rows.append((key, [profile.get(kernel.name, {}).get(key, "") for kernel in kernels]))
    for heading, numbers in rows:
        if len(numbers) == 1 or numbers[0] != numbers[1]:
            lines.append(f"| {heading} | " + " | ".join(numbers) + " |")
    return "\n".join(lines)


# --- The other acts -------------------------------------------------------------------------------


def _listed(text: dict, case: dict, counts: dict[str, dict], profile: Profile) -> list[str]:
    """The steps in a table, then the side steps in another, each rung with a sentence."""
    from steps import steps

    parts = []
    for title, is_aside in (("Steps", False), ("Side steps", True)):
        chosen = [step for step in steps(case) if step.is_aside == is_aside]
        if not chosen:
            continue
        told = [
            f"- {{ref}}`{step.kernel.name}`: "
            + _said(text["rungs"].get(step.kernel.name), step, counts)
            for step in chosen
        ]
        listed = "\n\n".join([_table(chosen, text["shown"], counts), *told])
        parts.append(folded(f"{len(chosen)} {title.lower()}", listed) if is_aside else listed)
    if profile.rows:
        words = "; ".join(f"*{short}*: {key}" for key, short in PROFILED.items())
        told = f"{profile.source} {words}.\n\n{_profiled(steps(case), profile)}"
        parts.append(folded("What a profiler told of all of them", told))
    return parts


def _profiled(every: list, profile: Profile) -> str:
    """What a profiler told of each rung, a row for each."""
    names = [step.kernel.name for step in every if step.kernel.name in profile.rows]
    keys = list(dict.fromkeys(key for name in names for key in profile.rows[name]))
    heads = [PROFILED.get(key.removesuffix(" (ncu)"), key) for key in keys]
    lines = ["| rung | " + " | ".join(heads) + " |", "| --- |" + " ---: |" * len(heads)]
    for name in names:
        numbers = [profile.rows[name].get(key, "") for key in keys]
        lines.append(f"| {name} | " + " | ".join(numbers) + " |")
    return "\n".join(lines)


def _table(chosen: list, shown: list[str], counts: dict[str, dict]) -> str:
    from benchmarks.pages.page import three_digits

    heads = ["GB/s", *(COUNTS[key][1] for key in shown)]
    lines = ["| rung | " + " | ".join(heads) + " |", "| --- |" + " ---: |" * len(heads)]
    for step in chosen:
        cells = [
            three_digits(step.gb_per_s),
            *(COUNTS[key][2].format(counts[step.kernel.name][key]) for key in shown),
        ]
        lines.append(f"| {step.kernel.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _said(text: str | None, step, counts: dict[str, dict]) -> str:
    """A text of climb.toml with its figures; without one, the first sentence of the lesson."""
    if text is None:
        return escaped(step.kernel.idea)
    from steps import GPU, ROOM

    own = counts[step.kernel.name]
    before = counts[step.before.name] if step.before else {}
    each = GPU.chip.threads
    return " ".join(
        text.format(
            **own,
            before=before,
            share=step.share,
            room=ROOM,
            room_each=each,
            one_each=each * own.get("in_a_row", 0),
        ).split()
    )
