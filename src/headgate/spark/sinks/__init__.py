"""Writes the result of each step where the user wants it, each step once.

Belongs here: files, tables, Kafka, merges, `foreachBatch`, and the way in which each of them knows the
steps that it has. Does not belong here: the making of a result (step.output), private calls into
Spark's own sinks (jvm).
"""
