"""Measure commits of the past on a GPU, all by one program, for the page of the history.

    python -m benchmarks.history.backfill --list             what is wanted, stored, and what runs
    python -m benchmarks.history.backfill --trees            only checks the commits out (needs git)
    python -m benchmarks.history.backfill --machine NAME     measures what is not stored yet

``commits.txt`` beside this file lists the commits. The package of each is checked out into a tree
of its own below ``build/backfill``; where git is missing, copy that folder from a machine that has
it. ``device_part.py`` then measures one tree after the other, each in a process of its own that is
ended after a minute, compilation included. What it has said until then is kept, and a commit that
is too old for a figure has the reason instead. Points go to ``benchmarks/results/backfill/NAME/``,
each under the date of its commit. A second run goes on where the first one stopped; remove a file
to measure its commit again, and name the commits on the command line to measure only those.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.history.since import NoGit, git
from benchmarks.history.store import apart, machine_facts

TOP = Path(__file__).resolve().parents[2]
COMMITS = Path(__file__).with_name("commits.txt")
PART = Path(__file__).with_name("device_part.py")
TREES = TOP / "build" / "backfill"
RESULTS = TOP / "benchmarks" / "results" / "backfill"
#: Seconds that one commit may take.
LIMIT_S = 60.0
#: What is said of a commit of before the public functions.
TOO_OLD = "gemv had no public functions yet"


@dataclass(frozen=True)
class Wanted:
    """A commit that is to be measured."""

    commit: str
    date: int
    title: str


def wanted(listed: Path, top: Path, trees: Path) -> list[Wanted]:
    """The commits of a list, the oldest first: as git knows them, else as their trees say."""
    found = []
    for line in listed.read_text(encoding="utf-8").splitlines():
        if not line.strip():
            continue
        short, _, title = line.partition(" ")
        try:
            commit, date = git("log", "-1", "--format=%H %ct", short, "--", top=top).split()
            found.append(Wanted(commit, int(date), title))
        except (NoGit, ValueError) as reason:
            notes = sorted(trees.glob(f"{short}*/commit.json"))
            if not notes:
                raise NoGit(f"{short} is neither in git nor in {trees}: {reason}") from None
            found.append(Wanted(**json.loads(notes[0].read_text(encoding="utf-8"))))
    return sorted(found, key=lambda each: each.date)


def tree_of(each: Wanted, top: Path, trees: Path) -> Path:
    """The package of a commit in a folder of its own, checked out if it is not there."""
    from gemv.core.files import write_text

    folder = trees / each.commit[:12]
    if not (folder / "commit.json").is_file():
        command = ["git", "-C", str(top), "archive", "--format=tar", each.commit, "gemv"]
        try:
            done = subprocess.run(command, capture_output=True)
        except OSError as error:
            raise NoGit(f"git cannot be started: {error}") from error
        if done.returncode:
            raise NoGit(done.stderr.decode(errors="replace").strip() or "git archive failed")
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            archive.extractall(folder, filter="data")
        write_text(folder / "commit.json", json.dumps(asdict(each)) + "\n")
    return folder


def measured(
    tree: Path, part: Sequence[str], limit_s: float = LIMIT_S, simulated: bool = False
) -> list[dict]:
    """What the device part says of a tree; where it is ended, what it has said until then."""
    if not (tree / "gemv" / "__init__.py").is_file():
        return [{"name": "gemv", "params": [], "value": None, "why": TOO_OLD}]
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "PYTHONPATH": str(tree), "GEMV_CACHE_DIR": cache}
        if simulated:
            environment["NUMBA_ENABLE_CUDASIM"] = "1"
            environment.pop("GEMV_BACKEND", None)  # which may ask for the GPU
        said, errors = Path(cache) / "said", Path(cache) / "errors"
        with said.open("w") as out, errors.open("w") as err:
            process = subprocess.Popen(
                [*part, str(tree)], stdout=out, stderr=err, cwd=cache, env=environment,
                start_new_session=True,
            )  # fmt: skip
            why = ""
            try:
                if process.wait(limit_s):
                    why = f"exit status {process.returncode}"
            except subprocess.TimeoutExpired:
                why = f"ended after {limit_s:g} seconds"
            finally:
                end(process)
        lines = said.read_text(encoding="utf-8").splitlines()
        if why:
            last = (errors.read_text(encoding="utf-8").strip() or "nothing").splitlines()[-1]
            why = f"{why}: {last}"
    figures = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
    return [*figures, *([{"name": "gemv", "params": [], "value": None, "why": why}] if why else [])]


def end(process: subprocess.Popen) -> None:
    """End a process and what it started."""
    import signal
    from contextlib import suppress

    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


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


def run(
    commits: list[Wanted], folder: Path, facts: dict, part: Sequence[str], top: Path, trees: Path,
    seconds: float | None = None,
) -> int:  # fmt: skip
    """Measure the commits that have no point; the number of points that were stored."""
    from gemv.core.files import write_text

    folder.mkdir(parents=True, exist_ok=True)
    stored, began = 0, time.monotonic()
    for each in commits:
        target = folder / f"{each.commit[:12]}.json"
        if target.is_file():
            continue
        left = None if seconds is None else seconds - (time.monotonic() - began)
        if left is not None and left < LIMIT_S:
            print(f"{left:.0f} of {seconds:g} seconds are left: run it again for the others")
            break
        said = measured(tree_of(each, top, trees), part)
        if not any(figure["value"] is not None for figure in said) and not too_old(said):
            print(f"{each.commit[:7]} {each.title}: not stored: {summary(said)}", flush=True)
            continue
        write_text(target, json.dumps(point(each, facts, said), indent=1) + "\n")
        print(f"{each.commit[:7]} {each.title}: {summary(said)}", flush=True)
        stored += 1
    return stored


def too_old(said: list[dict]) -> bool:
    return any(figure["why"] == TOO_OLD for figure in said)


def listing(commits: list[Wanted], part: Sequence[str], top: Path, trees: Path, results: Path):
    """A line for each commit: where it is stored, and what runs of it under the simulator."""
    for each in commits:
        said = measured(tree_of(each, top, trees), part, simulated=True)
        stored = [path.parent.name for path in results.glob(f"*/{each.commit[:12]}.json")]
        right = sum("right under the simulator" in figure["why"] for figure in said)
        others = sorted({f["why"] for f in said if f["why"] and "right under" not in f["why"]})
        yield (
            f"{each.commit[:7]} {time.strftime('%Y-%m-%d', time.gmtime(each.date))}"
            f" {each.title}: {', '.join(stored) or 'not stored'}; {right} products right"
            + (f"; {'; '.join(others)}" if others else "")
        )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("only", nargs="*", metavar="COMMIT", help="as the list begins them")
    parser.add_argument("--machine", help="the name that the points are stored under")
    parser.add_argument("--list", action="store_true", help="dry run under the simulator")
    parser.add_argument("--trees", action="store_true", help="only check the commits out")
    parser.add_argument("--seconds", type=float, help="begin no commit that could take longer")
    options = parser.parse_args(arguments)
    if not (options.list or options.trees or options.machine):
        parser.error("one of --machine, --list and --trees is needed")
    part = [sys.executable, "-P", str(PART)]
    try:
        commits = wanted(COMMITS, TOP, TREES)
        unknown = [o for o in options.only if not any(c.commit.startswith(o) for c in commits)]
        if unknown:
            parser.error(f"{', '.join(unknown)}: not in {COMMITS.name}")
        if options.only:
            commits = [c for c in commits if c.commit.startswith(tuple(options.only))]
        if options.list:
            for line in listing(commits, part, TOP, TREES, RESULTS):
                print(line, flush=True)
            return 0
        for each in commits:
            tree_of(each, TOP, TREES)
        if options.trees:
            print(f"{len(commits)} trees in {TREES.relative_to(TOP)}")
            return 0
        if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") != "0":
            parser.error("figures of the simulator are no history")
        facts = machine_facts(options.machine)
        run(commits, RESULTS / options.machine, facts, part, TOP, TREES, options.seconds)
    except (NoGit, OSError, subprocess.CalledProcessError) as error:
        print(f"backfill: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
