"""Kernels that are made for batches; those for one product compute batches as well.

``b<number>_<name>.py`` is one kernel and one lesson, as a rung of the ladder is.
"""
