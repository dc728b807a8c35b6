"""The commits of the past that are measured, and the package of each in a file of its own.

``commits.txt`` beside this file lists them. An archive of git knows its commit and the date of
that, so a machine without git needs nothing but these files.
"""

from __future__ import annotations

import subprocess
import tarfile
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from benchmarks.history.since import NoGit, git

Item = TypeVar("Item")


@dataclass(frozen=True)
class Wanted:
    """A commit that is to be measured: its hash, its date in seconds since 1970, and a title."""

    commit: str
    date: int
    title: str


def wanted(listed: Path, top: Path, trees: Path) -> list[Wanted]:
    """The commits of a list, the oldest first: as git knows them, else as their archives say."""
    found = []
    for line in listed.read_text(encoding="utf-8").splitlines():
        if not line.strip():
            continue
        short, _, title = line.partition(" ")
        try:
            commit, date = git("log", "-1", "--format=%H %ct", short, "--", top=top).split()
        except (NoGit, ValueError) as reason:
            packed = sorted(trees.glob(f"{short}*.tar.gz"))
            if not packed:
                raise NoGit(f"{short} is neither in git nor in {trees}: {reason}") from None
            with tarfile.open(packed[0]) as archive:
                # An archive of git has the commit as its comment, and the commit's date as that of
                # each file.
                commit, date = archive.pax_headers["comment"], archive.getmembers()[0].mtime
        found.append(Wanted(commit, int(date), title))
    return sorted(found, key=lambda each: each.date)


def packed(each: Wanted, top: Path, trees: Path) -> Path:
    """The archive of a commit's package, made by git if it is not there."""
    path = trees / f"{each.commit}.tar.gz"
    if not path.is_file():
        trees.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        command = ["git", "-C", str(top), "archive", "--format=tar.gz", f"--output={part}"]
        try:
            done = subprocess.run([*command, each.commit, "gemv"], capture_output=True)
        except OSError as error:
            raise NoGit(f"git cannot be started: {error}") from error
        if done.returncode:
            raise NoGit(done.stderr.decode(errors="replace").strip() or "git archive failed")
        part.replace(path)
    return path


def unpacked(archive: Path, folder: Path) -> Path:
    """A folder below `folder` that has what is in an archive."""
    tree = folder / archive.name.partition(".")[0]
    tree.mkdir()
    with tarfile.open(archive) as opened:
        # Python has filters from 3.11.4 on. Git wrote this archive here.
        opened.extraction_filter = getattr(tarfile, "data_filter", None)
        opened.extractall(tree)
    return tree


def evenly(items: Iterable[Item]) -> list[Item]:
    """The last one, the first one, and then always the middle of a widest gap.

    Wherever one stops, what one has is spread evenly.
    """
    items = list(items)
    order = list(dict.fromkeys((len(items) - 1, 0))) if items else []
    gaps = deque([(0, len(items) - 1)])
    while gaps:
        low, high = gaps.popleft()
        middle = (low + high) // 2
        if low < middle < high:
            order.append(middle)
            gaps += [(low, middle), (middle, high)]
    return [items[k] for k in order]
