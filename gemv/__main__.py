"""``python -m gemv``."""

import sys

from gemv._cli import main

if __name__ == "__main__":
    sys.exit(main())
