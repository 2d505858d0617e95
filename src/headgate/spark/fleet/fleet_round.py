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
        job = view.jobs.get(name, FleetJob(member.utility, None, {}))
        jobs.append(
            FleetJobState(
                job=name,
                state=str(member.state),
                utility=round(job.attained, 6) if job.reported else None,
                utility_max=member.utility.maximum,
                met=job.met,
                values=tuple(round(value, 6) for value in job.values or ()),
                slots=member.slots,
                capacity={op: round(o.capacity, 4) for op, o in job.operators.items()},
                input_rate=round(job.input_rate, 3),
                granted=dict(granted.get(name, {})),
                # slots that the job's own policy requests, where these are more than granted
                requested={
                    op: o.slots + o.requested for op, o in job.operators.items() if o.requested
                },
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


def every_s(trigger: Mapping[str, object]) -> float:
    """Return the time between two batches, in seconds; 0 if only Spark can read the trigger."""
    try:
        return parse_duration_s(str(trigger.get("processingTime", "0 s")), zero=True)
    except ConfigError:
        return 0.0


def measured(job: FleetJob) -> FleetJob:
    """Return the job; raise the error of a user's utility function that fails."""
    if job.reported:
        _ = job.attained
    return job
