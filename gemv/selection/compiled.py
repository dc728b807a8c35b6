"""Machines as a process reads them: beside each TOML its JSON, and the choices of all cells.

Every process that selects reads its machine. On a desk machine the TOML takes 37 ms to parse and to
check, the JSON 1 ms. So ``machines/*.json`` holds the content of ``machines/*.toml``, and
``machines/*.cells`` the choices that a fit computed: a line for each kind of problem, which is
decoded when the first such problem comes. Both begin with the hash of the TOML. If that is another
one, as after an edit, the TOML is parsed, and choices are computed as problems come.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def hash_of(toml: bytes) -> str:
    """What ties the other files to their TOML."""
    return hashlib.blake2b(toml, digest_size=32).hexdigest()


def text_of(toml: bytes, content: Mapping[str, Any]) -> str:
    """The JSON for a machine; a line for each set of constants and each exception."""
    parts = {
        "numbers": _line(content["numbers"]),
        "factors": _line(content["factors"]),
        "constants": _list(content["constants"]),
        "rows": _list(content["rows"]),
        "host": _line(content["host"]),
    }
    said = ",\n".join(f'"{name}":{text}' for name, text in parts.items())
    return f'{{"toml":"{hash_of(toml)}",\n"content":{{\n{said}\n}}}}\n'


def cells_text_of(toml: bytes, choices: Mapping[str, Any]) -> str:
    """The choices of a machine: the hash, the launches, then each kind with its cells."""
    kinds = (f"{kind}\t{text}" for kind, text in choices["kinds"].items())
    return "\n".join([hash_of(toml), _line(choices["entries"]), *kinds]) + "\n"


def _line(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _list(values: Any) -> str:
    return "[\n" + ",\n".join(map(_line, values)) + "\n]"


def content_of(compiled: bytes, toml: bytes) -> dict[str, Any] | None:
    """What the JSON holds; None if it was not made from this TOML."""
    try:
        found = json.loads(compiled)
        return found["content"] if found["toml"] == hash_of(toml) else None
    except (ValueError, LookupError, TypeError):
        return None


def choices_of(cells: bytes, toml: bytes) -> dict[str, Any]:
    """``entries`` and ``kinds`` of :mod:`gemv.selection.choices`; nothing for another TOML."""
    try:
        about, entries, *kinds = cells.decode("ascii").splitlines()
        if about != hash_of(toml):
            return {}
        texts = dict(line.split("\t") for line in kinds)
        return {"entries": json.loads(entries), "kinds": texts}
    except ValueError:
        return {}
