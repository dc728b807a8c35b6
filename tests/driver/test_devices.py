"""Which GPU is current: asked in every call of a process that has several."""

import ctypes
import sys

import pytest

from gemv.engines import backend

if backend.backend() != "simulator":
    pytest.skip("with a GPU the real driver is tested", allow_module_level=True)

from helpers.virtual_gpus import installed
from helpers.virtual_gpus import library as functions_of


@pytest.fixture
def asked(monkeypatch):
    """The virtual GPUs, and which functions of the driver are called from now on, by kind."""
    found = []

    def counting(kind):
        def made(virtual):
            own = functions_of(virtual)
            for name in ("cuCtxGetCurrent", "cuCtxGetDevice"):
                function = getattr(own, name)

                def call(*arguments, name=name, function=function):
                    found.append((kind, name))
                    return function(*arguments)

                setattr(own, name, call)
            return own

        return made

    def load(kind):
        return lambda name: counting(kind)(virtual)

    virtual = installed(monkeypatch)
    for kind in ("CDLL", "PyDLL"):
        monkeypatch.setattr(ctypes, kind, load(kind))
    for name in ("libcuda", "devices"):
        monkeypatch.delitem(sys.modules, f"gemv.driver.{name}")
    devices = __import__("gemv.driver.devices", fromlist=["devices"])
    devices.driver = virtual
    return virtual, devices, found


def test_a_known_device_is_told_without_letting_go_of_the_lock(asked):
    virtual, devices, found = asked
    for index in (0, 2, 1):
        virtual.current = index
        assert devices.current_device() == index
    found.clear()
    for index in (1, 0, 2, 2):
        virtual.current = index
        assert devices.current_device() == index
    assert found == [("PyDLL", "cuCtxGetCurrent")] * 4


def test_a_thread_without_a_device(asked):
    virtual, devices, found = asked
    virtual.current = -1
    assert devices.current_device() == -1
    assert found == [("PyDLL", "cuCtxGetCurrent")]


@pytest.mark.parametrize("primary", ["another", "not in use"])
def test_contexts_that_may_be_made_anew_are_not_remembered(asked, primary, monkeypatch):
    """Their address may be that of a context on another GPU later."""
    virtual, devices, found = asked
    if primary == "another":
        monkeypatch.setattr(devices, "primary_context", lambda index: 77)
    else:
        monkeypatch.setattr(virtual, "cuDevicePrimaryCtxGetState", lambda _: (0, 0, 0))
        monkeypatch.setattr(devices, "primary_context", lambda index: pytest.fail("it is made"))
    virtual.current = 1
    for _ in range(2):
        assert devices.current_device() == 1
    assert found.count(("CDLL", "cuCtxGetDevice")) == 2
