"""Defines the metrics of queries and fleets: names, labels, and values from the totals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from headgate.metrics.totals import Buckets, FleetTotals, QueryTotals

Row = tuple[tuple[str, ...], float]
"""Values of the labels, and value of the metric."""


def query_families(queries: Mapping[str, QueryTotals]) -> Iterator[Metric]:
    """Yield the metrics of queries, by the value of their label ``query``."""
    for spec in _COUNTERS:
        yield _family(CounterMetricFamily, spec, queries, "query")
    for spec in _GAUGES:
        yield _family(GaugeMetricFamily, spec, queries, "query")
    for name, text, field in _HISTOGRAMS:
        family = HistogramMetricFamily(name, text, labels=["query"])
        for query, totals in queries.items():
            buckets: Buckets = getattr(totals, field)
            family.add_metric([query], buckets.cumulative(), buckets.sum_s)
        yield family


def fleet_families(fleets: Mapping[str, FleetTotals]) -> Iterator[Metric]:
    """Yield the metrics of fleets, by the value of their label ``fleet``."""
    for spec in _FLEET_GAUGES:
        yield _family(GaugeMetricFamily, spec, fleets, "fleet")
    yield _family(CounterMetricFamily, _FLEET_DECISIONS, fleets, "fleet")


class Spec(NamedTuple):
    """Describes a metric: its name without ``_total``, text, labels besides the first, and rows."""

    name: str
    text: str
    labels: str
    rows: Callable[[Any], Iterable[Row]]


def _family(kind: Any, spec: Spec, totals_of: Mapping[str, Any], first: str) -> Metric:
    family: Metric = kind(spec.name, spec.text, labels=[first, *spec.labels.split()])
    for label, totals in totals_of.items():
        for values, value in spec.rows(totals):
            family.add_metric([label, *values], value)  # type: ignore[attr-defined]
    return family


def _one(value: float | None, scale: float = 1.0) -> Iterable[Row]:
    return () if value is None else (((), value * scale),)


def _number(name: str, text: str, path: str, scale: float = 1.0) -> Spec:
    """Describe a metric of one number; `path`: attributes of the totals that lead to it, with dots."""

    def rows(totals: QueryTotals) -> Iterable[Row]:
        value: Any = totals
        for part in path.split("."):
            value = getattr(value, part, None)
        return _one(value, scale)

    return Spec(name, text, "", rows)


def _labelled(name: str, text: str, label: str, field: str, scale: float = 1.0) -> Spec:
    """Describe a metric of a mapping in the totals, whose keys are the values of `label`."""

    def rows(totals: QueryTotals) -> Iterable[Row]:
        return [
            (key if isinstance(key, tuple) else (key,), value * scale)
            for key, value in getattr(totals, field).items()
        ]

    return Spec(name, text, label, rows)


def _of_slot(name: str, text: str, field: str, scale: float = 1.0) -> Spec:
    """Describe a metric of each slot."""

    def rows(totals: QueryTotals) -> Iterable[Row]:
        return [
            ((operator, str(slot)), getattr(sums, field) * scale)
            for (operator, slot), sums in totals.slots.items()
        ]

    return Spec(name, text, "operator slot", rows)


def _hot(name: str, text: str, part: int) -> Spec:
    """Describe a metric of the hottest key groups: number (part 0), or share of the records (1)."""

    def rows(totals: QueryTotals) -> Iterable[Row]:
        return [
            ((operator, str(rank)), float(group[part]))
            for operator, groups in totals.hot_groups().items()
            for rank, group in enumerate(groups, 1)
        ]

    return Spec(name, text, "operator rank", rows)


def _info(totals: QueryTotals) -> Iterable[Row]:
    start = totals.start
    policy = str(start.parameters.get("policy", "")).partition("(")[0]
    versions = start.versions
    texts = (start.job, str(start.key_groups), policy, versions.get("headgate", ""))
    return (((*texts, versions.get("spark", "")), 1.0),)


def _lag(totals: QueryTotals) -> Iterable[Row]:
    """Return the records that Kafka has and the query has not read, by topic."""
    lag: dict[str, float] = {}
    for partition, records in (totals.batch.lag if totals.batch else {}).items():
        topic = partition.rpartition("-")[0]
        lag[topic] = lag.get(topic, 0.0) + records
    return [((topic,), records) for topic, records in lag.items()]


def _slo_state(totals: QueryTotals) -> Iterable[Row]:
    slo = totals.batch.slo if totals.batch else None
    states = ("not ready", "steady", "changing", "unreachable")
    return [((state,), float(state == slo.state)) for state in states] if slo else ()


_COUNTERS: tuple[Spec, ...] = (
    _number("headgate_starts", "Starts of the query", "starts"),
    _number("headgate_restarts", "Starts that went on from a committed batch", "restarts"),
    _number("headgate_batches", "Committed batches", "batches"),
    _number("headgate_batch_attempts", "Executions of committed batches", "attempts"),
    _labelled("headgate_batch_phase_seconds", "Time in each phase", "phase", "phase_ms", 1e-3),
    _number("headgate_records_arrived", "New records that reached slots", "arrived"),
    _number("headgate_records_served", "Records applied to state", "served"),
    _number("headgate_records_emitted", "Rows handed to the sink", "emitted"),
    _labelled("headgate_records_dropped", "Records dropped", "reason", "dropped"),
    _of_slot("headgate_slot_busy_seconds", "Time that a slot spent on records", "useful_ms", 1e-3),
    _of_slot("headgate_slot_cpu_seconds", "A slot's time on a core", "cpu_ms", 1e-3),
    _of_slot("headgate_slot_cpu_wait_seconds", "A slot's wait for a core", "waited_ms", 1e-3),
    _of_slot("headgate_slot_served_records", "Records that a slot served", "served"),
    _labelled(
        "headgate_state_groups_moved",
        "Key groups moved into memory, out of it, or served on disk",
        "direction",
        "state_moves",
    ),
    _number("headgate_changelog_bytes", "Bytes appended to the changelog", "changelog_bytes"),
    _number("headgate_store_requests", "Requests to the checkpoint's store", "store_requests"),
    _number("headgate_store_written_bytes", "Bytes written to a checkpoint's store", "store_bytes"),
    _labelled("headgate_slo_windows", "Judged SLO windows of key groups", "operator", "windows"),
    _labelled("headgate_slo_windows_met", "SLO windows that were met", "operator", "windows_met"),
    _labelled(
        "headgate_decisions", "Changes decided, or only advised", "policy kind acts", "decisions"
    ),
    _labelled("headgate_rescales", "Changes of the number of slots", "operator by", "rescales"),
    _labelled("headgate_groups_moved", "Key groups that changed slots", "operator", "groups_moved"),
    _labelled("headgate_moved_bytes", "State copied for migrations", "operator", "bytes_moved"),
    _labelled(
        "headgate_migration_suspended_seconds",
        "Time that slots waited for key groups that were moving",
        "operator",
        "suspended_s",
    ),
    _labelled("headgate_slots_lost", "Slots whose worker was lost", "operator", "slots_lost"),
    _number("headgate_retries", "Executions of batches that failed and were repeated", "retries"),
    _labelled("headgate_control_requests", "Commands to the query", "act refused", "controls"),
    _number("headgate_loop_cpu_seconds", "Processor time of the control loop", "loop_cpu_ms", 1e-3),
)
_GAUGES: tuple[Spec, ...] = (
    Spec(
        "headgate_query_info", "Query; always 1", "query_id key_groups policy version spark", _info
    ),
    _number("headgate_query_up", "1 unless the journal says that the query ended", "is_up"),
    _number(
        "headgate_last_event_timestamp_seconds", "Time of the last event", "last_event_ms", 1e-3
    ),
    _number("headgate_backlog_records", "Records that wait in slots", "batch.backlog"),
    _number(
        "headgate_backlog_bytes", "Size of the records that wait in slots", "batch.backlog_bytes"
    ),
    _number(
        "headgate_backlog_seconds",
        "Time to serve all records that wait, in slots and in the source, at the latest rate",
        "backlog_s",
    ),
    Spec(
        "headgate_source_lag_records", "Records in Kafka that the query has not read", "topic", _lag
    ),
    _number("headgate_watermark_timestamp_seconds", "Watermark", "batch.watermark_us", 1e-6),
    _labelled("headgate_slots", "Slots", "operator", "slots_now"),
    _labelled("headgate_slots_granted", "Slots that the fleet allows", "operator", "slots_granted"),
    _labelled("headgate_slots_wanted", "Slots that the policy wants", "operator", "slots_wanted"),
    _of_slot("headgate_slot_backlog_records", "Records that wait in a slot", "backlog"),
    _labelled(
        "headgate_skew_ratio",
        "Busy time of the busiest slot over the mean, last batches",
        "operator",
        "skew",
    ),
    _hot("headgate_hot_key_group", "Number of a hot key group", 0),
    _hot("headgate_hot_key_group_ratio", "A hot key group's share of the records, last batches", 1),
    _number("headgate_state_rows", "Rows of state", "batch.state_rows"),
    _number("headgate_state_bytes", "Size of the state", "batch.state_bytes"),
    _number("headgate_state_memory_bytes", "State in bounded memory", "batch.memory.memory_bytes"),
    _number(
        "headgate_state_cold_bytes",
        "State on disk, beside bounded memory",
        "batch.memory.cold_bytes",
    ),
    _number("headgate_slo_objective_ratio", "Share of windows the SLO wants", "batch.slo.wanted"),
    _number("headgate_slo_bound_seconds", "Tightest bound of the SLO", "batch.slo.bound_ms", 1e-3),
    _number("headgate_slo_floor_seconds", "Measured latency floor", "batch.slo.floor_ms", 1e-3),
    _number(
        "headgate_slo_success_ratio", "Share of windows met since the start", "batch.slo.success"
    ),
    _number(
        "headgate_slo_success_worst_ratio",
        "Share of windows met since the start, worst key group",
        "batch.slo.success_worst",
    ),
    Spec("headgate_slo_state", "1 for the SLO's present state", "state", _slo_state),
    _number("headgate_frozen", "1 while assignments may not change", "batch.slo.frozen"),
    _number("headgate_executors", "Executors, as last changed", "executors"),
)

_HISTOGRAMS: tuple[tuple[str, str, str], ...] = (
    ("headgate_batch_duration_seconds", "Duration of batches", "durations"),
    ("headgate_record_latency_seconds", "Latency of records", "latencies"),
    ("headgate_rescale_seconds", "Time from a decision until it is in force", "rescale_durations"),
)


def _utility(totals: FleetTotals) -> Iterable[Row]:
    newest = totals.round
    return _one(newest.utility / newest.utility_max if newest and newest.utility_max else None)


def _job_utility(totals: FleetTotals) -> Iterable[Row]:
    jobs = totals.round.jobs if totals.round else ()
    known = [job for job in jobs if job.utility is not None and job.utility_max]
    return [((job.job,), (job.utility or 0.0) / job.utility_max) for job in known]


def _job_met(totals: FleetTotals) -> Iterable[Row]:
    jobs = totals.round.jobs if totals.round else ()
    return [((job.job,), float(job.met)) for job in jobs]


_FLEET_GAUGES: tuple[Spec, ...] = (
    Spec("headgate_fleet_utility_ratio", "Utility of all jobs over its maximum", "", _utility),
    _number("headgate_fleet_slots", "Slots of all jobs", "round.slots"),
    _number("headgate_fleet_slots_max", "Slots that the fleet may hand out", "round.slots_max"),
    _number("headgate_fleet_congested", "1 while most hosts are congested", "round.congested"),
    Spec(
        "headgate_fleet_job_utility_ratio", "Job's utility over its maximum", "query", _job_utility
    ),
    Spec("headgate_fleet_job_met", "1 while a job's intents are met", "query", _job_met),
)

_FLEET_DECISIONS = _labelled(
    "headgate_fleet_decisions", "Decisions of the fleet's policy", "action", "decisions"
)

NAMES = (
    *(f"{spec.name}_total" for spec in (*_COUNTERS, _FLEET_DECISIONS)),
    *(spec.name for spec in (*_GAUGES, *_FLEET_GAUGES)),
    *(name for name, *_ in _HISTOGRAMS),
)
"""Names of all metrics in Prometheus."""
