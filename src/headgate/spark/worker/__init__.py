"""Runs in Python workers: the work of slots and replicas, and everything that it needs there.

Belongs here: the work of one slot or replica in one batch; the daemon that forks workers; user
processors and their state handles; descriptions of workers' failures. Imports no module that needs a
driver or a JVM: a worker pays for each import. Does not belong here: the use of reports (step).
"""
