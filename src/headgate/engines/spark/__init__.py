"""The Spark engine: the only place where pyspark and py4j are imported.

`logical` reads a query, `exchange` routes it, `slot` works in Python workers, `driver` runs the batches,
`writer` and `query` are what a user holds. Calls into Spark's private classes are in `gateway`,
`sinks`, `lock` and `placement` only.
"""
