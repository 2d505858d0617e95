"""Runs a fleet on Spark from its description: starts it, lets it run for a while, reports the result."""

from __future__ import annotations

import math
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headgate.control.fleet.registry import fleet_policy
from headgate.core.duration import parse_duration_s
from headgate.core.errors import EngineError
from headgate.core.location import uri
from headgate.journal.reader import FLEET_JOURNAL
from headgate.scenario.description import check_place
from headgate.scenario.fleet_file import FleetFile, JobSettings, read_fleet
from headgate.scenario.run import interrupts
from headgate.scenario.spark import SparkEngine, engine_module

PROGRESS_S = 1.0
"""Time between two reports of a fleet's progress, in s. Chosen, not tuned."""

_LOOK_S = 0.1
"""Time between two checks for an interrupt while a fleet starts, in s. Chosen, not tuned."""

OnProgress = Callable[[Any], None]
"""Called with the fleet every `PROGRESS_S`, also while it starts."""

_SINK_OWN = ("format", "outputMode")


def check_fleet(path: Path) -> dict[str, Any]:
    """Return the jobs that a description would run; needs no cluster.

    Raises `ConfigError`: the description is wrong, a workload does not exist, or a user's function
    cannot be loaded.
    """
    described = read_fleet(path)
    _check_queries(SparkEngine(), described)
    rows = [
        {
            "job": name,
            "query": job.query,
            "slo": " and ".join(job.slo),
            "priority": job.priority,
            "utility": job.utility if isinstance(job.utility, str) else job.utility.points,
            "policy": job.policy or "the fleet's",
            "slots": f"{job.slots.min} to {job.slots_max}, {job.slots.start} at the start",
        }
        for name, job in described.jobs.items()
    ]
    most = sum(job.slots_max for job in described.jobs.values())
    return {
        "file": str(path),
        "slots": described.fleet.slots,
        "slots_wanted_at_most": most,
        "utility_max": sum(job.priority for job in described.jobs.values()),
        "rows": rows,
    }


def run_fleet_file(
    path: Path,
    *,
    duration_s: float,
    advise: bool = False,
    work: Path | None = None,
    kill_host_at_s: float | None = None,
    on_progress: OnProgress = lambda fleet: None,
) -> dict[str, Any]:
    """Run a description on Spark for a while.

    Returns the keys of `fleet_result`, file, duration_s, work, and with `kill_host_at_s` killed.

    Parameters
    ----------
    duration_s : float    Time from the last job's start to the end, in s.
    advise : bool    Write decisions down, and change nothing.
    work : Path, optional
        Directory of the fleet's journal, and of checkpoints and outputs without a place in the file;
        default: a new temporary directory.
    kill_host_at_s : float, optional
        Fault: time from the last job's start to the kill of an executor, with its Python workers and
        their memory, in s; Spark starts another executor.
    """
    described = read_fleet(path)
    engine = SparkEngine()
    _check_queries(engine, described)
    place = work or Path(tempfile.mkdtemp(prefix="headgate-fleet-"))
    check_place(place)
    place.mkdir(parents=True, exist_ok=True)
    with interrupts() as interrupted:
        try:
            fleet = _fleet(engine, described, place, advise=advise)
            try:
                with _show_start(interrupted, fleet, on_progress):
                    fleet.start()
                events = _Events(engine, described, kill_host_at_s)
                until_s = time.monotonic() + duration_s
                while time.monotonic() < until_s and not interrupted.is_set():
                    on_progress(fleet)
                    events.pass_on(fleet, duration_s - (until_s - time.monotonic()))
                    _raise_if_all_failed(fleet)
                    time.sleep(min(PROGRESS_S, max(0.0, until_s - time.monotonic())))
                result = fleet_result(fleet)  # before the stop, which changes the jobs' states
            finally:
                fleet.stop()
        finally:
            engine.close()
    killed = {"killed": events.killed} if kill_host_at_s is not None else {}
    return {"file": str(path), "duration_s": duration_s, **result, **killed, "work": str(place)}


class _Events:
    """Causes the scheduled events of a running fleet: changes of the budget, and the loss of a host.

    Attributes
    ----------
    killed : str    The executor that was killed; empty before the kill.
    """

    def __init__(self, engine: SparkEngine, described: FleetFile, kill_at_s: float | None) -> None:
        self._engine = engine
        self._steps = list(described.fleet.budget)
        self._kill_at_s = kill_at_s
        self.killed = ""

    def pass_on(self, fleet: Any, time_s: float) -> None:
        """Cause the events due by `time_s`, seconds since the last job's start."""
        while self._steps and self._steps[0].at_s <= time_s:
            fleet.set_budget(self._steps.pop(0).slots)
        if self._kill_at_s is not None and self._kill_at_s <= time_s:
            self._kill_at_s = None
            kill = engine_module("headgate.spark.cluster.host_loss").kill_executor
            self.killed = kill(self._engine.session())


def _check_queries(engine: SparkEngine, described: FleetFile) -> None:
    """Refuse queries that do not exist, and options that a query does not take, before jobs start."""
    for name, job in described.jobs.items():
        engine.check(job.query, _text(job.options), f"[jobs.{name}]")


