"""What became faster or slower between two points of the history.

    python -m benchmarks.history.compare [--machine NAME]    the two newest points of a machine
    python -m benchmarks.history.compare OLD.json NEW.json   two files of points
    ... --all                                                small differences, and each new figure

The points of a machine are the files in benchmarks/results/history/NAME/. Without a name the
machine is the one with this GPU, or else the one with the newest point.

Imports and first calls are compared in units of what NumPy's import took in the same run, where
both points have that: a slower host is no slower gemv.

Exit status 1 if a figure is worse beyond its spread, or is missing from the new point. Two runs
of one commit agree within it; to check that on a machine, measure a commit twice and compare the
files with --all.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from itertools import product
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
RESULTS = TOP / "benchmarks" / "results" / "history"

#: By how much two runs of one commit may differ, for each unit, and whether more is better.
#: benchmarks/results/spread has two runs of one commit on one H200, minutes apart: of 100 rates the
#: middle one differs by 0.1 %, the last one by 1.7 %. On two H200s what had not changed, cuBLAS and
#: the plain kernel, differed by up to 3.2 %, and the ratio of the two by 3.1 %. What a call costs
#: Python depends on the core that it is on: up to 1.57 times as much in those two runs, while
#: NumPy's import took less. The spreads of seconds, of bytes and of several GPUs are allowances.
SPREAD = {
    "GB/s": (0.04, True),
    "% of the floor": (0.04, True),
    "% of the read ceiling": (0.04, True),
    "times as fast as cuBLAS": (0.04, True),
    "times as fast as one GPU": (0.10, True),
    "seconds": (0.25, False),
    "us": (0.60, False),
    "bytes": (0.10, False),
}

#: What may become of a figure, and which of them are counted even where there are none.
VERDICTS = ("better", "worse", "same", "gone", "new")
SAID = VERDICTS[:3]
#: The order in which they are listed.
SHOWN = ("worse", "better", "same", "gone", "new")
#: Those of a figure that only one of the points has.
ONE_POINT = VERDICTS[3:]

#: The import of NumPy, and nothing of ours: when it moved, the host has.
CONTROL = ("api.Start.timeraw_import_with_numpy", ())


def load(path: Path) -> dict[tuple[str, tuple[str, ...]], float]:
    """Figures of a result file of asv by benchmark and parameters; what was skipped is left out."""
    data = json.loads(path.read_text(encoding="utf-8"))
    result, params = (data["result_columns"].index(name) for name in ("result", "params"))
    figures = {}
    for name, columns in data["results"].items():
        values = columns[result] or []
        for chosen, value in zip(product(*columns[params]), values, strict=False):
            if value is not None and not math.isnan(value):
                figures[name, tuple(text.strip("'") for text in chosen)] = value
    return figures


def units(path: Path) -> dict[str, str]:
    """Unit of each benchmark, from the benchmarks.json next to a result, above it, or of all."""
    for folder in (path.parent, path.parent.parent, RESULTS):
        if (folder / "benchmarks.json").is_file():
            data = json.loads((folder / "benchmarks.json").read_text(encoding="utf-8"))
            return {name: each["unit"] for name, each in data.items() if isinstance(each, dict)}
    return {}


def newest(machine: str) -> list[Path]:
    """Result files of a machine by the date of their commits, oldest first."""
    dated = []
    for path in (RESULTS / machine).glob("*.json"):
        if path.name != "machine.json":
            dated.append((json.loads(path.read_text(encoding="utf-8"))["date"], path))
    return [path for _, path in sorted(dated)]


def machine_here() -> str | None:
    """The machine whose points are compared: the one with this GPU, or with the newest point."""
    found = {path.parent.name: path for path in RESULTS.glob("*/machine.json")}
    facts = {name: json.loads(path.read_text(encoding="utf-8")) for name, path in found.items()}
    gpu = this_gpu()
    here = [name for name in found if facts[name].get("gpu") == gpu]
    dated = [
        (json.loads(newest(name)[-1].read_text(encoding="utf-8"))["date"], name)
        for name in (here or found)
        if newest(name)
    ]
    return max(dated)[1] if dated else None


def this_gpu() -> str | None:
    """The name of the first GPU, as the driver tells it; None where there is none."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return None
    names = answer.stdout.splitlines() if answer.returncode == 0 else []
    return names[0].strip() if names else None


