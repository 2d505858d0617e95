"""Runs headgate on Spark: the only package that imports pyspark and py4j.

Belongs here: rooms only, no file. `api` is the front room, with everything that a user holds;
`settings` keeps a query's options, `read` turns its plan into operators, `step` does its micro-batches,
`sinks` writes results, `pools` runs stateless stages on replicas, `worker` runs in Python workers, `job`
keeps the state of a running job, `move` moves key groups, `steer` feeds and obeys the control loop,
`cluster` knows sessions, hosts and executors, `fleet` runs many queries under one budget, `plain` reads
and writes checkpoints of plain Spark, and `jvm` makes every private call into Spark.
"""
