"""Runs the loops of workloads as plain functions on arrays, compiled where numba is allowed.

Belongs here: loops that a vectorised expression cannot say. Does not belong here: the making of the
arrays, and the use of the results.
"""
