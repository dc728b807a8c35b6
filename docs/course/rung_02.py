"""Rung 2, thread_per_row: One thread takes one row: the first parallel gemv, since the sums do not
depend on each other.

    python docs/course/rung_02.py

It runs on the GPU, or in the simulator if there is none. docs/_ext/rung_scripts.py wrote this file.
"""

import sys

from rung import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], rung="2"))
