"""Formats the result of `headgate_lab.bench.cpu_cost` as tables, one per job."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

_WIDTH = 120

_COLUMNS = (
    "policy",
    "success",
    "worst group",
    "slots",
    "changes",
    "p99, s",
    "waiting",
    "cost off by",
    "capacity off by",
    "model says",
)


def lines(found: Mapping[str, Any]) -> list[str]:
    """Return the tables of a result, line by line, as plain text."""
    said = io.StringIO()
    console = Console(file=said, width=_WIDTH, color_system=None, force_terminal=False)
    for job, ran in found["jobs"].items():
        table = Table(title=f"{job}: cost off by {_off(ran['estimate']['record'])}")
        for column in _COLUMNS:
            table.add_column(column, justify="left" if column == "policy" else "right")
        for name, one in ran["policies"].items():
            table.add_row(name, *_row(one))
        console.print(table)
    return said.getvalue().splitlines()


def _row(one: Mapping[str, Any]) -> list[str]:
    p99_ms = one["latency_ms"]["p99"]
    return [
        _share(one["success"]),
        _share(one["success_worst"]),
        "" if one["slots_mean"] is None else f"{one['slots_mean']:.2f}",
        str(one["changes"]),
        "" if p99_ms is None else f"{p99_ms / 1e3:.2f}",
        str(one["waiting"]),
        _off(one["estimate"]["record"]),
        _off(one["estimate"]["capacity"]),
        _model(one["predicted"]),
    ]


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _off(error: Mapping[str, float] | None) -> str:
    """Return the median and the 90th percentile of an error."""
    return "" if error is None else f"{error['median']:.0%}, {error['p90']:.0%}"


def _model(predicted: Mapping[str, Any] | None) -> str:
    """Return success and mean slots as the simulator predicts them."""
    if predicted is None:
        return ""
    return f"{_share(predicted['model']['success'])}, {predicted['model']['slots_mean']:.2f}"
