"""Decides about pools of replicas, on which stateless stages run.

Belongs here: the policies of pools (psps, unified_pools), their input and output (replicas), and the
groupings by which a pool shares its records (groupings). Does not belong here: stateful operators
(slots), the replicas themselves (spark.pools).
"""
