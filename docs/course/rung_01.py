"""Rung 1, serial: One thread walks the whole matrix: the definition of gemv, and the yardstick for
all the rest.

    python docs/course/rung_01.py

It runs on the GPU, or in the simulator if there is none. docs/_ext/rung_scripts.py wrote this file.
"""

import sys

from rung import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], rung="1"))
