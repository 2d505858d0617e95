"""Compares Henge with equal shares and first come, first served, with scarce and sufficient slots.

No figure of the paper. Nine PageLoads of priorities 10 to 90 that begin with few slots, submitted in
some random orders. A job needs 28 slots to keep its SLO; the budget is half of that for all of them
(scarce: an equal share is too little for any job to keep up), what lets every job keep up but none
keep its SLO (tight: equal shares are at their best), or more than Henge would give them all (enough).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from headgate.control.fleet.henge import Henge
from headgate.control.fleet.view import FleetPolicy
from headgate.report.plot import panels
from headgate_lab.experiments.henge.fleets import STORM, within
from headgate_lab.experiments.registry import Request
from headgate_lab.rivals.shares import EqualShares, FirstCome, Unmanaged
from headgate_lab.sim.fleet.model import IN_PLACE, SimJob
from headgate_lab.sim.fleet.run import run_fleet
from headgate_lab.workloads.topologies import page_load

if TYPE_CHECKING:
    from headgate.report.plot import Figure

BUDGETS = {"scarce": 126, "tight": 157, "enough": 346}
"""Slots; nine jobs need 28 each, and Henge gives up to 35."""
_JOBS = 9
_LENGTH_S = 5400.0
_POLICIES: Mapping[str, Callable[[], FleetPolicy]] = {
    "henge": Henge,
    "equal-shares": EqualShares,
    "first-come": FirstCome,
    "unmanaged": Unmanaged,
}


def run(request: Request) -> dict[str, Any]:
    """Return the total utility at the end under each policy."""
    return measure(1 if request.quick else 3, _LENGTH_S)


def measure(orders: int, length_s: float) -> dict[str, Any]:
    """Return the same over some random orders of submission, in runs of some length."""
    rows = []
    for name, budget in BUDGETS.items():
        totals = {
            policy: [_total(make(), budget, length_s, seed) for seed in range(1, orders + 1)]
            for policy, make in _POLICIES.items()
        }
        mean = {policy: float(np.mean(found)) for policy, found in totals.items()}
        for policy, found in totals.items():
            rows.append(
                {
                    "slots": name,
                    "budget": budget,
                    "policy": policy,
                    "utility": round(mean[policy], 2),
                    "least": round(min(found), 2),
                    "henge_times": round(mean["henge"] / max(mean[policy], 1e-9), 3),
                }
            )
    return {
        "mode": "fluid",
        "seeds": list(range(1, orders + 1)),
        "paper": "none",
        "utility_max": 10.0 * sum(range(1, _JOBS + 1)),
        "rows": rows,
    }


def _total(policy: FleetPolicy, budget: int, length_s: float, seed: int) -> float:
    """Return the mean total utility of the last ten minutes."""
    few = page_load().with_slots(
        {name: 1 for name in page_load().operators if name != "aggregate"} | {"aggregate": 4}
    )
    order = np.random.default_rng(seed).permutation(_JOBS) + 1
    jobs = {f"T{k}": SimJob(few, within(0.060, 10.0 * k)) for k in order}
    cluster = replace(STORM, slots_max=budget, change=IN_PLACE)
    found = run_fleet(cluster, jobs, policy, length_s, seed=seed)
    return float(found.total[found.between(length_s - 600.0, length_s)].mean())


def draw(data: Mapping[str, Any]) -> Figure:
    """Return the totals as bars, one panel per budget."""
    figure, axes = panels(1, len(BUDGETS))
    for panel, slots in zip(axes, BUDGETS, strict=True):
        rows = [row for row in data["rows"] if row["slots"] == slots]
        panel.bar([row["policy"] for row in rows], [row["utility"] for row in rows])
        panel.set(title=f"{slots}: {rows[0]['budget']} slots", ylabel="total utility")
    return figure
