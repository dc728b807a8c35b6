"""How a solve on several workers ends when it does not end well."""

from __future__ import annotations

from typing import Any, NamedTuple


class WorkerLost(RuntimeError):
    """A worker died, fell silent or went another way while a matrix on many workers was in use.

    Attributes
    ----------
    workers : tuple of str
        The addresses of the workers that are to blame.
    """

    def __init__(self, text: str, workers: tuple[str, ...] = ()) -> None:
        super().__init__(text, workers)
        self.workers = workers

    def __str__(self) -> str:
        return str(self.args[0])


class Interrupted(NamedTuple):
    """What the task of a worker returns if another worker ended the solve.

    Attributes
    ----------
    reason : str
        A sentence for people.
    workers : tuple of str
        The addresses of the workers that are to blame.
    started : bool
        Whether all workers had begun.
    vector : numpy.ndarray or None
        The last vector that was kept, to begin again from.
    iterations : int
        Those that led to it.
    """

    reason: str
    workers: tuple[str, ...]
    started: bool
    vector: Any = None
    iterations: int = 0


class Stopped(Exception):
    """Raised inside the solver on a worker, to leave it because another worker ended the solve."""

    def __init__(self, reason: str, workers: tuple[str, ...], started: bool = True) -> None:
        super().__init__(reason, workers, started)
        self.reason, self.workers, self.started = reason, workers, started
