"""Variables of the environment that switch something off."""

from __future__ import annotations

import os


def switched_off(variable: str) -> bool:
    """Whether a variable of the environment is 0, off, no or false."""
    return os.environ.get(variable, "").strip().lower() in ("0", "off", "no", "false")
