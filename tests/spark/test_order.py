"""`headgate.ordered`: what depends on the order of records is the same however they are spread."""

from __future__ import annotations

import datetime as dt
import os
import random
import sys
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import headgate as hg
from headgate.core.errors import ConfigError

pytestmark = pytest.mark.timeout(600)
cloudpickle.register_pickle_by_value(sys.modules[__name__])

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
SCHEMA = "k string, ts timestamp, w int, v string"
BATCHES, FILES, ROWS = 2, 3, 40
WAYS = [
    # files per batch, slots, pre-aggregation, seed by which rows lie in files
    (FILES, 1, "off", 1),
    (FILES, 3, "on", 2),
    (1, 2, "off", 3),
    (BATCHES * FILES, 4, "on", 4),
]


def write(folder, seed):
    """Write the same rows whatever the seed; it says in which file of their batch, and where in it."""
    rng, spread = random.Random("rows"), random.Random(seed)
    folder.mkdir()
    for batch in range(BATCHES):
        rows = [
            {
                "k": rng.choice("abc"),
                # many at the same time, some at none
                "ts": rng.choice([START + dt.timedelta(seconds=rng.randrange(9)), START, None]),
                "w": rng.choice([None, 1, 2]),
                "v": rng.choice([None, "x", "yy", "\u00e9", ""]),
            }
            for _ in range(ROWS)
        ]
        spread.shuffle(rows)
        kinds = [pa.string(), pa.timestamp("us", tz="UTC"), pa.int32(), pa.string()]
        schema = pa.schema(list(zip(["k", "ts", "w", "v"], kinds, strict=True)))
        for number in range(FILES):
            path = folder / f"{batch}-{number}.parquet"
            pq.write_table(pa.Table.from_pylist(rows[number::FILES], schema=schema), path)
            os.utime(path, (1_000_000_000 + 10 * batch + number,) * 2)
    return folder


def stream(spark, folder, files):
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files)
    return reader.parquet(str(folder))


def put_out(frame, place, *, slots, preaggregate, mode="update", ordered="ts"):
    """Return the batches that slots put out."""
    batches = []
    writer = hg.writeStream(frame).outputMode(mode).option("headgate.ordered", ordered)
    writer = writer.option("headgate.preaggregate", preaggregate).keyGroups(8).slots(start=slots)
    writer = writer.foreachBatch(lambda df, _: batches.append(df.collect()))
    query = writer.option("checkpointLocation", str(place)).trigger(availableNow=True).start()
    query.awaitTermination()
    return batches


def edges(df):
    """Return a query all of whose answers depend on the order of records."""
    return df.groupBy("k").agg(
        F.first("v").alias("first"),
        F.last("v").alias("last"),
        F.first("v", ignorenulls=True).alias("first_there"),
        F.last("v", ignorenulls=True).alias("last_there"),
        F.max_by("v", "w").alias("max_by"),
        F.min_by("v", "w").alias("min_by"),
        F.count("*").alias("n"),
    )


def expected_edges(df):
    """Return the same from functions that know no order, as Spark's batch answer."""
    there = F.when(F.col("v").isNotNull(), F.struct("ts", "v"))
    by = F.when(F.col("w").isNotNull(), F.struct("w", "ts", "v"))
    return df.groupBy("k").agg(
        F.min(F.struct("ts", "v"))["v"],
        F.max(F.struct("ts", "v"))["v"],
        F.min(there)["v"],
        F.max(there)["v"],
        F.max(by)["v"],
        F.min(by)["v"],
        F.count("*"),
    )


def test_first_and_last_are_the_same_however_records_are_spread(spark, tmp_path):
    for number, (files, slots, preaggregate, seed) in enumerate(WAYS):
        folder = write(tmp_path / f"in{number}", seed)
        batches = put_out(
            edges(stream(spark, folder, files)),
            tmp_path / f"checkpoint{number}",
            slots=slots,
            preaggregate=preaggregate,
        )
        last = {row.k: tuple(row) for batch in batches for row in batch}
        expected = expected_edges(spark.read.schema(SCHEMA).parquet(str(folder))).collect()
        assert last == {row.k: tuple(row) for row in expected}


class Listed(StatefulProcessor):
    """Puts out what it was given, in its order."""

    def init(self, handle):
        pass

    def handleInputRows(self, key, rows, timerValues):
        yield Row(k=key[0], found=str([(str(row.ts), row.w, row.v) for row in rows]))


def test_a_processor_gets_the_rows_of_a_batch_in_order(spark, tmp_path):
    found = []
    for number, (slots, seed) in enumerate([(1, 1), (3, 2)]):
        folder = write(tmp_path / f"in{number}", seed)
        frame = stream(spark, folder, FILES).groupBy("k")
        frame = frame.transformWithState(Listed(), "k string, found string", "update", "None")
        place = tmp_path / f"checkpoint{number}"
        batches = put_out(frame, place, slots=slots, preaggregate="off", ordered="ts, v")
        found.append([Counter(tuple(row) for row in batch) for batch in batches])
        for batch in batches:
            for row in batch:
                at = [item[0] for item in eval(row.found)]
                assert at == sorted(at, key=lambda text: "" if text == "None" else text)
    assert found[0] == found[1]


def test_a_column_that_is_not_there_is_refused(spark, tmp_path):
    df = stream(spark, write(tmp_path / "in", 1), 1)
    with pytest.raises(
        ConfigError, match='names "tz", which an order-sensitive operator does not read'
    ):
        put_out(edges(df), tmp_path / "c", slots=1, preaggregate="off", ordered="tz")
    # what does not depend on any order needs no column
    counts = df.groupBy("k").count()
    assert put_out(counts, tmp_path / "d", slots=1, preaggregate="off", ordered="tz")
