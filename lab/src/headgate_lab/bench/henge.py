"""Runs Henge's figures 9, 11, 12, 13 and 17 on Spark, scaled down to minutes and to a laptop.

As in the paper: the number of jobs (figure 12: two logs, one job each), priorities, relative sizes and
the order of events. Times are in rounds; the paper's round is 10 s.

Differs from the paper: a job has one operator. Slots serve a fixed rate, since real work of one job would
fill two cores. Bounds are seconds instead of 60 to 80 ms, the time of a micro-batch. Utilities are linear
instead of knees. A fleet is observed for 8 rounds before it acts (figure 9: for 20, so that all jobs are
late by then), not for 90. Grants are 1 slot per threshold of excess congestion instead of 10, which would
give the first job the whole budget. An input rate over a few batches varies by a tenth, so *steady* is
within 20 % (Henge simulated: 2 %), and a change of 30 % (10 %) allows another reduction.

Figure 12 begins warm: all three systems first run for `WARM_ROUNDS` at the median load, for which slots
set by hand are chosen; these rounds do not count. With a cold start, a tenth of a day of three minutes
would pass before Henge acts for the first time, against 3 % of the paper's two days of eight hours; and
the first batches of a session are slow for all systems.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from pyspark.sql import SparkSession

from headgate.control.fleet.henge import Henge
from headgate.control.fleet.view import FleetPolicy
from headgate.journal.fleet import FleetRound
from headgate.spark.cluster.session import session
from headgate.workloads.traces import read_totals
from headgate_demo.spark import sources
from headgate_lab.bench.common import machine, parameters, progress, require
from headgate_lab.bench.fleets import (
    SLOT_RATE,
    CutOff,
    Load,
    Setting,
    outcome,
    run_fleet,
    scaled_down,
    shares,
    started,
)
from headgate_lab.rivals.shares import Unmanaged

DATA_FILE = "web_logs_1995.per_minute.csv.gz"
_HOURS = 24
_DAYS = 2
_ROUNDS_PER_HOUR = 2
WARM_ROUNDS = 30
"""Rounds before the first day of figure 12: 8 in which Henge observes, the rest for its actions and for
the backlog to drain."""

_LATE_ROUNDS = 20
"""Rounds of figure 9 after which a job with 1.5 times the input that its slot can serve is far beyond its
bound: with a bound of 8 s and rounds of 2 s, 40 s of input leave 13 s of backlog."""

_POLL_S = 0.2

CUT_ROUNDS, FRESH_ROUNDS = 36, 30
"""Figure 17: rounds without statistics, and rounds of new statistics before Henge acts again. In the
paper 360 s and 300 s."""

_WORKERS = {"T1": 12.0, "T2": 3.0, "T3": 2.25, "T4": 1.2, "T5": 0.6}
_SLOTS = {"T1": 4, "T2": 1, "T3": 8, "T4": 1, "T5": 1}
"""Figure 13: slots that each job's input keeps busy, and slots at the start [I]. The order of sizes is
that of table 3; with the paper's 234 to 1 workers a laptop would have no slots for the smaller jobs."""


@dataclass(frozen=True)
class HengeBenchParameters:
    """Holds the parameters of `run`."""

    only: str = "9,11,13,17"
    """Numbers of the figures; 12 also needs `data`."""

    data: str = ""
    """Directory of the web logs of figure 12."""

    round_s: float = 3.0
    """Time between two decisions, and between two batches of a job; > 0."""

    bound_s: float = 8.0
    """Bound of the SLOs on the mean latency, in seconds; > 0."""

    def __post_init__(self) -> None:
        require(self.round_s > 0, f"round_s={self.round_s} of henge must be above 0.")
        require(self.bound_s > 0, f"bound_s={self.bound_s} of henge must be above 0.")
        known = ", ".join(_FIGURES)
        for name in self.names():
            require(name in _FIGURES, f'henge has no figure "{name}" on Spark; use {known}.')
        missing = "12" in self.names() and not (Path(self.data) / DATA_FILE).is_file()
        require(
            not missing,
            f'there is no "{DATA_FILE}" in "{self.data}"; name its directory: --option data=DIR.',
        )

    def names(self) -> list[str]:
        """Return the figures, each once."""
        return list(dict.fromkeys(name.strip() for name in self.only.split(",") if name.strip()))


