"""Computes DRRS's measures of a run from the event log and from suspensions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from headgate_lab.sim.dataflow.eventlog import Event, EventLog

F64 = npt.NDArray[np.float64]


def propagation_s(log: EventLog) -> float:
    """Return the cumulative propagation delay of all signals, from injection to start.

    For a step that starts at several slots the mean counts.

    References
    ----------
    DRRS V-B names the measure; the definition follows the log of its code.
    """
    return float(sum(_propagation(log).values()))


def dependency_s(log: EventLog) -> float:
    """Return the mean time that a unit waits for others, from the request to its departure.

    The propagation of its own signal does not count. 0 if no unit left.

    References
    ----------
    DRRS II-B and V-B, the "average dependency overhead", which it does not define.
    """
    requested = [event.at_s for event in log.of("requested")]
    if not requested:
        return 0.0
    propagation = _propagation(log)
    waits = [
        event.at_s - requested[0] - propagation.get(event.detail["step"], 0.0)
        for event in _first_departures(log)
    ]
    return float(np.mean(waits)) if waits else 0.0


def dependency_in_step_s(log: EventLog) -> float:
    """Return the mean time from the start of a unit's step at its slot to the unit's departure."""
    started = {(e.detail["step"], e.slot): e.at_s for e in log.of("started")}
    waits = [
        event.at_s - started[event.detail["step"], event.slot]
        for event in _first_departures(log)
        if (event.detail["step"], event.slot) in started
    ]
    return float(np.mean(waits)) if waits else 0.0


def suspension_s(intervals: Iterable[Sequence[float]], until_s: float) -> float:
    """Return the total length of some slots' suspensions, each cut at `until_s`.

    Parameters
    ----------
    intervals : iterable of [start, end]
        Disjoint within a slot; slots add up.
    """
    return sum(max(0.0, min(end, until_s) - start) for start, end in intervals)


def suspension_by_second(
    intervals: Sequence[Sequence[float]], start_s: float, seconds: int
) -> list[float]:
    """Return the cumulative suspension after each second from `start_s`."""
    return [suspension_s(intervals, start_s + second + 1) for second in range(seconds)]


def trips(log: EventLog) -> tuple[int, float, int]:
    """Return the number of units that moved more than once, and the mean and largest moves of these.

    References
    ----------
    DRRS V-B on Meces: 55 sub-groups, 6.25 times on average, up to 46.
    """
    counts: dict[int, int] = {}
    for event in log.of("left"):
        unit = event.detail["unit"]
        counts[unit] = counts.get(unit, 0) + 1
    again = [count for count in counts.values() if count > 1]
    return len(again), float(np.mean(again)) if again else 0.0, max(again, default=0)


def _propagation(log: EventLog) -> dict[int, float]:
    """Return the propagation delay of each step's signal."""
    injected: dict[int, float] = {}
    for event in log.of("injected", "trigger", "integrated"):
        injected.setdefault(event.detail["step"], event.at_s)
    started: dict[int, list[float]] = {}
    for event in log.of("started"):
        started.setdefault(event.detail["step"], []).append(event.at_s)
    return {
        step: float(np.mean(times)) - injected[step]
        for step, times in started.items()
        if step in injected
    }


def _first_departures(log: EventLog) -> list[Event]:
    found: dict[int, Event] = {}
    for event in log.of("left"):
        found.setdefault(event.detail["unit"], event)
    return list(found.values())
