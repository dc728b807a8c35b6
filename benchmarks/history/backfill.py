"""Measure commits of the past on a GPU, all by one program, for the page of the history.

    python -m benchmarks.history.backfill --list             what is wanted, stored, and what runs
    python -m benchmarks.history.backfill --trees            only packs the commits (needs git)
    python -m benchmarks.history.backfill --machine NAME     measures what is not stored yet
    ... --jobs 14 --seconds 330                              14 beside each other, begins none later

``commits.txt`` beside this file lists the commits. The package of each is packed into a file of its
own in ``build/backfill``; where git is missing, copy that folder from a machine that has it.
``device_part.py`` measures a commit, in a process of its own that may run a minute, compilation
included. What it has said until then is kept, and a commit that is too old for a figure has the
reason instead.

As many commits as there are jobs are prepared beside each other: compiled, loaded, and compared.
When all of them are ready, one after the other takes its times, while the others only wait: they
have no work on the GPU and none on a core, so they disturb neither device times nor host times.

Points go to ``benchmarks/results/backfill/NAME/``, each under the date of its commit. The newest
commit comes first, then the oldest, then the middle and so on, so a run that is cut off leaves an
even history. A second run goes on where the first one stopped; remove a file to measure its commit
again, and name the commits on the command line to measure only those.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.history.parts import Part
from benchmarks.history.series import BACKFILLED as RESULTS
from benchmarks.history.series import COMMITS
from benchmarks.history.since import NoGit
from benchmarks.history.store import apart, machine_facts
from benchmarks.history.trees import Wanted, evenly, packed, unpacked, wanted

TOP = Path(__file__).resolve().parents[2]
PART = Path(__file__).with_name("device_part.py")
TREES = TOP / "build" / "backfill"
#: Seconds that one commit may take, without those in which it waits for its turn.
LIMIT_S = 60.0
#: Memory of the GPU that a commit has while it is prepared: two copies of A in three dtypes, and
#: what CUDA, PyTorch and cuBLAS take for a process and for the first call that it starts.
GIB_EACH = 4
#: What is said of a commit of before the public functions.
TOO_OLD = "gemv had no public functions yet"

#: Starts the device part of a tree.
Start = Callable[[Path], Part]


def point(each: Wanted, facts: dict, said: list[dict]) -> dict:
    """A point of the history, written as a result of asv is, and why figures are missing."""
    results: dict[str, list[list]] = {}
    for figure in said:
        if figure["value"] is not None:
            values, params = results.setdefault(figure["name"], [[], []])
            values.append(figure["value"])
            params.append(figure["params"])
    missing = {
        ", ".join([figure["name"], *figure["params"]]): figure["why"]
        for figure in said
        if figure["value"] is None and figure["why"]
    }
    return {
        "commit_hash": each.commit, "date": each.date * 1000, "title": each.title,
        **apart(facts), "figures": results, "missing": missing,
    }  # fmt: skip


def summary(said: list[dict]) -> str:
    """How many figures there are, and the first reason for one that is missing."""
    count = sum(figure["value"] is not None for figure in said)
    missing = [figure for figure in said if figure["value"] is None and figure["why"]]
    if not missing:
        return f"{count} figures"
    return f"{count} figures; {missing[0]['why']}"


class Backfill:
    """A run: where archives are, and where points go.

    Parameters
    ----------
    folder : Path
        Has a file for each commit that is measured.
    facts : dict
        Of the machine, as :func:`~benchmarks.history.store.machine_facts` tells them.
    start : callable
        Starts the device part of a tree.
    archive : callable
        The archive of a commit.
    """

    def __init__(
        self, folder: Path, facts: dict, start: Start, archive: Callable[[Wanted], Path]
    ) -> None:
        self.folder, self.facts, self.start, self.archive = folder, facts, start, archive
        self.stored = 0

    def target(self, each: Wanted) -> Path:
        return self.folder / f"{each.commit[:12]}.json"

    def run(self, commits: Sequence[Wanted], jobs: int = 1, seconds: float | None = None) -> int:
        """Measure those of `commits`, by date, that have no point; how many points were stored.

        After so many seconds no commit is begun, neither with its preparation nor with its times.
        """
        end = None if seconds is None else time.monotonic() + seconds
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
            trees = {each: unpacked(self.archive(each), Path(place)) for each in commits}
            for each in commits:
                if not has_functions(trees[each]) and not self.target(each).is_file():
                    self.store(each, [_missing(TOO_OLD)])
            # The order of all, also of those that are stored: so a second run goes on evenly.
            runs = evenly(each for each in commits if has_functions(trees[each]))
            order = [each for each in runs if not self.target(each).is_file()]
            for first in range(0, len(order), jobs):
                some = order[first : first + jobs]
                done = 0 if over(end) else self.together(some, trees, end)
                if done < len(some):
                    left = len(order) - first - done
                    print(f"{seconds:g} seconds have passed: run it again for {left} more")
                    break
        return self.stored

    def together(self, some: list[Wanted], trees: dict[Wanted, Path], end: float | None) -> int:
        """Prepare some commits beside each other, and time one after the other; how many it did."""
        began = time.monotonic()
        parts = {each: self.start(trees[each]) for each in some}
        done = 0
        try:
            ready = {each: part.prepared() for each, part in parts.items()}
            print(f"{sum(ready.values())} prepared in {time.monotonic() - began:.0f} s", flush=True)
            for each, part in parts.items():
                if over(end):
                    break
                if ready[each]:
                    part.measure()
                self.store(each, part.said)
                done += 1
        finally:
            for part in parts.values():
                part.end()
        return done

    def store(self, each: Wanted, said: list[dict]) -> None:
        """Keep what was said of a commit, unless that is only that its process failed."""
        from gemv.core.files import write_text

        told = f"{each.commit[:7]} {each.title}: "
        if any(figure["value"] is not None or figure["why"] == TOO_OLD for figure in said):
            text = json.dumps(point(each, self.facts, said), indent=1) + "\n"
            write_text(self.target(each), text)
            self.stored += 1
        else:
            told += "not stored: "
        print(told + summary(said), flush=True)


def over(end: float | None) -> bool:
    return end is not None and time.monotonic() >= end


def has_functions(tree: Path) -> bool:
    return (tree / "gemv" / "__init__.py").is_file()


def _missing(why: str) -> dict:
    return {"name": "gemv", "params": [], "value": None, "why": why}


def simulated(tree: Path, command: Sequence[str]) -> list[dict]:
    """What the device part says of a tree under the simulator."""
    if not has_functions(tree):
        return [_missing(TOO_OLD)]
    part = Part(tree, command, LIMIT_S, simulated=True)
    try:
        if part.prepared():
            part.measure()
    finally:
        part.end()
    return part.said


def listing(commits: list[Wanted], command: Sequence[str], results: Path):
    """A line for each commit: where it is stored, and what runs of it under the simulator."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        for each in commits:
            said = simulated(unpacked(packed(each, TOP, TREES), Path(place)), command)
            stored = [path.parent.name for path in results.glob(f"*/{each.commit[:12]}.json")]
            right = sum("right under the simulator" in figure["why"] for figure in said)
            others = sorted({f["why"] for f in said if f["why"] and "right under" not in f["why"]})
            yield (
                f"{each.commit[:7]} {time.strftime('%Y-%m-%d', time.gmtime(each.date))}"
                f" {each.title}: {', '.join(stored) or 'not stored'}; {right} kinds of call right"
                + (f"; {'; '.join(others)}" if others else "")
            )


