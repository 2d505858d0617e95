"""The workloads that ``headgate run`` knows, on Spark: sources as streams and as batches, and queries.

Belongs here: Spark's side of `headgate.workloads`. Does not belong here: what a record says.
"""
