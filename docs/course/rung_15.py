"""Rung 15, cluster_columns: Short columns by clusters: blocks share out the columns, and send sums
to each other's memory.

    python docs/course/rung_15.py

It runs on the GPU, or in the simulator if there is none. docs/_ext/rung_scripts.py wrote this file.
"""

import sys

from rung import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], rung="15"))
