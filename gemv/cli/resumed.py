"""What the kinds of ``bench`` share: the peers that are asked for, the file, and the end."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gemv.cli.console import Refused, complain, json_path, refused_writes

if TYPE_CHECKING:
    from gemv.measure.records import Results

_Results = TypeVar("_Results", bound="Results[Any]")


def file_of(options: argparse.Namespace) -> Path | None:
    """Where ``--json`` writes, which ``--resume`` needs."""
    output = json_path(options)
    if options.resume and output is None:
        raise Refused("--resume needs the file of --json")
    return output


def stored_before(path: Path | None, load: Callable[[Path], Any]) -> Any:
    """What a file of ``--json`` has already; None without one."""
    if path is None or not path.exists():
        return None
    try:
        return load(path)
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise Refused(f"cannot resume {path}: {error}") from error


def libraries_of(options: argparse.Namespace) -> list[str]:
    """The peers that are asked for, or else those that are installed."""
    from gemv.measure import peers

    libraries = [library for library in peers.LIBRARIES if peers.installed(library)]
    if options.against is None:
        return libraries
    missing = [each for each in options.against if each not in libraries]
    if missing:
        raise Refused(f"cannot import {', '.join(missing)}; there are: {libraries}")
    return list(options.against)


def stored(measured: Iterable[_Results], path: Path | None) -> _Results:
    """The last of the results that grow while they are measured; each is written to the file."""
    for each in measured:
        if path is not None:
            with refused_writes(path):
                each.store(path)
    return each


def end(wrong: Sequence[str]) -> int:
    """The exit status, once it was said which results are wrong."""
    if wrong:
        complain("gemv bench", f"wrong results: {'; '.join(wrong)}")
    return 1 if wrong else 0
