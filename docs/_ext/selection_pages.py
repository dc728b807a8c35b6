"""The parts of the pages on selection that are computed: by the formula, and from a campaign.

Nothing here needs Sphinx: :mod:`gemv_pages` calls it when a build starts.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import pickle
import re
from pathlib import Path

import numpy as np
from kernel_pages import OUT, TOP, escaped

from benchmarks.pages.page import markdown, number, three_digits

FITS = TOP / "benchmarks" / "results" / "fit"
GATES = TOP / "benchmarks" / "results" / "gate"
#: The H200 as the driver tells of it, and the problem of the worked example.
GPU = ("NVIDIA H200", (9, 0), 132)
ROWS, COLS = 16, 65536
#: The table of errors leaves out launches that are slower than this multiple of the best one.
NEAR = 1.5
#: Bytes of lines, and passes, that the table of errors tells apart.
SHORT, MANY = 64, 64


def example() -> str:
    """The launches that the formula compares for one problem, term by term."""
    from gemv.core.dtypes import DTYPES
    from gemv.core.geometry import Device
    from gemv.core.problem import Problem
    from gemv.selection.formula import BOUNDS, FEW_BLOCKS, Parts
    from gemv.selection.machine import machine
    from gemv.selection.ranking import knobs_of, predictions

    gpu = Device(*GPU)
    problem = Problem(DTYPES["s"], ROWS, COLS, 0, ROWS, COLS, False, COLS, 1).aligned(16, 16)
    found = sorted(predictions(machine(gpu), problem, gpu), key=lambda each: each.parts.seconds)
    groups: dict[tuple, object] = {}
    for each in found:
        work = each.work
        few, split = work.blocks <= FEW_BLOCKS, work.splits > 1
        groups.setdefault((each.constants.kernel.name, few, split), each)
    lines = []
    for each in groups.values():
        terms = [three_digits(1e6 * seconds) for seconds in (*each.parts, each.parts.seconds)]
        work = each.work
        lines.append(
            [f"{{ref}}`{each.constants.kernel.name}`", str(work.blocks), str(work.splits), *terms]
        )
    head = ["kernel", "blocks", "split into", *Parts._fields, "T"]
    best = found[0]
    named = ", ".join(
        f"`{name}` = {value}"
        for name, value in knobs_of(best.constants, best.candidate.blocks).items()
    )
    counts = ", ".join(f"`{name}` = {value}" for name, value in best.work._asdict().items())
    return "\n\n".join(
        [
            f"The formula compares {len(found)} launches. The table has the best one of each"
            f" kernel, apart for launches with at most {FEW_BLOCKS} blocks and with more, and for"
            " launches with splits and without. Times are in µs.",
            markdown(head, "w" + "f" * 8, lines),
            f"The first launch has the constants {named}. Its longest term is {best.parts.bound}:"
            f" {BOUNDS[best.parts.bound]} bounds it. The kernel counts {counts}.",
        ]
    )


def numbers() -> str:
    """Every number of the formula: what it stands for, and its value on the H200."""
    from gemv.core.geometry import Device
    from gemv.selection.formula import Machine
    from gemv.selection.machine import machine

    found = machine(Device(*GPU))
    lines = []
    for names, text in described(Machine):
        values = [value_of(name, getattr(found.numbers, name)) for name in names]
        said = " ".join(text.split())
        lines.append([", ".join(f"`{name}`" for name in names), escaped(said), ", ".join(values)])
    factors = [
        [f"{{ref}}`{name}`", number(start, ".3g"), number(issue, ".3g")]
        for name, (start, issue) in found.factors.items()
    ]
    return "\n\n".join(
        [
            markdown(["numbers", "what they are", "on the H200"], "wwf", lines),
            "The factors of the kernels on the H200:",
            markdown(["kernel", "start", "issue"], "wff", factors),
        ]
    )


def described(kind: type) -> list[tuple[list[str], str]]:
    """Names and text of each entry of the section Attributes of a docstring."""
    section = inspect.cleandoc(kind.__doc__ or "").split("Attributes\n----------\n")[1]
    entries = re.findall(r"^(\S.*?) : .+\n((?: {4}.+\n?)+)", section, re.M)
    return [(names.split(", "), text) for names, text in entries]


def value_of(name: str, value: float) -> str:
    """A number with a unit that suits it."""
    if name.endswith("_rate"):
        return f"{value / 1e12:.3g} TB/s"
    if name in ("stores", "imbalance", "partial_wave", "edge"):
        return f"{value:.3g}"
    # a fit that has no use for a number makes it as good as zero
    return f"{value * 1e9:.3g} ns" if value > 1e-15 else "0"


# --- A campaign and its fit -----------------------------------------------------------------------


def fits() -> dict[str, dict]:
    """Every stored report of a fit by the name of its file, without ``-model``."""
    return {
        path.stem.removesuffix("-model"): json.loads(path.read_text("utf-8"))
        for path in sorted(FITS.glob("*-model.json"))
    }


def fit_page(reports: dict[str, dict]) -> str:
    """How far choices are from the best candidate, and predicted from measured times."""
    if not reports:
        return "No results are stored yet: `make fit` measures them on a GPU.\n"
    parts = []
    for name, report in reports.items():
        about = report["campaign"]
        parts.append(f"## {about['gpu']}")
        judgements = [
            (f"{part}: {choice}", judged)
            for part in ("held out", "fitted")
            for choice, judged in report[part].items()
            if isinstance(judged, dict)
        ]
        for title, drawn in (
            ("never seen, drawn at random: present choice", GATES / f"{name}-random.json"),
            ("never seen, beside 35 launches: present choice", GATES / f"{name}-gate.json"),
        ):
            if drawn.exists():
                judged = json.loads(drawn.read_text("utf-8"))["present"]
                judgements.append((title, judged))
        lines = [
            [
                title, str(int(judged["cells"])), number(judged["mean"], ".3f"),
                number(judged["most_of_95"], ".3f"), number(judged["worst"], ".2f"),
                f"{judged['floor_over_time']:.1%}",
            ]
            for title, judged in judgements
        ]  # fmt: skip
        head = ["problems: chosen by", "number", "regret, mean", "of 95 %", "worst",
                "of the floor"]  # fmt: skip
        parts.append(markdown(head, "wfffff", lines))
        errors = ", ".join(
            f"{report[part]['median_error_of_formula']:.1%} on the problems {words}"
            for part, words in (("held out", "held out"), ("fitted", "that were fitted"))
        )
        versions = ", ".join(f"{key} {value}" for key, value in about["versions"].items())
        parts.append(
            f"The median error of a time by the formula is {errors}."
            f" Measured on {about['date']} with {versions}."
        )
        file = FITS / f"{name}.json"
        if file.exists():
            parts += errors_of(file)
    return "\n\n".join(parts) + "\n"


def changed_rows(file: Path = GATES / "h100-changes.json") -> list[tuple[str, str, dict]]:
    """Regret of choices on fresh problems, before and after their change: part, key, figures."""
    from benchmarks.fit.gate import regret

    problems = json.loads(file.read_text(encoding="utf-8"))["problems"]
    return [
        (part, key, regret((each[key][2], each["best_us"], each["floor_us"]) for each in problems
                           if each["part"] == part))
        for part in dict.fromkeys(each["part"] for each in problems)
        for key in ("usual", "changed")
    ]  # fmt: skip


def alike_page(
    file: Path = FITS / "h100-alike.json",
    formula: Path = GATES / "h100.json",
    drawn: Path = GATES / "h100-random.json",
    every: Path = GATES / "h100-gate.json",
) -> str:
    """How the H200's choices do on a GPU with its multiprocessors, and those that a fit changed."""
    from gemv.selection.machine import REFERENCE

    report = json.loads(file.read_text(encoding="utf-8"))
    parts = (("held out in turn", report["held out"]), ("never seen", report["gate"]))
    usual = f"those of the {REFERENCE.name}"
    rows = [
        (f"{part}: {words}", judged[key])
        for part, judged in parts
        for words, key in ((usual, "usual"), ("with changes", "changed"))
    ]
    rows += [
        (title, json.loads(one.read_text("utf-8"))["present"])
        for title, one in (
            ("never seen: of the formula", formula),
            ("never seen, drawn at random: with changes", drawn),
            ("never seen, beside 30 launches: with changes", every),
        )
    ]
    words = {"usual": usual, "changed": "with changes"}
    rows += [(f"changed, {part}: {words[key]}", judged) for part, key, judged in changed_rows()]
    lines = [
        f"| {title} | {own['cells']:.0f} | {own['mean']:.3f} | {own['most_of_95']:.3f}"
        f" | {own['worst']:.2f} | {own['floor_over_time']:.1%} |"
        for title, own in rows
    ]
    head = f"| choices on the {report['campaign']['gpu']} | problems | regret, mean | of 95 %"
    return "\n".join(
        [f"{head} | worst | of the floor |", "| --- | ---: | ---: | ---: | ---: | ---: |", *lines]
    )


