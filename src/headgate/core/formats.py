"""Lists the names of the formats of sinks, known before a sink exists."""

from __future__ import annotations

FILE_FORMATS = ("parquet", "orc", "json", "csv", "text", "avro")
"""Files in a directory, with a log of the batches that are in it."""

ONE_TIME = ("memory", "console", "noop")
"""`ConsoleSink` and its like: nothing is left of them after the query, so none needs a checkpoint."""

OWN = (*FILE_FORMATS, *ONE_TIME, "kafka", "delta", "iceberg")
"""Names that stay headgate's, whatever a package brings."""

KNOWN = (
    *OWN, "hudi", "paimon", "jdbc", "xml", "mongodb",
    "redis", "bigquery", "snowflake", "es", "pulsar", "kinesis", "aws-kinesis", "eventhubs",
    "clickhouse", "starrocks", "doris", "neo4j", "cosmos.oltp", "couchbase.kv",
)  # fmt: skip
"""Short names that Spark and well-known packages give to sinks."""
