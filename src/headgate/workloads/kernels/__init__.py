"""Plain functions on arrays that workloads do their own work with, compiled where numba is allowed.

Belongs here: loops that a vectorised expression cannot say. Does not belong here: anything that knows
how the arrays came about or where they go.
"""
