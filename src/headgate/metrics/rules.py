"""Writes recording rules and alerts for Prometheus, named as Sloth names them.

One file serves all queries: a query's SLO is in its metrics. The error of an SLO is the share of windows
in which the SLO was missed. A burn rate of 1 uses up the error budget of 30 days in 30 days.
"""

from __future__ import annotations

WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
"""Windows over which rules record the error. An alert on the burn rate has two pairs of windows, and
fires if both windows of a pair exceed the pair's limit; see `_BURNS`."""

PERIOD = "30d"
"""Period of the error budget."""

MOST = 0.9
"""Largest limit of an alert on the burn rate. An error is 1 at most, and 14.4 times a budget of 7 % is
above 1: without `MOST`, that alert could never fire for an SLO such as "in 90 % of windows"."""

_BURNS = (
    ("page", "5m", "1h", 14.4),
    ("page", "30m", "6h", 6.0),
    ("ticket", "2h", "1d", 3.0),
    ("ticket", "6h", "3d", 1.0),
)
"""Severity, short window, long window, and burn rate that both exceed. From Google's SRE workbook."""


def text() -> str:
    """Return the rules as a file for Prometheus."""
    return "\n".join(["groups:", *_errors(), *_budget(), *_burning(), *_others()]) + "\n"


def _labels(expression: str) -> str:
    """Return an expression with the labels that Sloth gives its series, made from the query's name."""
    return (
        f'label_replace(label_replace({expression}, "sloth_service", "$1", "query", "(.+)"), '
        '"sloth_id", "headgate-$1", "query", "(.+)")'
    )


def _group(name: str) -> list[str]:
    return [f"- name: {name}", "  rules:"]


def _record(name: str, expression: str, **labels: str) -> list[str]:
    lines = [f"  - record: {name}", "    expr: |", f"      {expression}"]
    all_labels = {"sloth_slo": "windows-in-time", **labels}
    return [*lines, "    labels:", *(f"      {key}: {value}" for key, value in all_labels.items())]


def _alert(name: str, expression: str, severity: str, what: str, for_: str = "") -> list[str]:
    return [
        f"  - alert: {name}",
        "    expr: |",
        f"      {expression}",
        *([f"    for: {for_}"] if for_ else []),
        "    labels:",
        f"      severity: {severity}",
        "    annotations:",
        f'      summary: "{what}"',
        '      description: "headgate diagnose CHECKPOINT names what limits the query; see '
        f'docs/runbook.md#{name.lower()}."',
    ]


def _errors() -> list[str]:
    lines = _group("headgate-sli-recordings")
    for window in WINDOWS:
        judged = f"sum by (query) (rate(headgate_slo_windows_total[{window}]))"
        met = f"sum by (query) (rate(headgate_slo_windows_met_total[{window}]))"
        # a window may turn out met after it was judged: then more windows are met than judged
        error = f"clamp_min(1 - {met} / ({judged} > 0), 0)"
        lines += _record(f"slo:sli_error:ratio_rate{window}", _labels(error), sloth_window=window)
    average = (
        f"sum_over_time(slo:sli_error:ratio_rate5m[{PERIOD}]) / ignoring (sloth_window) "
        f"count_over_time(slo:sli_error:ratio_rate5m[{PERIOD}])"
    )
    return lines + _record(f"slo:sli_error:ratio_rate{PERIOD}", average, sloth_window=PERIOD)


def _budget() -> list[str]:
    objective = _labels("max by (query) (headgate_slo_objective_ratio)")
    rules = {
        "slo:objective:ratio": objective,
        "slo:error_budget:ratio": "1 - slo:objective:ratio",
        "slo:time_period:days": "slo:objective:ratio * 0 + 30",
        "slo:current_burn_rate:ratio": (
            "slo:sli_error:ratio_rate5m / on(sloth_id, query) group_left slo:error_budget:ratio"
        ),
        "slo:period_burn_rate:ratio": (
            f"slo:sli_error:ratio_rate{PERIOD} / on(sloth_id, query) group_left slo:error_budget:ratio"
        ),
        "slo:period_error_budget_remaining:ratio": "1 - slo:period_burn_rate:ratio",
    }
    return _group("headgate-slo-meta-recordings") + [
        line for name, expression in rules.items() for line in _record(name, expression)
    ]


def _burning() -> list[str]:
    lines = _group("headgate-slo-alerts")
    for severity in ("page", "ticket"):
        both = [
            f"(slo:sli_error:ratio_rate{short} > on(sloth_id, query) group_left "
            f"clamp_max({burn} * slo:error_budget:ratio, {MOST}) and on(sloth_id, query) "
            f"slo:sli_error:ratio_rate{long} > on(sloth_id, query) group_left "
            f"clamp_max({burn} * slo:error_budget:ratio, {MOST}))"
            for of, short, long, burn in _BURNS
            if of == severity
        ]
        expression = (
            "max by (query, sloth_id, sloth_service) ("
            + " or ignoring (sloth_window) ".join(both)
            + ")"
        )
        what = "Query {{ $labels.query }} uses up the error budget of its SLO"
        lines += _alert("HeadgateSLOBurn", expression, severity, what)
    return lines


def _others() -> list[str]:
    query = "Query {{ $labels.query }}"
    silent = "headgate_query_up == 1 and time() - headgate_last_event_timestamp_seconds > 120"
    grows = "headgate_backlog_seconds > 60 and deriv(headgate_backlog_seconds[10m]) > 0"
    unreachable = 'headgate_slo_state{state="unreachable"} == 1'
    failed = "increase(headgate_retries_total[15m]) > 2"
    return [
        *_group("headgate-alerts"),
        *_alert("HeadgateSilent", silent, "ticket", f"{query} has written nothing for two minutes"),
        *_alert("HeadgateBacklogGrows", grows, "ticket", f"{query} falls behind", "10m"),
        *_alert(
            "HeadgateUnreachable",
            unreachable,
            "ticket",
            f"{query} has an SLO that no number of slots keeps",
            "10m",
        ),
        *_alert(
            "HeadgateFrozen",
            "headgate_frozen == 1",
            "ticket",
            f"{query} has been frozen for an hour",
            "1h",
        ),
        *_alert("HeadgateRetries", failed, "ticket", f"{query} repeats batches that fail"),
    ]
