"""Runs a simulated cluster under a fleet policy, round by round."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from headgate.control.fleet.view import FleetDecision, FleetJob, FleetPolicy, FleetView
from headgate_lab.sim.fleet.kernels import F64
from headgate_lab.sim.fleet.model import Cluster, Jobs
from headgate_lab.sim.fleet.simulation import FleetSimulation

ROUND_S = 10.0
"""Length of a round, in seconds: Henge 5.1."""


@dataclass(frozen=True)
class Acted:
    """Holds a decision with changes, and its time in seconds."""

    time_s: float
    decision: FleetDecision

    @property
    def jobs(self) -> tuple[str, ...]:
        """Names of the jobs whose slots change."""
        return tuple(self.decision.slots)


@dataclass
class FleetRun:
    """Records a run, round by round.

    Attributes
    ----------
    maximum : dict of str to float
        Largest utility of each job.
    time_s : list of float
        End of each round.
    utility : list of dict of str to float
        Utility of each job that ran in the round.
    met : list of int
        Number of jobs that met their SLO.
    slots, load, memory : list of float
        Slots granted; runnable slots per core; share of the memory taken.
    rules : list of str
        The rule of each round's decision.
    decide_ms : list of float
        Wall-clock time of each round's decision.
    """

    maximum: dict[str, float]
    time_s: list[float] = field(default_factory=list)
    utility: list[dict[str, float]] = field(default_factory=list)
    met: list[int] = field(default_factory=list)
    slots: list[float] = field(default_factory=list)
    load: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)
    actions: list[Acted] = field(default_factory=list)
    decide_ms: list[float] = field(default_factory=list)

    @property
    def total(self) -> F64:
        """Total utility by round, shape [rounds]."""
        return np.array([sum(values.values()) for values in self.utility])

    @property
    def satisfaction(self) -> F64:
        """Total utility, relative to its maximum, by round, shape [rounds]."""
        most = [sum(self.maximum[name] for name in values) or 1.0 for values in self.utility]
        shares: F64 = self.total / np.array(most)
        return shares

    def between(self, start_s: float, end_s: float) -> slice:
        """Return the rounds that end within (start_s, end_s]."""
        low, high = np.searchsorted(self.time_s, [start_s, end_s], side="right")
        return slice(int(low), int(high))

    def share_of(self, name: str) -> F64:
        """Return the share of its maximum that a job attained in the rounds in which it ran."""
        values = [found[name] for found in self.utility if name in found]
        return np.array(values) / self.maximum[name]

    def kinds(self, start_s: float = 0.0, end_s: float = float("inf")) -> dict[str, int]:
        """Return the number of actions of each kind within [start_s, end_s)."""
        found: dict[str, int] = {}
        for acted in self.actions:
            if start_s <= acted.time_s < end_s:
                kind = str(acted.decision.action)
                found[kind] = found.get(kind, 0) + 1
        return found


def run_fleet(
    cluster: Cluster,
    jobs: Jobs,
    policy: FleetPolicy,
    length_s: float,
    *,
    seed: int = 1,
    round_s: float = ROUND_S,
    blind: Callable[[float], bool] = lambda time_s: False,
) -> FleetRun:
    """Run jobs under a policy.

    Parameters
    ----------
    jobs : mapping of str to SimJob
        Jobs by name, which arrive and leave at their times.
    policy : FleetPolicy
        Called at the end of every round; its decision is in force at once.
    seed : int
        Seed of the hosts' noise.
    blind : callable
        Returns whether the policy gets no statistics at a time, in seconds.
    """
    simulation = FleetSimulation(cluster, seed)
    run = FleetRun({name: job.utility.maximum for name, job in jobs.items()})
    while simulation.time_s < length_s - 1e-9:
        for name, job in jobs.items():
            held = name in simulation.jobs
            wanted = job.arrives_s <= simulation.time_s < job.leaves_s
            if wanted and not held:
                simulation.add(name, job)
            elif held and not wanted:
                simulation.remove(name)
        simulation.advance(round_s)
        view = simulation.view()
        _note(run, simulation, view)
        began_s = time.perf_counter()
        seen = _unseen(view) if blind(simulation.time_s) else view
        decision = policy.decide(seen)
        run.decide_ms.append((time.perf_counter() - began_s) * 1e3)
        run.rules.append(decision.rule)
        if decision:
            simulation.apply(decision.slots)
            run.actions.append(Acted(simulation.time_s, decision))
    return run


def _unseen(view: FleetView) -> FleetView:
    """Return the view of a policy that gets no statistics."""

    def silent(job: FleetJob) -> FleetJob:
        return replace(job, values=None)

    return replace(view, jobs={name: silent(job) for name, job in view.jobs.items()})


def _note(run: FleetRun, simulation: FleetSimulation, view: FleetView) -> None:
    run.time_s.append(view.time_s)
    run.utility.append({name: job.attained for name, job in view.jobs.items()})
    run.met.append(sum(job.met for job in view.jobs.values()))
    run.slots.append(view.slots_max - view.slots_free)
    run.load.append(simulation.load)
    run.memory.append(simulation.memory_share)
