"""Builds the record of a round from the jobs of a fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate.control.fleet.view import FleetJob, FleetView
from headgate.core.duration import parse_duration_s
from headgate.core.errors import ConfigError
from headgate.journal.fleet import FleetHostState, FleetJobState, FleetRound
from headgate.spark.fleet.hosts import HostLoad
from headgate.spark.fleet.member import JobState, Member


def fleet_round(
    view: FleetView,
    members: Mapping[str, Member],
    slots_max: int,
    granted: Mapping[str, Mapping[str, int]],
    hosts: Sequence[HostLoad] = (),
) -> FleetRound:
    """Return a round's observations of the jobs that have not ended, under a budget of `slots_max`."""
    jobs = []
    for name, member in members.items():
        if member.state in (JobState.GONE, JobState.FAILED):
            continue
        job = view.jobs.get(name)
        known = job is not None and job.reported
        jobs.append(
            FleetJobState(
                job=name,
                state=str(member.state),
                utility=round(job.attained, 6) if job is not None and known else None,
                utility_max=member.utility.maximum,
                met=job.met if job is not None else False,
                values=tuple(round(v, 6) for v in job.values) if job and job.values else (),
                slots=member.slots,
                capacity={op: round(o.capacity, 4) for op, o in job.operators.items()}
                if job is not None
                else {},
                input_rate=round(job.input_rate, 3) if job is not None else 0.0,
                granted=dict(granted.get(name, {})),
                requested=_requested(job) if job is not None else {},
            )
        )
    known_utilities = [job.utility for job in jobs if job.utility is not None]
    return FleetRound(
        time_s=round(view.time_s, 3),
        jobs=tuple(jobs),
        utility=round(sum(known_utilities), 6),
        utility_max=sum(job.utility_max for job in jobs),
        slots=sum(sum(job.slots.values()) for job in jobs),
        slots_max=slots_max,
        congested=view.congested,
        hosts=tuple(
            FleetHostState(
                host=host.host,
                cores=host.cores,
                runnable=round(host.runnable, 3),
                load=host.load,
                congested=host.congested,
            )
            for host in hosts
        ),
    )


def _requested(job: FleetJob) -> dict[str, int]:
    """Return the slots that a job's own policy requests, where these are more than granted."""
    wanted = {op: operator.request for op, operator in job.operators.items()}
    return {op: n for op, n in wanted.items() if n is not None and n > job.operators[op].slots}


def every_s(trigger: Mapping[str, object]) -> float:
    """Return the time between two batches, in seconds; 0 if only Spark can read the trigger."""
    try:
        return parse_duration_s(str(trigger.get("processingTime", "0 s")), zero=True)
    except ConfigError:
        return 0.0


def measured(job: FleetJob) -> FleetJob:
    """Return the job; raise an error of the user's function if it cannot compute the utility."""
    if job.reported:
        _ = job.attained
    return job
