"""Compares policies that divide slots among six jobs, at budgets from scarce to sufficient.

This is no paper's figure. Each job is one operator whose mean load needs 4 slots. Its load is one of the
generated kinds or, if the directory of the real traces is given, a random part of one of them. The SLO
`mean < 1 s` is judged over a minute at the end of every round of ten seconds. The oracle knows the next
minute: it serves as many jobs as the budget allows, those that need least first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headgate.control.fleet.henge import Henge, HengeParameters
from headgate.control.fleet.unified_fleet import UnifiedFleet, UnifiedFleetParameters
from headgate.control.fleet.view import Action, FleetDecision, FleetPolicy, FleetView
from headgate.report.plot import panels
from headgate.whatif.parallel import run_all
from headgate_lab.experiments.henge.fleets import within
from headgate_lab.experiments.registry import Request
from headgate_lab.rivals.shares import EqualShares
from headgate_lab.sim.fleet.model import Cluster, Rate, SimJob
from headgate_lab.sim.fleet.run import run_fleet
from headgate_lab.workloads.loads import column, rates_of
from headgate_lab.workloads.topologies import OperatorShape, Topology

if TYPE_CHECKING:
    from headgate.report.plot import Figure

F64 = npt.NDArray[np.float64]

KINDS = ("sinusoid", "steps", "ramp", "flash", "mmpp", "silence")
BUDGETS = (10, 12, 14, 16, 20, 24, 28, 34, 42, 56, 80)
"""Slots for the jobs' operators; the mean of all loads together needs 24."""

SERVICE_S = 0.1
MEAN_SLOTS = 4.0
BOUND_S = 1.0
LENGTH_S = 3600.0
WARM_UP_S = 300.0
_AHEAD_S = 60.0
_MARGIN = 1.0 / (1.0 - SERVICE_S / BOUND_S)
"""Slots, as a multiple of the load, at which the projected latency is within the bound."""


_TRACES = (
    ("worldcup98.per_minute.csv.gz", "requests"),
    ("web_logs_1995.per_minute.csv.gz", "sdsc_requests"),
    ("web_logs_1995.per_minute.csv.gz", "epa_requests"),
)

_MINUTE_S = 10.0
"""Seconds in which a minute of a trace is played. Chosen."""

_REQUESTS_LEAST = 5.0
"""Least mean requests per minute of a part of a trace. Chosen."""


class FleetOracle:
    """Divides slots knowing the next minute of every job."""

    def __init__(self, rates: Mapping[str, Rate]) -> None:
        self._rates = rates

    @property
    def name(self) -> str:
        """``oracle``."""
        return "oracle"

    def decide(self, view: FleetView) -> FleetDecision:
        """Return the slots of the next minute: those that need least are served first."""
        times_s = view.time_s + np.arange(0.0, _AHEAD_S + 1.0, 5.0)
        needs = {}
        for name, job in view.jobs.items():
            most = max(self._rates[name](float(t)) for t in times_s) * SERVICE_S * _MARGIN
            late = job.operators["work"].backlog_s * job.operators["work"].slots / _AHEAD_S
            needs[name] = max(1, math.ceil(most + late))
        room = view.slots_max - len(view.jobs) * 2  # a source, and a slot that works
        slots = dict.fromkeys(view.jobs, 1)
        for name in sorted(needs, key=lambda name: (needs[name], name)):
            more = min(needs[name] - 1, room)
            slots[name] += more
            room -= more
        changes = {
            name: {"work": slots[name]}
            for name, job in view.jobs.items()
            if job.operators["work"].slots != slots[name]
        }
        return FleetDecision(Action.RECONFIGURATION, changes, "The future is known.", "oracle")


def run(request: Request) -> dict[str, Any]:
    """Return how often jobs met their SLO, by budget and policy."""
    return measure(seeds=1 if request.quick else 4, directory=request.data)


def measure(
    *, seeds: int, budgets: tuple[int, ...] = BUDGETS, directory: Path | None = None
) -> dict[str, Any]:
    """Return the same over several draws of the six loads, from the real traces if they are given."""
    items = [(budget, seed, directory) for budget in budgets for seed in range(seeds)]
    found = run_all(_one, items)
    rows = []
    for budget in budgets:
        mine = [result for (at, *_), result in zip(items, found, strict=True) if at == budget]
        for name in mine[0]:
            met, worth, slots, changes = np.mean([result[name] for result in mine], axis=0)
            rows.append(
                {
                    "budget": budget,
                    "policy": name,
                    "met": round(float(met), 4),
                    "satisfaction": round(float(worth), 4),
                    "slots": round(float(slots), 2),
                    "changes_per_h": round(float(changes), 1),
                }
            )
    loads = "generated" if directory is None else "real traces"
    return {"mode": "fluid", "loads": loads, "seeds": seeds, "paper": "none", "rows": rows}


