"""What everything else is said in: frozen data and arithmetic.

Belongs here: key groups, assignments, SLOs, utilities, samples, decisions, durations, parameters,
the clock port, errors, and the switch between compiled and plain kernels. Does not belong here:
I/O, Spark, anything that changes once it is made, anything that imports another package of
headgate.
"""
