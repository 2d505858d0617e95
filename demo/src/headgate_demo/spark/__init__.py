"""Runs the demo's workloads on Spark: sources as streams and as batches, queries, a Kafka broker.

Belongs here: Spark's side of `headgate_demo.generators`. Does not belong here: what a record says.
"""