def run(**given: Any) -> dict[str, Any]:
    """Run the figures one after the other.

    Parameters
    ----------
    **given
        Fields of `HengeBenchParameters`.

    Returns
    -------
    dict
        ``figures`` (by number: ``paper``, ``here``, and the runs, as `fleets.outcome` returns them),
        ``parameters``, ``machine``.
    """
    chosen = parameters(HengeBenchParameters, given)
    found: dict[str, Any] = {}
    spark = session()
    try:
        sources.register(spark)
        for name in chosen.names():
            progress(f"figure {name}")
            with TemporaryDirectory(prefix=f"headgate-henge-{name}-") as work:
                found[name] = _FIGURES[name](spark, chosen, Path(work))
            progress(str(found[name]["here"]))
    finally:
        spark.stop()
    return {"figures": found, "parameters": asdict(chosen), "machine": machine()}


def _setting(chosen: HengeBenchParameters, budget: int, rounds: int) -> Setting:
    return Setting(budget, chosen.bound_s, rounds * chosen.round_s, chosen.round_s)


# --- figure 9 ------------------------------------------------------------------------------------


def _figure_9(spark: SparkSession, chosen: HengeBenchParameters, work: Path) -> dict[str, Any]:
    """Run nine jobs of priorities 10 to 90 that cannot keep up at first; the budget suffices for all."""
    jobs = [Load(f"T{k}", 1.5 * SLOT_RATE, priority=10.0 * k) for k in range(1, 10)]
    policy = Henge(scaled_down(chosen.round_s, _LATE_ROUNDS))
    setting = _setting(chosen, budget=5 * len(jobs), rounds=160)
    found = run_fleet(spark, jobs, setting, policy, work, 40 * chosen.round_s)
    return {
        "paper": {"order": "T9 first, then by priority", "all met": "90 rounds after it may act"},
        "here": {
            "order": found["touched"],
            "in_order": found["touched"] == [f"T{k}" for k in range(9, 0, -1)],
            "all_met_rounds": _rounds_since_acting(found["all_met_s"], chosen.round_s),
            "utility": found["utility"],
            "utility_max": found["utility_max"],
        },
        "run": found,
    }


def _rounds_since_acting(at_s: float | None, round_s: float) -> float | None:
    """Return a time in rounds since Henge was first allowed to act."""
    return None if at_s is None else round(at_s / round_s - _LATE_ROUNDS, 1)


# --- figure 11 -----------------------------------------------------------------------------------


def _figure_11(spark: SparkSession, chosen: HengeBenchParameters, work: Path) -> dict[str, Any]:
    """Run two jobs; after both meet their SLO, the input of B doubles for a while, then that of A."""
    spikes = {"B": (35, 50), "A": (50, 65)}
    base = 1.5 * SLOT_RATE
    jobs = [Load(name, _spike(base, chosen.round_s, *spikes[name])) for name in ("A", "B")]
    setting = _setting(chosen, budget=10, rounds=70)
    found = run_fleet(spark, jobs, setting, Henge(scaled_down(chosen.round_s)), work)
    total = _total(found)
    spiked = [u for t, u in total if 35 <= t / chosen.round_s < 65]  # noqa: PLR2004 (above)
    return {
        "paper": {"utility during the spikes": "70 of 70"},
        "here": {
            "utility_during_the_spikes": {
                "least": min(spiked, default=None),
                "mean": round(float(np.mean(spiked)), 2) if spiked else None,
            },
            "utility_max": found["utility_max"],
            "actions": [act["time_s"] for act in found["actions"]],
        },
        "run": found,
    }


def _spike(base: float, round_s: float, start: int, stop: int) -> str:
    times = f"start={start * round_s:g}s, stop={stop * round_s:g}s"
    return f"spike(base={base:g}, factor=2, {times})"


