"""What a run is compared with: the batch answer, of which only what was closed."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate as hg


def test_a_session_that_is_open_is_not_taken_for_its_closed_part(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark's batch pushes a filter on a session's end below what makes sessions."""
    times = ["1 00:00:01", "1 00:00:10.0", "1 00:00:10.5", "1 00:00:10.9", "2 00:00:16"]
    (tmp_path / "in").mkdir()
    rows = ('{{"k": {}, "t": "2026-01-01 {}"}}\n'.format(*row.split(" ")) for row in times)
    (tmp_path / "in" / "1.json").write_text("".join(rows))

    def build(session: SparkSession) -> DataFrame:
        read = session.readStream.schema("k int, t timestamp").json(str(tmp_path / "in"))
        gap = F.session_window("t", "1 second")
        return read.withWatermark("t", "5 seconds").groupBy("k", gap).count()

    out = str(tmp_path / "out")
    checkpoint = str(tmp_path / "checkpoint")
    writer = hg.writeStream(build(spark)).slots(start=2).format("parquet").option("path", out)
    writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    writer.start().awaitTermination()
    output = spark.read.parquet(out)
    assert [row["count"] for row in output.collect()] == [1], "the session from 10.0 on is open"
    found = hg.verify(spark, build, checkpoint=checkpoint, output=output)
    assert found["verified"], found
    assert found["rows_compared"] == 1
