"""Put measured asv results into the history: ``benchmarks/results/history/``.

    python -m benchmarks.history.store RAW_FOLDER --machine NAME --commit HASH [--date SECONDS]

asv names the interpreter by its path and takes commit and date from the checkout it ran in. Both
are of one machine: here the environment is called by its Python version, and commit and date (of
the commit, seconds since 1970; from git where it knows the commit) are the ones given. So a point
can be measured in a copy that is no git checkout, and be brought home as files. What the point has
already stays, but for what was measured again, if it comes from the same GPU and driver.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
RESULTS = TOP / "benchmarks" / "results" / "history"
#: What compiles, launches, or is measured beside us, where it is installed.
LIBRARIES = (
    "numpy", "scipy", "numba", "numba-cuda", "cuda-bindings", "torch", "cupy-cuda12x",
    "cupy-cuda13x", "jax", "asv",
)  # fmt: skip

#: What asv draws a graph of its own for. Versions are kept apart, or a newer library would begin a
#: graph with one point.
GRAPH = ("machine", "gpu")


def commit_date_ms(commit: str) -> int | None:
    try:
        answer = subprocess.run(
            ["git", "show", "--no-patch", "--format=%ct", commit],
            cwd=TOP,
            capture_output=True,
            text=True,
        )
    except OSError:
        return None
    return int(answer.stdout) * 1000 if answer.returncode == 0 else None


def machine_facts(name: str) -> dict:
    """What a figure depends on: GPU, driver and the versions of the libraries."""
    from importlib.metadata import PackageNotFoundError, version

    fields = ["name", "driver_version"]
    answer = subprocess.run(
        ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=True,
    )
    gpu, driver = (part.strip() for part in answer.stdout.splitlines()[0].split(","))
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"  # of the environment that measured
    facts = {"machine": name, "gpu": gpu, "driver": driver, "python": python, "version": 1}
    for package in LIBRARIES:
        with suppress(PackageNotFoundError):
            facts[package] = version(package)
    return facts


def apart(facts: dict) -> dict[str, dict]:
    """Facts in two parts: those that a graph is of, and the versions."""
    params = {key: facts[key] for key in GRAPH if key in facts}
    return {
        "params": params,
        "versions": {key: value for key, value in facts.items() if key not in params},
    }


def store(raw: Path, results: Path, facts: dict, commit: str, date_ms: int) -> list[Path]:
    """Copy the results below `raw`, cleaned, to `results`; return the files written."""
    from gemv.core.files import write_text

    folder = results / facts["machine"]
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for path in sorted((raw / facts["machine"]).glob("*.json")):
        if path.name == "machine.json":
            continue
        result = json.loads(path.read_text(encoding="utf-8"))
        name = f"existing-py{facts['python']}"
        result |= {"commit_hash": commit, "date": date_ms, "env_name": name}
        result |= {"python": facts["python"], **apart(facts)}
        target = folder / f"{commit[:12]}-{name}.json"
        if target.is_file():
            had = json.loads(target.read_text(encoding="utf-8"))
            then = {**had["params"], **had["versions"]}
            differ = [key for key in ("gpu", "driver") if then.get(key) != facts.get(key)]
            if differ:
                what = ", ".join(f"{key} {then.get(key)}" for key in differ)
                sys.exit(f"{target.name} was measured with {what}: remove it, or measure there")
            result["results"] = {**had["results"], **result["results"]}
        write_text(target, json.dumps(result, indent=1) + "\n")
        written.append(target)
    write_text(folder / "machine.json", json.dumps(facts, indent=4) + "\n")
    described = json.loads((raw / "benchmarks.json").read_text(encoding="utf-8"))
    kept = with_points(described, results)
    write_text(results / "benchmarks.json", json.dumps(kept, indent=4) + "\n")
    return written


def with_points(described: dict, results: Path) -> dict:
    """The descriptions of those benchmarks that a point has; of others asv makes empty panels."""
    measured: set[str] = set()
    for path in results.glob("*/*.json"):
        if path.name != "machine.json":
            measured |= json.loads(path.read_text(encoding="utf-8"))["results"].keys()
    return {name: text for name, text in described.items() if name == "version" or name in measured}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("raw", type=Path, metavar="RAW_FOLDER")
    parser.add_argument("--machine", required=True)
    parser.add_argument("--commit", required=True, help="all 40 digits")
    parser.add_argument("--date", type=int, help="of the commit, seconds since 1970")
    options = parser.parse_args()
    if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") != "0":
        sys.exit("figures of the simulator are no history")
    if len(options.commit) != 40:
        sys.exit(f"--commit needs all 40 digits, got {options.commit!r}")
    known = commit_date_ms(options.commit)
    date_ms = options.date * 1000 if options.date is not None else known
    if date_ms is None:
        sys.exit(f"git does not know {options.commit} here: give --date as well")
    facts = machine_facts(options.machine)
    for path in store(options.raw, RESULTS, facts, options.commit, date_ms):
        print(path.relative_to(TOP))


if __name__ == "__main__":
    main()
