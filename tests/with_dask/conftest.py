"""Where the chunks of the tests are multiplied."""

import pytest

import gemv


@pytest.fixture(autouse=True)
def on_the_host():
    """Chunks are small and many; the simulator would take minutes."""
    gemv.use_backend("host")
    yield
    gemv.use_backend(None)
