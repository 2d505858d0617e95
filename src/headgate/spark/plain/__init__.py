"""Converts checkpoints of plain Structured Streaming to headgate's, and back, with their state.

Belongs here: files of Spark's log, the conversion of Spark's aggregation buffers to routed values and
back, the step of `hg.adopt`, the rewriting of `hg.export`. Does not belong here: the meaning of a row of
state (`operators`), the reading of a query (`spark.read`), calls into the JVM (`spark.jvm`).
"""
