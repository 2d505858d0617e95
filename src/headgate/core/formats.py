"""Lists the names of the formats of sinks, and the guarantees of headgate's sinks."""

from __future__ import annotations

FILE_FORMATS = ("parquet", "orc", "json", "csv", "text", "avro")
"""Formats that write files to a directory, with a log of the batches in it."""

ONE_TIME = ("memory", "console", "noop")
"""Formats such as `ConsoleSink` whose output does not outlive the query; they need no checkpoint."""

OWN = (*FILE_FORMATS, *ONE_TIME, "kafka", "delta", "iceberg")
"""Formats of headgate's own sinks; no package can replace them."""

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
"""Guarantee of each format in `OWN` after a crash of the driver, for people."""
