"""The kernel that copies lines of memory, with gaps between them; no rung of the ladder.

The partial sums that a shard has of all rows are such lines: those of other shards lie between
them. They are short and many, so a copy of each would cost more than what it moves.
"""

from gemv.language.vocabulary import cuda


def copy_lines(rows, cols, x, x_step, y, y_step):
    for i in range(cuda.grid(1), rows * cols, cuda.gridsize(1)):
        line = i // cols
        y[line * y_step + i - line * cols] = x[line * x_step + i - line * cols]
