"""Kernels that compute many products of different sizes in one launch: those of a list.

They are no rungs of the ladder: ``gemv_batched`` and ``Batch`` launch them.
"""
