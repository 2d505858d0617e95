"""A running query with an end-to-end SLO: its bound is shared, and the job judged from the source."""

from __future__ import annotations

import time

import pytest
from pyspark.sql import functions as F

import headgate as hg
from headgate.control.slots.static import Static
from headgate.journal import Batch, read
from headgate_lab.testing import faults

pytestmark = pytest.mark.timeout(300)

FIRST, SECOND = "deduplicate-0", "aggregate-1"


class Watch(Static):
    """Decides nothing, and keeps the bounds that it was shown."""

    name = "watch"

    def __init__(self):
        super().__init__()
        self.bounds_s = []

    def decide(self, observation):
        if len(observation.operators) > 1:
            self.bounds_s.append({n: v.bound_s for n, v in observation.operators.items()})
        return super().decide(observation)


@pytest.mark.thorough
def test_a_chains_bound_is_shared_and_the_job_judged_by_what_leaves_its_last_operator(
    spark, tmp_path
):
    policy = Watch()
    rows = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
    rows = rows.select((F.col("value") % 64).alias("key"), "value")
    totals = rows.dropDuplicates(["key", "value"]).groupBy("key").agg(F.sum("value"))
    writer = (
        hg.writeStream(totals)
        .slo("end-to-end: mean < 4 s over 1 s")
        .policy(policy)
        .slots(start=2)
        .keyGroups(8)
        .outputMode("update")
        .format("noop")
        .trigger(processingTime="500 milliseconds")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    # from the tenth batch on what leaves the second operator is late, however fast the first one is
    late = [faults.slow(slot, 60_000, from_step=10, operator=SECOND) for slot in range(2)]
    faults.inject(writer, *late)
    query = writer.start()
    try:
        until = time.monotonic() + 90
        while time.monotonic() < until and not (missed := _missed(query)):
            time.sleep(0.2)
    finally:
        query.stop()
    assert policy.bounds_s[0] == {FIRST: 2.0, SECOND: 2.0}
    # bounds move every ten seconds, and the sum stays
    assert all(sum(bounds.values()) == pytest.approx(4.0) for bounds in policy.bounds_s)
    last = missed[-1]
    assert set(last.by_operator) == {FIRST, SECOND}
    assert last.worst_operator == SECOND
    assert last.success == pytest.approx(last.by_operator[SECOND], abs=1e-5)


def _states(query):
    batches = [e for e in read(query.journal) if isinstance(e, Batch)]
    return [batch.slo for batch in batches if batch.slo is not None and batch.slo.windows]


def _missed(query):
    """Return the states in which the second operator is the one that is late."""

    def is_late(one):
        return one.get(SECOND, 1.0) < min(0.9, one.get(FIRST, 0.0))

    return [state for state in _states(query) if is_late(state.by_operator)]
