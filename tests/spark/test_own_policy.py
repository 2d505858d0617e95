"""A policy of one's own steers a query: `examples/lagpolicy`, found by its entry point.

Slots serve a fixed rate and the input is there from the start, so that the query is behind whatever the
machine does. No times are asserted.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

import headgate as hg
from headgate.core.errors import ConfigError
from headgate.journal import Applied, AssignmentChange, Decided, NotReadyToDecide, read

sys.path.insert(0, str(Path(__file__).parents[1] / "control"))
import own_policies

pytestmark = pytest.mark.timeout(300)

RECORDS, SLOT_RATE = 12_000, 500
SCHEMA = "key long, ts timestamp"


def counts(spark, path):
    records = spark.readStream.schema(SCHEMA).parquet(path)
    return (
        records.withWatermark("ts", "1 second").groupBy(F.window("ts", "5 seconds"), "key").count()
    )


def input_of(folder):
    """Write the input: its last record is a minute younger, so that all other windows are due."""
    folder.mkdir()
    random = np.random.default_rng(1)
    seconds = np.append(np.sort(random.uniform(0.0, 60.0, RECORDS - 1)), 120.0)
    due = pa.array((seconds * 1e6).astype(np.int64))
    columns = {
        "key": random.integers(0, 200, RECORDS),
        "ts": due.cast(pa.timestamp("us", tz="UTC")),
    }
    pq.write_table(pa.table(columns), folder / "input.parquet")
    return str(folder)


def writer(spark, folder):
    made = (
        hg.writeStream(counts(spark, input_of(folder / "in")))
        .slo("mean < 5 s over 2 s")
        .slots(max=4, start=1)
        .keyGroups(16)
        .option("headgate.slotRate", SLOT_RATE)
        .option("checkpointLocation", str(folder / "c"))
        .option("path", str(folder / "out"))
    )
    return made.format("parquet")


def wait_for(condition, deadline_s=120):
    until = time.monotonic() + deadline_s
    while not condition() and time.monotonic() < until:
        time.sleep(0.1)
    return condition()


def test_a_policy_of_ones_own_changes_slots_and_the_answer_stays_sparks(
    spark, tmp_path, monkeypatch
):
    own_policies.install_example(monkeypatch, tmp_path / "site")
    query = writer(spark, tmp_path).policy("lag", behind_s=1).start()
    try:
        (operator,) = query.assignment()
        assert wait_for(lambda: query.assignment()[operator].slots > 1)
        query.drain(timeout_s=120)
    finally:
        query.stop()
    assert query.exception() is None
    events = list(read(query.journal))
    changes = [e for e in events if isinstance(e, AssignmentChange) and e.by == "lag(1)"]
    decided = [e for e in events if isinstance(e, Decided) and e.acts]
    assert changes[0].slots_after > 1
    assert changes[0].reason == decided[0].reason
    assert f"{operator} is behind by " in changes[0].reason
    assert decided[0].numbers[f"{operator}.behind_s"] > 1.0
    assert [e for e in events if isinstance(e, Applied)]
    found = hg.verify(
        spark,
        counts,
        checkpoint=str(tmp_path / "c"),
        output=spark.read.parquet(str(tmp_path / "out")),
        options={"path": str(tmp_path / "in")},
    )
    assert found["verified"]
    assert found["rows_compared"] > 0


def test_a_policy_that_fails_is_written_down_and_the_query_goes_on(spark, tmp_path):
    class Silent(hg.Policy):
        def decide(self, observation):
            return None

    query = writer(spark, tmp_path).policy(Silent()).start()

    def said():
        return [e.why for e in read(query.journal) if isinstance(e, NotReadyToDecide)]

    try:
        why = "the policy silent returned None; decide must return a Decision"
        assert wait_for(lambda: any(why in one for one in said())), said()
        assert query.isActive
    finally:
        query.stop()
    assert query.exception() is None


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (own_policies, "policy=.* is not allowed; use a name such as"),
        (
            type("Half", (), {"decide": print, "name": "half"})(),
            "of type Half, has no method applied",
        ),
        (type("Half", (), {"decide": print}), "is the class Half; give an object of it"),
    ],
)
def test_what_is_no_policy_is_refused_when_it_is_given(spark, policy, words):
    with pytest.raises(ConfigError, match=words):
        hg.writeStream(counts(spark, ".")).policy(policy)
