"""Rung 11, phased_rows: Wide loads along rows that begin anywhere: rows of the same phase belong
to one block.

    python docs/course/rung_11.py

It runs on the GPU, or in the simulator if there is none. docs/_ext/rung_scripts.py wrote this file.
"""

import sys

from rung import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], rung="11"))