def errors_of(file: Path) -> list[str]:
    """Predicted over measured times of a campaign: by longest term, line, passes and kernel."""
    from benchmarks.fit.samples import KERNELS
    from gemv.kernels.work import Work
    from gemv.selection.formula import BOUNDS

    found, predicted = predicted_of(file)
    _, cells = np.unique(found.cells, return_inverse=True)  # their numbers may be large
    least = np.full(cells.max() + 1, np.inf)
    np.minimum.at(least, cells, found.times)
    near = found.times <= NEAR * least[cells]
    errors = np.log(predicted.seconds / found.times)
    longest = np.argmax(np.column_stack(predicted), axis=1)
    groups = [(f"longest is {name}: {BOUNDS[name]}", longest == predicted._fields.index(name))
              for name in BOUNDS]  # fmt: skip
    # behind its work: registers, blocks, rows, columns, bytes of a line (row_of in samples.py)
    line = found.launches.further[:, len(Work._fields) + 4]
    passes, kernels = found.launches.counts.passes, found.launches.kernels
    groups += [
        (f"lines shorter than {SHORT} bytes", line < SHORT), ("longer lines", line >= SHORT),
        (f"fewer than {MANY} passes", passes < MANY), ("more passes", passes >= MANY),
    ]  # fmt: skip
    groups += [(f"{{ref}}`{name}`", kernels == place) for place, name in enumerate(KERNELS)]
    lines = []
    for name, which in groups:
        own = errors[near & which]
        if len(own) >= 20:
            middle, spread = np.median(own), np.percentile(np.abs(own), [50, 90])
            lines.append(
                [name, str(len(own)), number(float(np.exp(middle))),
                 *(f"{np.expm1(value):.0%}" for value in spread)]
            )  # fmt: skip
    head = ["launches where", "number", "predicted / measured", "error, median",
            "of 90 %"]  # fmt: skip
    return [
        f"Predicted and measured times of the {int(near.sum())} launches that took at most {NEAR}"
        " times as long as the best launch of their problem. The file of the campaign has"
        f" {len(found.times)} times in all, of slow ones as well; those of launches that kernels"
        " have changed since are not in it. The numbers of the formula were fitted to"
        " all of them.",
        markdown(head, "wffff", lines),
    ]


