"""The scripts ``docs/course/rung_01.py`` and so on, one for each rung of the ladder.

Each of them runs ``docs/course/rung.py`` for its own rung, so a reader need not know any argument.
``python docs/_ext/parts.py --write`` writes them, and the documentation is not built while one is
out of date.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from kernel_pages import DOCS

COURSE = DOCS / "course"
TEXT = '''\
"""{lesson}

    python docs/course/{name}

It runs on the GPU, or in the simulator if there is none. docs/_ext/rung_scripts.py wrote this file.
"""

import sys

from rung import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], rung="{rung}"))
'''


def scripts() -> dict[Path, str]:
    """The text of each script."""
    from gemv.kernels import REGISTRY

    found = {}
    for kernel in REGISTRY.values():
        if not kernel.beside:
            path = COURSE / f"rung_{kernel.rung:02}.py"
            lesson = textwrap.fill(f"Rung {kernel.rung}, {kernel.name}: {kernel.idea}", 96)
            found[path] = TEXT.format(lesson=lesson, name=path.name, rung=kernel.rung)
    return found


def stale() -> dict[Path, str | None]:
    """What should be in the scripts that are out of date; None for one that should not be."""
    wanted: dict[Path, str | None] = dict(scripts())
    wanted |= {path: None for path in COURSE.glob("rung_*.py") if path not in wanted}
    return {path: text for path, text in wanted.items() if text != _text_of(path)}


def _text_of(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def write() -> None:
    """Bring all of them up to date."""
    for path, text in stale().items():
        if text is None:
            path.unlink()
        else:
            path.write_text(text, encoding="utf-8")
