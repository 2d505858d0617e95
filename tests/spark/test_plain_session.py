"""A session that headgate did not make: it works, and one line says what it lacks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headgate as hg
from headgate.core.errors import HeadgateError
from headgate.spark.api.verify import BatchSession
from headgate.spark.cluster.session import advice, partitions_wanted

PROGRAM = """
import sys
from pyspark.sql import SparkSession
import headgate as hg

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.range(6).write.parquet(sys.argv[1] + "/in")
rows = spark.readStream.schema("id bigint").parquet(sys.argv[1] + "/in")
writer = hg.writeStream(rows.groupBy((rows.id % 2).alias("odd")).count()).outputMode("update")
writer = writer.format("memory").queryName("counts").slots(start=2)
writer = writer.option("checkpointLocation", sys.argv[1] + "/checkpoint")
writer.trigger(availableNow=True).start().awaitTermination()
print(sorted(tuple(row) for row in spark.table("counts").collect()))
writer = hg.writeStream(rows.groupBy("id").count()).outputMode("update").format("noop")
writer.option("checkpointLocation", sys.argv[1] + "/another").start().stop()
"""


def test_a_query_runs_in_a_session_without_any_setting(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout.strip().endswith("[(0, 3), (1, 3)]"), done.stderr[-3000:]
    assert done.stderr.count("with hg.session(), which also sets") == 1
    assert f"{program}:" in done.stderr, "the warning is about a line of the user's"


def test_two_queries_without_a_name_run_at_once(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.readStream.format("rate").load()
    started = []
    for number in range(2):
        writer = hg.writeStream(rows.groupBy("value").count()).outputMode("update").format("noop")
        started.append(writer.option("checkpointLocation", str(tmp_path / str(number))).start())
    names = [query.name for query in started]
    for query in started:
        query.stop()
    assert names == [None, None]
    with pytest.raises(HeadgateError, match="this query has ended, so it takes no freeze"):
        started[0].freeze()


KEY = "spark.sql.streaming.checkpointFileManagerClass"


@pytest.mark.parametrize(
    ("location", "local"),
    [("/data/c", True), ("file:///data/c", True), ("s3a://data/c", False), ("hdfs://n/c", False)],
)
def test_only_a_local_checkpoint_is_written_as_a_local_one(
    spark: SparkSession, location: str, local: bool
) -> None:
    plain = spark.newSession()
    plain.conf.unset(KEY)
    advice(plain, location)
    assert (plain.conf.get(KEY, None) is not None) == local


def test_a_source_that_cannot_be_read_again_is_named(spark: SparkSession) -> None:
    session = BatchSession(spark, [None])
    with pytest.raises(HeadgateError, match='source "rate" cannot be read a second time'):
        session.readStream.format("rate").load()


def test_a_number_of_shuffle_partitions_that_somebody_chose_is_explained(
    spark: SparkSession,
) -> None:
    other = spark.newSession()
    for number, said in (("200", False), ("4", False), ("16", True)):
        other.conf.set("spark.sql.shuffle.partitions", number)
        found = partitions_wanted(other)
        assert (found is not None) == said
    assert found is not None
    assert "not for slots; their number is .slots(start=16), and query.scale(16)" in found
