"""Runs policies side by side: the paper's four measures of each, and their course over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headgate.control.pools.psps import Psps
from headgate.control.pools.replicas import ReplicaPolicy
from headgate.report.plot import panels
from headgate_lab.experiments.psps import workloads
from headgate_lab.experiments.psps.workloads import Application
from headgate_lab.sim.replicas.model import GroupingKind, PoolSettings
from headgate_lab.sim.replicas.simulation import PoolRun, simulate

if TYPE_CHECKING:
    from headgate.report.plot import Figure

F64 = npt.NDArray[np.float64]

MEASURES = ("saved", "degradation", "processed", "latency_ms")

PAPERS_OWN = PoolSettings(timeout_s=30.0, queue_events=100_000, event_time_weight=0.0)
"""td = 30 s, t_out = 30 s, q_size = 100,000 (V-B [P]), and a constant time per event."""

KEEPING = PoolSettings(grouping=GroupingKind.LEAST_WORK)
"""Ours: nothing is ever dropped, times are corrected, each event goes to the least pending work."""

SHUFFLED = PoolSettings(grouping=GroupingKind.SHUFFLE)
"""Storm's: random replicas, nothing dropped."""


@dataclass(frozen=True)
class Case:
    """A row.

    Attributes
    ----------
    policy : callable or None
        Makes the policy; None for a fixed number of replicas.
    paper : sequence of float
        The row's `MEASURES` in the paper; empty for none.
    """

    system: str
    policy: Callable[[], ReplicaPolicy] | None = Psps
    settings: PoolSettings = PAPERS_OWN
    paper: Sequence[float] = field(default=())


def fixed(replicas: int, paper: Sequence[float] = ()) -> Case:
    """Return a run of Storm with a fixed number of replicas per operator."""
    settings = PoolSettings(grouping=GroupingKind.SHUFFLE, active=replicas)
    return Case(f"r = {replicas}", None, settings, paper)


@dataclass(frozen=True)
class Load:
    """Describes a run's operators and input; `replicas_needed` gives the input per second for a seed."""

    application: Application = field(default_factory=workloads.tweets)
    replicas_needed: Callable[[int], F64] = field(default=lambda _: workloads.bursts())

    def arrivals(self, seed: int) -> F64:
        """Return the arrival times of events."""
        load = self.replicas_needed(seed)
        return workloads.arrivals(load, self.application.event_s, seed)


def seeds(quick: bool) -> list[int]:
    """Return the seeds of a figure's runs."""
    return [1] if quick else [1, 2, 3, 4, 5]


def run_once(case: Case, load: Load, seed: int) -> PoolRun:
    """Run a case once."""
    policy = case.policy() if case.policy is not None else None
    until_s = float(len(load.replicas_needed(seed)))
    return simulate(
        load.application.job, policy, load.arrivals(seed), until_s, case.settings, seed=seed
    )


def row(
    case: Case, load: Load, runs: Sequence[PoolRun], window_s: float | None = None
) -> dict[str, Any]:
    """Return the means of a case's runs, and the paper's numbers; `window_s` as `PoolRun.measures`."""
    measured = [run.measures(load.application.overprovisioned, window_s) for run in runs]
    ours = {name: round(float(np.mean([m[name] for m in measured])), 4) for name in MEASURES}
    paper = dict(zip(MEASURES, case.paper, strict=True)) if case.paper else {}
    return {
        "system": case.system,
        **{
            key: value
            for name in MEASURES
            for key, value in ((name, ours[name]), (f"paper_{name}", paper.get(name)))
        },
        "dropped": round(float(np.mean([run.dropped for run in runs])), 1),
        "waiting": round(float(np.mean([run.waiting for run in runs])), 1),
        "restarts": round(float(np.mean([run.restarts for run in runs])), 1),
        "replicas_most": int(max(run.active.sum(axis=1).max() for run in runs)),
        "useful_s": round(float(np.mean([run.useful_s for run in runs])), 1),
        "replica_s": round(float(np.mean([run.active.sum() * run.interval_s for run in runs])), 1),
    }


def table(cases: Sequence[Case], load: Load, chosen_seeds: Sequence[int]) -> dict[str, Any]:
    """Run all cases; return rows, and the first seed's runs over time."""
    rows, timelines = [], []
    for case in cases:
        runs = [run_once(case, load, seed) for seed in chosen_seeds]
        rows.append(row(case, load, runs))
        timelines.append(_timeline(case.system, runs[0]))
    return {
        "mode": "replicas",
        "application": load.application.name,
        "seeds": list(chosen_seeds),
        "overprovisioned": load.application.overprovisioned,
        "paper": "in the columns paper_*",
        "rows": rows,
        "timelines": timelines,
    }


def by_system(data: Mapping[str, Any], system: str) -> dict[str, Any]:
    """Return the row of a system."""
    found: dict[str, Any] = next(each for each in data["rows"] if each["system"] == system)
    return found


def less(ours: float, other: float) -> float:
    """Return the relative difference by which `ours` is below `other`."""
    return round(1.0 - ours / other, 4)


def _timeline(system: str, run: PoolRun) -> dict[str, Any]:
    per_s = run.interval_s
    return {
        "system": system,
        "time_s": [round(per_s * (n + 1), 1) for n in range(len(run.arrived))],
        "input_per_s": np.round(run.arrived / per_s, 2).tolist(),
        "output_per_s": np.round(run.left / per_s, 2).tolist(),
        "replicas": run.active.sum(axis=1).tolist(),
    }


def draw_timelines(data: Mapping[str, Any]) -> Figure:
    """Return replicas and throughput over time, and the measures beside the paper's."""
    figure, axes = panels(2, 2)
    replicas, throughput, *bars = axes
    for line in data["timelines"]:
        replicas.step(line["time_s"], line["replicas"], label=line["system"])
        throughput.plot(line["time_s"], line["output_per_s"], label=line["system"])
    first = data["timelines"][0]
    throughput.plot(first["time_s"], first["input_per_s"], "k:", label="input")
    replicas.set(xlabel="time, s", ylabel="active replicas")
    throughput.set(xlabel="time, s", ylabel="events/s")
    replicas.legend()
    throughput.legend()
    for panel, name in zip(bars, ("saved", "processed"), strict=True):
        _beside(panel, data["rows"], name)
    return figure


def draw_measures(data: Mapping[str, Any]) -> Figure:
    """Return the four measures of every row, beside the paper's."""
    figure, axes = panels(2, 2)
    for panel, name in zip(axes, MEASURES, strict=True):
        _beside(panel, data["rows"], name)
    return figure


def _beside(panel: Any, rows: Sequence[Mapping[str, Any]], name: str) -> None:
    at = np.arange(len(rows))
    panel.bar(at - 0.2, [each[name] for each in rows], 0.4, label="here")
    paper = [each[f"paper_{name}"] for each in rows]
    panel.bar(at + 0.2, [0.0 if value is None else value for value in paper], 0.4, label="paper")
    panel.set_xticks(at, [each["system"] for each in rows], rotation=60, fontsize=6)
    panel.set(ylabel=name)
    panel.legend()
