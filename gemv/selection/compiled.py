"""Selection tables as a process reads them: JSON beside the TOML, made from it.

Every process that selects reads its tables. Parsing and checking the TOML takes 50 ms, reading the
JSON less than 2 ms. So ``tables/*.json`` holds the rows of ``tables/*.toml`` and the hash of that
file. Where the hash is another one, as after an edit of the TOML, the TOML is parsed.

``python -m gemv.selection.compiled`` writes the JSON anew; a test compares both.
"""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gemv.core.files import write_text
from gemv.selection.row import Row


def _hash(toml: bytes) -> str:
    return hashlib.blake2b(toml, digest_size=32).hexdigest()


def text_of(toml: bytes, rows: Iterable[Row]) -> str:
    """The JSON for a table: the hash of its TOML, all sets of constants, and a line for each row.

    Many rows have the same constants, so a row names them by number; its values stand in the order
    of :data:`gemv.selection.row.CONDITIONS`. Both make the reading faster.
    """
    knobs: list[Mapping[str, int]] = []
    lines = []
    for row in rows:
        if row.knobs not in knobs:
            knobs.append(row.knobs)
        number = knobs.index(row.knobs)
        lines.append(_line([row.kernel, row.reason, row.values, number, row.figure]))
    parts = f'"knobs":[\n{_joined(map(_line, knobs))}\n],\n"rows":[\n{_joined(lines)}\n]'
    return f'{{"toml":"{_hash(toml)}",\n{parts}}}\n'


def _line(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _joined(lines: Iterable[str]) -> str:
    return ",\n".join(lines)


def rows_of(compiled: bytes, toml: bytes, source: str) -> tuple[Row, ...] | None:
    """The rows that the JSON holds; None if it was not made from this TOML."""
    collecting = gc.isenabled()
    gc.disable()  # nothing here is garbage, and a search for some would double the time
    try:
        content = json.loads(compiled)
        if content["toml"] != _hash(toml):
            return None
        knobs = content["knobs"]
        rows = [
            Row(kernel, reason, tuple(values), knobs[which], figure, source, number)
            for number, (kernel, reason, values, which, figure) in enumerate(content["rows"], 1)
        ]
    except (ValueError, LookupError, TypeError):
        return None
    finally:
        if collecting:
            gc.enable()
    return tuple(rows)


def main() -> None:
    """Write the JSON of every table in the package."""
    from gemv.selection.parse import parse

    for file in sorted(Path(__file__).with_name("tables").glob("*.toml")):
        toml = file.read_bytes()
        rows = parse(toml.decode("utf-8"), file.stem == "default", str(file))
        write_text(file.with_suffix(".json"), text_of(toml, rows))
        print(f"{len(rows)} rows in {file.with_suffix('.json').name}")


if __name__ == "__main__":
    main()
