"""Which replica of a pool takes which row on Spark: as the stage's grouping says."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext

import headgate as hg
from headgate.control.estimators.service_time import ServiceTimeEstimate
from headgate.core.errors import ConfigError
from headgate.journal.reader import read
from headgate.journal.schema import Start
from headgate.spark.job.pools import PoolState

pytestmark = pytest.mark.timeout(300)

ROWS = 240


def placed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Say of each row in which task it was served; with a pool that never changes, its replica."""
    lane = TaskContext.get().partitionId()
    for batch in batches:
        lanes = pa.array([lane] * batch.num_rows, pa.int32())
        yield pa.record_batch({"v": batch.column("v"), "lane": lanes})


def source(spark, directory, batches=1):
    folder = directory / "in"
    folder.mkdir()
    for n in range(batches):
        values = list(range(n * ROWS, (n + 1) * ROWS))
        path = folder / f"{n:03d}.parquet"
        pq.write_table(pa.table({"v": values}), path)
        os.utime(path, (n, n))  # the order in which they are read
    reader = spark.readStream.schema("v long").option("maxFilesPerTrigger", 1)
    return reader.parquet(str(folder))


def pooled(spark, df, directory, grouping):
    query = (
        hg.writeStream(df)
        .policy("psps")
        .slots(min=3, max=3)
        .format("parquet")
        .option("path", str(directory / "out"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .option("headgate.grouping", grouping)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = sorted(spark.read.parquet(str(directory / "out")).collect())
    return query, [row.lane for row in rows]


@pytest.mark.parametrize("grouping", ["round-robin", "shuffle", "least-work"])
def test_rows_go_to_replicas_as_the_grouping_says(spark, tmp_path, monkeypatch, grouping):
    """In the eyes of the driver 40 rows wait at replica 1, and replica 2 is half as fast."""
    monkeypatch.setattr(PoolState, "queued", lambda self: [0, 40, 0])
    monkeypatch.setattr(PoolState, "_row_s", lambda self, config: np.array([1.0, 1.0, 2.0]))
    monkeypatch.setattr("headgate.spark.pools.pools.PoolWork.waits", False)
    monkeypatch.setattr(
        "headgate.spark.pools.pools.PoolWork.due", lambda self, watermark_us, clock_ms: False
    )
    df = source(spark, tmp_path, 3).mapInArrow(placed, "v long, lane int")
    query, lanes = pooled(spark, df, tmp_path, grouping)
    assert len(lanes) == 3 * ROWS
    last = Counter(lanes[2 * ROWS :])
    if grouping == "round-robin":
        assert lanes[2 * ROWS :] == [(2 + n) % 3 for n in range(ROWS)]
    elif grouping == "shuffle":
        assert lanes[2 * ROWS :] != lanes[2 * ROWS - 3 : 2 * ROWS] * (ROWS // 3)
        assert all(50 < last[lane] < 110 for lane in range(3))
    else:
        # 112 rows, 40 + 72 rows, and 56 rows of twice the work
        assert all(abs(last[lane] - wanted) <= 1 for lane, wanted in enumerate((112, 72, 56)))
    start = next(event for event in read(query.journal) if isinstance(event, Start))
    assert start.operators[0].what == f"stateless stage on a pool, grouping {grouping}"


@pytest.mark.parametrize("grouping", ["load-aware", "as-printed"])
def test_rows_take_replicas_in_the_order_of_algorithm_1(spark, tmp_path, monkeypatch, grouping):
    """U is what waits at a replica, or what it processed in the last interval and was given in this one.

    Each row goes to the lowest, the first of equals; then in turn.
    """
    counted, row_s, interval_s = [30, 0, 10], 0.1, 10.0
    printed = grouping == "as-printed"
    fresh = PoolState.fresh

    def known(config):
        state = fresh(config)
        state.event = ServiceTimeEstimate(row_s)
        if printed:
            state._used = {j: n * row_s / interval_s for j, n in enumerate(counted)}
        return state

    # where U is what was processed, what waits does not count
    monkeypatch.setattr(PoolState, "queued", lambda self: [0, 70, 0] if printed else counted)
    monkeypatch.setattr("headgate.spark.pools.pools.PoolWork.waits", False)
    monkeypatch.setattr(
        "headgate.spark.pools.pools.PoolWork.due", lambda self, watermark_us, clock_ms: False
    )
    monkeypatch.setattr(PoolState, "fresh", known)
    df = source(spark, tmp_path, 2).mapInArrow(placed, "v long, lane int")
    _, lanes = pooled(spark, df, tmp_path, grouping)
    given = Counter(lanes[:ROWS] if printed else ())
    load = [n * row_s / interval_s + given[j] * row_s / interval_s for j, n in enumerate(counted)]
    wanted, turn = [], 1
    for _ in range(ROWS):
        m = int(np.argmin(load))
        if load[m] >= 1.0:
            m, turn = turn, (turn + 1) % 3
        else:
            load[m] += row_s / interval_s
        wanted.append(m)
    assert lanes[ROWS:] == wanted


def test_stages_have_groupings_of_their_own_and_explain_says_which(spark, tmp_path):
    rows = source(spark, tmp_path)
    df = rows.mapInArrow(placed, "v long, lane int").mapInArrow(placed, "v long, lane int")
    said = hg.explain(df, grouping="round-robin, map-1: shuffle")
    assert (
        "map-0       placed (mapInArrow); rows go to one replica after another: round-robin" in said
    )
    assert "map-1       placed (mapInArrow); rows go to any replica at random: shuffle" in said
    query, _ = pooled(spark, df, tmp_path, "round-robin, map-1: shuffle")
    start = next(event for event in read(query.journal) if isinstance(event, Start))
    assert [each.what.rpartition(" ")[2] for each in start.operators] == ["round-robin", "shuffle"]


def test_a_grouping_of_a_stage_that_is_not_there_is_refused(spark, tmp_path):
    df = source(spark, tmp_path).mapInArrow(placed, "v long, lane int")
    with pytest.raises(ConfigError, match=r'names a stage "map-1", .*; did you mean "map-0"'):
        pooled(spark, df, tmp_path, "map-1: shuffle")
    with pytest.raises(ConfigError, match='did you mean "least-work"'):
        hg.explain(df, grouping="leastwork")