@contextmanager
def _show_start(
    interrupted: threading.Event, fleet: Any, on_progress: OnProgress
) -> Iterator[None]:
    """Show a fleet while it starts, which may take minutes; an interrupt stops the fleet.

    Jobs that have not started by then do not start.
    """
    over = threading.Event()

    def work() -> None:
        shown_s = -math.inf
        while not over.wait(_LOOK_S):
            if interrupted.is_set():
                fleet.stop()
                return
            if time.monotonic() - shown_s >= PROGRESS_S:
                shown_s = time.monotonic()
                on_progress(fleet)

    watcher = threading.Thread(target=work, name="headgate-fleet-watch", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _fleet(engine: SparkEngine, described: FleetFile, place: Path, *, advise: bool) -> Any:
    """Return a fleet with all jobs of a description, not started."""
    module = engine_module("headgate.spark.fleet.fleet")
    settings = described.fleet
    round_s = parse_duration_s(settings.round)
    observe_s = parse_duration_s(settings.observe) if settings.observe else None
    fleet = module.Fleet(
        engine.session(),
        settings.slots,
        round_s=round_s,
        policy=fleet_policy(settings.policy, round_s, observe_s=observe_s, goal=settings.goal),
        journal=place / FLEET_JOURNAL,
        actions_per_minute=settings.max_actions_per_minute,
        hang_s=parse_duration_s(settings.hang),
        cooldown_s=parse_duration_s(settings.cooldown) if settings.cooldown else 0.0,
        advise=advise,
    )
    for name, job in described.jobs.items():
        fleet.add(writer_of(engine, name, job, place), priority=job.priority, utility=job.shape())
    return fleet


def writer_of(engine: SparkEngine, name: str, job: JobSettings, place: Path) -> Any:
    """Return the writer of a job."""
    workload = engine.workload(job.query)
    frame = workload.build(engine.session(), **{**workload.options, **_text(job.options)})
    sink = dict(job.sink)
    writer = (
        engine_module("headgate")
        .writeStream(frame)
        .queryName(name)
        .slo(*job.slo)
        .slots(job.slots.min, job.slots_max, job.slots.start)
        .keyGroups(job.key_groups)
        .format(sink.get("format", "parquet"))
        .outputMode(sink.get("outputMode", workload.output_mode))
        .option("checkpointLocation", job.checkpoint or uri(place / name / "checkpoint"))
        .option("headgate.workload", job.query)
    )
    if "path" not in sink and sink.get("format", "parquet") in ("parquet", "orc", "json", "csv"):
        sink["path"] = uri(place / name / "output")
    writer = writer.options(**{k: v for k, v in sink.items() if k not in _SINK_OWN})
    if job.trigger:
        writer = writer.trigger(**job.trigger)
    if job.slot_rate is not None:
        writer = writer.option("headgate.slotRate", job.slot_rate)
    if job.policy:
        writer = writer.policy(job.policy)
    if job.interval:
        writer = writer.option("headgate.replicas.interval", job.interval)
    if workload.arrival is not None:
        writer = writer.option("headgate.arrival", workload.arrival)
    return writer


def _text(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as Spark's sources take them: numbers and booleans are text."""
    return {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in options.items()}


def _changes(values: Sequence[tuple[float, int]]) -> list[list[float]]:
    """Return the times at which a value changed, with the new values."""
    changes: list[list[float]] = []
    for time_s, value in values:
        if not changes or changes[-1][1] != value:
            changes.append([time_s, value])
    return changes


def _raise_if_all_failed(fleet: Any) -> None:
    states = fleet.jobs
    if states and all(state in ("failed", "gone") for state in states.values()):
        why = fleet.failures
        ends = [f"{n} {s}{f' ({why[n]})' if n in why else ''}" for n, s in states.items()]
        reasons = set(why.values())
        alike = f": {reasons.pop()}" if len(reasons) == 1 and len(why) == len(states) else ""
        msg = f"all jobs of the fleet ended{alike or ': ' + ', '.join(ends) + '.'}"
        raise EngineError(msg)


def fleet_result(fleet: Any) -> dict[str, Any]:
    """Return the result of a fleet, as ``headgate fleet run --json`` prints it."""
    rounds = fleet.rounds
    jobs: dict[str, dict[str, Any]] = {}
    for seen in rounds:
        for job in seen.jobs:
            entry = jobs.setdefault(job.job, {"utility_max": job.utility_max, "utility": []})
            entry["utility"].append([seen.time_s, job.utility])
            entry.update(slots=job.slots, values=list(job.values), met=job.met)
            entry.update(granted=job.granted, requested=job.requested)
            entry.setdefault("held", []).append([seen.time_s, sum(job.slots.values())])
    for name, state in fleet.jobs.items():
        jobs.setdefault(name, {"utility": []})["state"] = str(state)
    for name, why in fleet.failures.items():
        jobs[name]["failure"] = why
    known = [seen for seen in rounds if any(job.utility is not None for job in seen.jobs)]
    shares = [seen.utility / seen.utility_max for seen in known]
    last = known[-1] if known else None
    indicators = getattr(fleet.policy, "indicators", None)
    # Counted as in `headgate fleet status`; a policy's own counts cover only its recent past.
    touched = Counter(job for act in fleet.actions for job in act.slots)
    return {
        "policy": fleet.policy.name,
        "rounds": len(rounds),
        "utility": last.utility if last else None,
        "utility_max": last.utility_max if last else None,
        "satisfaction_mean": round(sum(shares) / len(shares), 4) if shares else None,
        "budgets": _changes([(seen.time_s, seen.slots_max) for seen in rounds]),
        "slots": last.slots if last else None,
        "slots_max": fleet.limits.slots,
        "jobs": jobs,
        "rows": [
            {
                "time_s": act.time_s,
                "action": act.action,
                "jobs": ",".join(act.slots),
                "acts": act.acts,
                "reason": act.reason,
            }
            for act in fleet.actions
        ],
        "touched": dict(touched.most_common()),
        "oversubscribed": bool(indicators.oversubscribed) if indicators is not None else None,
    }