def other_gpu(folder: Path, gpu: str) -> str | None:
    """The GPU of a machine's points, if that is another one."""
    for path in sorted(folder.glob("*.json")):
        had = json.loads(path.read_text(encoding="utf-8"))["params"].get("gpu")
        if had != gpu:
            return had
    return None


def gpu_memory_gib() -> float:
    """Memory of the first GPU."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout.splitlines()[0]) / 1024


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("only", nargs="*", metavar="COMMIT", help="as the list begins them")
    parser.add_argument("--machine", help="the name that the points are stored under")
    parser.add_argument("--list", action="store_true", help="dry run under the simulator")
    parser.add_argument("--trees", action="store_true", help="only pack the commits")
    parser.add_argument("--jobs", type=int, default=1, help="commits prepared beside each other")
    parser.add_argument("--seconds", type=float, help="begin no commit after so many")
    options = parser.parse_args(arguments)
    if not (options.list or options.trees or options.machine):
        parser.error("one of --machine, --list and --trees is needed")
    if options.jobs < 1:
        parser.error(f"--jobs must be at least 1, got {options.jobs}")
    command = [sys.executable, "-P", str(PART)]
    try:
        commits = wanted(COMMITS, TOP, TREES)
        unknown = [o for o in options.only if not any(c.commit.startswith(o) for c in commits)]
        if unknown:
            parser.error(f"{', '.join(unknown)}: not in {COMMITS.name}")
        if options.only:
            commits = [c for c in commits if c.commit.startswith(tuple(options.only))]
        if options.list:
            for line in listing(commits, command, RESULTS):
                print(line, flush=True)
            return 0
        archives = [packed(each, TOP, TREES) for each in commits]
        if options.trees:
            size = sum(path.stat().st_size for path in archives) / 2**20
            print(f"{len(commits)} commits in {TREES.relative_to(TOP)}, {size:.1f} MiB")
            return 0
        if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") != "0":
            parser.error("figures of the simulator are no history")
        facts, folder = machine_facts(options.machine), RESULTS / options.machine
        other = other_gpu(folder, facts["gpu"])
        if other is not None:
            parser.error(
                f"--machine {options.machine}: its points are of the GPU {other}, and this is"
                f" {facts['gpu']}; give it another name"
            )
        fit = int(gpu_memory_gib() / GIB_EACH)
        if options.jobs > max(1, fit):
            parser.error(
                f"--jobs must be at most {fit} on this GPU, because each has {GIB_EACH} GiB of its"
                f" memory; got {options.jobs}"
            )
        backfill = Backfill(
            folder, facts, lambda tree: Part(tree, command, LIMIT_S),
            lambda each: packed(each, TOP, TREES),
        )  # fmt: skip
        backfill.run(commits, options.jobs, options.seconds)
    except (NoGit, OSError, subprocess.CalledProcessError) as error:
        print(f"backfill: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
