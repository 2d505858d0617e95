"""Compares policies on Henge's two days of web loads, figure 12: satisfaction, slots and actions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from headgate.control.fleet.henge import Henge
from headgate.control.fleet.unified_fleet import UnifiedFleet
from headgate.control.fleet.view import FleetPolicy
from headgate_lab.experiments.henge.fig12 import BOUND_S, DAY_S, rate_of
from headgate_lab.experiments.henge.fleets import STORM, page_load_job, within
from headgate_lab.experiments.unified.beside import Beside, Measure
from headgate_lab.sim.fleet.model import IN_PLACE, Change, Cluster, Rate
from headgate_lab.sim.fleet.run import run_fleet

MEASURES = (Measure("satisfaction", more=True), Measure("slots"), Measure("changes"))


def rates(directory: Path | None) -> dict[str, Rate]:
    """Return the day of both logs; without them, synthetic days that rise fivefold and tenfold.

    Parameters
    ----------
    directory : Path or None
        Of the real traces.
    """
    if directory is not None:
        return {name: rate_of(directory, f"{name}_requests") for name in ("sdsc", "epa")}
    return {"fivefold": _made(100.0, 400.0), "tenfold": _made(60.0, 540.0)}


def _made(night: float, more: float) -> Rate:
    """Return records per second that rise from `night` by `more` at noon, as the square of a sine."""
    return lambda time_s: night + more * math.sin(math.pi * (time_s % DAY_S) / DAY_S) ** 2


def compare(directory: Path | None, *, jobs: int, days: int = 2) -> list[Beside]:
    """Return ours and Henge, both with changes that restart a job and with changes in place."""
    inputs = rates(directory)
    named = "two logs" if directory is not None else "made days"
    changes = {"restarts as on Storm": STORM.change, "changes in place": IN_PLACE}
    return [
        _under(f"{named}, {how}", change, inputs, jobs, days) for how, change in changes.items()
    ]


def _under(name: str, change: Change, inputs: Mapping[str, Rate], jobs: int, days: int) -> Beside:
    def measured(policy: FleetPolicy) -> dict[str, object]:
        fleet = {
            f"{kind}-{k}": page_load_job(within(BOUND_S), rate)
            for kind, rate in inputs.items()
            for k in range(1, jobs + 1)
        }
        run = run_fleet(Cluster(change=change), fleet, policy, days * DAY_S)
        return {
            "policy": policy.name,
            "satisfaction": round(float(run.satisfaction.mean()), 5),
            "slots": round(float(np.mean(run.slots)), 1),
            "changes": sum(len(acted.jobs) for acted in run.actions),
        }

    return Beside(name, MEASURES, measured(UnifiedFleet()), [measured(Henge())])
