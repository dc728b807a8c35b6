"""Fixtures of several files of this folder."""

from __future__ import annotations

import pytest
from helpers import xla_launches

import gemv


@pytest.fixture(params=["host", "engine"])
def everywhere(request):
    """The host backend, and the one that runs kernels."""
    if request.param == "host":
        gemv.use_backend("host")
        yield "host"
        gemv.use_backend(None)
    elif gemv.backend() == "host":
        pytest.skip("no GPU and no simulator")
    else:
        yield gemv.backend()


@pytest.fixture
def long_way(monkeypatch):
    """Calls that took the long way."""
    from gemv import blas

    made, real = [], blas.long_way

    def counted(*arguments):
        made.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(blas, "long_way", counted)
    return made


@pytest.fixture
def launches(monkeypatch):
    """A driver that only notes what XLA's handler launches; see :mod:`helpers.xla_launches`."""
    with xla_launches.installed(monkeypatch) as found:
        yield found
