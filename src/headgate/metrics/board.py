"""Writes a board for Grafana, in the JSON that Grafana 10 to 13 import."""

from __future__ import annotations

from typing import Any, NamedTuple

_WIDTH, _HEIGHT = 8, 7
"""Size of a panel, in cells of Grafana's grid, which is 24 wide."""

_OF = '{query=~"$query"}'


class Panel(NamedTuple):
    """Describes a panel: title, unit of the values, and expression of each curve by its legend."""

    title: str
    unit: str
    curves: dict[str, str]


def _latency(quantile: float) -> str:
    rates = f"rate(headgate_record_latency_seconds_bucket{_OF}[5m])"
    return f"histogram_quantile({quantile}, sum by (query, le) ({rates}))"


PANELS = (
    Panel(
        "SLO windows met",
        "percentunit",
        {
            "{{query}}": f"sum by (query) (rate(headgate_slo_windows_met_total{_OF}[5m])) / "
            f"(sum by (query) (rate(headgate_slo_windows_total{_OF}[5m])) > 0)",
            "{{query}} wants": f"headgate_slo_objective_ratio{_OF}",
        },
    ),
    Panel(
        "Latency of records",
        "s",
        {
            "{{query}} p50": _latency(0.5),
            "{{query}} p99": _latency(0.99),
            "{{query}} bound": f"headgate_slo_bound_seconds{_OF}",
            "{{query}} floor": f"headgate_slo_floor_seconds{_OF}",
        },
    ),
    Panel(
        "Slots",
        "none",
        {
            "{{query}} {{operator}}": f"headgate_slots{_OF}",
            "{{query}} {{operator}} wanted": f"headgate_slots_wanted{_OF}",
        },
    ),
    Panel(
        "Records in and out",
        "rps",
        {
            "{{query}} in": f"rate(headgate_records_arrived_total{_OF}[5m])",
            "{{query}} out": f"rate(headgate_records_emitted_total{_OF}[5m])",
        },
    ),
    Panel(
        "Time to work off what waits",
        "s",
        {"{{query}}": f"headgate_backlog_seconds{_OF}"},
    ),
    Panel(
        "Records dropped",
        "rps",
        {"{{query}} {{reason}}": f"rate(headgate_records_dropped_total{_OF}[5m])"},
    ),
    Panel(
        "Phases of a batch",
        "s",
        {
            "{{query}} {{phase}}": f"rate(headgate_batch_phase_seconds_total{_OF}[5m]) / "
            f"on(query) group_left() (rate(headgate_batches_total{_OF}[5m]) > 0)",
        },
    ),
    Panel(
        "Busy slots",
        "percentunit",
        {"{{query}} {{operator}} {{slot}}": f"rate(headgate_slot_busy_seconds_total{_OF}[5m])"},
    ),
    Panel(
        "Share of the hottest key group",
        "percentunit",
        {"{{query}} {{operator}}": 'headgate_hot_key_group_ratio{query=~"$query", rank="1"}'},
    ),
    Panel(
        "State",
        "bytes",
        {"{{query}}": f"headgate_state_bytes{_OF}"},
    ),
    Panel(
        "Decisions",
        "none",
        {"{{query}} {{policy}} {{kind}}": f"increase(headgate_decisions_total{_OF}[15m])"},
    ),
    Panel(
        "Utility of a fleet",
        "percentunit",
        {"{{fleet}}": "headgate_fleet_utility_ratio"},
    ),
)


def board() -> dict[str, Any]:
    """Return the board; its variables are the Prometheus to ask and the queries to show."""
    source = {"type": "prometheus", "uid": "${source}"}
    columns = 24 // _WIDTH
    return {
        "title": "headgate",
        "uid": "headgate",
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "type": "datasource", "query": "prometheus"},
                {
                    "name": "query",
                    "type": "query",
                    "datasource": source,
                    "query": "label_values(headgate_query_info, query)",
                    "includeAll": True,
                    "multi": True,
                    "refresh": 2,
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "panels": [
            {
                "id": number + 1,
                "type": "timeseries",
                "title": panel.title,
                "datasource": source,
                "gridPos": {
                    "x": number % columns * _WIDTH,
                    "y": number // columns * _HEIGHT,
                    "w": _WIDTH,
                    "h": _HEIGHT,
                },
                "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
                "targets": [
                    {"refId": chr(ord("A") + index), "expr": expression, "legendFormat": legend}
                    for index, (legend, expression) in enumerate(panel.curves.items())
                ],
            }
            for number, panel in enumerate(PANELS)
        ],
    }
