"""Reports the jobs and actions of a fleet, running or dead, from its journal alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headgate.core.errors import ConfigError
from headgate.core.input import is_directory, is_file, shown
from headgate.journal import FleetDecided, FleetJobChanged, FleetRound, FleetStart, read
from headgate.journal.reader import FLEET_JOURNAL


def fleet_status(journal: Path, since_s: float | None = None) -> dict[str, Any]:
    """Return the state of a fleet: its jobs, and the decisions that change slots.

    Advice counts as a decision, although nobody carries it out.

    `journal`: the journal, or the directory that holds ``fleet.jsonl``. `since_s`: only decisions
    within so many seconds before the newest round; all by default. Raises `ConfigError`: there is no
    journal of a fleet.
    """
    path = journal / FLEET_JOURNAL if is_directory(journal) else journal
    if not is_file(path):
        msg = (
            f'there is no fleet\'s journal at "{shown(path)}"; name the directory given to --work.'
        )
        raise ConfigError(msg)
    rounds: list[FleetRound] = []
    policy, rule = "", ""
    acts: list[tuple[int, FleetDecided]] = []
    states: dict[str, FleetJobChanged] = {}
    since_round: dict[str, str] = {}
    touched: dict[str, int] = {}
    for event in read(path):
        if isinstance(event, FleetRound):
            rounds.append(event)
            since_round = {}
        elif isinstance(event, FleetDecided):
            rule = event.rule
            acts += [(len(rounds), event)] if event.slots else []
            for job in event.slots:
                touched[job] = touched.get(job, 0) + 1
        elif isinstance(event, FleetStart):
            policy, rule = event.policy, ""
            # Earlier lines may be of another run, with other jobs and another clock.
            rounds, acts, states, touched, since_round = [], [], {}, {}, {}
        elif isinstance(event, FleetJobChanged):
            states[event.job] = event
            since_round[event.job] = event.state
    if not rounds:
        msg = (
            f'"{shown(path)}" has no round of a fleet; wait for the first, or name another journal.'
        )
        raise ConfigError(msg)
    last = rounds[-1]
    from_s = -1.0 if since_s is None else last.time_s - since_s
    before = [number for number, _ in acts]
    after = [*before[1:], len(rounds)][: len(before)]  # empty without a decision
    rows = [
        {
            "time_s": act.time_s,
            "action": act.action,
            "slots": _slots(act),
            "utility_before": rounds[number - 1].utility if number else None,
            "utility_after": rounds[end - 1].utility if end > number else None,
            "acts": act.acts,
            "reason": act.reason,
        }
        for (number, act), end in zip(acts, after, strict=True)
        if act.time_s >= from_s
    ]
    short = [seen for seen in rounds if seen.utility < seen.utility_max]
    return {
        "journal": str(path),
        "policy": policy,
        "time_s": last.time_s,
        "utility": last.utility,
        "utility_max": last.utility_max,
        "slots": last.slots,
        "slots_max": last.slots_max,
        "congested": last.congested,
        "hosts": [dataclasses.asdict(host) for host in last.hosts],
        "rounds_below_maximum": round(len(short) / len(rounds), 4),
        "touched": dict(sorted(touched.items(), key=lambda pair: -pair[1])),
        # The policy has converged, and still some job misses its SLO (Henge 5.5).
        "oversubscribed": rule.endswith("converged") and not all(job.met for job in last.jobs),
        "jobs": _jobs(last, states, since_round),
        "rows": rows,
    }


def _jobs(
    last: FleetRound, states: Mapping[str, FleetJobChanged], since_round: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return a row per job: first the jobs of the newest round, with their figures.

    Jobs that only earlier rounds had come last, without figures.
    """
    seen = {job.job: job for job in last.jobs}
    rows = []
    for name in [*seen, *(name for name in states if name not in seen)]:
        job = seen.get(name)
        slots = job.slots if job is not None else {}
        changed = states.get(name)
        rows.append(
            {
                "job": name,
                "state": since_round.get(name) or (job or states[name]).state,
                "utility": job.utility if job is not None else None,
                "of": job.utility_max if job is not None else None,
                "met": job.met if job is not None else None,
                "slots": sum(slots.values()),
                "busiest": max(job.capacity.values(), default=None) if job is not None else None,
                "records_per_s": job.input_rate if job is not None else None,
                "why": changed.why if changed is not None else "",
            }
        )
    return rows


def _slots(act: FleetDecided) -> str:
    return "; ".join(
        f"{job} " + ", ".join(f"{op} -> {n}" for op, n in slots.items())
        for job, slots in act.slots.items()
    )
