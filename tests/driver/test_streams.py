"""What tells streams apart, whatever handles the driver gives them."""

import threading

import pytest

from gemv.engines import backend

if backend.backend() != "simulator":
    pytest.skip("with a GPU the real driver is tested", allow_module_level=True)

from helpers.virtual_gpus import Stream, installed


@pytest.fixture
def virtual(monkeypatch):
    return installed(monkeypatch)


def identity(handle):
    from gemv.driver import streams

    return streams.identity(handle)


def test_a_stream_with_the_handle_of_a_destroyed_one_is_another_stream(virtual):
    status, first = virtual.cuStreamCreate(1)
    _, second = virtual.cuStreamCreate(1)
    assert status == 0
    of_first, of_second = identity(first), identity(second)
    assert of_first == identity(first) != of_second
    virtual.cuStreamDestroy(first)
    virtual.streams[first] = Stream(0)  # the driver takes the handle for the next one
    assert identity(first) not in (of_first, of_second)
    assert identity(second) == of_second


def test_a_stream_behind_others(virtual):
    from gemv.driver import streams

    behind, done, own = streams.Behind(), [], []
    for device in (0, 1, 0):
        virtual.current = device
        _, stream = virtual.cuStreamCreate(1)
        virtual.enqueue(virtual.streams[stream], lambda device=device: done.append(device))
        own.append(behind.of(stream))
        virtual.cuStreamDestroy(stream)
        virtual.streams[stream] = Stream(device)  # the driver takes the handle for the next one
    assert own[0] == own[2] != own[1], "one for each GPU"
    assert not done, "nobody has waited"
    for device, found in ((0, [0, 0]), (1, [0, 0, 1])):
        virtual.current = device
        virtual.cuStreamSynchronize(own[device])
        assert done == found


def test_every_thread_has_a_default_stream_of_its_own(virtual):
    legacy, per_thread = 0, 2
    there = []
    thread = threading.Thread(target=lambda: there.extend(map(identity, (legacy, per_thread, 2))))
    thread.start()
    thread.join()
    assert identity(legacy) == there[0] == 0
    assert there[1] == there[2] < 0
    assert identity(per_thread) == identity(per_thread) < 0
    assert identity(per_thread) != there[1]
