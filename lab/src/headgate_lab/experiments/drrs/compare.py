"""Compares methods on one workload: latencies, throughput, and the three overheads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headgate.migration.plan import uniform
from headgate.whatif.parallel import run_all
from headgate_lab import scaling_period
from headgate_lab.experiments.drrs import workloads
from headgate_lab.experiments.drrs.workloads import Workload
from headgate_lab.experiments.registry import Request
from headgate_lab.sim.dataflow import measures
from headgate_lab.sim.dataflow.coordinator import Scaling, Timing
from headgate_lab.sim.dataflow.dataflow import Dataflow
from headgate_lab.sim.dataflow.methods.registry import method

NO_SCALE = "no scale"
ROUND_S = 1.0
"""Between two launches of DRRS's scheduler, as in its code."""

QUICK_WARM_UP_S, QUICK_AFTER_S = 20.0, 150.0
"""How long `--quick` runs; rates, state, rounds and caches are those of the full size."""

QUICK_STABLE_S = 10.0
"""How long latency has to keep within 110 % with `--quick`; 100 s otherwise (DRRS V-B)."""

QUICK_COUNT = 2
"""Factor by which `--quick` multiplies the records per element."""

SEED = 42
RIVALS = ("megaphone", "meces")
WORKLOADS = {"q7": workloads.q7, "q8": workloads.q8, "twitch": workloads.twitch}


@dataclass(frozen=True)
class Case:
    """One run.

    Attributes
    ----------
    workload : str
        A key of `WORKLOADS`.
    transfer_s : float or None
        Fixed time to transfer a key group or sub-group; None: the workload's own, a guess.
    slot_load : float or None
        Mean load of the scaled slots before scaling; None: likewise.
    """

    workload: str
    method: str
    quick: bool
    seed: int = SEED
    transfer_s: float | None = None
    slot_load: float | None = None

    @property
    def stable_s(self) -> float:
        """Time for which latency must stay within 110 % to count as stable."""
        return QUICK_STABLE_S if self.quick else scaling_period.STABLE_S

    def load(self) -> Workload:
        """Return the workload, at the length that is wanted."""
        found = WORKLOADS[self.workload]()
        if self.transfer_s is not None:
            found = replace(found, unit_s=self.transfer_s)
        if self.slot_load is not None:
            found = replace(found, load=self.slot_load)
        if not self.quick:
            return found
        return replace(
            found,
            warm_up_s=QUICK_WARM_UP_S,
            after_s=QUICK_AFTER_S,
            count=found.count * QUICK_COUNT,
        )


def cases(names: Sequence[str], methods: Sequence[str], request: Request) -> list[Case]:
    """Return every method on every workload."""
    return [Case(name, found, request.quick) for name in names for found in methods]


def observe(case: Case) -> dict[str, Any]:
    """Run one case and return its measures and series, in seconds from the request."""
    workload = case.load()
    at_s, length_s = workload.warm_up_s, workload.length_s
    flow = run(case, workload)
    found = latencies(flow)
    # The last third before the request stays out: its markers may still be under way then.
    level = scaling_period.level_s(found, at_s / 3, at_s * 2 / 3)
    log = flow.log
    acknowledged = [event.at_s for event in log.of("acknowledged")]
    stable_s = scaling_period.stable_from_s(
        found,
        level,
        from_s=max(acknowledged, default=at_s),
        stable_s=case.stable_s,
    )
    intervals = [i for slot in flow.slots[workload.operator] for i in slot.suspended_s]
    seconds = int(length_s - at_s)
    again, trips_mean, trips_max = measures.trips(log)
    return {
        "workload": case.workload,
        "method": case.method,
        "level_s": level,
        "scaling_s": None if stable_s is None else stable_s - at_s,
        "operation_s": max(acknowledged, default=at_s) - at_s,
        "propagation_s": measures.propagation_s(log),
        "dependency_s": measures.dependency_s(log),
        "dependency_in_step_s": measures.dependency_in_step_s(log),
        "suspension_s": measures.suspension_s(intervals, length_s),
        "units_again": again,
        "trips_mean": trips_mean,
        "trips_max": trips_max,
        "finished": bool(log.of("released")) or case.method == NO_SCALE,
        "latency_by_second": _by_second(found, at_s, seconds),
        "throughput": throughput(flow, int(at_s), seconds),
        "suspension_by_second": measures.suspension_by_second(intervals, at_s, seconds),
        "markers": [found.created_s - at_s, found.latency_s],
    }


def run(case: Case, workload: Workload) -> Dataflow:
    """Return the dataflow after a run of a case."""
    scaled = None if case.method == NO_SCALE else method(case.method)
    parts = {} if scaled is None else {workload.operator: scaled.parts}
    flow = Dataflow(workload.job(case.seed), parts)
    if scaled is not None:
        timing = Timing(round_s=ROUND_S)
        scaling = Scaling(flow, workload.operator, scaled, timing)
        target = uniform(flow.assignments[workload.operator], workload.slots_after)
        flow.clock.after(workload.warm_up_s, scaling.request, target)
    flow.run(workload.length_s)
    return flow


