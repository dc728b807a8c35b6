"""What the formula gets wrong, learned from the times of a campaign.

Trees (scikit-learn's gradient boosting) predict the logarithm of measured over predicted time. They
see what the formula sees, and the sizes and constants besides. They only ever correct the formula:
where nothing like a launch was measured, they have little to add to it.

The choices of a machine's file are computed with the corrections; a GPU without a file goes by the
formula alone.
"""

from __future__ import annotations

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from benchmarks.fit.samples import Launches, Samples
from gemv.selection.formula import Machine, Parts
from gemv.selection.refit import weights

SETTINGS = {
    "max_iter": 1000,
    "max_leaf_nodes": 64,
    "learning_rate": 0.1,
    "min_samples_leaf": 20,
    "l2_regularization": 1.0,
    "max_features": 0.3,
    "random_state": 0,
}


class Corrections:
    """Trees fitted to the samples `which`, on top of a machine's numbers."""

    def __init__(
        self, found: Samples, which: np.ndarray, machine: Machine, factors: np.ndarray
    ) -> None:
        self._machine, self._factors = machine, factors
        launches, times = found.launches.only(which), found.times[which]
        predicted = launches.parts(machine, factors)
        self._trees = HistGradientBoostingRegressor(**SETTINGS).fit(
            launches.features(predicted),
            np.log(times / predicted.seconds),
            sample_weight=weights(times, found.cells[which]) ** 2,
        )

    def parts(self, launches: Launches) -> Parts:
        return launches.parts(self._machine, self._factors)

    def seconds(self, launches: Launches) -> np.ndarray:
        """Predicted times of launches."""
        predicted = self.parts(launches)
        return predicted.seconds * np.exp(self._trees.predict(launches.features(predicted)))
