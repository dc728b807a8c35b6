"""Rung 6, warp_per_row: One warp takes one row: the sum travels from register to register, with no
barrier at all.

    python docs/course/rung_06.py

It runs on the GPU, or in the simulator if there is none. docs/_ext/rung_scripts.py wrote this file.
"""

import sys

from rung import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], rung="6"))
