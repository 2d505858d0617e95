"""Reproduces figure 12: two days of web servers' loads under Henge, fixed slots, and unmanaged.

The paper shows [P]: five jobs with SDSC's day and five with EPA's, twice, an hour of it in ten
minutes; latency 60 ms, utility 35. Mean SLO satisfaction 88.12 % (Henge), 87.77 % (set by hand for
the median load), 4.56 % (Storm); percentiles 15, 50 and 90: 74.9, 99.1, 100 % against 66.5, 99.8,
100 % and, for Storm, 0.0006 % at the median and 30.9 % at the 90th; 89 % of the utility by hour 15;
fewer reconfigurations in the second cycle; actions took 0.5 % of the jobs' time, the longest
convergence 0.56 %.

Parameters: the logs' requests per hour, joined by straight lines, since "based on the distribution"
of the traces is all that is said [I]; scaled so that the median is PageLoad's 200/s [I]. By hand:
the slots that Henge gives a job at the median load [I].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headgate.control.fleet.henge import Henge
from headgate.control.fleet.view import FleetPolicy
from headgate.core.errors import ConfigError
from headgate.report.plot import panels
from headgate.workloads.traces import read_totals
from headgate_lab.experiments.henge.fleets import (
    STORM,
    actions_of,
    mark_actions,
    page_load_job,
    quantiles,
    timeline,
    within,
)
from headgate_lab.experiments.registry import Request
from headgate_lab.rivals.shares import Unmanaged
from headgate_lab.sim.fleet.kernels import F64
from headgate_lab.sim.fleet.model import Rate, SimJob
from headgate_lab.sim.fleet.run import FleetRun, run_fleet
from headgate_lab.workloads.topologies import page_load

if TYPE_CHECKING:
    from headgate.report.plot import Figure

FILE = "web_logs_1995.per_minute.csv.gz"
PAPER = {
    "henge": {"mean": 88.12, "p15": 74.9, "p50": 99.1, "p90": 100.0},
    "by hand": {"mean": 87.77, "p15": 66.5, "p50": 99.8, "p90": 100.0},
    "unmanaged": {"mean": 4.56, "p50": 0.0006, "p90": 30.9},
    "actions": "fewer in the second cycle; 0.5 % of the jobs' time",
}
HOUR_S = 600.0
_HOURS = 48
DAY_S = 24 * HOUR_S
BOUND_S = 0.060
_SETTLED_S = 1800.0


def run(request: Request) -> dict[str, Any]:
    """Return satisfaction under Henge, by hand and unmanaged."""
    assert request.data is not None  # the registry asks for it
    return measure(request.data, jobs=2 if request.quick else 5)


def measure(directory: Path, *, jobs: int) -> dict[str, Any]:
    """Return the same with `jobs` jobs per log."""
    rates = {name: rate_of(directory, f"{name}_requests") for name in ("sdsc", "epa")}
    start = {name: page_load_job(within(BOUND_S), rate) for name, rate in rates.items()}
    median_slots = _slots_by_hand()
    by_hand = page_load().with_slots({"aggregate": median_slots})
    set_by_hand = {name: replace(job, topology=by_hand) for name, job in start.items()}
    found: dict[str, FleetRun] = {}
    for name, policy, kinds in (
        ("henge", Henge(), start),
        ("by hand", Unmanaged(), set_by_hand),
        ("unmanaged", Unmanaged(), start),
    ):
        found[name] = _run(kinds, jobs, policy)
    managed = found["henge"]
    first, second = managed.kinds(0.0, DAY_S), managed.kinds(DAY_S)
    policy_time_s = _action_s(managed)
    return {
        "mode": "fluid",
        "seed": 1,
        "paper": PAPER,
        "slots_by_hand": median_slots,
        "reaches": {
            **{name: _satisfied(run) for name, run in found.items()},
            "actions_first_day": sum(first.values()),
            "actions_second_day": sum(second.values()),
            "actions_time_share": round(policy_time_s / (2 * jobs * _HOURS * HOUR_S), 5),
            "utility_by_hour_15": round(
                float(managed.satisfaction[managed.between(0.0, 15 * HOUR_S)][-1]), 4
            ),
        },
        "rates": {
            name: [round(rate(h * HOUR_S), 1) for h in range(_HOURS)]
            for name, rate in rates.items()
        },
        "timelines": {name: timeline(run) for name, run in found.items()},
        "rows": actions_of(managed),
    }


def _run(kinds: Mapping[str, SimJob], jobs: int, policy: FleetPolicy) -> FleetRun:
    fleet = {f"{name}-{k}": job for name, job in kinds.items() for k in range(1, jobs + 1)}
    return run_fleet(STORM, fleet, policy, _HOURS * HOUR_S)


def _satisfied(run: FleetRun) -> dict[str, float]:
    """Return mean and percentiles of the satisfaction over time, in percent."""
    shares = run.satisfaction
    mean = round(100.0 * float(shares.mean()), 2)
    return {"mean": mean, **quantiles(shares, percents=(15, 50, 90))}


def _action_s(run: FleetRun) -> float:
    """Return the total time from each action to the next round in which another was possible."""
    total_s, since_s = 0.0, None
    for time_s, rule in zip(run.time_s, run.rules, strict=True):
        if since_s is not None and rule != "settling":
            total_s, since_s = total_s + time_s - since_s, None
        if "->" in rule and not rule.endswith("converged"):
            since_s = time_s
    return total_s


def _slots_by_hand() -> int:
    """Return the slots of the aggregate with which Henge brings a job to its SLO at the median load."""
    job = page_load_job(within(BOUND_S))
    run = run_fleet(STORM, {"T": job}, Henge(), _SETTLED_S)
    (act,) = run.actions
    return act.decision.slots["T"]["aggregate"]


def rate_of(directory: Path, column: str) -> Rate:
    """Return the rate of a log's day, repeated, with an hour of it in ten minutes."""
    path = directory / FILE
    if not path.is_file():
        msg = f'there is no "{FILE}" in "{directory}"; name the directory of the real traces.'
        raise ConfigError(msg)
    generator = np.random.default_rng(1)
    minutes = read_totals(str(path), column, np.ones(1), generator).counts[:, 0]
    hours: F64 = minutes.reshape(24, 60).sum(axis=1).astype(np.float64)
    hours *= page_load().rate / float(np.median(hours))
    centres = (np.arange(-1, 25) + 0.5) * HOUR_S
    levels = np.concatenate([hours[-1:], hours, hours[:1]])

    def rate(time_s: float) -> float:
        return float(np.interp(time_s % DAY_S, centres, levels))

    return rate


def draw(data: Mapping[str, Any]) -> Figure:
    """Return the rates, Henge's satisfaction with its actions, and the three distributions."""
    figure, axes = panels(1, 3)
    for name, values in data["rates"].items():
        axes[0].plot(range(len(values)), values, label=name)
    axes[0].set(xlabel="hour", ylabel="records/s")
    axes[0].legend()
    shown = data["timelines"]["henge"]
    axes[1].plot(shown["time_s"], shown["satisfaction"])
    mark_actions(axes[1], data["rows"])
    axes[1].set(xlabel="time, s", ylabel="satisfaction under Henge")
    for name, found in data["timelines"].items():
        shares = np.sort(found["satisfaction"])
        axes[2].plot(shares, np.arange(1, len(shares) + 1) / len(shares), label=name)
    axes[2].set(xlabel="satisfaction", ylabel="share of time")
    axes[2].legend()
    return figure
