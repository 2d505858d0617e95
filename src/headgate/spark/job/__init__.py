"""Keeps the state of a running job between two batches, and the ports through which it is watched.

Belongs here: assignments in force and requested (changes), pools of replicas (pools), the reports
that tasks send to the driver (reports), the time that each phase of a batch took (phases), the age
of results (origins), faults that a test requests (faults). Does not belong here: running a batch
(step), deciding a change (steer).
"""