def latencies(flow: Dataflow) -> scaling_period.Latencies:
    """Return the markers' latencies; for one that has not arrived, the time it has been under way."""
    arrived = [(r.time_s, at_s - r.time_s) for at_s, r in flow.outputs() if r.marker]
    found = np.array(sorted(arrived)).reshape(-1, 2)
    return scaling_period.Latencies(found[:, 0], found[:, 1])


def throughput(flow: Dataflow, start_s: int, seconds: int) -> list[int]:
    """Return the output of the sources in each second from `start_s` (DRRS V-A)."""
    found = [0] * seconds
    for source in flow.sources():
        for second, records in source.put_out.items():
            if start_s <= second < start_s + seconds:
                found[second - start_s] += records
    return found


def compare(
    names: Sequence[str],
    methods: Sequence[str],
    request: Request,
    *,
    transfer_s: float | None = None,
    slot_load: float | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """Run every method on every workload; peak and mean are over the longest scaling period.

    Parameters
    ----------
    transfer_s, slot_load : float or None
        As of `Case`.

    Returns
    -------
    dict of str to list of dict
        Workload -> what `observe` gave, with *peak_s*, *mean_s* and *interval_s*, by method.

    References
    ----------
    DRRS V-B: "the longest observed scaling period among all three methods as the statistical basis".
    """
    asked = [
        replace(case, transfer_s=transfer_s, slot_load=slot_load)
        for case in cases(names, methods, request)
    ]
    found = run_all(observe, asked)
    by_workload: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for outcome in found:
        by_workload[outcome["workload"]].append(outcome)
    for outcomes in by_workload.values():
        longest_s = max(_period_s(outcome) for outcome in outcomes)
        for outcome in outcomes:
            created_s, latency_s = outcome.pop("markers")
            inside = (created_s >= 0) & (created_s <= max(longest_s, 1.0))
            outcome["interval_s"] = longest_s
            outcome["peak_s"] = float(latency_s[inside].max())
            outcome["mean_s"] = float(latency_s[inside].mean())
    return by_workload


TRANSFERS_S = (0.005, 0.02, 0.08)
"""Fixed times of a transfer in `orders`: the guess, a quarter and four times of it."""


def orders(
    names: Sequence[str],
    methods: Mapping[str, str],
    request: Request,
    transfers_s: Sequence[float] = TRANSFERS_S,
    slot_load: float | None = None,
) -> list[dict[str, Any]]:
    """Return the ranking of methods under other guesses of what the paper does not state.

    Parameters
    ----------
    names : sequence of str
        Workloads.
    methods : mapping of str to str
        Method by its name in the figure.
    slot_load : float or None
        As of `Case`.

    Returns
    -------
    list of dict
        By workload and transfer: *peak* and *mean*, the methods from the least to the greatest, and
        the values, in s, by method.
    """
    rows = []
    for transfer_s in transfers_s:
        found = compare(
            names, list(methods.values()), request, transfer_s=transfer_s, slot_load=slot_load
        )
        for name, outcomes in found.items():
            row: dict[str, Any] = {"workload": name, "transfer_ms": transfer_s * 1e3}
            for figure in ("peak", "mean"):
                values = {
                    method: round(outcome[f"{figure}_s"], 4)
                    for method, outcome in zip(methods, outcomes, strict=True)
                }
                row[figure] = sorted(values, key=values.__getitem__)
                row[f"{figure}_s"] = values
            rows.append(row)
    return rows


def _period_s(outcome: Mapping[str, Any]) -> float:
    """Return the scaling period; one that did not end lasts to the end of the run."""
    if outcome["method"] == NO_SCALE:
        return 0.0
    found: float | None = outcome["scaling_s"]
    return float(len(outcome["throughput"])) if found is None else found


def less(ours: float | None, theirs: float | None) -> float | None:
    """Return the percentage by which `ours` is below `theirs`; None if either is unknown."""
    if ours is None or not theirs:
        return None
    return round(100.0 * (1.0 - ours / theirs), 1)


def scale_of(request: Request, names: Sequence[str]) -> dict[str, Any]:
    """Return what a figure says about its scale."""
    return {
        "mode": "continuous, record by record",
        "seed": SEED,
        "stable_s": QUICK_STABLE_S if request.quick else scaling_period.STABLE_S,
        "length_s": {n: Case(n, "", request.quick).load().length_s for n in names},
        "records_per_element": {n: Case(n, "", request.quick).load().count for n in names},
        "guessed": {
            "transfer_ms": {n: Case(n, "", request.quick).load().unit_s * 1e3 for n in names},
            "load": {n: Case(n, "", request.quick).load().load for n in names},
        },
    }


def _by_second(found: scaling_period.Latencies, at_s: float, seconds: int) -> list[float | None]:
    """Return the greatest latency of the markers of each second."""
    greatest: list[float | None] = [None] * seconds
    for created_s, latency_s in zip(found.created_s - at_s, found.latency_s, strict=True):
        second = int(created_s)
        if created_s >= 0 and second < seconds:
            greatest[second] = max(greatest[second] or 0.0, round(float(latency_s), 4))
    return greatest
