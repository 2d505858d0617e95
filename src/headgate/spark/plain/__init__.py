"""Checkpoints of plain Structured Streaming: their state taken over, and given back.

Here: Spark's log read and written as files, Spark's aggregation buffers as routed values and back, the
step that adopts, the rewriting that exports. Not here: what a row of state means (`operators`), how a
query is read (`spark.read`), calls into the JVM (`spark.jvm`).
"""
