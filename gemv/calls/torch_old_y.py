"""The launch of PyTorch's tensors that reads an old y and writes a new one."""

from __future__ import annotations

from typing import Any

from gemv.calls.remembered import is_plain, packable
from gemv.driver.block import X_START, Y_START


def block_for(expected: Any, y: Any, stream: int) -> Any:
    """Have a launch read an old y like this one and write the new one; the block, or None.

    A clone goes through PyTorch's dispatcher, and is a launch of its own.
    """
    known = expected.known
    if expected.with_old_y is None:
        if known.sizes["incy"] != 1 or known.block.words[Y_START] or y.shape != (known.y_length,):
            expected.with_old_y = False
            return None
        try:
            block = known.engine.block_with_old_y(
                known.choice, known.sizes, int(known.block.words[X_START]), stream
            )
        except RuntimeError:
            # Not loaded yet while the stream is captured; whatever else it is stays as it is.
            if known.engine.capture_of(stream) is None:
                expected.with_old_y = False
            return None
        expected.expect_old_y(block)
    return expected.with_old_y or None


def is_wanted(engine: Any, choice: Any, call: Any) -> bool:
    """Whether a repeated call with an old y is to have a launch that reads it."""
    return (
        call.a.kind == "torch"
        and packable(engine, choice, call)
        and is_plain(choice)
        and call.incy == 1
        and call.beta != 0
    )
