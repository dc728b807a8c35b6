"""Which commits changed the speed of products, perhaps, since the newest point of the history.

    python -m benchmarks.history.since                   of all machines together
    python -m benchmarks.history.since --machine NAME    of one machine
    ... --most N                                         exit status 1 if there are more than N

A point belongs to each change of speed. The commits that are listed touch kernels, the compiler's
part, selection or the launch, beyond docstrings and comments. Without git, or where git does not
know the commit of the point, one line says so and the exit status is 0.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from pathlib import Path

from benchmarks.history.series import Point, backfilled, machines, points

TOP = Path(__file__).resolve().parents[2]
#: What decides how long a product takes on the GPU, and what a call costs.
CODE = ("gemv/kernels", "gemv/language", "gemv/selection", "gemv/engines", "gemv/calls")
#: Commits that are printed.
SHOWN = 5


class NoGit(Exception):
    """Why there is no answer."""


def git(*arguments: str, top: Path = TOP) -> str:
    """What git prints; a :class:`NoGit` if it fails or is not there."""
    try:
        done = subprocess.run(
            ["git", "-C", str(top), *arguments], capture_output=True, text=True, encoding="utf-8"
        )
    except OSError as error:
        raise NoGit(f"git cannot be started: {error}") from error
    if done.returncode:
        raise NoGit((done.stderr.strip() or "git failed").splitlines()[0])
    return done.stdout


def newest_point(wanted: list[str]) -> Point | None:
    """The point with the newest commit, also of the past, if it has figures of one GPU."""
    past = backfilled()
    found = [point for name in wanted for point in (*points(name), *past.get(name, ()))]
    return max(filter(_is_of_one_gpu, found), key=lambda point: point.date, default=None)


def _is_of_one_gpu(point: Point) -> bool:
    return any(not name.startswith("shards.") for name, _ in point.figures)


def measured() -> list[str]:
    """Machines that have points, or commits of the past."""
    return sorted({*machines(), *backfilled()})


def changed_since(commit: str, top: Path = TOP) -> list[str]:
    """Commits after `commit` that changed :data:`CODE`, the newest first, as hash and title."""
    found = []
    for line in git("log", "--format=%h %s", f"{commit}..HEAD", "--", *CODE, top=top).splitlines():
        here = line.split()[0]
        names = git("diff", "--name-only", f"{here}~", here, "--", *CODE, top=top).splitlines()
        if any(differs(name, here, top) for name in names):
            found.append(line)
    return found


def differs(name: str, commit: str, top: Path) -> bool:
    """Whether a commit changed more of a file than its docstrings and comments."""
    if not name.endswith(".py"):
        return True
    texts = []
    for place in (f"{commit}~:{name}", f"{commit}:{name}"):
        try:
            texts.append(git("show", place, top=top))
        except NoGit:  # the file came or went
            return True
    return code_of(texts[0]) != code_of(texts[1])


def code_of(text: str) -> str:
    """A program without its comments and docstrings."""
    tree = ast.parse(text)
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)


def main(arguments: list[str], top: Path = TOP) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--machine", choices=measured())
    parser.add_argument("--most", type=int, help="more commits than this are an error")
    options = parser.parse_args(arguments)
    point = newest_point([options.machine] if options.machine else measured())
    if point is None:
        print("history: there is no point yet; make bench measures one")
        return 0
    try:
        found = changed_since(point.commit, top)
    except NoGit as reason:
        print(f"history: unknown what changed since the newest point, {point.commit[:7]}: {reason}")
        return 0
    if not found:
        print(f"history: the newest point, {point.commit[:7]}, has the code of the GPU as it is")
        return 0
    print(f"history: a point is due: since {point.commit[:7]} of {point.date:%Y-%m-%d},")
    print(f"{len(found)} commits changed code that decides on speed; make bench measures a point")
    print(*(f"    {line}" for line in found[:SHOWN]), sep="\n")
    if len(found) > SHOWN:
        print(f"    and {len(found) - SHOWN} more")
    return 1 if options.most is not None and len(found) > options.most else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
