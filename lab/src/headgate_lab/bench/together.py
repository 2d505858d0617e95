"""Compares the utility of jobs that have own policies under one control plane with that under rivals.

The jobs are those of a fleet file, `examples/together.toml` by default, under a budget that is scarce at
first and then enough:

- ``plane``: the fleet's policy grants slots, and each job's own policy uses them;
- ``equal-shares`` and ``first-come``: the fleet sets the slots of every operator, and no job has its own
  policy;
- ``alone``: each job has its own policy and a fair share of the budget, whatever the others need.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from headgate.control.fleet.arithmetic import difference, fitted
from headgate.control.fleet.registry import fleet_policy
from headgate.control.fleet.view import Action, FleetDecision, FleetPolicy, FleetView
from headgate.control.pools.replicas import Interval, ReplicaDecision
from headgate.core.duration import parse_duration_s
from headgate.journal.fleet import FleetRound
from headgate.scenario.fleet import fleet_result, writer_of
from headgate.scenario.fleet_file import FleetFile, read_fleet
from headgate.scenario.spark import SparkEngine
from headgate.spark.api.writer import Writer
from headgate.spark.fleet.fleet import Fleet
from headgate.spark.jvm.hosts import living_hosts
from headgate_lab.bench.common import machine, parameters, progress, require
from headgate_lab.testing.cluster import StandaloneCluster

SYSTEMS = ("plane", "equal-shares", "first-come", "alone")
_POLL_S = 0.2
_ACTIONS = 1_000


@dataclass(frozen=True)
class TogetherParameters:
    """Holds the parameters of `run`."""

    file: str = "examples/together.toml"
    """The fleet file; its first budget is scarce, and its last one is enough."""

    seconds: float = 70.0
    """Duration of each of the two budgets, in seconds; > 0."""

    systems: str = ",".join(SYSTEMS)
    """Systems that run, separated by commas."""

    hosts: int = 0
    """Hosts of a cluster for each system, which share no memory; 0: Spark's own master, or 2 or more."""

    cores: int = 16
    """Cores of each host, as Spark counts them; >= 1."""

    loses_host: bool = False
    """Whether a host is killed in the middle of the second budget."""

    def __post_init__(self) -> None:
        require(
            self.hosts == 0 or self.hosts > 1,
            f"hosts={self.hosts} of together is not 0, 2 or more.",
        )
        require(self.cores > 0, f"cores={self.cores} of together is out of range; use 1 or more.")
        require(
            self.hosts > 1 or not self.loses_host, "loses_host of together needs hosts=2 or more."
        )
        require(self.seconds > 0, f"seconds={self.seconds:g} of together must be above 0.")
        for name in self.systems.split(","):
            known = ", ".join(SYSTEMS)
            require(name in SYSTEMS, f"systems={name} of together is none of {known}.")


class FairShare:
    """Grants every job the same share of the budget, evenly over its operators, whatever it needs."""

    name = "fair-share"

    def decide(self, view: FleetView) -> FleetDecision:
        """Return the changes to the shares."""
        share = view.slots_max // max(1, len(view.jobs))
        wanted = {
            name: {
                op: min(1 + given, job.operators[op].slots_max)
                for op, given in _evenly(list(job.operators), share - len(job.operators)).items()
            }
            for name, job in view.jobs.items()
        }
        changes = difference(view.slots, wanted)
        return FleetDecision(Action.RECONFIGURATION, changes, f"{share} slots each.", "fair share")


def _evenly(names: Sequence[str], slots: int) -> dict[str, int]:
    return dict.fromkeys(names, 0) | fitted(dict.fromkeys(names, max(slots, 0)), slots)


class Unmoved:
    """Leaves the number of replicas to the fleet: a policy over pools that decides nothing."""

    name = "static"

    def decide(self, interval: Interval) -> ReplicaDecision:
        """Return nothing."""
        return ReplicaDecision()


def run(**given: Any) -> dict[str, Any]:
    """Run the same jobs under each system, one system after another.

    Parameters
    ----------
    **given
        Fields of `TogetherParameters`.

    Returns
    -------
    dict
        ``rows`` (per system: share of the maximum utility, once all jobs have started: ``all`` the time,
        while ``scarce`` and while ``enough``; number of jobs that met their SLO at the end), ``times``
        (ratio of the plane's share to each other one's, over all the time), ``runs`` (by system, as
        ``headgate fleet run --json``),
        ``parameters``, ``machine``.
    """
    chosen = parameters(TogetherParameters, given)
    described = read_fleet(Path(chosen.file))
    runs = {name: _on_hosts(described, name, chosen) for name in chosen.systems.split(",")}
    rows = [
        {"system": name, **found["shares"], "met": found["met"]} for name, found in runs.items()
    ]
    plane = runs.get("plane", {}).get("shares", {}).get("all")
    return {
        "rows": rows,
        "times": {
            name: round(plane / found["shares"]["all"], 3)
            for name, found in runs.items()
            if plane and name != "plane" and found["shares"]["all"]
        },
        "runs": runs,
        "parameters": asdict(chosen),
        "machine": machine(),
    }


