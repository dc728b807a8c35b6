"""Rung 5, coalesced: The tile turned towards memory: neighbouring threads on neighbouring
addresses, either order.

    python docs/course/rung_05.py

It runs on the GPU, or in the simulator if there is none. docs/_ext/rung_scripts.py wrote this file.
"""

import sys

from rung import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], rung="5"))
