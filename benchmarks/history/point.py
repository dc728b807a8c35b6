"""A point of the history, by the Python at hand: ``make bench`` without make or an environment.

    python -m benchmarks.history.point --machine NAME --commit HASH [--date SECONDS] [--bench R]...
    python -m benchmarks.history.point --smoke [--bench R]...

The second is small, runs on the simulator and keeps nothing.

Measures in place, below ``.asv``, on a stand-in for the repository, since the tree may be no
checkout; then ``store.py`` puts the result into ``benchmarks/results/history``. It does so part by
part, so a run that was cut off keeps what it has, and with ``--bench`` for what is missing the
point becomes whole. Needs git and asv. Where there is no repository, measure in a copy of the tree
and copy ``benchmarks/results/history`` home.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
WORK = TOP / ".asv"
CONFIG = TOP / "asv.local.conf.json"
#: Fewer than 60 processes that measure; "constants" is a suite apart.
PARTS = (
    "^api[.]", "^kernels[.]Bandwidth", "^kernels[.](Floor|Neighbour)", "^shards[.]", "^lists[.]",
)  # fmt: skip


def prepare() -> None:
    """A repository with one commit, and a configuration that knows only that."""
    from gemv.core.files import write_text

    WORK.mkdir(exist_ok=True)
    repository = WORK / "repo"
    if not repository.is_dir():
        git = [
            "git",
            "-C",
            str(repository),
            "-c",
            "user.name=asv",
            "-c",
            "user.email=asv@localhost",
        ]
        subprocess.run(
            ["git", "init", "--quiet", "--initial-branch=main", str(repository)], check=True
        )
        subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-m", "stand-in"], check=True)
    config = json.loads((TOP / "asv.conf.json").read_text(encoding="utf-8"))
    config |= {"repo": ".asv/repo", "results_dir": ".asv/results"}
    write_text(CONFIG, json.dumps(config, indent=4) + "\n")


def asv(*arguments: str, simulated: bool) -> None:
    """asv takes PYTHONPATH away from what it runs, and keeps notes about the machine at home."""
    environment = {**os.environ, "HOME": str(WORK), "ASV_PYTHONPATH": _path()}
    if simulated:
        environment["NUMBA_ENABLE_CUDASIM"] = "1"
        environment.pop("GEMV_BACKEND", None)  # which may ask for the GPU
    command = [sys.executable, "-m", "asv", "--config", str(CONFIG), *arguments]
    subprocess.run(command, cwd=TOP, env=environment, check=True)


def _path() -> str:
    """This tree before all others."""
    return os.pathsep.join(filter(None, [str(TOP), os.environ.get("PYTHONPATH")]))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--machine", default="gpu")
    parser.add_argument("--commit", help="all 40 digits")
    parser.add_argument("--date", help="of the commit, where git does not know it")
    parser.add_argument("--bench", action="append", help=f"parts; default {' '.join(PARTS)}")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args(arguments)
    if not options.smoke and len(options.commit or "") != 40:
        parser.error("--commit needs all 40 digits")
    parts = options.bench or PARTS
    machine = ["--machine", options.machine]
    run = ["run", "--python=same", "--show-stderr", *machine]
    try:
        prepare()
        if options.smoke:
            asv("machine", "--yes", *machine, simulated=True)
            asv("check", "--python=same", simulated=True)
            wanted = [word for regex in parts for word in ("--bench", regex)]
            asv(*run, *wanted, "--quick", "--dry-run", simulated=True)
            return 0
        asv("machine", "--yes", *machine, simulated=False)
        date = ["--date", options.date] if options.date else []
        store = [sys.executable, "-m", "benchmarks.history.store", str(WORK / "results")]
        for part in parts:
            for old in (WORK / "results" / options.machine).glob("*.json"):
                if old.name != "machine.json":
                    old.unlink()
            asv(*run, "--bench", part, "--set-commit-hash=main", simulated=False)
            point = [*store, *machine, "--commit", options.commit, *date]
            subprocess.run(point, cwd=TOP, check=True)
    except subprocess.CalledProcessError as error:
        return error.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
