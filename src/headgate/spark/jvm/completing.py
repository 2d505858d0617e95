"""Adds the slots' figures to Spark's progress of a batch before any listener gets the progress.

headgate's listener is the first of the session. It changes Spark's own object, which later listeners,
``spark.streams``, the metrics and the UI share. Separate events of headgate's would reach listeners a
second time. Events changed in PySpark's listener class would not reach the JVM's listeners and the
metrics.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Mapping
from typing import Any, Protocol

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headgate.spark.jvm.gateway import Jvm, java_class, jvm
from headgate.spark.jvm.observed import together

_FIELDS = ("stateOperators", "sources", "sink")


class Fills(Protocol):
    """Provides the figures of a query's slots."""

    def filled(self, progress: Mapping[str, Any]) -> dict[str, Any]:
        """Return a progress, in Spark's JSON form, with the figures of its batch."""

    def observed(self, batch: int) -> Any:
        """Return the metrics of ``observe()`` above the slots in a batch; None without such metrics."""


class _Completing:
    """A listener that completes the progress of headgate's queries before other listeners.

    A session has one for all queries, and only while queries run, because each event is a call from the
    JVM into Python.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._queries: dict[str, Fills] = {}
        self._lock = threading.Lock()
        self._module = java_class(
            spark, "org.apache.spark.sql.streaming.StreamingQueryProgress$.MODULE$"
        )
        self._fields: list[Jvm] = []
        self._streams: Jvm = spark._jsparkSession.streams()
        self._listener: Jvm = jvm(spark).PythonStreamingQueryListenerWrapper(self)

    def follow(self, run: str, progress: Fills) -> None:
        """Complete the progress of a run from now on, until the run ends."""
        with self._lock:
            first = not self._queries
            self._queries[run] = progress
        if first:
            self._streams.addListener(self._listener)
            self._go_first()

    def _go_first(self) -> None:
        """Move this listener to the first place in Spark's list of listeners."""
        field = self._streams.getClass().getDeclaredField("listenerBus")
        field.setAccessible(True)
        bus = field.get(self._streams)
        listeners = getattr(bus, "org$apache$spark$util$ListenerBus$$listenersPlusTimers")()
        last = len(listeners) - 1
        ours = listeners[last]
        del listeners[last]
        listeners.insert(0, ours)

    # -- called by the JVM ------------------------------------------------------------------------

    def onQueryStarted(self, event: Jvm) -> None:
        """Do nothing."""

    def onQueryIdle(self, event: Jvm) -> None:
        """Do nothing."""

    def onQueryProgress(self, event: Jvm) -> None:
        """Complete the progress of a headgate query."""
        progress = event.progress()
        fields = json.loads(progress.json())
        figures = self._queries.get(fields["runId"])
        if figures is None:
            return
        # without observed metrics, which stay in Spark's object and cannot be read back from JSON
        filled = figures.filled(fields) | {"observedMetrics": {}}
        complete = self._module.fromJson(json.dumps(filled))
        if not self._fields:
            java = progress.getClass()
            self._fields = [java.getDeclaredField(name) for name in _FIELDS]
            for field in self._fields:
                field.setAccessible(True)
        for field in self._fields:
            field.set(progress, field.get(complete))
        counts = figures.observed(fields["batchId"])
        if counts is not None:
            field = progress.getClass().getDeclaredField("observedMetrics")
            field.setAccessible(True)
            field.set(progress, together(self._spark, progress.observedMetrics(), counts))

    def onQueryTerminated(self, event: Jvm) -> None:
        """Forget the query, of which this is the last event."""
        with self._lock:
            known = self._queries.pop(str(event.runId().toString()), None) is not None
            last = known and not self._queries
        if last:
            self._streams.removeListener(self._listener)

    class Java:
        """Names the Java interface for Py4J."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


_sessions: dict[tuple[int, str], _Completing] = {}
"""Listeners by gateway and session of the JVM."""


def complete_events(spark: SparkSession, inner: StreamingQuery, progress: Fills) -> None:
    """Add the slots' figures to Spark's own events and metrics of a query.

    If the JVM does not allow it, events stay as Spark makes them; the query goes on.
    """
    with contextlib.suppress(Exception):
        ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
        key = (id(spark.sparkContext._gateway), str(spark._jsparkSession.sessionUUID()))
        if key not in _sessions:
            _sessions[key] = _Completing(spark)
        _sessions[key].follow(str(inner.runId), progress)
