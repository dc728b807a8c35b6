"""Scratch memory and counters are shared by nothing that can overlap, and come back."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from helpers import processes

WORKER = Path(__file__).parents[1] / "helpers" / "workspace_worker.py"


@pytest.fixture(scope="module")
def answers():
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0"}
    done = processes.run(
        [sys.executable, str(WORKER)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_thread_has_a_default_stream_of_its_own(answers):
    """The handle of per-thread default streams is 2 in every thread, but they are many."""
    same_thread, other_thread = answers["per_thread"]
    assert same_thread == [True, True, True]
    assert other_thread == [True, False, True]


def test_a_stream_never_has_the_workspace_of_a_destroyed_one(answers):
    """Though the driver gives the handle to the next stream while work of the old one runs."""
    found = answers["same_handle"]
    assert found["new"] == found["kept"] == [True] * 40 and found["other"] is True
    # The last 16 and that of the living stream; when there are more, all 17 go at once.
    assert max(found["alive"]) == 17 and found["alive"].count(1) == 3


def test_what_a_destroyed_graph_had_serves_the_next_capture(answers):
    remaining, all_free = answers["captures"]
    assert remaining == 0 and all_free


def test_memory_for_posts_is_filled_once_and_used_by_nothing_else(answers):
    posts = answers["posts"]
    plain, first, again, larger, kept = posts["stream"]
    assert plain == kept and first == again and len({plain, first, larger}) == 3
    # Ones in every bit, ahead of the launch on its stream.
    assert posts["fills"] == [[first, 255, 1 << 20, 7], [larger, 255, 2 << 20, 7]]
    captured, scratch, same = posts["capture"]
    assert captured == same != scratch
    # A capture must not see it: on a stream of its own, waited for.
    own = "own and alone"
    assert posts["captured fills"] == [
        [captured, 255, 100, own], ["waited for", own], ["destroyed", own],
    ]  # fmt: skip
    assert posts["left"] == 0


def test_counters_that_are_given_back_join(answers):
    places, all_free, text, behind = answers["arena"]
    assert places == [0, 10, 30, 10, 60]
    assert all_free
    assert "counters for captured graphs are all in use" in text
    assert behind == 11, "a counter in use is no part of a free one"


def test_a_call_with_more_tiles_gets_more_counters(answers):
    (few, as_many, more, fewer), fills = answers["counters"]
    assert few == as_many != more == fewer
    assert fills == [[few, 0, 4 * 4096, 7], [more, 0, 4 * 5000, 7]]
