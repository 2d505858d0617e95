"""Runs the pipe as one long job of Spark's."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

from headgate.spark.jvm.arrow import from_arrow_schema
from headgate.spark.jvm.executors import ExecutorPool
from headgate.spark.jvm.plans import as_it_is, computed_rows, mapped, union
from headgate.spark.jvm.sessions import clone_of, make_active, pipelined_python
from headgate.spark.jvm.tasks import failure_of_tasks
from headgate.spark.realtime import words
from headgate.spark.realtime.feed import Feeds
from headgate.spark.realtime.feeder import Feeder
from headgate.spark.realtime.in_run import RUN, InRun
from headgate.spark.realtime.markers import MARKERS
from headgate.spark.realtime.plan import PipePlan
from headgate.spark.realtime.router import Router

PADDING = 64
"""Rows of an Arrow batch in a pipe; twice as many markers are behind a cut. More rows make fewer Arrow
batches, and more padding. Note 0180 has what was measured."""

_CONF = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(PADDING),
    "spark.sql.execution.python.udf.maxRecordsPerBatch": str(PADDING),
    "spark.sql.execution.pandas.udf.buffer.size": "8",
    "spark.sql.execution.python.udf.buffer.size": "8",
    "spark.sql.adaptive.enabled": "false",
    # each branch has tasks of its own, whatever Spark thinks of how its rows lie
    "spark.sql.unionOutputPartitioning": "false",
}
"""Settings of the pipe's session: batches are small, and no buffer of a socket keeps a part of one."""


def _into(router: InRun, routed: DataFrame) -> DataFrame:
    return routed.mapInArrow(router, "nothing int")


_EXCLUDED = "spark.sql.optimizer.excludedRules"
_RULES = (
    "PushDownPredicates",
    "PushPredicateThroughNonJoin",
    "CombineFilters",
    "BooleanSimplification",
    "InferFiltersFromConstraints",
)
"""Rules that move filters, which Catalyst has moved already. With markers in them two filters may become
one, for which a Python function would be called with rows that the lower one drops."""


class SparkJob:
    """Feeders, a query's plan and routers in one stage, whose tasks stay.

    `shared`: operators of which every slot gets every row. `meeting`: of the query, from whose key
    those of its runs are computed. `name`: of the query, for people.
    """

    def __init__(
        self,
        spark: SparkSession,
        plan: PipePlan,
        feeds: Feeds,
        shared: set[str],
        meeting: words.Meeting,
        name: str,
    ) -> None:
        self._plan, self._feeds, self._shared, self._name = plan, feeds, shared, name
        self._meeting = meeting
        self._kept: DataFrame | None = None
        """The plan as Catalyst has compiled it, with the tables that it has read."""
        self._session = clone_of(spark)
        for key, value in _CONF.items():
            self._session.conf.set(key, value)
        rules = [f"org.apache.spark.sql.catalyst.optimizer.{rule}" for rule in _RULES]
        known = self._session.conf.get(_EXCLUDED, "")
        self._session.conf.set(_EXCLUDED, ",".join(filter(None, [known, *rules])))

    def run(self, meeting: words.Meeting, group: str) -> None:
        """Run the job until the feeders end; raise what it failed with."""
        session = self._session
        make_active(session)
        session.sparkContext.setJobGroup(group, f"{self._name}: pipe", interruptOnCancel=True)
        session.sparkContext.setLocalProperty(RUN, meeting.told())
        has_functions = any(branch.stages for branch in self._plan.branches)
        in_driver = ExecutorPool(session).in_driver
        with pipelined_python(session) if has_functions and in_driver else nullcontext():
            if self._kept is None:
                whole = self._whole()
                # Spark keeps what failed here, as a table that could not be read, for its plan: so
                # only a plan that has come through is kept
                computed_rows(whole)
                self._kept = whole
            self._kept.collect()

    def _whole(self) -> DataFrame:
        """Return the pipes of all branches, which serve any run."""
        session = self._session
        branches = zip(self._plan.branches, self._feeds.feeds, self._feeds.shares, strict=True)
        pipes = []
        for branch, feed, share in branches:
            schema = from_arrow_schema(feed.schema)
            for marker in MARKERS:
                schema = schema.add(marker)
            # the JVM, too, may keep the last bytes of a batch: so one more follows; and on each way to
            # Python and back as many rows may stay
            padding = (2 + 4 * branch.stages) * PADDING
            feeder = Feeder(self._meeting, feed, share, feed.schema, padding)
            numbers = session.range(0, share.count, 1, share.count)
            routed = branch.over(numbers.mapInArrow(InRun(feeder), schema))
            router = Router(self._meeting, branch.operator, branch.operator in self._shared)
            pipes.append(mapped(session, routed, partial(_into, InRun(router))))
        return as_it_is(session, pipes[0] if len(pipes) == 1 else union(session, pipes))

    def failure(self, group: str) -> BaseException | None:
        """Return what a task of a run has failed with; None of none."""
        said = failure_of_tasks(self._session, group)
        return PythonException(said) if said else None

    def cancel(self, group: str) -> None:
        """Have Spark cancel a run, and interrupt what its tasks wait for."""
        self._session.sparkContext.cancelJobGroup(group)