def predicted_of(file: Path, keep: bool = False):
    """The measurements of a campaign, and the terms that its GPU's machine predicts for them.

    With `keep` they are left beside the figures, for the pages that need them next.
    """
    kept = OUT / f"predicted-{_digest(file)}.pickle"
    if kept.exists():
        return pickle.loads(kept.read_bytes())
    found = _predicted(file)
    if keep:
        OUT.mkdir(parents=True, exist_ok=True)
        fresh = kept.with_suffix(".fresh")
        fresh.write_bytes(pickle.dumps(found))
        fresh.replace(kept)  # whole, for whoever looks meanwhile
    return found


def _digest(file: Path) -> str:
    """Of a campaign, and of all files that predictions for it may follow from."""
    digest = hashlib.sha256(file.read_bytes())
    for folder in (TOP / "gemv", TOP / "benchmarks" / "fit"):
        kinds = (".py", ".toml", ".json", ".jsonl")
        for path in sorted(each for each in folder.rglob("*.*") if each.suffix in kinds):
            text = path.read_bytes()
            digest.update(f"{path.relative_to(TOP)} {len(text)}\n".encode())
            digest.update(text)
    return digest.hexdigest()


def _predicted(file: Path):
    from benchmarks.fit.samples import KERNELS, samples
    from benchmarks.fit.store import Campaign
    from gemv.kernels import REGISTRY
    from gemv.selection.machine import machine

    campaign = Campaign.load(file)
    gpu = campaign.device
    found, used = samples(campaign, gpu), machine(gpu)
    factors = np.array([used.factors_of(REGISTRY[name]) for name in KERNELS])
    return found, found.launches.parts(used.numbers, factors)
