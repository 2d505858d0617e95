"""Delta, Iceberg and PostgreSQL's driver, as Spark fetches them by their Maven coordinates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pyspark

from headgate.core.errors import EngineError

DELTA: Mapping[str, str] = {
    "4.1": "io.delta:delta-spark_4.1_2.13:4.4.0",
    "4.2": "io.delta:delta-spark_4.2_2.13:4.4.0",
}
"""By minor release of Spark."""

ICEBERG: Mapping[str, str] = {"4.1": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0"}
"""By minor release of Spark."""

POSTGRESQL = "org.postgresql:postgresql:42.7.4"

CATALOG = "lake"
"""The name of the Iceberg catalog that `settings` makes."""

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
"""What Delta asks for and Spark has: not fetched, and never two versions of it at once."""

_DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_ICEBERG_EXTENSION = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"


def minor() -> str:
    """Return the minor release of the Spark that runs here."""
    return ".".join(pyspark.__version__.split(".")[:2])


def coordinate(kind: str) -> str:
    """Return where a connector of that kind (delta, iceberg, postgres) lies for this Spark.

    Raises
    ------
    EngineError
        There is none.
    """
    known = {"delta": DELTA, "iceberg": ICEBERG, "postgres": {minor(): POSTGRESQL}}[kind]
    if minor() not in known:
        msg = f"no {kind} connector is known for Spark {minor()}, only for {', '.join(known)}."
        raise EngineError(msg)
    return known[minor()]


def settings(kinds: Iterable[str], warehouse: Path) -> dict[str, str]:
    """Return the settings of a session that has these connectors.

    Parameters
    ----------
    kinds : iterable of str
        delta, iceberg, postgres.
    warehouse : Path
        Where tables lie; those of Iceberg in the catalog `CATALOG`.
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
        made["spark.databricks.delta.snapshotPartitions"] = "1"  # 50 tasks for a log of ten lines
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
