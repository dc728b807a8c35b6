"""Rung 4, tile2d: A square of threads on a tile of A, and the columns of one row spread over
several blocks.

    python docs/course/rung_04.py

It runs on the GPU, or in the simulator if there is none. docs/_ext/rung_scripts.py wrote this file.
"""

import sys

from rung import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], rung="4"))
