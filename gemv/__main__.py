"""``python -m gemv``."""

import sys

from gemv.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
