"""Rung 9, vector_columns: Wide loads down the columns, enough of them in flight: the full rate of
the memory.

    python docs/course/rung_09.py

It runs on the GPU, or in the simulator if there is none. docs/_ext/rung_scripts.py wrote this file.
"""

import sys

from rung import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], rung="9"))
