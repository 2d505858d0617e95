"""Provides a query's batches: batches of the streaming query beneath it, and batches without rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from headgate.spark.jvm.arrowbatches import fit_arrow_batches
from headgate.spark.jvm.logfiles import forget_raw_files
from headgate.spark.jvm.plans import no_rows, run_through
from headgate.spark.jvm.sessions import clone_of, make_active, set_as_for_batches
from headgate.spark.jvm.tick import Tick
from headgate.spark.step.exchange import with_ticks

_ADAPTIVE = "spark.sql.adaptive.enabled"


class Intake:
    """Holds the streaming input of a query's batches, and their session.

    Parameters
    ----------
    stream : DataFrame
        The streaming DataFrame whose batches the query reads, of the user's session.
    checkpoint : Path    Directory of the query's checkpoint; this run holds its lock.
    ticks : bool    Whether the query may have work while the sources are quiet.
    results : SparkSession
        A copy of the user's session, for the plans of results.
    stateful : bool    Whether the query has stateful operators.

    Attributes
    ----------
    tick : Tick or None    The source that begins batches while the other sources are quiet.
    """

    def __init__(
        self,
        stream: DataFrame,
        checkpoint: Path,
        results: SparkSession,
        *,
        ticks: bool,
        stateful: bool,
    ) -> None:
        self.tick = Tick(stream.sparkSession, checkpoint) if ticks else None
        self.stream = stream if self.tick is None else with_ticks(stream, self.tick.frame)
        self._schema = self.stream.schema
        self._session: SparkSession | None = None
        self._results, self._stateful = results, stateful

    def settle_in(
        self, batch: DataFrame, into_slots: Iterable[StructType] | None = None
    ) -> SparkSession:
        """Take the session of the batches: Spark's clone of the user's session for this query.

        `into_slots`: schemas of all rows for slots, if known.
        """
        if self._session is None:
            set_as_for_batches(self._results, batch.sparkSession, stateful=self._stateful)
            self._session = _prepared(batch.sparkSession)
            forget_raw_files(self._session)
            if into_slots is not None:
                fit_arrow_batches(self._session, into_slots)
        return self._session

    @property
    def session(self) -> SparkSession:
        """Return the session of the batches."""
        assert self._session is not None
        return self._session

    def settle_in_alone(self) -> None:
        """Use the session of results for batches, if no batch of Spark's brings a session."""
        self._session = _prepared(self._results)

    def enter(self) -> None:
        """Make the batches' session the active session of this thread, which Spark did not start."""
        assert self._session is not None
        make_active(self._session)

    def start_ticking(self, rests: Callable[[], bool]) -> None:
        """Begin a batch every second from now on, except while `rests` returns True."""
        if self.tick is not None:
            self.tick.start(rests)

    def go_on_soon(self) -> None:
        """Begin another batch right after the current batch."""
        if self.tick is not None:
            self.tick.soon()

    def close(self) -> None:
        """Stop the ticks."""
        if self.tick is not None:
            self.tick.stop()

    def nothing(self) -> DataFrame:
        """Return a batch without rows."""
        assert self._session is not None
        return no_rows(self._session, self._schema)

    def look_through(self, batch: DataFrame) -> None:
        """Read all rows of a batch that is not computed again, and drop them.

        Spark computes its next watermark from the rows that a batch reads. Without this batch's rows
        the watermark would stay behind, and results would come late, or never if no rows follow.
        """
        run_through(batch)

    def rehearsal(self) -> DataFrame:
        """Return a batch without rows before the first batch, in a session of its own."""
        return no_rows(_prepared(clone_of(self.stream.sparkSession)), self._schema)


def _prepared(session: SparkSession) -> SparkSession:
    # adaptive execution runs stages during planning: slots would run before the driver has set their
    # facts, and in separate jobs
    session.conf.set(_ADAPTIVE, "false")
    return session
