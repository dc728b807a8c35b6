"""Copies between GPUs by a kernel that reads or writes the memory of the other one.

In a CUDA graph a copy node between two GPUs takes much longer than such a kernel
(docs/notes_gpus.md has the figures). So the driver copies only what a kernel cannot: where one GPU
does not reach the memory of the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gemv.core.operand import Operand

#: What a thread may copy at once, by its bytes. Every element consists of such words.
WORDS = {8: np.dtype(np.uint64), 4: np.dtype(np.uint32), 2: np.dtype(np.uint16)}


class Copies:
    """The copies that one GPU makes, which is the current one in all calls.

    Parameters
    ----------
    engine : CudaEngine
    stream : int
        Where they are enqueued.
    """

    def __init__(self, engine: Any, stream: int) -> None:
        self._engine, self._stream = engine, stream
        #: By bytes of a word and number of words.
        self._blocks: dict[tuple[int, int], Any] = {}
        #: By bytes of a word; number of lines, their length and both their steps, in words.
        self._of_lines: dict[tuple[int, ...], Any] = {}
        for word in WORDS:  # loaded now, since loading could break a capture
            self._block(word, 1)
            self._block_of_lines(word, 1, 1, 1, 1)

    def _block(self, word: int, count: int) -> Any:
        """A launch that copies so many words."""
        block = self._engine.copying_block(WORDS[word], count)
        self._blocks[word, count] = block
        return block

    def _block_of_lines(self, word: int, *lines: int) -> Any:
        """A launch that copies such lines."""
        block = self._engine.line_copying_block(WORDS[word], *lines)
        self._of_lines[word, *lines] = block
        return block

    def enqueue(self, source: Operand, target: Operand, nbytes: int) -> int:
        """Enqueue a copy between contiguous vectors; the status is the driver's."""
        together = source.pointer | target.pointer | nbytes
        word = min(8, together & -together)  # the largest power of two that divides all three
        count = nbytes // word
        block = self._blocks.get((word, count)) or self._block(word, count)
        enqueue = self._engine.machine.enqueue
        addresses = source.pointer, target.pointer
        return int(enqueue(block.address, self._stream, 0, *addresses, 1.0, 0.0))

    def enqueue_lines(self, source: Operand, target: Operand) -> int:
        """Enqueue a copy between lines of memory with gaps; the status is the driver's."""
        (count, length), size = source.shape, source.dtype.itemsize
        bytes_of = [length * size, source.strides[0] * size, target.strides[0] * size]
        together = source.pointer | target.pointer | bytes_of[0] | bytes_of[1] | bytes_of[2]
        word = min(8, together & -together)
        lines = (count, *(each // word for each in bytes_of))
        block = self._of_lines.get((word, *lines)) or self._block_of_lines(word, *lines)
        enqueue = self._engine.machine.enqueue
        addresses = source.pointer, target.pointer
        return int(enqueue(block.address, self._stream, 0, *addresses, 1.0, 0.0))
