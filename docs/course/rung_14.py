"""Rung 14, cluster_rows: Few long rows by clusters: blocks send the sums of their row into each
other's shared memory.

    python docs/course/rung_14.py

It runs on the GPU, or in the simulator if there is none. docs/_ext/rung_scripts.py wrote this file.
"""

import sys

from rung import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], rung="14"))
