"""Tells Spark's listeners and its UI of a query that Spark does not run itself."""

from __future__ import annotations

import contextlib
import datetime
import json
import time
from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from headgate.spark.jvm.gateway import Jvm, java_class, jvm

_GONE = (Py4JError, OSError)
"""What says that the JVM is gone, and who listens with it."""

_EVENTS = "org.apache.spark.sql.streaming.StreamingQueryListener"


class QueryEvents:
    """Posts the events of a run where Spark posts those of its own queries; they begin with this.

    Parameters
    ----------
    spark : SparkSession
        The session whose listeners are told.
    query, run : str
        Its ids.
    name : str or None
    """

    def __init__(self, spark: SparkSession, query: str, run: str, name: str | None) -> None:
        self._spark = spark
        java = jvm(spark)
        self._ids = [java.java.util.UUID.fromString(one) for one in (query, run)]
        # not from JSON, where nothing and the text "null" are the same
        began = timestamp(time.time() * 1e6)
        started = java_class(spark, f"{_EVENTS}$QueryStartedEvent")
        self._post(started(*self._ids, name, began))

    def progress(self, progress: Mapping[str, Any]) -> None:
        """Tell a progress, as Spark writes it in JSON."""
        offsets = ("startOffset", "endOffset", "latestOffset")
        sources = [
            {**source, **{key: json.dumps(source[key]) for key in offsets}, "metrics": {}}
            for source in progress["sources"]
        ]
        sink = {**progress["sink"], "metrics": {}}
        whole = {"observedMetrics": {}, **progress, "sources": sources, "sink": sink}
        with contextlib.suppress(*_GONE):
            event = java_class(self._spark, f"{_EVENTS}$QueryProgressEvent$.MODULE$")
            self._post(event.fromJson(json.dumps({"progress": whole})))

    def ended(self, failure: Exception | None) -> None:
        """Tell that the run is over."""
        with contextlib.suppress(*_GONE):
            said = jvm(self._spark).scala.Option.apply(None if failure is None else str(failure))
            ended = java_class(self._spark, f"{_EVENTS}$QueryTerminatedEvent")
            self._post(ended(*self._ids, said))

    def _post(self, event: Jvm) -> None:
        self._spark._jsparkSession.streams().postListenerEvent(event)


def timestamp(at_us: float) -> str:
    """Return a time, in microseconds since 1970, as Spark writes it in a progress.

    Beyond the year 9999, as a wrong unit gives it, the last moment of that year.
    """
    try:
        at = datetime.datetime.fromtimestamp(at_us / 1e6, datetime.UTC)
    except (ValueError, OverflowError):
        at = datetime.datetime.max.replace(tzinfo=datetime.UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