def _on_hosts(described: FleetFile, system: str, chosen: TogetherParameters) -> dict[str, Any]:
    """Run the jobs under a system, on a cluster of its own if one is asked for."""
    if not chosen.hosts:
        return _run(described, system, chosen, SparkEngine(), lambda: None)
    with (
        tempfile.TemporaryDirectory(prefix="headgate-together-cluster-") as work,
        StandaloneCluster(Path(work), workers=chosen.hosts, cores=chosen.cores) as cluster,
    ):
        engine = SparkEngine({"spark.master": cluster.master, "spark.executor.memory": "700m"})
        lose = partial(cluster.kill_worker, cluster.hosts[-1])
        return _run(described, system, chosen, engine, lose)


def _run(
    described: FleetFile,
    system: str,
    chosen: TogetherParameters,
    engine: SparkEngine,
    lose: Callable[[], None],
) -> dict[str, Any]:
    """Run the jobs under a system, and close the engine; `lose` kills a host."""
    settings, seconds = described.fleet, chosen.seconds
    progress(f"{system}, twice {seconds:g} s")
    budgets = [int(settings.slots), *(step.slots for step in settings.budget)]
    round_s = parse_duration_s(settings.round)
    try:
        with tempfile.TemporaryDirectory(prefix=f"headgate-together-{system}-") as work:
            spark = engine.session()
            while len(living_hosts(spark)) < chosen.hosts:
                time.sleep(_POLL_S)
            fleet = Fleet(
                spark,
                budgets[0],
                round_s=round_s,
                policy=_policy(described, system, round_s),
                journal=Path(work) / "fleet.jsonl",
                actions_per_minute=_ACTIONS,
                hang_s=parse_duration_s(settings.hang),
            )
            for name, job in described.jobs.items():
                writer = _adapted(writer_of(engine, name, job, Path(work)), system)
                fleet.add(writer, priority=job.priority, utility=job.shape())
            try:
                fleet.start()
                from_s = _wait(fleet, 0.0)
                enough_s = _wait(fleet, seconds)
                fleet.set_budget(budgets[-1])
                _wait(fleet, seconds / 2)
                if chosen.loses_host:
                    progress("a host is killed")
                    lose()
                _wait(fleet, seconds / 2)
                found = fleet_result(fleet)
                rounds = fleet.rounds
            finally:
                fleet.stop()
    finally:
        engine.close()
    found["shares"] = shares(rounds, from_s, enough_s)
    found["met"] = sum(job.met for job in rounds[-1].jobs) if rounds else 0
    return found


def _wait(fleet: Fleet, seconds: float) -> float:
    """Wait for `seconds`, and return the time of the fleet's latest round."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        time.sleep(_POLL_S)
    return fleet.rounds[-1].time_s if fleet.rounds else 0.0


def _policy(described: FleetFile, system: str, round_s: float) -> FleetPolicy:
    if system == "alone":
        return FairShare()
    settings = described.fleet
    name = settings.policy if system == "plane" else system
    observe_s = parse_duration_s(settings.observe) if settings.observe else None
    return fleet_policy(name, round_s, observe_s=observe_s)


def _adapted(writer: Writer, system: str) -> Writer:
    """Return a job's writer, without its own policy if the system is a rival of the plane."""
    if system in ("plane", "alone"):
        return writer
    given = writer.settings
    pools = None if given.replica_policy is None else Unmoved()
    writer.settings = replace(given, policy=None, replica_policy=pools)
    return writer


def shares(rounds: Sequence[FleetRound], from_s: float, enough_s: float) -> dict[str, float | None]:
    """Return the mean share of the maximum utility, all the time, until `enough_s`, and after it.

    Rounds before `from_s`, when the last job had started, do not count. A job without statistics in a
    round has utility 0 in that round.
    """

    def mean(begin_s: float, end_s: float) -> float | None:
        found = [r.utility / r.utility_max for r in rounds if begin_s <= r.time_s < end_s]
        return round(statistics.mean(found), 4) if found else None

    return {
        "all": mean(from_s, math.inf),
        "scarce": mean(from_s, enough_s),
        "enough": mean(enough_s, math.inf),
    }
