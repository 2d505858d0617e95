"""Measures the effect of Henge's five parameters on its result and its speed of convergence.

The paper states [P] (5.5) that capacity threshold, stability rounds, gain, reduction and drop change the
speed of convergence only, as long as they stay small. Figure 9's jobs with changes in place, where
history matters most, and one parameter changed at a time; the range of each is [I]. A capacity
threshold of 0.4 is too large here: an operator at 0.42 misses the SLO and gets nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headgate.control.fleet.henge import Henge, HengeParameters
from headgate.report.plot import panels
from headgate_lab.experiments.henge.fleets import STORM, all_met_s, page_load_job, within
from headgate_lab.experiments.registry import Request
from headgate_lab.sim.fleet.model import IN_PLACE
from headgate_lab.sim.fleet.run import run_fleet

if TYPE_CHECKING:
    from headgate.report.plot import Figure

PAPER = {"end": "the same whatever the parameters", "speed": "differs"}
VALUES: Mapping[str, tuple[float, ...]] = {
    "congestion_threshold": (0.2, 0.25, 0.3),
    "stable_rounds": (1, 4, 8),
    "gain": (0.01, 0.05, 0.1),
    "reduction": (0.7, 0.8, 0.9),
    "drop": (0.02, 0.05, 0.1),
}


def run(request: Request) -> dict[str, Any]:
    """Return utility at the end and the time it took, by parameter and value."""
    return measure(4000.0 if request.quick else 7200.0)


def measure(length_s: float) -> dict[str, Any]:
    """Return the same of runs of some length."""
    rows = []
    cluster = replace(STORM, change=IN_PLACE)
    for name, values in VALUES.items():
        for value in values:
            jobs = {f"T{k}": page_load_job(within(0.060, 10.0 * k)) for k in range(1, 10)}
            parameters = HengeParameters(**{name: type(values[0])(value)})  # type: ignore[arg-type]
            found = run_fleet(cluster, jobs, Henge(parameters), length_s)
            rows.append(
                {
                    "parameter": name,
                    "value": value,
                    "utility": round(float(found.total[-30:].mean()), 2),
                    "all_met_s": all_met_s(found),
                    "actions": len(found.actions),
                }
            )
    return {"mode": "fluid", "seed": 1, "paper": PAPER, "utility_max": 450.0, "rows": rows}


def draw(data: Mapping[str, Any]) -> Figure:
    """Return the time to all SLOs over each parameter's values."""
    figure, axes = panels(1, len(VALUES))
    for panel, name in zip(axes, VALUES, strict=True):
        rows = [row for row in data["rows"] if row["parameter"] == name]
        panel.plot([row["value"] for row in rows], [row["all_met_s"] for row in rows], "o-")
        panel.set(xlabel=name, ylabel="all SLOs met, s", ylim=(0, None))
    return figure
