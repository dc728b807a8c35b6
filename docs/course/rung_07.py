"""Rung 7, last_block: One launch again: the last block to finish a tile of rows adds up what all
the others left.

    python docs/course/rung_07.py

It runs on the GPU, or in the simulator if there is none. docs/_ext/rung_scripts.py wrote this file.
"""

import sys

from rung import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], rung="7"))