def _one(item: tuple[int, int, Path | None]) -> dict[str, tuple[float, float, float, float]]:
    """Return the result of each policy with one budget and one draw of the loads."""
    budget, seed, directory = item
    rates = _rates(seed) if directory is None else _real_rates(directory, seed)
    watched = WARM_UP_S - 10.0
    policies: dict[str, Callable[[], FleetPolicy]] = {
        "equal-shares": EqualShares,
        "henge": lambda: Henge(HengeParameters(observe_s=watched)),
        "unified-fleet": lambda: UnifiedFleet(UnifiedFleetParameters(observe_s=watched)),
        "oracle": lambda: FleetOracle(rates),
    }
    return {name: _run(make(), rates, budget) for name, make in policies.items()}


def _run(
    policy: FleetPolicy, rates: Mapping[str, Rate], budget: int
) -> tuple[float, float, float, float]:
    each = max(1, budget // len(rates))
    jobs = {
        name: SimJob(_topology(each), within(BOUND_S, 10.0), rate) for name, rate in rates.items()
    }
    cluster = Cluster(hosts=4, cores=64.0, slots_max=budget + len(rates), noise=0.0)
    found = run_fleet(cluster, jobs, policy, LENGTH_S)
    after = found.between(WARM_UP_S, LENGTH_S)
    changes = sum(len(acted.jobs) for acted in found.actions if acted.time_s > WARM_UP_S)
    return (
        float(np.mean(found.met[after])) / len(rates),
        float(found.satisfaction[after].mean()),
        float(np.mean(found.slots[after])) - len(rates),
        changes * 3600.0 / (LENGTH_S - WARM_UP_S),
    )


def _topology(slots: int) -> Topology:
    work = OperatorShape(("source",), SERVICE_S, cpu_s=0.0, slots=slots, slots_max=40)
    return Topology({"source": OperatorShape(service_s=0.0, slots=1, slots_max=1), "work": work})


def _rates(seed: int) -> dict[str, Rate]:
    """Return the six loads, records per second by time."""
    time_s: F64 = np.arange(0.0, LENGTH_S + _AHEAD_S + 1.0)
    found: dict[str, Rate] = {}
    for number, kind in enumerate(KINDS):
        curve = rates_of(kind, time_s, np.random.default_rng([seed, number]))
        found[f"{kind}-{number}"] = _at(curve)
    return found


def _real_rates(directory: Path, seed: int) -> dict[str, Rate]:
    """Return six random parts of the real traces, each six hours long."""
    draw = np.random.default_rng([len(KINDS), seed])
    time_s: F64 = np.arange(0.0, LENGTH_S + _AHEAD_S + 1.0)
    minutes = math.ceil(time_s[-1] / _MINUTE_S) + 1
    found: dict[str, Rate] = {}
    for number in range(len(KINDS)):
        file, name = _TRACES[int(draw.integers(len(_TRACES)))]
        counts = column(directory, file, name)
        part = np.zeros(minutes)
        while part.mean() <= _REQUESTS_LEAST:
            first = int(draw.integers(len(counts) - minutes))
            part = counts[first : first + minutes]
        curve = np.interp(time_s / _MINUTE_S, np.arange(minutes), part)
        found[f"{name}-{number}"] = _at(curve)
    return found


def _at(curve: F64) -> Rate:
    """Return a curve by second as a rate whose mean needs `MEAN_SLOTS`."""
    curve = curve * (MEAN_SLOTS / SERVICE_S / curve.mean())
    return lambda time_s: float(curve[min(int(time_s), len(curve) - 1)])


def draw(data: Mapping[str, Any]) -> Figure:
    """Return how often SLOs were met against the budget, a line per policy."""
    figure, (panel,) = panels(1, 1)
    for name in dict.fromkeys(row["policy"] for row in data["rows"]):
        mine = [row for row in data["rows"] if row["policy"] == name]
        panel.plot([r["budget"] for r in mine], [r["met"] for r in mine], "o-", label=name)
    panel.set(xlabel="budget, slots", ylabel="share of jobs and rounds within the SLO")
    panel.legend()
    return figure
