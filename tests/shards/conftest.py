"""GPUs that are not there, for the tests of shards."""

import pytest
from helpers import virtual_gpus as stand_in


@pytest.fixture
def virtual_gpus(monkeypatch):
    """Three GPUs that a stand-in for the driver plays; see :mod:`helpers.virtual_gpus`."""
    return stand_in.installed(monkeypatch)
