"""What a query on Spark writes down for a diagnosis: its sources' limits, and a key if it may."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

import headgate as hg
from headgate.journal import Batch, Start, read
from headgate.spark.jvm.plans import analysed
from headgate.spark.read.limits import source_limits
from headgate.spark.worker.hot_key import hottest_key


@pytest.mark.parametrize("allowed", [True, False])
def test_a_key_is_written_down_only_where_the_user_allows_it(
    spark: Any, tmp_path: Path, allowed: bool
) -> None:
    rows = spark.range(100).select(F.when(F.col("id") < 60, "hot").otherwise("cold").alias("k"))
    rows.coalesce(1).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("k string").option("maxfilespertrigger", "50")
    counts = stream.parquet(str(tmp_path / "in")).groupBy("k").count()
    writer = hg.writeStream(counts).outputMode("update").format("noop").trigger(availableNow=True)
    if allowed:
        writer = writer.option("headgate.showKeys", "true")
    query = writer.option("checkpointLocation", str(tmp_path / "ck")).start()
    query.awaitTermination()
    events = list(read(query.journal))
    keys = {e.hottest_key for e in events if isinstance(e, Batch) and e.arrived}
    assert keys == ({"k = 'hot' (60 records)"} if allowed else {None})
    (start,) = (e for e in events if isinstance(e, Start))
    assert start.parameters["source_limits"] == {"maxFilesPerTrigger": "50"}


def test_the_limits_of_every_source_are_read_from_the_plan(spark: Any, tmp_path: Path) -> None:
    rate = spark.readStream.format("rate").option("rowsPerSecond", 7).load().select("value")
    assert source_limits(analysed(rate)) == {}  # it says how many there are: none waits
    files = spark.readStream.schema("value long").option("maxFilesPerTrigger", 3)
    both = files.parquet(str(tmp_path)).unionByName(rate)
    assert source_limits(analysed(both)) == {"maxFilesPerTrigger": "3"}
    twice = files.parquet(str(tmp_path)).union(files.parquet(str(tmp_path)))
    assert source_limits(analysed(twice)) == {"maxFilesPerTrigger": "3, 3"}
    free = spark.readStream.schema("value long").parquet(str(tmp_path))
    assert source_limits(analysed(free)) == {}


def test_the_most_frequent_key_counts_records_not_rows() -> None:
    table = pa.table({"g": [0, 0, 1], "k0": [1, 2, 3], "k1": [b"a", b"b", None], "n": [1, 1, 9]})
    assert hottest_key(table) == (9, "3, None")
    assert hottest_key(table.slice(0, 1)) == (1, "1, 'a'")
    assert hottest_key(table.slice(0, 0)) is None
    assert hottest_key(table.select(["g", "n"])) is None
