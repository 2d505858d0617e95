"""Runs fleets of light jobs whose slots serve a fixed rate, so that slots may outnumber the cores.

A job counts rows by key. As long as batches keep up with their interval, its latency depends on whether
its slots can serve the arriving rows, not on the speed of the machine.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate.control.fleet.henge import HengeParameters
from headgate.control.fleet.registry import in_rounds
from headgate.control.fleet.view import FleetDecision, FleetPolicy, FleetView
from headgate.core.utility import Linear
from headgate.journal.fleet import FleetDecided, FleetRound
from headgate.spark.api.writer import Writer, writeStream
from headgate.spark.fleet.admission import WINDOW_ROUNDS
from headgate.spark.fleet.fleet import Fleet
from headgate_lab.bench.common import progress

SLOT_RATE = 100.0
"""Records per second that a slot serves."""

OBSERVED_ROUNDS = 8
"""Rounds in which a fleet is only observed; Henge's 90 would be most of a run."""

SLOTS_PER_UNIT = 1.0
"""Slots per threshold of excess congestion. A saturated operator gets 3 more slots; with the paper's
value, for ten machines, it gets 24."""

UTILITY = Linear()
"""The utility of a missed SLO is 0 from twice its bound on. With the paper's knee a backlog of a minute
still has a utility, so that the utility of late jobs would depend on the length of the run, not on the
policy."""

_KEYS, _KEY_GROUPS = 6_400, 32
_POLL_S = 0.2


@dataclass(frozen=True)
class Load:
    """Describes a job of a run.

    Attributes
    ----------
    rate : float or str
        Rows per second, or a text for `headgate.workloads.rates.parse_rate`.
    priority : float
        Utility when the SLO is met; mostly 35 in the paper.
    slots : int
        Slots at the start.
    """

    name: str
    rate: float | str
    priority: float = 35.0
    slots: int = 1


@dataclass(frozen=True)
class Setting:
    """Holds the settings of all jobs of a run.

    Attributes
    ----------
    budget : int
        Slots of all jobs together.
    bound_s : float
        Bound of the SLOs on the mean latency, in seconds.
    seconds : float
        Length of the run, after its last job has started.
    round_s : float
        Length of a round, and interval between batches of a job, in seconds.
    slots_max : int
        The most slots of a job.
    """

    budget: int
    bound_s: float
    seconds: float
    round_s: float
    slots_max: int = 16


class CutOff:
    """Hides all statistics from a policy for a while: a fault, for experiments.

    Parameters
    ----------
    from_s, until_s : float
        Begin and end of that time, in seconds since the fleet's start.
    """

    def __init__(self, inner: FleetPolicy, from_s: float, until_s: float) -> None:
        self._inner, self._from_s, self._until_s = inner, from_s, until_s

    @property
    def name(self) -> str:
        """Name of the inner policy."""
        return self._inner.name

    def decide(self, view: FleetView) -> FleetDecision:
        """Return the inner policy's decision, which sees no statistics while these are cut off."""
        if self._from_s <= view.time_s < self._until_s:
            jobs = {name: replace(job, values=None) for name, job in view.jobs.items()}
            view = replace(view, jobs=jobs)
        return self._inner.decide(view)


def scaled_down(round_s: float, observed: int = OBSERVED_ROUNDS) -> HengeParameters:
    """Return Henge's parameters for a run of minutes: its times in rounds, few slots at a time.

    In the first `observed` rounds it only observes.
    """
    observe_s = observed * round_s
    return in_rounds(round_s, observe_s=observe_s, slots_per_unit=SLOTS_PER_UNIT)


def run_fleet(
    spark: SparkSession,
    jobs: Sequence[Load],
    setting: Setting,
    policy: FleetPolicy,
    work: Path,
    met_after_s: float = math.inf,
) -> dict[str, Any]:
    """Run jobs under a policy for a while.

    The run ends early if all jobs met their SLO in the last six rounds, all of these after `met_after_s`.

    Returns
    -------
    dict
        The result of `outcome`.
    """
    progress(f"{policy.name}, {len(jobs)} jobs, {setting.budget} slots, {setting.seconds:g} s")
    fleet = started(spark, jobs, setting, policy, work)
    try:
        until_s = time.monotonic() + setting.seconds
        while time.monotonic() < until_s and not all_met(fleet.rounds, met_after_s):
            time.sleep(_POLL_S)
        return outcome(fleet.rounds, fleet.actions, fleet.failures)
    finally:
        fleet.stop()


def started(
    spark: SparkSession, jobs: Sequence[Load], setting: Setting, policy: FleetPolicy, work: Path
) -> Fleet:
    """Return a running fleet, with practically no limit on actions per minute."""
    fleet = Fleet(
        spark, setting.budget, round_s=setting.round_s, policy=policy, actions_per_minute=1_000
    )
    for job in jobs:
        writer = _writer(spark, job, setting, work / job.name)
        fleet.add(writer, priority=job.priority, utility=UTILITY)
    return fleet.start()


