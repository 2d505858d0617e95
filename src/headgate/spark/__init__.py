"""Headgate on Spark: the only place where pyspark and py4j are imported.

What a user holds stands here (writer, query, verify, explain); everything else has a room: `settings`
what a query was told, `read` from its plan to operators, `step` its micro-batches, `worker` what runs
in Python workers, `job` what a running job knows, `move` how state moves, `steer` how its control
loop is fed and obeyed, `cluster` sessions, hosts and executors, `fleet` many queries under one budget,
`workloads` the ones that ``headgate run`` knows, and `jvm` every private call into Spark.
"""
