"""Runs many queries in one Spark application under one budget of slots.

Belongs here: what a fleet measures of its queries (probe, pool_probe), what it knows of each (member),
the jobs that it admits (admission), its journal (fleet_journal) and its grants (fleet_grants), and the
thread that asks the fleet policy every round (fleet). Does not belong here: what a policy decides
(control), how a query runs its batches, TOML files (scenario).
"""
