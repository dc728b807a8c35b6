"""What ``python -m gemv`` starts; the commands are in :mod:`gemv.cli.main`."""

import sys

from gemv.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
