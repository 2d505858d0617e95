"""Runs the pipe as one long Spark job."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

from headgate.spark.jvm.arrow import from_arrow_schema
from headgate.spark.jvm.arrowbatches import BYTES, NO_BOUND, ROWS
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

_BATCH_BYTES = 1 << 16
"""Bytes of an Arrow batch in a pipe whose plan calls no Python function. Two rows with as many bytes
follow a cut, and each ends a batch. A larger value makes fewer batches, and more padding. Measured in
note 0180."""

_MOST_ROWS = 10_000
"""Rows of an Arrow batch in such a pipe, however small they are. Chosen, not tuned."""

_BATCH_ROWS = 64
"""Rows of an Arrow batch in other pipes: a function's batch has the function's arguments only, so no row
is large in it. At least twice as many marker rows follow a cut."""

_CONF = {
    "spark.sql.execution.python.udf.maxRecordsPerBatch": str(_BATCH_ROWS),
    "spark.sql.execution.pandas.udf.buffer.size": "8",
    "spark.sql.execution.python.udf.buffer.size": "8",
    "spark.sql.adaptive.enabled": "false",
    # each branch needs its own tasks, also if Spark sees equal partitioning in the branches
    "spark.sql.unionOutputPartitioning": "false",
}
"""Settings of the pipe's session, beside the bounds of a batch: a socket's buffer keeps no part of a
batch."""


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
"""Rules that move filters; Catalyst has moved the plan's filters already. With markers these rules could
merge two filters, and then call a Python function with rows that the lower filter drops."""


class SparkJob:
    """Runs feeders, a query's plan and routers in one stage, whose tasks run as long as the pipe.

    `shared`: operators whose slots all get every row. `meeting`: meeting of the query; the key of each
    run is computed from this meeting's key. `name`: name of the query, for the Spark UI.
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
        """The plan, compiled by Catalyst, with the tables that it has read."""
        self._session = clone_of(spark)
        for key, value in _CONF.items():
            self._session.conf.set(key, value)
        rules = [f"org.apache.spark.sql.catalyst.optimizer.{rule}" for rule in _RULES]
        known = self._session.conf.get(_EXCLUDED, "")
        self._session.conf.set(_EXCLUDED, ",".join(filter(None, [known, *rules])))

    @property
    def _has_functions(self) -> bool:
        return any(branch.stages for branch in self._plan.branches)

    def run(self, meeting: words.Meeting, group: str) -> None:
        """Run the job until the feeders end; raise the job's error."""
        session = self._session
        make_active(session)
        session.sparkContext.setJobGroup(group, f"{self._name}: pipe", interruptOnCancel=True)
        session.sparkContext.setLocalProperty(RUN, meeting.told())
        in_driver = ExecutorPool(session).in_driver
        with pipelined_python(session) if self._has_functions and in_driver else nullcontext():
            if self._kept is None:
                bounds = (
                    (NO_BOUND, _BATCH_ROWS) if self._has_functions else (_BATCH_BYTES, _MOST_ROWS)
                )
                for key, value in zip((BYTES, ROWS), bounds, strict=True):
                    session.conf.set(key, str(value))
                whole = self._whole()
                # Spark stores a failure in the plan, for example of a table that it could not read. So
                # the plan is compiled first, which computes no row of the pipe, and kept only afterwards
                computed_rows(whole)
                self._kept = whole
            self._kept.collect()

    def _whole(self) -> DataFrame:
        """Return the pipes of all branches as one plan, which serves all runs."""
        session = self._session
        branches = zip(self._plan.branches, self._feeds.feeds, self._feeds.shares, strict=True)
        pipes = []
        for branch, feed, share in branches:
            schema = from_arrow_schema(feed.schema)
            for marker in MARKERS:
                schema = schema.add(marker)
            # the JVM may keep the last bytes of a batch, so another batch follows; each Python node may
            # keep rows on the way to Python and back
            padding: list[str | None] = [None] * ((2 + 4 * branch.stages) * _BATCH_ROWS)
            if not self._has_functions:
                padding = [*2 * ["{}".ljust(_BATCH_BYTES)], None]
            feeder = Feeder(self._meeting, feed, share, feed.schema, padding)
            numbers = session.range(0, share.count, 1, share.count)
            routed = branch.over(numbers.mapInArrow(InRun(feeder), schema))
            router = Router(self._meeting, branch.operator, branch.operator in self._shared)
            pipes.append(mapped(session, routed, partial(_into, InRun(router))))
        return as_it_is(session, pipes[0] if len(pipes) == 1 else union(session, pipes))

    def failure(self, group: str) -> BaseException | None:
        """Return the error of a run's failed task; None if no task has failed."""
        said = failure_of_tasks(self._session, group)
        return PythonException(said) if said else None

    def cancel(self, group: str) -> None:
        """Have Spark cancel a run and interrupt its tasks."""
        self._session.sparkContext.cancelJobGroup(group)
