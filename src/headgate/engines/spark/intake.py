"""Where a query's batches come from: the streaming query beneath it, and batches without rows."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from headgate.engines.spark.exchange import streaming_input, with_ticks
from headgate.engines.spark.gateway import no_rows
from headgate.engines.spark.plan import Query
from headgate.engines.spark.unfold import Unfolding, unfolding

_ADAPTIVE = "spark.sql.adaptive.enabled"


class Intake:
    """The input of a query's batches.

    Parameters
    ----------
    spark : SparkSession
        The session that the query was started in.
    query : Query
    key_groups : int

    Attributes
    ----------
    unfolding : Unfolding or None
        What of the input is made in the batch.
    stream : DataFrame
        The streaming DataFrame whose batches are taken.
    """

    def __init__(self, spark: SparkSession, query: Query, key_groups: int) -> None:
        self.unfolding: Unfolding | None = unfolding(spark, query, key_groups)
        if self.unfolding is None:
            self.stream = streaming_input(spark, query, key_groups)
        else:
            self.stream = with_ticks(self.unfolding.stream())
        self._schema = self.stream.schema
        self._session: SparkSession | None = None

    def settle_in(self, batch: DataFrame) -> None:
        """Take the session that batches come with: Spark's clone of the user's, the query's own."""
        if self._session is None:
            self._session = _prepared(batch.sparkSession)

    def nothing(self) -> DataFrame:
        """Return a batch without rows."""
        assert self._session is not None
        return no_rows(self._session, self._schema)

    def look_through(self, batch: DataFrame) -> None:
        """Read a batch that is not computed again, and keep nothing of it.

        Spark takes its next watermark from the rows it sees pass. Unread, those of this batch would
        never count: what is due by them would come out late, or never where no rows follow.
        """
        batch._jdf.queryExecution().toRdd().count()

    def rehearsal(self) -> DataFrame:
        """Return a batch without rows before there was any, in a session of its own."""
        spark = self.stream.sparkSession
        clone = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
        return no_rows(_prepared(clone), self._schema)


def _prepared(session: SparkSession) -> SparkSession:
    # an adaptive plan runs its stages while it is being made: slots would run before their facts are
    # known, and in jobs of their own
    session.conf.set(_ADAPTIVE, "false")
    return session
