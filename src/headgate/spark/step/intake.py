"""Provides a query's batches: those of the streaming query beneath it, and batches without rows."""

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
    """The input of a query's batches.

    Parameters
    ----------
    stream : DataFrame
        The streaming DataFrame whose batches are taken, of the session that the query was started in.
    checkpoint : Path    Checkpoint of the query, whose lock is held.
    ticks : bool    Whether there may be something to do where the sources are quiet.
    results : SparkSession
        A copy of the session that the query was started in: what its results are made in.
    stateful : bool    Whether the query has stateful operators.

    Attributes
    ----------
    tick : Tick or None    What begins a batch where the sources are quiet.
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
        """Take the session that batches come with: Spark's clone of the user's, the query's own.

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
        """Return the session that batches come with."""
        assert self._session is not None
        return self._session

    def settle_in_alone(self) -> None:
        """Take the session of results for that of batches, where Spark brings none."""
        self._session = _prepared(self._results)

    def enter(self) -> None:
        """Make the batches' session that of this thread: one of Spark's own threads has it already."""
        assert self._session is not None
        make_active(self._session)

    def start_ticking(self, rests: Callable[[], bool]) -> None:
        """Begin a batch every second from now on, but none while it `rests`."""
        if self.tick is not None:
            self.tick.start(rests)

    def go_on_soon(self) -> None:
        """Begin a batch right after the one under way."""
        if self.tick is not None:
            self.tick.soon()

    def close(self) -> None:
        """Begin no batch any more."""
        if self.tick is not None:
            self.tick.stop()

    def nothing(self) -> DataFrame:
        """Return a batch without rows."""
        assert self._session is not None
        return no_rows(self._session, self._schema)

    def look_through(self, batch: DataFrame) -> None:
        """Read a batch that is not computed again, and keep nothing of it.

        Spark takes its next watermark from the rows it sees pass. Unread, those of this batch would
        never count: what is due by them would come out late, or never where no rows follow.
        """
        run_through(batch)

    def rehearsal(self) -> DataFrame:
        """Return a batch without rows before there was any, in a session of its own."""
        return no_rows(_prepared(clone_of(self.stream.sparkSession)), self._schema)


def _prepared(session: SparkSession) -> SparkSession:
    # an adaptive plan runs its stages while it is being made: slots would run before their facts are
    # known, and in jobs of their own
    session.conf.set(_ADAPTIVE, "false")
    return session
