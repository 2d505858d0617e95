"""Runs the pipe as one long job of Spark's."""

from __future__ import annotations

from pyspark.sql import SparkSession

from headgate.spark.jvm.arrow import from_arrow_schema
from headgate.spark.jvm.sessions import clone_of, make_active
from headgate.spark.realtime import words
from headgate.spark.realtime.feed import SourceFeed
from headgate.spark.realtime.feeder import Feeder
from headgate.spark.realtime.plan import MARKERS, PipePlan
from headgate.spark.realtime.router import Router

PADDING = 64
"""Rows of an Arrow batch in a pipe; twice as many markers are behind a cut. More rows make fewer Arrow
batches, and more padding. Note 0180 has what was measured."""

_CONF = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(PADDING),
    "spark.sql.execution.pandas.udf.buffer.size": "8",
    "spark.sql.adaptive.enabled": "false",
}
"""Settings of the pipe's session: batches are small, and no buffer of a socket keeps a part of one."""


class SparkJob:
    """Feeders, a query's plan and routers in one stage, whose tasks stay.

    Parameters
    ----------
    spark : SparkSession
    plan : PipePlan
    feed : SourceFeed
    name : str
        Of the query, for people.
    """

    def __init__(self, spark: SparkSession, plan: PipePlan, feed: SourceFeed, name: str) -> None:
        self._plan, self._feed, self._name = plan, feed, name
        self._session = clone_of(spark)
        for key, value in _CONF.items():
            self._session.conf.set(key, value)

    def run(self, meeting: words.Meeting, group: str) -> None:
        """Run the job until the feeders end; raise what it failed with."""
        session, feed = self._session, self._feed
        make_active(session)
        session.sparkContext.setJobGroup(group, f"{self._name}: pipe", interruptOnCancel=True)
        schema = from_arrow_schema(feed.schema)
        for marker in MARKERS:
            schema = schema.add(marker)
        # the JVM, too, may keep the last bytes of a batch: so one more follows
        feeder = Feeder(meeting, feed, feed.readers, feed.schema, 2 * PADDING)
        numbers = session.range(0, feed.readers, 1, feed.readers)
        routed = self._plan.over(numbers.mapInArrow(feeder, schema))
        routed.mapInArrow(Router(meeting), "nothing int").collect()

    def cancel(self, group: str) -> None:
        """Have Spark cancel a run, and interrupt what its tasks wait for."""
        self._session.sparkContext.cancelJobGroup(group)
