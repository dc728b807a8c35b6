"""Device times of calls and kernels, beside the least time in which this GPU moved their bytes.

``python -m gemv ladder`` runs :mod:`gemv.measure.ladder`, and ``python -m gemv bench`` runs
:mod:`gemv.measure.grid`. Every result is checked before it is timed. Under the simulator results
are checked and nothing is timed.
"""
