"""Rung 13, short_columns: Many short columns: A is loaded as one stretch of memory, and each
thread keeps its rows.

    python docs/course/rung_13.py

It runs on the GPU, or in the simulator if there is none. docs/_ext/rung_scripts.py wrote this file.
"""

import sys

from rung import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], rung="13"))
