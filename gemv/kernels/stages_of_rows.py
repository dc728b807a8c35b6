"""Stages of A and of several x: their layout in shared memory, the copies that fill them, and sums.

A ring of stages is for kernels along the rows whose threads wait for no load. A stage has
VECTORS loads of a lane: first those of all rows of a tile, then those of COUNT vectors.
``several_staged_rows`` and ``several_rows_in_shares`` have such stages, and differ in which of them
a block has one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: One load of a lane for all rows, which is multiplied with the numbers of all vectors.
_STEP = """
values = staged_tile(pool, a, PLACES, here + <s> * A_LOAD, 0, 1, UNIT)
numbers = staged_tile(pool, read_x, (0,), here_x + <s> * X_LOAD, X_OF_VECTOR, COUNT, UNIT)
total_{v} = multiply_add(total_{v}, values, pieces_of(numbers, {v}, 1, UNIT), CONJUGATE)
"""


def steps_of(at_once: int) -> str:
    """The source that adds up a stage, of so many loads of a lane."""
    return "\n".join(_STEP.strip("\n").replace("<s>", str(s)) for s in range(at_once))


def _copies(at_once: int, rows: int, x_copies: int, items: int, whole: bool) -> str:
    """The source of the function that begins the copies of a stage; some are zeros if not `whole`.

    A thread copies `rows` rows of a load, and `x_copies` pieces of `items` vectors. What lies
    behind the last column is zeros in shared memory.
    """
    name = "whole_stage" if whole else "some_stage"
    lines = [f"def {name}(pool, own_a, own_x, starts, x_starts, there, x_there, j, room, x_room):"]
    for s in range(at_once):
        for r in range(rows):
            copy = f"pool, there + {s} * A_LOAD + {r} * ROWS_APART, own_a, starts[{r}] + j"
            copy += f" + {s} * STEP"
            some = f"    copy_or_zeros({copy}, {s} * STEP < room)"
            lines.append(f"    copy_async({copy})" if whole else some)
    for k in range(x_copies):
        column = f"{k // items} * X_TURN_COLUMNS"
        copy = f"pool, x_there + {k} * X_TURN, own_x, x_starts[{k % items}] + j + {column}"
        some = f"    copy_or_zeros({copy}, {column} < x_room)"
        lines.append(f"    copy_async({copy})" if whole else some)
    return "\n".join(lines)


def names_of(spec: Any, scope: Mapping[str, Any], lanes: int) -> dict[str, Any]:
    """What kernels with such stages refer to, where a block has so many `lanes` of a row at a time.

    `scope` is that of :func:`gemv.kernels.ends_of_rows.names_of`.
    """
    from gemv.language import copy_async, copy_or_zeros, device

    WIDTH = spec.widths[0]
    LANES, AT_ONCE, COUNT, STAGES = (spec[k] for k in ("LANES", "VECTORS", "COUNT", "STAGES"))
    PARTS, ROWS, THREADS, GROUPS = (scope[k] for k in ("PARTS", "ROWS", "THREADS", "GROUPS"))
    STEP, TURN_COLUMNS = LANES * WIDTH, lanes * WIDTH
    COPIED = GROUPS * TURN_COLUMNS  # elements of a load of one row of each group
    COPIED_ROWS = ROWS // PARTS
    A_LOAD, X_LOAD = ROWS * COPIED, COUNT * TURN_COLUMNS
    A_STAGE = AT_ONCE * A_LOAD
    STAGE = A_STAGE + AT_ONCE * X_LOAD
    OF_X_LOAD = COUNT * lanes  # threads that copy x of one load, or copies of it
    COPIED_ITEMS = max(OF_X_LOAD // THREADS, 1)  # vectors of which a thread copies some
    own = {
        "A_LOAD": A_LOAD, "ROWS_APART": PARTS * COPIED, "STEP": STEP, "X_TURN": THREADS * WIDTH,
        "X_TURN_COLUMNS": max(THREADS // OF_X_LOAD, 1) * STEP, "copy_async": copy_async,
        "copy_or_zeros": copy_or_zeros,
    }  # fmt: skip
    for whole in (True, False):
        x_copies = AT_ONCE * OF_X_LOAD // THREADS
        exec(_copies(AT_ONCE, COPIED_ROWS, x_copies, COPIED_ITEMS, whole), own)
    return {
        "whole_stage": device(own["whole_stage"]), "some_stage": device(own["some_stage"]),
        "STEP": STEP, "COPIED": COPIED, "COPIED_ROWS": COPIED_ROWS, "COPIED_APART": PARTS * GROUPS,
        "COPIED_ITEMS": COPIED_ITEMS, "ITEMS_APART": max(THREADS // lanes, 1),
        "TURN_LANES": lanes, "TURN_COLUMNS": TURN_COLUMNS, "OF_X_LOAD": OF_X_LOAD,
        "A_STAGE": A_STAGE, "A_LOAD": A_LOAD, "X_LOAD": X_LOAD, "X_OF_VECTOR": TURN_COLUMNS,
        "STAGE": STAGE, "RING": STAGES * STAGE, "STAGES": STAGES, "PENDING": STAGES - 2,
        "OF_STAGE": AT_ONCE * STEP, "LAST": (AT_ONCE - 1) * STEP + TURN_COLUMNS,
        "PLACES": tuple(r * COPIED for r in range(ROWS)),
    }  # fmt: skip
