"""Kernels for one small matrix; ``batched/`` has the one for many of them.

They are no rungs, because they refuse the problems that the ladder is measured on.
``b<number>_<name>.py`` is one kernel and one lesson, as a rung of the ladder is.
"""
