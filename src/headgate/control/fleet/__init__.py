"""Decides about many queries on one cluster: the slots that each may use.

Belongs here: the policies of a fleet (henge, unified_fleet), their arithmetic (arithmetic, juice), their
input and output (view), their names (registry), the budget (ledger), and the grant of each query (grant,
granted). Does not belong here: the choice of a query within its grant (slots), Spark's side of a fleet
(spark.fleet).
"""
