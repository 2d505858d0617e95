"""Generates input: rate functions, generated events, timed logs.

Belongs here: the number of records due at a time (rates, arrivals), the content of a generated record
(nexmark, sentences, stock_exchange), the reference answer of the exchange (order_book), the replay of a
recorded log (replay, traces). All of it is pure functions of a configuration and a record's number, so
that any range can be made again after a crash. Does not belong here: anything of Spark
(`headgate.spark.workloads` wraps these), the query over the records, the speed of an engine. Generators
emit on schedule whatever the backpressure: the scheduled time is the arrival.
"""

from __future__ import annotations
