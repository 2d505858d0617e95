"""Keeps the state of a running job between two batches, and the ports through which it is watched.

Belongs here: assignments in force and asked for, pools of replicas, reports of tasks, where the time of
a batch went, faults that a test asked for. Does not belong here: how a batch is run (step), or why
something changes (steer).
"""
