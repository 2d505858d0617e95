"""Reproduces figure 12: cumulative propagation delay and average dependency overhead.

The paper shows [P]: Megaphone is far above the others in both; Meces, with one synchronisation, has the
least propagation delay.

Parameters: as figure 10. Definitions [I]: propagation, per signal, from its first injection to the
start of migration, summed over signals; dependency, per key group, from the request to its own
departure less its signal's propagation, averaged. The paper names both and defines neither.
`dependency_in_step_s` counts from the moment when a group's own signal released it: it is 0 for
Megaphone, where each group has its own signal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headgate.report.plot import panels
from headgate_lab.experiments.drrs.compare import RIVALS, WORKLOADS, compare, scale_of
from headgate_lab.experiments.registry import Request

if TYPE_CHECKING:
    from headgate.report.plot import Figure

PAPER = {
    "propagation": "Megaphone the most by far, Meces the least",
    "dependency": "Megaphone the most by far",
}
_SHOWN = ("propagation_s", "dependency_s", "dependency_in_step_s")


def run(request: Request) -> dict[str, Any]:
    """Return both overheads of each method on each workload."""
    return measure(tuple(WORKLOADS), request)


def measure(names: tuple[str, ...], request: Request) -> dict[str, Any]:
    """Return the same for some of the workloads."""
    found = compare(names, ("drrs", *RIVALS), request)
    rows = [
        {
            "workload": name,
            "method": outcome["method"],
            **{key: round(outcome[key], 3) for key in _SHOWN},
        }
        for name, outcomes in found.items()
        for outcome in outcomes
    ]
    return {**scale_of(request, names), "paper": PAPER, "rows": rows}


def draw(data: Mapping[str, Any]) -> Figure:
    """Return bars of both overheads."""
    figure, axes = panels(1, 2)
    labels = [f"{row['workload']}\n{row['method']}" for row in data["rows"]]
    for axis, key in zip(axes, _SHOWN[:2], strict=True):
        axis.bar(range(len(labels)), [row[key] for row in data["rows"]])
        axis.set_xticks(range(len(labels)), labels, fontsize=6)
        axis.set(ylabel=key.replace("_s", ", s"))
    return figure
