"""Plant one fault after the other in a copy of the tree, and see whether a test fails.

``make mutants`` runs all faults of the lists in this folder. A fault counts as found only if its
tests pass without it, which is tried once for each selection of tests. Outcomes are kept, so the
next run continues where this one stopped, and repeats what has changed since: the fault, the file
that it is in and, if it survived, its tests. Without ``build/mutants.json`` all are run again.

The exit status is 1 if a fault survives that can be found here, if one that should change nothing
is found, or if an entry of the lists is broken.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import hashlib
import importlib.util
import itertools
import json
import os
import queue
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from faults import LIBRARIES, TOP, Fault, all_faults, rooms, test_paths  # noqa: E402
from helpers import processes  # noqa: E402

#: What a copy of the tree does without.
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv*", ".whl", ".asv", "__pycache__", ".*_cache", ".hypothesis", "build", "dist",
    "_build",
)  # fmt: skip
#: Seconds that tests may take beside four times what they took without a fault.
PATIENCE = 40
#: Outcomes of a fault.
KILLED, SURVIVED, BROKEN, NOT_HERE = "found", "survived", "broken entry", "needs a GPU"
NO_LIBRARIES, NOT_RUN = "needs libraries", "not run"
#: Files are told apart by the second of their last change, as Python's compiled modules are.
seconds_apart = itertools.count(int(time.time()) + 1000)


class Copies:
    """Copies of the tree, one for each worker, in a folder that goes with them."""

    def __init__(self, count: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gemv-mutants-")
        self._free: queue.Queue[Path] = queue.Queue()
        for number in range(count):
            copy = Path(self._folder.name, str(number))
            shutil.copytree(TOP, copy, ignore=LEFT_OUT)
            self._free.put(copy)

    def __enter__(self) -> Copies:
        return self

    def __exit__(self, *error: object) -> None:
        self._folder.cleanup()

    def tested(self, tests: str, timeout: float, fault: Fault | None = None) -> dict:
        """The outcome of `tests` in a copy, with `fault` in it."""
        copy = self._free.get()
        try:
            if fault is None:
                return run_tests(copy, tests, timeout)
            file, original = copy / fault.file, TOP / fault.file
            try:
                file.write_text(fault.applied(copy), encoding="utf-8")
                os.utime(file, (next(seconds_apart),) * 2)
                return run_tests(copy, tests, timeout)
            finally:
                shutil.copy2(original, file)
        finally:
            self._free.put(copy)


def run_tests(copy: Path, tests: str, timeout: float) -> dict:
    """Exit status of pytest (None after `timeout`), seconds, how many passed, what failed first."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += ["--tb=no", *shlex.split(tests)]
    # The copy before what the packages are found by: a folder of them may be named there.
    others = os.environ.get("PYTHONPATH", "")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(copy), others]))}
    begun = time.monotonic()
    try:
        done = processes.run(
            command, cwd=copy, env=environment, timeout=timeout, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        status, text = done.returncode, done.stdout
    except subprocess.TimeoutExpired:
        status, text = None, ""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", text, re.M)
    passed = re.search(r"(\d+) passed", text)
    return {
        "status": status,
        "seconds": round(time.monotonic() - begun, 1),
        "passed": int(passed[1]) if passed else 0,
        "by": failed[1] if failed else "",
        "end": text[-600:],
    }


def digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def text_of_tests(tests: str) -> str:
    """The text of the test files that arguments of pytest name."""
    files = {TOP / path.partition("::")[0] for path in test_paths(tests)}
    found = sorted(each for path in files for each in ([path] if path.is_file() else
                                                       path.rglob("test_*.py")))  # fmt: skip
    return "\0".join(path.read_text(encoding="utf-8") for path in found)


def outcome_of(fault: Fault, copies: Copies, baseline: dict) -> dict:
    """What becomes of one fault."""
    if baseline["status"] != 0 or not baseline["passed"]:
        return {"outcome": BROKEN, "why": "its tests do not pass without it", **baseline}
    tried = copies.tested(fault.tests, 4 * baseline["seconds"] + PATIENCE, fault)
    if tried["status"] in (0, 5):
        outcome = SURVIVED if tried["status"] == 0 else BROKEN
    elif tried["status"] is None:
        outcome, tried["by"] = KILLED, "time: the tests did not end"
    elif tried["status"] < 0:
        outcome, tried["by"] = KILLED, f"the end of the process, by signal {-tried['status']}"
    else:
        # 2: the tests could not even be collected
        outcome = KILLED if tried["status"] in (1, 2) else BROKEN
    if outcome != BROKEN:
        del tried["end"]
    return {"outcome": outcome, **tried}


def on_gpu() -> bool:
    code = "import gemv; print(gemv.backend())"
    asked = processes.run([sys.executable, "-c", code], cwd=TOP, capture_output=True, text=True)
    return asked.stdout.strip() == "cuda"


def everything(faults: list[Fault], kept: Path, jobs: int) -> dict[str, dict]:
    """Outcomes by id; those that `kept` has, and still hold, are not run again.

    With no `jobs` nothing is run, and the others have no outcome.
    """
    old = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    keys = {
        fault.id: digest(*fault, (TOP / fault.file).read_text(encoding="utf-8")) for fault in faults
    }
    texts = {fault.id: digest(text_of_tests(fault.tests)) for fault in faults}

    def holds(name: str) -> bool:
        """Whether the outcome that is kept is that of this tree."""
        found = old.get(name, {})
        same_tests = found.get("outcome") == KILLED or found.get("tests") == texts[name]
        return found.get("key") == keys[name] and same_tests and found["outcome"] != BROKEN

    done = {name: old[name] for name in keys if holds(name)}
    waiting = [fault for fault in faults if fault.id not in done]
    gpu = on_gpu() if any(fault.found == "gpu" for fault in waiting) else False
    libraries = all(importlib.util.find_spec(name) for name in LIBRARIES)
    for place, is_here, outcome in (
        ("gpu", gpu, NOT_HERE), ("libraries", libraries, NO_LIBRARIES),
    ):  # fmt: skip
        for fault in [each for each in waiting if each.found == place and not is_here]:
            done[fault.id] = {"outcome": outcome}
            waiting.remove(fault)
    if not jobs:
        done |= {fault.id: {"outcome": NOT_RUN} for fault in waiting}
    if not waiting or not jobs:
        return done
    with Copies(jobs) as copies, concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        package = [path.read_text(encoding="utf-8") for path in sorted(TOP.glob("gemv/**/*.py"))]
        kept_too = {name: each for name, each in old.items() if name.startswith("tests/")}
        running: dict[str, concurrent.futures.Future] = {}

        def without(tests: str) -> dict:
            """What the tests do without a fault."""
            key = digest(tests, text_of_tests(tests), *package)
            if kept_too.get(tests, {}).get("key") != key:
                kept_too[tests] = {**copies.tested(tests, 600), "key": key}
            return kept_too[tests]

        def whole(fault: Fault) -> tuple[Fault, dict]:
            return fault, outcome_of(fault, copies, running[fault.tests].result())

        futures = []
        for fault in waiting:
            if fault.tests not in running:  # submitted ahead of who waits for it
                running[fault.tests] = pool.submit(without, fault.tests)
            futures.append(pool.submit(whole, fault))
        for number, future in enumerate(concurrent.futures.as_completed(futures), 1):
            fault, outcome = future.result()
            done[fault.id] = {**outcome, "key": keys[fault.id], "tests": texts[fault.id]}
            told = f"{outcome['outcome']:<12} {outcome['seconds']:6.1f} s  {fault.id}"
            print(f"{number:3}/{len(waiting)} {told}  {outcome.get('by', '')}", flush=True)
            kept.parent.mkdir(exist_ok=True)
            text = json.dumps({**old, **kept_too, **done}, indent=1)
            kept.write_text(text + "\n", encoding="utf-8")
    return done


def wrong_ones(faults: list[Fault], outcomes: dict[str, dict]) -> list[str]:
    """What the run has to complain about, one line each."""
    found = []
    for fault in faults:
        outcome = outcomes[fault.id]
        got = outcome["outcome"]
        if got == BROKEN:
            why = outcome.get("why", "pytest could not run its tests")
            found.append(f"BROKEN    {fault.id}: {why}: {fault.tests}\n{outcome['end']}")
        elif got == SURVIVED and fault.found != "equivalent":
            found.append(
                f"SURVIVED  {fault.id} ({fault.file}): {fault.wrong}\n{' ' * 10}{fault.tests}"
            )
        elif got == KILLED and fault.found == "equivalent":
            found.append(f"FOUND     {fault.id}, which should change nothing, by {outcome['by']}")
    return found


def table(faults: list[Fault], outcomes: dict[str, dict]) -> str:
    """Counts by room, as Markdown."""
    counts: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    for fault in faults:
        got = outcomes[fault.id]["outcome"]
        kind = "equivalent" if fault.found == "equivalent" and got == SURVIVED else got
        for room in (fault.room, "all"):
            counts[room].update([kind, "faults"])
    columns = ["faults", KILLED, SURVIVED, NOT_HERE, "equivalent"]
    outcomes_here = {outcome["outcome"] for outcome in outcomes.values()}
    columns += [each for each in (NO_LIBRARIES, NOT_RUN) if each in outcomes_here]
    lines = ["| room | " + " | ".join(columns) + " |", "| --- |" + " ---: |" * len(columns)]
    for room in [*sorted(set(counts) - {"all"}), "all"]:
        lines.append(
            f"| {room} | " + " | ".join(str(counts[room][each]) for each in columns) + " |"
        )
    return "\n".join(lines)


def explained(faults: list[Fault], outcomes: dict[str, dict]) -> str:
    """The faults that no test without a GPU finds, with the reason, as Markdown."""
    lines = []
    for place, heading in (
        ("gpu", "Only a GPU can show these:"),
        ("equivalent", "These change nothing that anybody can see:"),
    ):
        some = [fault for fault in faults if fault.found == place]
        if some:
            lines += ["", heading, ""]
            lines += [f"- `{fault.id}` ({fault.file}): {fault.wrong}" for fault in some]
    left = [each for each in faults if each.found in ("host", "libraries")
            and outcomes[each.id]["outcome"] == SURVIVED]  # fmt: skip
    if left:
        lines += ["", "No test finds these yet:", ""]
        lines += [f"- `{fault.id}` ({fault.file}): {fault.wrong}" for fault in left]
    return "\n".join(lines)


BEGIN, END = "<!-- written by run.py --write -->", "<!-- end -->"


def write(text: str) -> None:
    """Put `text` between the two marks of README.md."""
    readme = HERE / "README.md"
    before, _, rest = readme.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    readme.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="ROOM", choices=rooms(), help="faults of one list")
    parser.add_argument("--id", action="append", help="this fault alone; may be given again")
    parser.add_argument(
        "--jobs", type=int, default=1, help="faults at a time, each in a copy; 0: none"
    )
    parser.add_argument("--results", type=Path, default=TOP / "build" / "mutants.json")
    parser.add_argument("--write", action="store_true", help="the table of README.md anew")
    options = parser.parse_args()
    faults = [
        fault
        for fault in all_faults()
        if options.only in (None, fault.room) and (not options.id or fault.id in options.id)
    ]
    objections = [each for fault in faults for each in fault.objections()]
    if not objections:
        objections = [each for fault in faults if (each := fault.syntax_error())]
    if objections:
        print("\n".join(objections))
        return 1
    outcomes = everything(faults, options.results, options.jobs)
    complaints = wrong_ones(faults, outcomes)
    print("\n" + "\n".join([*complaints, "", table(faults, outcomes)]))
    if options.write:
        write(table(faults, outcomes) + "\n" + explained(faults, outcomes))
    return bool(complaints)


if __name__ == "__main__":
    sys.exit(main())
