"""Posts events to Spark's listeners and UI about a query that Spark does not run itself."""

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
"""Errors after the end of the JVM, with which the listeners have ended, too."""

_EVENTS = "org.apache.spark.sql.streaming.StreamingQueryListener"


class QueryEvents:
    """Posts the events of a run on Spark's own listener bus; the constructor posts the start.

    Parameters
    ----------
    spark : SparkSession
        The session whose listeners get the events.
    query, run : str
        Ids of query and run.
    name : str or None
    """

    def __init__(self, spark: SparkSession, query: str, run: str, name: str | None) -> None:
        self._spark = spark
        java = jvm(spark)
        self._ids = [java.java.util.UUID.fromString(one) for one in (query, run)]
        # not from JSON, in which no name and the name "null" are the same
        began = timestamp(time.time() * 1e6)
        started = java_class(spark, f"{_EVENTS}$QueryStartedEvent")
        self._post(started(*self._ids, name, began))

    def progress(self, progress: Mapping[str, Any]) -> None:
        """Post a progress, which has Spark's JSON form."""
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
        """Post the end of the run."""
        with contextlib.suppress(*_GONE):
            said = jvm(self._spark).scala.Option.apply(None if failure is None else str(failure))
            ended = java_class(self._spark, f"{_EVENTS}$QueryTerminatedEvent")
            self._post(ended(*self._ids, said))

    def _post(self, event: Jvm) -> None:
        self._spark._jsparkSession.streams().postListenerEvent(event)


def timestamp(at_us: float) -> str:
    """Return a time, in microseconds since 1970, in the form of Spark's progress.

    A time after the year 9999, such as one in a wrong unit, becomes the last moment of that year.
    """
    try:
        at = datetime.datetime.fromtimestamp(at_us / 1e6, datetime.UTC)
    except (ValueError, OverflowError):
        at = datetime.datetime.max.replace(tzinfo=datetime.UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
