"""Solves in which some workers share memory and others get messages, with chunks of any sizes."""

from __future__ import annotations

import random

import numpy as np
import pytest
from scipy.sparse import linalg

distributed = pytest.importorskip("distributed", reason="Dask is not installed")

import dask.array as da  # noqa: E402

import gemv.dask  # noqa: E402
from gemv.distributed import exchange, neighbours  # noqa: E402

pytestmark = pytest.mark.skipif(
    not neighbours.is_possible(), reason="the system has no such sockets"
)


@pytest.fixture
def ways(monkeypatch):
    """Every other meeting of two workers fails; what was told is looked at until the next call."""
    rng, told, reach, gather = random.Random(4), {}, neighbours.Neighbours.reach, []

    def reach_some(self, doors):
        far = reach(self, {peer: rng.choice(["", door]) for peer, door in doors.items()})
        told["far"] = told.get("far", 0) + len(far)
        told["near"] = told.get("near", 0) + len(doors) - len(far)
        return far

    def all_gather(self, parts, digest):
        for vector, bits in vars(self).pop("_told", ()):
            assert vector.tobytes() == bits, "written over before the next call"
        found = gather[0](self, parts, digest)
        self._told = [(vector, vector.tobytes()) for _, vector in found]
        return found

    gather.append(exchange.Exchange.all_gather)
    monkeypatch.setattr(neighbours.Neighbours, "reach", reach_some)
    monkeypatch.setattr(exchange.Exchange, "all_gather", all_gather)
    return told


def cut(rng, size):
    edges = [0, *sorted(rng.choices(range(size + 1), k=rng.randrange(5))), size]
    return tuple(end - start for start, end in zip(edges, edges[1:], strict=False))


@pytest.mark.filterwarnings("ignore:Running on a single-machine scheduler")
def test_near_and_far_workers_get_the_same_bits(ways):
    rng, numbers = random.Random(7), np.random.default_rng(7)
    a, b = numbers.standard_normal((70, 30)), numbers.standard_normal(70)
    limits = {"maxiter": 30, "atol": 0, "btol": 0, "conlim": 0}
    with (
        distributed.LocalCluster(
            n_workers=4, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        for dtype in "dfDdfD":
            chunks = cut(rng, 70), cut(rng, 30)
            array = da.from_array(a.astype(dtype), chunks=chunks)
            found = gemv.dask.Matrix(array, client=client).solve("lsmr", b, **limits)
            again = gemv.dask.Matrix(array, client=client).solve("lsmr", b, **limits)
            assert found[0].tobytes() == again[0].tobytes()
            right = linalg.lsmr(a.astype(dtype), b.astype(np.result_type(dtype, b)), **limits)
            np.testing.assert_allclose(found[0], right[0], rtol=1e-3 if dtype == "f" else 1e-9)
    assert ways["near"] > 10 and ways["far"] > 10
