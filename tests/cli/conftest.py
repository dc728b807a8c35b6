"""The files of the commands."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.commands import whole


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with A (5 x 7), x of 7, y of 5 and some broken files."""
    monkeypatch.chdir(tmp_path)
    np.save("A.npy", whole(5, 7))
    np.save("x.npy", whole(7))
    np.save("y.npy", whole(5))
    return tmp_path
