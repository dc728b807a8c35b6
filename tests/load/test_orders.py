"""Calls of each family, of shards and plans too, have one result in every order of threads."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.families import CALLS, host

import gemv
from gemv.kernels import REGISTRY
from gemv.selection.select import select
from gemv.shards import cut

if gemv.backend() != "simulator":
    pytest.skip("only the simulator runs threads in a chosen order", allow_module_level=True)

from gemv.language.simulator.scheduler import Schedule, scheduled

ORDERS = [
    Schedule("forward", late=True), Schedule("reversed"), *(Schedule("random", k) for k in range(3))
]  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_call_has_one_result_in_every_order(name, monkeypatch):
    """Numbers are small and whole, so sums are exact; the second call is one that is known."""

    def with_small_knobs(problem, device, kernel=None, **other):
        """So small that few columns are those of several parts."""
        knobs = dict(REGISTRY[kernel].small_knobs) if kernel else None
        return select(problem, device, kernel=kernel, knobs=knobs, **other)

    monkeypatch.setattr(cut, "select", with_small_knobs)
    for order in ORDERS:
        call, expected, _ = CALLS[name]()
        with scheduled(order), gemv.trace() as calls:
            found = [np.array(host(call())) for _ in range(2)]
        assert calls and all(np.array_equal(each, expected) for each in found), order


def test_an_order_reaches_the_launches_of_shards(monkeypatch):
    """What is asserted above would hold as well if all launches had the usual order."""
    from gemv.language.simulator import scheduler

    orders, run = set(), scheduler.GridRun.run

    def noted(self):
        orders.add(self.schedule)
        run(self)

    monkeypatch.setattr(scheduler.GridRun, "run", noted)
    for name in ("shards_within", "plan_of_shards", "list_on_the_device", "plan_of_a_batch"):
        call, _, _ = CALLS[name]()
        orders.clear()
        with scheduled(ORDERS[0]):
            call()
        assert orders == {ORDERS[0]}, name
