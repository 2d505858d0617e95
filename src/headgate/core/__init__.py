"""Defines the words that every other package uses: frozen data, arithmetic and checks.

Belongs here: assignments, SLOs, intents and utilities, durations and sizes, checked input, the names of
stores and their options, errors, and the switch between compiled and plain kernels (jit). Does not
belong here: samples, decisions and observations (control), the ports of the loop (loop), I/O other than
reading one small file (input), Spark, mutable objects, modules that import another package of headgate.
"""
