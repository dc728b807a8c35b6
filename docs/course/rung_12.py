"""Rung 12, phased_columns: Wide loads down columns that begin anywhere: a warp takes columns of
one phase.

    python docs/course/rung_12.py

It runs on the GPU, or in the simulator if there is none. docs/_ext/rung_scripts.py wrote this file.
"""

import sys

from rung import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], rung="12"))
