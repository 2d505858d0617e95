"""Decides about many queries on one cluster: the slots that each may use.

Belongs here: the policies of a fleet (henge, unified_fleet), their input and output (view), the names
that they are found by (registry), the budget (ledger), and what each query may use of it (grant,
granted). Does not belong here: the choice of a query within its grant (slots), Spark's side of a fleet
(spark.fleet).
"""
