"""Machines as a process reads them: beside each TOML its content as lines, and all choices.

Every process that selects reads its machine, and uses a few of its constants and kinds of problems.
On a desk machine the TOML takes 37 ms to parse and to check. So ``machines/*.jsonl`` holds the
content of ``machines/*.toml``, a line for each set of constants, and ``machines/*.cells`` the
choices that a fit computed, a line for each kind of problem. A line is decoded when it is first
needed. Both files begin with the hash of the TOML. If that is another one, as after an edit, the
TOML is parsed, and choices are computed as problems come.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from gemv.selection.lazy import Lazy

#: What a machine's content has beside its constants.
_REST = ("numbers", "factors", "rows", "host")


def hash_of(toml: bytes) -> str:
    """What ties the other files to their TOML."""
    return hashlib.blake2b(toml, digest_size=32).hexdigest()


def text_of(toml: bytes, content: Mapping[str, Any]) -> str:
    """The lines of a machine: the hash, all but the constants, then each set of constants."""
    sets = content["constants"]
    rest = {**{name: content[name] for name in _REST}, "sets": len(sets)}
    return "\n".join([hash_of(toml), _line(rest), *map(_line, sets)]) + "\n"


def cells_text_of(toml: bytes, choices: Mapping[str, Any]) -> str:
    """The choices of a machine: the hash, the launches, then each kind with its cells."""
    kinds = (f"{kind}\t{text}" for kind, text in choices["kinds"].items())
    return "\n".join([hash_of(toml), _line(choices["entries"]), *kinds]) + "\n"


def _line(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def content_of(lines: bytes, about: str) -> dict[str, Any] | None:
    """What the lines of a machine say; None if they were not made from the TOML with this hash."""
    try:
        toml, rest, *sets, end = lines.decode("utf-8").split("\n")
        if toml != about:
            return None
        content = json.loads(rest)
        if content.pop("sets") != len(sets) or end:  # a part of the file is missing
            return None
        return {**content, "constants": Lazy(len(sets), lambda at: json.loads(sets[at]))}
    except (ValueError, LookupError):
        return None


def choices_of(cells: bytes, about: str) -> dict[str, Any]:
    """``entries`` and ``kinds`` of :mod:`gemv.selection.choices`; nothing for another TOML."""
    try:
        toml, entries, *kinds, end = cells.decode("ascii").split("\n")
        if toml != about or end:
            return {}
        texts = dict(line.split("\t") for line in kinds)
        return {"entries": json.loads(entries), "kinds": texts}
    except ValueError:
        return {}
