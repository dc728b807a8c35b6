"""The command line: ``python -m gemv`` with info, cache, run, ladder and bench.

Every module here imports the standard library alone at its top, so that ``info`` can report an
environment in which NumPy, Numba or the driver is unusable.
"""
