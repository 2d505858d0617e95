"""Tabulates the unified policy against each paper's own, on that paper's workload.

This is no paper's table. StreamSwitch runs on its trading day, PSPS on its applications, Henge on two
days of web servers' loads, STRETCH's controllers on twenty minutes of random phases. *Ahead* means
better in the aim of the paper's policy and worse in no other measure.

Differs from the papers' figures: the trading day is shorter; PSPS drops nothing; without the directory of
the logs, Henge's input is two synthetic days.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headgate.report.plot import panels
from headgate_lab.experiments.psps.runs import seeds as psps_seeds
from headgate_lab.experiments.registry import Request
from headgate_lab.experiments.unified import exchange, fleet, join, pools
from headgate_lab.experiments.unified.beside import Beside, summary

if TYPE_CHECKING:
    from headgate.report.plot import Figure


def run(request: Request) -> dict[str, Any]:
    """Return the rows of all workloads and, per rival, the lead of the unified policy."""
    quick = request.quick
    seeds = psps_seeds(quick)
    return table(
        [
            exchange.compare(24.0 if quick else 4.0),
            *(pools.compare(name, load, seeds) for name, load in pools.LOADS.items()),
            *fleet.compare(request.data, jobs=1 if quick else 5),
            join.compare([1] if quick else [1, 2, 3, 4, 5], 400.0 if quick else 1200.0),
        ]
    )


def table(parts: Sequence[Beside]) -> dict[str, Any]:
    """Return comparisons as one table."""
    return {
        "mode": "continuous; replicas; fluid",
        "reaches": summary(parts),
        "verdicts": [verdict for part in parts for verdict in part.verdicts],
        "rows": [row for part in parts for row in part.rows],
    }


def draw(data: Mapping[str, Any]) -> Figure:
    """Return, per workload, each policy's first measure against its slots or its savings."""
    workloads = list(dict.fromkeys(row["workload"] for row in data["rows"]))
    figure, axes = panels(2, -(-len(workloads) // 2))
    for panel, workload in zip(axes, workloads, strict=False):
        mine = [row for row in data["rows"] if row["workload"] == workload]
        cost = "slots" if "slots" in mine[0] else "saved"
        names = ("success", "satisfaction", "latency_ms")
        good = next(name for name in names if name in mine[0])
        for row in mine:
            panel.plot(row[cost], row[good], "o", label=row["policy"])
        panel.set(xlabel=cost, ylabel=good, title=workload)
        panel.legend(fontsize=6)
    return figure
