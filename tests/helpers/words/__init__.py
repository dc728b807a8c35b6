"""A small kernel for each device function of the vocabulary, to run one half against the other.

Each kernel takes numbers from A, hands them to a function or two, and stores all that comes back.
Threads differ in what they ask for: another place, another limit, another lane. So a fault in one
half shows in the bits of y, and in no kernel of the ladder has it to be looked for.
"""

# Names that this package hands on, and modules that register small kernels.
# ruff: noqa: F401

from __future__ import annotations

from helpers.words import between, integers, loads, rows, sums
from helpers.words.registry import WORDS, case_of, cases, kernel_of, result_of
