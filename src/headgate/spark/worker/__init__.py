"""Runs in Python workers: the work of slots and replicas, and everything that it needs there.

Belongs here: one slot's, or one replica's, work in one batch; the daemon that forks workers; user
processors and their state handles; what a failure there says. Imports nothing that needs a driver or
a JVM: a worker pays for each import. Does not belong here: what happens to the reports (step).
"""
