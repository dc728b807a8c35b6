"""Print the seconds that the Python which runs this takes for a short loop, and where it is.

Nothing is printed by a Python that is too old for gemv, or that cannot make an environment.
"""

import ensurepip  # noqa: F401  (some systems leave out this and venv)
import sys
import time
import tomllib  # noqa: F401  (new in Python 3.11)
import venv  # noqa: F401


class Counter:
    """Attributes and calls, as the simulator's threads have them."""

    def __init__(self, start):
        self.total = start

    def add(self, number):
        self.total += number
        return self.total


def seconds():
    start = time.perf_counter()
    kept = {}
    for number in range(100_000):
        kept[number % 256] = Counter(number).add(number)
    return time.perf_counter() - start


print(f"{min(seconds() for _ in range(5)):.4f} {sys.executable}")
