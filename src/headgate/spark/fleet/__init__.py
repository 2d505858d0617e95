"""Runs many queries in one Spark application under one budget of slots.

Belongs here: measurements of queries (probe, pool_probe), the state of each job (member), the admission
of jobs (admission), a fleet's journal (fleet_journal) and grants (fleet_grants), and the thread that
asks the fleet policy every round (fleet). Does not belong here: the decisions of a policy (control),
the batches of a query, TOML files (scenario).
"""
