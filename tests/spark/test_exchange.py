"""Rows go to the slots of their key groups, a split group's to all of its slots, shared ones to all."""

from __future__ import annotations

from collections import Counter

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from headgate.core.assignment import Assignment
from headgate.operators.step import GROUP, RECORDS
from headgate.spark.job.columns import MARKER_TO
from headgate.spark.step.exchange import to_slots

GROUPS, ROWS = 4, 200


def of_groups(spark: SparkSession) -> DataFrame:
    """Return rows of each key group in turn; they stand for one record each."""
    frame = spark.range(0, ROWS, 1, 3).withColumn(GROUP, (F.col("id") % GROUPS).cast("int"))
    return frame.withColumn(RECORDS, F.lit(1).cast("bigint"))


def by_slot(frame: DataFrame) -> dict[int, list[Row]]:
    """Return the rows of each partition: partition n is what slot n is given."""
    slots: dict[int, list[Row]] = {n: [] for n in range(frame.rdd.getNumPartitions())}
    for row in frame.withColumn("slot", F.spark_partition_id()).collect():
        slots[row.slot].append(row)
    return slots


def test_each_slot_gets_the_rows_of_its_key_groups(spark: SparkSession) -> None:
    slots = by_slot(to_slots(of_groups(spark), Assignment((2, 0, 2, 0), 3), shared=False))
    assert {n: {row[GROUP] for row in rows} for n, rows in slots.items()} == {
        0: {1, 3},
        1: set(),
        2: {0, 2},
    }
    assert sorted(row.id for rows in slots.values() for row in rows) == list(range(ROWS))


def test_a_marker_goes_where_it_says_and_all_else_to_the_owner(spark: SparkSession) -> None:
    marker = F.when(F.col("id") < 2, 1).cast("int")  # of groups 0 and 1
    frame = of_groups(spark).withColumn(MARKER_TO, marker)
    for split in ({}, {0: (2, 0)}):
        slots = by_slot(to_slots(frame, Assignment((2, 0, 2, 0), 3, split=split), shared=False))
        assert sorted(row.id for row in slots[1]) == [0, 1]
        assert sum(map(len, slots.values())) == ROWS


def test_rows_of_a_split_key_group_are_dealt_to_its_slots(spark: SparkSession) -> None:
    assignment = Assignment((2, 0, 2, 0), 3, split={0: (2, 1)})
    frame = to_slots(of_groups(spark), assignment, shared=False)
    slots = by_slot(frame)
    dealt = Counter(n for n, rows in slots.items() for row in rows if row[GROUP] == 0)
    assert set(dealt) == {1, 2}
    assert dealt.total() == ROWS // GROUPS
    assert min(dealt.values()) > ROWS // GROUPS // 4
    assert {row[GROUP] for row in slots[0]} == {1, 3}
    assert frame.columns == of_groups(spark).columns


def test_every_slot_gets_a_shared_record_and_one_of_them_counts_it(spark: SparkSession) -> None:
    frame = of_groups(spark).drop(GROUP)
    shared = to_slots(frame, Assignment((2, 0, 2, 0), 3), shared=True)
    slots = by_slot(shared)
    for rows in slots.values():
        assert sorted(row.id for row in rows) == list(range(ROWS))
    counted = Counter(row.id for rows in slots.values() for row in rows if row[RECORDS])
    assert counted == dict.fromkeys(range(ROWS), 1)
    owner = Assignment((2, 0, 2, 0), 3).slot_of
    for n, rows in slots.items():
        assert all((owner[row[GROUP]] == n) == bool(row[RECORDS]) for row in rows)
        assert {row[RECORDS] for row in rows} <= {0, 1}
    # equal records, too, are stored by all groups
    assert {row[GROUP] for row in slots[0]} == set(range(GROUPS))
