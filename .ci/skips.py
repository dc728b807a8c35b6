"""Refuse tests that every job of CI has skipped: ``skips.py FOLDER``, where each left its outcomes.

A reason to skip is good if it is listed in ``skips.toml`` beside this file. One of its table
"tests" may leave out a whole test. One of "cases" may leave out cases of a parametrized test, of
which others have to run in some job.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

#: What tests say where there is none.
GPU = "needs an NVIDIA GPU"
LIST = Path(__file__).with_name("skips.toml")


def not_run(jobs: Iterable[Mapping[str, Any]], known: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The tests, with their reasons, that were skipped in all jobs and should not have been.

    Parameters
    ----------
    jobs : iterable of dict
        What each job says: its tests that ran, and the reasons of those that it skipped.
    known : dict
        The tables "tests" and "cases": what is good about a reason, by a regular expression that
        the whole reason matches.
    """
    ran: set[str] = set()
    skipped: dict[str, str] = {}
    for job in jobs:
        ran.update(job["ran"])
        skipped.update(job["skipped"])
    # Where any case of a function ran, so did the function, and so did its file.
    begun = {part for test in ran for part in (test.partition("[")[0], test.partition("::")[0])}
    found = []
    for test, reason in sorted(skipped.items()):
        if test in ran or ("::" not in test and test in begun):
            continue
        tables = ["tests"] + ["cases"] * (test.partition("[")[0] in begun)
        if not any(re.fullmatch(words, reason) for table in tables for words in known[table]):
            found.append(f"{test}: {reason}")
    return found


def main(folder: str) -> int:
    jobs = [json.loads(path.read_text("utf-8")) for path in Path(folder).glob("*.json")]
    if jobs and not any(GPU in job["skipped"].values() for job in jobs):
        print("this machine has a GPU, and skips tests of the simulator: nothing is compared")
        return 0
    found = not_run(jobs, tomllib.loads(LIST.read_text("utf-8")))
    for line in found:
        print(line)
    count = len({test for job in jobs for test in job["ran"]})
    print(f"{count} tests ran in {len(jobs)} jobs; {len(found)} were skipped in each, for no reason"
          f" of {LIST.name}")  # fmt: skip
    return int(bool(found) or not count)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