def compare(old: Path, new: Path) -> list[tuple[str, float, float, str, float, str]]:
    """Benchmark, old and new figure, unit, change, and a verdict.

    Figures of both points come first, by verdict and change; then those of one point.

    The change is positive where the new figure is better. The verdict is "better", "worse" or
    "same", or "gone" or "new" of a figure that only one of the points has; the other one is NaN.
    """
    before, after, unit_of = load(old), load(new), {**units(old), **units(new)}
    host = after[CONTROL] / before[CONTROL] if CONTROL in before and CONTROL in after else 1.0
    rows = []
    for key in before.keys() | after.keys():
        name, params = key
        unit = unit_of.get(name, "seconds")
        title = f"{name}({', '.join(params)})" if params else name
        if key not in before or key not in after:
            gone = key in before
            was, now = before.get(key, math.nan), after.get(key, math.nan)
            rows.append((title, was, now, unit, 0.0, "gone" if gone else "new"))
            continue
        spread, more_is_better = SPREAD.get(unit, (0.25, False))
        was = before[key] * (host if unit == "seconds" else 1.0)
        a, b = (was, after[key]) if more_is_better else (after[key], was)
        change = b / a - 1 if a else 0.0
        verdict = "same"
        if change > spread:
            verdict = "better"
        elif change < 1 / (1 + spread) - 1:
            verdict = "worse"
        rows.append((title, before[key], after[key], unit, change, verdict))
    return sorted(rows, key=lambda row: (SHOWN.index(row[5]), row[4], row[0]))


def one_point_only(rows: list[tuple], verdict: str) -> list[str]:
    """A line for each benchmark that has figures in only one of the points."""
    names = [row[0].partition("(")[0] for row in rows if row[5] == verdict]
    return [
        f"{verdict:6} {names.count(name)} figure{'s' * (names.count(name) > 1)} of {name}"
        for name in dict.fromkeys(names)
    ]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="OLD NEW")
    parser.add_argument("--machine")
    parser.add_argument("--all", action="store_true", help="also what stayed within the spread")
    options = parser.parse_args(arguments)
    files, where = options.files, "there are"
    if not files:
        machine = options.machine or machine_here()
        files = newest(machine)[-2:] if machine else []
        where = f"benchmarks/results/history/{machine or ''} has"
    if len(files) != 2:
        print(f"two points are needed; {where} {len(files)}", file=sys.stderr)
        return 2
    print(f"from {files[0].stem} to {files[1].stem}")
    rows = compare(*files)
    control = [load(path).get(CONTROL) for path in files]
    if all(control):
        taken = " -> ".join(f"{seconds:.4g}" for seconds in control)
        print(f"NumPy's import, the unit of imports and first calls: {taken} seconds")
    for title, old, new, unit, change, verdict in rows:
        if verdict in ONE_POINT:
            only = f"{old if verdict == 'gone' else new:.4g}"
            if options.all:
                print(f"{verdict:6} {only} {unit}  {title}")
        elif options.all or verdict != "same":
            print(f"{verdict:6} {change:+7.1%}  {old:.4g} -> {new:.4g} {unit}  {title}")
    if not options.all:
        for line in (line for verdict in ONE_POINT for line in one_point_only(rows, verdict)):
            print(line)
    count = {word: sum(row[5] == word for row in rows) for word in VERDICTS}
    print(", ".join(f"{count[word]} {word}" for word in VERDICTS if count[word] or word in SAID))
    return 1 if count["worse"] or count["gone"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
