"""Shows the metrics of the driver's queries: to Prometheus at one address, and in Spark's own system."""

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
    """Show the metrics of a journal where an option or Spark's setting says so; return what ends that.

    Raises `ConfigError`: nothing can be served there, or the extra ``metrics`` is not installed.
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
    """Serve a journal no more, and end the server with its last one; may be called twice."""
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
"""Gauges in Spark's metric system, where a name has no labels; the names are those for Prometheus."""


def _values(totals: QueryTotals, batch: Batch) -> dict[str, float | None]:
    """Return the gauges after a batch; None where nothing is known."""
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
    """Keep gauges in Spark's metric system where Spark has its own of streaming queries there."""
    if spark.conf.get(_SPARKS_SETTING, "false") != "true":
        return lambda: None
    gauges = _InSpark(spark, journal)
    end = on_event(gauges)

    def end_both() -> None:
        end()
        gauges.end()

    return end_both


class _InSpark:
    """Keeps Spark's gauges of one query at what its journal says; a listener of journals."""

    def __init__(self, spark: SparkSession, journal: Path) -> None:
        self._spark, self._journal = spark, str(journal)
        self._totals = QueryTotals()
        self._gauges: Gauges | None = None

    def __call__(self, journal: str, event: Event) -> None:
        """Take an event; those of other queries are none of its business."""
        if journal != self._journal:
            return
        self._totals.absorb(event)
        if isinstance(event, Start):
            self._gauges = Gauges(self._spark, f"headgate.{event.name}", _NAMES)
        elif isinstance(event, Batch) and self._gauges is not None:
            values = _values(self._totals, event)
            self._gauges.set({name: value for name, value in values.items() if value is not None})

    def end(self) -> None:
        """Say that the query runs no more."""
        if self._gauges is not None:
            self._gauges.set({"query_up": 0.0})
