"""Configures sessions with Delta, Iceberg and PostgreSQL's driver, which Spark fetches from Maven."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pyspark

from headgate.core.errors import EngineError

DELTA: Mapping[str, str] = {
    "4.1": "io.delta:delta-spark_4.1_2.13:4.4.0",
    "4.2": "io.delta:delta-spark_4.2_2.13:4.4.0",
}
"""Maven coordinates by minor release of Spark."""

ICEBERG: Mapping[str, str] = {"4.1": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0"}
"""Maven coordinates by minor release of Spark."""

POSTGRESQL = "org.postgresql:postgresql:42.7.4"

CATALOG = "lake"
"""Name of the Iceberg catalog that `settings` configures."""

_SPARKS = (
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.apache.parquet:parquet-hadoop",
    "org.apache.logging.log4j:log4j-api",
    "org.apache.logging.log4j:log4j-core",
    "org.apache.logging.log4j:log4j-slf4j2-impl",
    "org.slf4j:slf4j-api",
    "com.fasterxml.jackson.core:jackson-databind",
    "com.fasterxml.jackson.core:jackson-annotations",
    "com.fasterxml.jackson.core:jackson-core",
    "com.fasterxml.jackson.datatype:jackson-datatype-jdk8",
    "com.google.code.findbugs:jsr305",
    "org.roaringbitmap:RoaringBitmap",
)
"""Dependencies of Delta that Spark has itself; they are not fetched, to avoid two versions."""

_DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_ICEBERG_EXTENSION = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"


def minor() -> str:
    """Return the minor release of the installed Spark."""
    return ".".join(pyspark.__version__.split(".")[:2])


def coordinate(kind: str) -> str:
    """Return the Maven coordinates of a connector (delta, iceberg, postgres) for this Spark.

    Raises
    ------
    EngineError
        No connector is known for this Spark.
    """
    known = {"delta": DELTA, "iceberg": ICEBERG, "postgres": {minor(): POSTGRESQL}}[kind]
    if minor() not in known:
        msg = f"no {kind} connector is known for Spark {minor()}, only for {', '.join(known)}."
        raise EngineError(msg)
    return known[minor()]


def settings(kinds: Iterable[str], warehouse: Path) -> dict[str, str]:
    """Return the settings of a session with these connectors.

    Parameters
    ----------
    kinds : iterable of str
        delta, iceberg, postgres.
    warehouse : Path
        Directory of the tables; those of Iceberg are in the catalog `CATALOG`.
    """
    wanted = list(kinds)
    made = {
        "spark.jars.packages": ",".join(coordinate(kind) for kind in wanted),
        "spark.jars.excludes": ",".join(_SPARKS),
        "spark.sql.warehouse.dir": str(warehouse),
    }
    extensions = []
    if "delta" in wanted:
        extensions.append(_DELTA_EXTENSION)
        made["spark.databricks.delta.snapshotPartitions"] = "1"  # the default has 50 tasks
        made["spark.databricks.delta.stats.collect"] = "false"
        made["spark.sql.catalog.spark_catalog"] = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    if "iceberg" in wanted:
        extensions.append(_ICEBERG_EXTENSION)
        catalog = f"spark.sql.catalog.{CATALOG}"
        made[catalog] = "org.apache.iceberg.spark.SparkCatalog"
        made[f"{catalog}.type"] = "hadoop"
        made[f"{catalog}.warehouse"] = str(warehouse / "iceberg")
    if extensions:
        made["spark.sql.extensions"] = ",".join(extensions)
    return made
