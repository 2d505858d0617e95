"""Publishes the metrics of the driver's queries: for Prometheus, and in Spark's own metric system."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from headgate.journal.listeners import on_event
from headgate.journal.schema import Batch, Event, Start
from headgate.metrics import collect
from headgate.metrics.totals import QueryTotals
from headgate.spark.jvm.gauges import Gauges
from headgate.spark.settings import options as own

if TYPE_CHECKING:
    from headgate.metrics.exporter import JournalMetrics, Serving

_lock = threading.Lock()
_served: dict[tuple[str, int], tuple[JournalMetrics, Serving]] = {}


def show_metrics(
    spark: SparkSession, options: Mapping[str, str], journal: Path
) -> Callable[[], None]:
    """Publish a journal's metrics as the options and Spark's settings say; return a function to stop.

    Raises `ConfigError`: the address cannot be served, or the extra ``metrics`` is not installed.
    """
    address = own.METRICS.of(options)
    end = _show_in_spark(spark, journal)
    if address is None:
        return end
    with _lock:
        if address in _served:
            _served[address][0].add(journal)
        else:
            metrics = collect([journal])
            _served[address] = metrics, metrics.serve(*address)

    def end_both() -> None:
        end()
        _hide(address, journal)

    return end_both


def _hide(address: tuple[str, int], journal: Path) -> None:
    """Stop serving a journal, and close a server without journals; may be called twice."""
    with _lock:
        if address not in _served:
            return
        metrics, serving = _served[address]
        metrics.remove(journal)
        if not metrics.places:
            del _served[address]
            serving.close()


_SPARKS_SETTING = "spark.sql.streaming.metricsEnabled"

_NAMES = (
    "query_up", "batches", "records_arrived", "records_served", "records_emitted", "slots",
    "backlog_records", "backlog_seconds", "state_rows", "state_bytes", "latency_mean_seconds",
    "latency_p99_seconds", "slo_success_ratio", "slo_bound_seconds",
)  # fmt: skip
"""Gauges in Spark's metric system, under the names for Prometheus but without labels."""


def _values(totals: QueryTotals, batch: Batch) -> dict[str, float | None]:
    """Return the gauges after a batch; None for an unknown value."""
    latency, slo = batch.latency_ms, batch.slo
    values: tuple[float | None, ...] = (
        totals.is_up,
        totals.batches,
        totals.arrived,
        totals.served,
        totals.emitted,
        sum(totals.slots_now.values()),
        batch.backlog,
        totals.backlog_s,
        batch.state_rows,
        batch.state_bytes,
        None if latency is None else latency.mean / 1e3,
        None if latency is None else latency.p99 / 1e3,
        None if slo is None else slo.success,
        None if slo is None else slo.bound_ms / 1e3,
    )
    return dict(zip(_NAMES, values, strict=True))


def _show_in_spark(spark: SparkSession, journal: Path) -> Callable[[], None]:
    """Publish gauges in Spark's metric system if Spark publishes those of streaming queries there."""
    if spark.conf.get(_SPARKS_SETTING, "false") != "true":
        return lambda: None
    gauges = _InSpark(spark, journal)
    end = on_event(gauges)

    def end_both() -> None:
        end()
        gauges.end()

    return end_both


class _InSpark:
    """Sets the gauges of one query from the events of its journal; a listener of journals."""

    def __init__(self, spark: SparkSession, journal: Path) -> None:
        self._spark, self._journal = spark, str(journal)
        self._totals = QueryTotals()
        self._gauges: Gauges | None = None

    def __call__(self, journal: str, event: Event) -> None:
        """Take an event; ignore events of other queries."""
        if journal != self._journal:
            return
        self._totals.absorb(event)
        if isinstance(event, Start):
            self._gauges = Gauges(self._spark, f"headgate.{event.name}", _NAMES)
        elif isinstance(event, Batch) and self._gauges is not None:
            values = _values(self._totals, event)
            self._gauges.set({name: value for name, value in values.items() if value is not None})

    def end(self) -> None:
        """Set the gauge ``query_up`` to 0."""
        if self._gauges is not None:
            self._gauges.set({"query_up": 0.0})
