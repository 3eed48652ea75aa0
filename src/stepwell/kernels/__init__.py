"""Compiled loops over bytes: numba kernels that know addresses, rows and offsets, and nothing of stores.

Importing this package loads nothing; importing one of its modules loads numba, so callers do it on first use.
"""
