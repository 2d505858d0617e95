"""Writes the result of each step into the user's sink, each step once.

Belongs here: files, tables, Kafka, merges, `foreachBatch`, and how each of them recognises steps that
it has. Does not belong here: the making of a result (step.output), private calls into Spark's own
sinks (jvm).
"""
