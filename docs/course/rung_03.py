"""Rung 3, block_per_row: One block takes one row: its threads share the sum and add it up in
shared memory.

    python docs/course/rung_03.py

It runs on the GPU, or in the simulator if there is none. docs/_ext/rung_scripts.py wrote this file.
"""

import sys

from rung import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], rung="3"))
