"""Machines as a process reads them: JSON beside the TOML, with the choices that a fit computed.

Every process that selects reads its machine. On a desk machine the TOML takes 37 ms to parse and to
check, the JSON 2 ms. So ``machines/*.json`` holds the content of ``machines/*.toml``, the hash of
that file, and the choices of all cells. If the hash is another one, as after an edit of the TOML,
the TOML is parsed, and choices are computed as problems come.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def hash_of(toml: bytes) -> str:
    """What ties a JSON to its TOML."""
    return hashlib.blake2b(toml, digest_size=32).hexdigest()


def text_of(toml: bytes, content: Mapping[str, Any], choices: Mapping[str, Any]) -> str:
    """The JSON for a machine; a line for each set of constants, each exception and each kind."""
    parts = {
        "numbers": _line(content["numbers"]),
        "factors": _line(content["factors"]),
        "constants": _list(content["constants"]),
        "rows": _list(content["rows"]),
    }
    kinds = ",\n".join(f"{_line(kind)}:{_line(text)}" for kind, text in choices["kinds"].items())
    said = ",\n".join(f'"{name}":{text}' for name, text in parts.items())
    return (
        f'{{"toml":"{hash_of(toml)}",\n"content":{{\n{said}\n}},\n'
        f'"choices":{{"entries":{_line(choices["entries"])},\n"kinds":{{\n{kinds}\n}}}}}}\n'
    )


def _line(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _list(values: Any) -> str:
    return "[\n" + ",\n".join(map(_line, values)) + "\n]"


def content_of(compiled: bytes, toml: bytes) -> dict[str, Any] | None:
    """What the JSON holds; None if it was not made from this TOML."""
    try:
        found = json.loads(compiled)
        return found if found["toml"] == hash_of(toml) else None
    except (ValueError, LookupError, TypeError):
        return None
