"""What flows: rate functions, generated events, timed logs.

Belongs here: how many records are due when (rates), what a generated record says (nexmark), how a
recorded log is played again (replay); all of it pure functions of a configuration and a record's
number, so that any range can be made again after a crash. Does not belong here: anything of Spark
(engines.spark.sources wraps these), what a query does with the records, how slow an engine is.
Generators emit on schedule whatever the backpressure: the scheduled time is the arrival.
"""

from __future__ import annotations
