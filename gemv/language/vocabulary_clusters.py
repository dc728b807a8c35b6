"""The part of :mod:`gemv.language.vocabulary` that is for blocks of a cluster."""

from __future__ import annotations

from gemv.language.declared import declared


@declared
def cluster_rank():
    """Which block of its cluster this is, from 0 on.

    The attribute ``cluster`` of a kernel function says how many blocks a cluster has. They are
    neighbours along ``blockIdx.y``, and run at the same time.
    """


@declared
def cluster_arrive():
    """Come to the barrier of the cluster, and go on; every thread of all its blocks does so.

    It orders nothing but :func:`cluster_expect`.
    """


@declared
def cluster_wait():
    """Wait until all threads of the cluster have come to the barrier; each has come itself."""


@declared
def cluster_expect(box, shared, count):
    """Make `box` count the sums that arrive in `shared`, until there are `count` of them.

    `box` is a shared array of one 64-bit integer. One thread of a block calls this, and no block of
    the cluster posts before a barrier of the cluster.
    """


@declared
def cluster_post(box, shared, slot, row, values, distance, width, each, limit):
    """Send sums of rows to the blocks of the cluster that these rows belong to, and go on.

    `values` are pieces of `width` neighbours, `distance` apart, from `row` on. That of row r is
    stored in block ``r // each``, at ``shared[r % each, slot]``, and counted by its `box`. Rows
    from `limit` on are not sent.
    """


@declared
def cluster_take(box):
    """Wait until all sums are there that `box` expects.

    A block that expects sums must not end before it has taken them.
    """
