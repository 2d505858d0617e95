"""Generates the records of the demo's workloads; knows nothing of Spark.

Belongs here: the content of a generated record (nexmark, sentences, stock_exchange), the reference answer
of the exchange (order_book), the replay of a recorded log (replay), and the random numbers below them
(draws). A record is a pure function of a configuration and the record's number, so that any range can be
generated again after a crash. Does not belong here: the number of records due at a time
(`headgate.workloads`), Spark's sources (`headgate_demo.spark`), the query over the records. Generators
emit on schedule, whatever the backpressure: the scheduled time is the arrival.
"""

from __future__ import annotations
