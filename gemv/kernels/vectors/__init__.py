"""Kernels for one matrix and several vectors.

``b<number>_<name>.py`` is one kernel and one lesson, as a rung of the ladder is.
"""