def _writer(spark: SparkSession, job: Load, setting: Setting, checkpoint: Path) -> Writer:
    counts = _rows(spark, job.rate).groupBy("key").count()
    writer = (
        writeStream(counts)
        .queryName(job.name)
        .slo(f"mean < {setting.bound_s:g} s over {WINDOW_ROUNDS * setting.round_s:g} s")
        .slots(max=setting.slots_max, start=job.slots)
        .keyGroups(_KEY_GROUPS)
        .format("noop")
        .outputMode("update")
        .trigger(processingTime=f"{setting.round_s:g} seconds")
        .option("checkpointLocation", str(checkpoint))
        .option("headgate.slotRate", SLOT_RATE)
    )
    return writer if _constant(job.rate) else writer.option("headgate.arrival", "scheduled")


def _rows(spark: SparkSession, rate: float | str) -> DataFrame:
    """Return rows whose keys have equal load."""
    if _constant(rate):
        rows = spark.readStream.format("rate").option("rowsPerSecond", int(rate)).load()
        return rows.select((F.col("value") % _KEYS).alias("key"))
    rows = spark.readStream.format("sentences").option("rate", rate).load()
    key = F.expr(f"pmod(xxhash64(scheduled), {_KEYS})")
    return rows.select(key.alias("key"), "scheduled")


def _constant(rate: float | str) -> bool:
    return not isinstance(rate, str)


# --- what a run comes to ---------------------------------------------------------------------------


def outcome(
    rounds: Sequence[FleetRound], actions: Sequence[FleetDecided], failures: Mapping[str, str]
) -> dict[str, Any]:
    """Summarise a fleet's rounds and actions.

    Returns
    -------
    dict
        ``utility`` (mean of the last six rounds), ``utility_max``, ``met`` (number of jobs in the last
        round), ``all_met_s`` (time from which all jobs met their SLO), ``actions`` (as rows), ``touched``
        (jobs in the order in which they got slots), ``jobs`` (by name: ``utility``, ``slots`` and
        ``input_rate`` over time), ``failures`` if there are any.
    """
    known = [seen for seen in rounds if all(job.utility is not None for job in seen.jobs)]
    last = known[-WINDOW_ROUNDS:]
    found: dict[str, Any] = {
        "utility": round(statistics.mean(r.utility for r in last), 2) if last else None,
        "utility_max": known[-1].utility_max if known else None,
        "met": sum(job.met for job in known[-1].jobs) if known else 0,
        "all_met_s": all_met_s(rounds),
        "actions": [action_row(act) for act in actions],
        "touched": touched(actions),
        "jobs": _jobs(rounds),
    }
    return found | ({"failures": dict(failures)} if failures else {})


def action_row(act: FleetDecided) -> dict[str, Any]:
    """Return an action as a row: time, kind, slots by job, reason."""
    return {
        "time_s": round(act.time_s, 1),
        "action": act.action,
        "slots": {job: sum(slots.values()) for job, slots in act.slots.items()},
        "reason": act.reason,
    }


def touched(actions: Sequence[FleetDecided]) -> list[str]:
    """Return the jobs that got slots, in order; a job once for each reconfiguration."""
    return [job for act in actions if act.action == "reconfiguration" for job in act.slots]


def all_met_s(rounds: Sequence[FleetRound]) -> float | None:
    """Return the time from which every job met its SLO until the end; None if there is none."""
    since_s = None
    for seen in reversed(rounds):
        if not seen.jobs or not all(job.met for job in seen.jobs):
            break
        since_s = round(seen.time_s, 1)
    return since_s


def all_met(rounds: Sequence[FleetRound], after_s: float) -> bool:
    """Return whether all jobs met their SLO in each of the last six rounds, all after `after_s`."""
    last = rounds[-WINDOW_ROUNDS:]
    if len(last) < WINDOW_ROUNDS or last[0].time_s <= after_s:
        return False
    return all(seen.jobs and all(job.met for job in seen.jobs) for seen in last)


def shares(rounds: Sequence[FleetRound]) -> list[float]:
    """Return the share of the maximum total utility, for each round with the utilities of all jobs."""
    return [
        seen.utility / seen.utility_max
        for seen in rounds
        if seen.jobs and all(job.utility is not None for job in seen.jobs)
    ]


def _jobs(rounds: Sequence[FleetRound]) -> dict[str, dict[str, list[list[float | None]]]]:
    found: dict[str, dict[str, list[list[float | None]]]] = {}
    for seen in rounds:
        time_s = round(seen.time_s, 1)
        for job in seen.jobs:
            kept = found.setdefault(job.job, {"utility": [], "slots": [], "input_rate": []})
            kept["utility"].append([time_s, job.utility])
            kept["slots"].append([time_s, sum(job.slots.values())])
            kept["input_rate"].append([time_s, job.input_rate])
    return found
