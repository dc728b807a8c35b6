"""The client's side of a solve: one pinned task on each worker, watched until all have ended."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import CancelledError
from typing import Any

import distributed

from gemv.distributed.mailbox import Place
from gemv.distributed.outcome import Interrupted
from gemv.distributed.solve import Job, run

#: Seconds between two looks at which workers are alive.
_LOOK = 0.5
#: Seconds that the tasks of a failed solve have to say why, after the first of them has.
_GRACE = 3.0


def solve(
    client: distributed.Client,
    chunks: Mapping[str, list[tuple[Place, distributed.Future]]],
    job: Job,
    right: dict[str, Any],
) -> Any:
    """Run a solver on all workers that hold chunks.

    Parameters
    ----------
    client : distributed.Client
    chunks : mapping of str to list of (place, future)
        Of each worker, by its address.
    job : Job
        Its name and addresses are filled in here.
    right : dict
        The right-hand side and the options of the solver.

    Returns
    -------
    object
        What the solver returns; or :class:`Interrupted`, if workers have been lost.
    """
    name = f"gemv-{job.method}-{uuid.uuid4().hex}"
    job = job._replace(solve=name, addresses=tuple(sorted(chunks)))
    try:
        # One copy for all: it may be larger than what a task should carry. Some worker has to take
        # it, and that may be one that does not answer any more.
        [shared] = client.sync(
            lambda: client.scatter([right], hash=False, asynchronous=True),
            callback_timeout=job.patience,
        )
    except TimeoutError as error:
        raise TimeoutError(
            f"gemv.dask.Matrix.solve: no worker took the vectors within {job.patience:g} s"
        ) from error
    except OSError as error:  # as Dask's CommClosedError is
        return Interrupted(f"a worker is gone that was to take the vectors: {error}", (), True)
    tasks = {
        client.submit(
            run,
            job,
            [place for place, _ in chunks[address]],
            [chunk for _, chunk in chunks[address]],
            shared,
            key=f"{name}-{number}",
            workers=[address],
            allow_other_workers=False,
            retries=0,
        ): address
        for number, address in enumerate(job.addresses)
    }
    try:
        return _outcome(client, tasks, job.patience)
    finally:
        client.cancel(list(tasks))  # those that run see it: Exchanges.transition


def _outcome(
    client: distributed.Client,
    tasks: dict[distributed.Future, str],
    patience: float,
) -> Any:
    """Wait for all tasks; for some seconds only, once one of them is known not to end well."""
    pending, interrupted = set(tasks), list[Interrupted]()
    result, last = None, None
    while pending and (last is None or time.monotonic() < last):
        with contextlib.suppress(TimeoutError, CancelledError):
            distributed.wait(list(pending), timeout=_LOOK, return_when="FIRST_COMPLETED")
        alive = client.nthreads()
        for task in [task for task in pending if task.done() or tasks[task] not in alive]:
            pending.remove(task)
            if not task.done():
                found: Any = Interrupted(f"worker {tasks[task]} is gone", (tasks[task],), True)
            elif task.status == "cancelled" or task.status == "lost":
                reason = f"the task of worker {tasks[task]} was cancelled"
                found = Interrupted(reason, (tasks[task],), True)
            else:
                found = _result(client, task, tasks[task], patience)
            if isinstance(found, Interrupted):
                interrupted.append(found)
                last = last or time.monotonic() + _GRACE
            elif found is not None:
                result = found
    if not interrupted:
        return result
    # What was heard on the spot is more than what is seen from here.
    return max(interrupted, key=lambda each: (each.iterations, each.vector is not None))


def _result(client: distributed.Client, task: Any, address: str, patience: float) -> Any:
    """What a task has returned; raises what the solver has raised."""
    try:
        return task.result(timeout=patience)
    except TimeoutError:
        if address in client.nthreads():
            raise
        return Interrupted(f"worker {address} is gone, and its result with it", (address,), True)
