"""Decides how many replicas are active in each pool; stateless stages run on pools.

Belongs here: the policies of pools (psps, unified_pools), their input and output (replicas), and the
groupings by which a pool shares its records (groupings). Does not belong here: stateful operators
(slots), the replicas themselves (spark.pools).
"""