def _total(found: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Return pairs of time and total utility, where all jobs' utilities are known."""
    columns = [job["utility"] for job in found["jobs"].values()]
    rows = zip(*columns, strict=True) if len({len(c) for c in columns}) == 1 else ()
    totals = []
    for row in rows:
        worth = [utility for _, utility in row]
        if None not in worth:
            totals.append((row[0][0], round(sum(worth), 2)))
    return totals


# --- figure 12 -----------------------------------------------------------------------------------


def _figure_12(spark: SparkSession, chosen: HengeBenchParameters, work: Path) -> dict[str, Any]:
    """Run two days of two logs, an hour in two rounds, under Henge, set by hand and unmanaged at once."""
    hour_s, warm_s = _ROUNDS_PER_HOUR * chosen.round_s, WARM_ROUNDS * chosen.round_s
    loads = {name: _diurnal(chosen.data, name, hour_s, warm_s) for name in ("sdsc", "epa")}
    by_hand = 2  # slots that keep up at the median load, which keeps one slot busy
    systems: dict[str, tuple[FleetPolicy, int]] = {
        "henge": (Henge(scaled_down(chosen.round_s)), 1),
        "by hand": (Unmanaged(), by_hand),
        "unmanaged": (Unmanaged(), 1),
    }
    day_rounds = _ROUNDS_PER_HOUR * _HOURS
    setting = _setting(chosen, budget=12, rounds=WARM_ROUNDS + _DAYS * day_rounds)
    fleets = {}
    try:
        for system, (policy, slots) in systems.items():
            prefix = system.replace(" ", "-")
            jobs = [Load(f"{prefix}-{name}", text, slots=slots) for name, text in loads.items()]
            fleets[system] = started(spark, jobs, setting, policy, work)
        time.sleep(setting.seconds)
        rounds = {system: fleet.rounds for system, fleet in fleets.items()}
        actions = fleets["henge"].actions
    finally:
        for fleet in fleets.values():
            fleet.stop()
    second_day_s = warm_s + day_rounds * chosen.round_s
    acted = [act.time_s for act in actions]
    return {
        "paper": {
            "mean, %": {"henge": 88.12, "by hand": 87.77, "unmanaged": 4.56},
            "15th, 50th, 90th, %": {
                "henge": (74.9, 99.1, 100),
                "by hand": (66.5, 99.8, 100),
                "unmanaged": (None, 0.0006, 30.9),
            },
            "actions": "fewer on the second day",
        },
        "here": {
            **{
                system: satisfied(shares(begun_warm(seen, warm_s)))
                for system, seen in rounds.items()
            },
            "with_the_cold_start": {
                system: satisfied(shares(seen)) for system, seen in rounds.items()
            },
            "slots_by_hand": by_hand,
            "actions_before": sum(t < warm_s for t in acted),
            "actions_first_day": sum(warm_s <= t < second_day_s for t in acted),
            "actions_second_day": sum(t >= second_day_s for t in acted),
        },
        "runs": {
            system: outcome(seen, actions if system == "henge" else [], {})
            for system, seen in rounds.items()
        },
    }


def begun_warm(rounds: Sequence[FleetRound], warm_s: float) -> list[FleetRound]:
    """Return the rounds of the days, without the warm-up before them."""
    return [seen for seen in rounds if seen.time_s >= warm_s]


def satisfied(found: Sequence[float]) -> dict[str, float]:
    """Return mean and percentiles of shares of the maximum utility, in percent."""
    percents = 100.0 * np.array(found)
    named = {f"p{q}": round(float(np.percentile(percents, q)), 2) for q in (15, 50, 90)}
    return {"mean": round(float(percents.mean()), 2), **named}


def _diurnal(directory: str, name: str, hour_s: float, warm_s: float) -> str:
    """Return two days of a log's hours as the text of a rate in steps; the median keeps one slot busy.

    The days begin after `warm_s` at the median.
    """
    generator = np.random.default_rng(1)
    path = str(Path(directory) / DATA_FILE)
    minutes = read_totals(path, f"{name}_requests", np.ones(1), generator).counts[:, 0]
    hours = minutes.reshape(_HOURS, 60).sum(axis=1)
    return day_steps(hours / np.median(hours) * SLOT_RATE, hour_s, _DAYS, (warm_s, SLOT_RATE))


def day_steps(
    rates: Sequence[float], hour_s: float, days: int, before: tuple[float, float] = (0.0, 0.0)
) -> str:
    """Return the rates of a day's hours, repeated for some days, as the text of a rate in steps.

    Parameters
    ----------
    rates : sequence of float
        Records per second in each hour.
    hour_s : float
        Length of an hour in the run, in seconds.
    before : tuple of float
        Length in seconds, and rate, of a period before the first day.
    """
    after_s, first = before
    hours = [(after_s + k * hour_s, rate) for k, rate in enumerate(list(rates) * days)]
    if not after_s:
        first = hours.pop(0)[1]
    steps = [f"{at_s:g}s={rate:.6g}" for at_s, rate in hours]
    return f"steps({', '.join([f'{first:.6g}', *steps])})"


# --- figure 13 -----------------------------------------------------------------------------------


def _figure_13(spark: SparkSession, chosen: HengeBenchParameters, work: Path) -> dict[str, Any]:
    """Run five jobs of very different size under a budget that is too small for the largest."""
    jobs = [Load(name, busy * SLOT_RATE, slots=_SLOTS[name]) for name, busy in _WORKERS.items()]
    policy = Henge(scaled_down(chosen.round_s))
    setting = _setting(chosen, budget=18, rounds=90)
    found = run_fleet(spark, jobs, setting, policy, work)
    kinds = [act["action"] for act in found["actions"]]
    return {
        "paper": {
            "actions": "reconfigurations, a reduction, others, a reversion; then no thrashing",
            "share at the end": 0.686,
        },
        "here": {
            "actions": kinds,
            "share_at_the_end": _share(found),
            "satisfaction": {
                name: _median_share(job["utility"], 35.0) for name, job in found["jobs"].items()
            },
        },
        "run": found,
    }


def _share(found: Mapping[str, Any]) -> float | None:
    worth = found["utility"]
    return None if worth is None else round(worth / found["utility_max"], 4)


def _median_share(utility: Sequence[Sequence[float | None]], most: float) -> float | None:
    known = [worth for _, worth in utility if worth is not None]
    return round(float(np.median(known)) / most, 4) if known else None


# --- figure 17 -----------------------------------------------------------------------------------


def _figure_17(spark: SparkSession, chosen: HengeBenchParameters, work: Path) -> dict[str, Any]:
    """Run four jobs, without statistics of any of them for 36 rounds while Henge acts."""
    round_s = chosen.round_s
    cut_s = (12 * round_s, (12 + CUT_ROUNDS) * round_s)
    fresh_s = cut_s[1] + FRESH_ROUNDS * round_s
    inner = Henge(replace(scaled_down(round_s), fresh_s=FRESH_ROUNDS * round_s))
    jobs = [Load(f"T{k}", 1.5 * SLOT_RATE) for k in range(1, 5)]
    setting = _setting(chosen, budget=5 * len(jobs), rounds=160)
    found = run_fleet(spark, jobs, setting, CutOff(inner, *cut_s), work, fresh_s)
    times_s = [act["time_s"] for act in found["actions"]]
    return {
        "paper": {"actions while cut, and 30 rounds after": 0, "end": "all SLOs met"},
        "here": {
            "cut_s": cut_s,
            "actions_while_cut_or_collecting": sum(cut_s[0] <= t < fresh_s for t in times_s),
            "first_action_after_s": min((t for t in times_s if t >= cut_s[1]), default=None),
            "allowed_from_s": fresh_s,
            "all_met_s": found["all_met_s"],
        },
        "run": found,
    }


_FIGURES: Mapping[str, Callable[[SparkSession, HengeBenchParameters, Path], dict[str, Any]]] = {
    "9": _figure_9,
    "11": _figure_11,
    "12": _figure_12,
    "13": _figure_13,
    "17": _figure_17,
}
