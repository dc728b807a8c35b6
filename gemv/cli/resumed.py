"""What the kinds of ``bench`` share: the peers that are asked for, and the file of ``--resume``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gemv.cli.console import Refused


def stored_before(path: Path | None, load: Callable[[Path], Any]) -> Any:
    """What a file of ``--json`` has already; None without one."""
    if path is None or not path.exists():
        return None
    try:
        return load(path)
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror}") from error


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
