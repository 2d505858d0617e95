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

_TABLE = "exactly once: the table keeps an output's number with its rows"
GUARANTEES = {
    **dict.fromkeys(FILE_FORMATS, "exactly once, for readers that honour _spark_metadata"),
    "memory": "exactly once, within the session",
    "console": "at least once",
    "noop": "nothing is written",
    "kafka": "exactly once, for readers with isolation.level=read_committed",
    "delta": _TABLE,
    "iceberg": _TABLE,
}
"""What each of `OWN` guarantees after a crash of the driver."""
