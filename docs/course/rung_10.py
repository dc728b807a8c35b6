"""Rung 10, long_columns: A few long columns: every thread owns its rows alone, and stores 16 bytes
as it loads them.

    python docs/course/rung_10.py

It runs on the GPU, or in the simulator if there is none. docs/_ext/rung_scripts.py wrote this file.
"""

import sys

from rung import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], rung="10"))
