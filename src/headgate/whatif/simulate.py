"""Simulates a given trace under several policies, and compares the cost of an SLO side by side."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from headgate.control.registry import policy
from headgate.control.success import Success
from headgate.core.duration import parse_duration_s
from headgate.core.errors import ConfigError, nearest
from headgate.core.input import KEY_GROUPS_MAX, RATE_MAX, shown
from headgate.core.slo import Slo
from headgate.loop import steering
from headgate.loop.settings import OperatorSettings
from headgate.report.plot import panels
from headgate.whatif import advice
from headgate.whatif.decisions import finite
from headgate.whatif.model import (
    Distribution,
    MicroBatch,
    OperatorModel,
    ServiceTime,
    TreatmentCost,
)
from headgate.whatif.oracle import Load
from headgate.whatif.parallel import run_all
from headgate.whatif.result import RunResult
from headgate.whatif.simulation import SimulatedJob, Simulation
from headgate.workloads.arrivals import RecordedArrivals, TraceArrivals
from headgate.workloads.traces import Trace

if TYPE_CHECKING:
    from headgate.report.plot import Figure

_OPERATOR = "operator"
_POINTS = 400
"""Most points of a timeline in a picture."""
_MARGIN = 0.8
_HOUR_S = 3600.0
_LOOSER = (1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
"""Multiples of a missed bound that the advice tries."""
_TICK_S = 0.1
_CELLS_MAX = 1 << 28
"""Ticks times key groups: 8 GB per policy at once, as of a replay."""
_CORES = "the cores are the limit"
_RATE_MIN = 1e-6
_ROUNDING = 1e-9
_SPAN_WINDOWS = 10
"""Windows over which a key group's rate is measured, so that it is not a mere burst. Chosen."""
_POLICIES_MAX = 100
_STATIC = re.compile(r"\s*static\((?:n=)?\s*(\d+)\s*\)\s*")


class Mode(StrEnum):
    """Names the way in which the simulated engine serves records."""

    CONTINUOUS = "continuous"
    """At once, as Flink does."""

    MICRO_BATCH = "micro-batch"
    """Batch by batch, as headgate on Spark does."""


@dataclass(frozen=True)
class WhatIf:
    """Holds a trace, an SLO, and the slots that may be used.

    Raises `ConfigError`: the SLO bounds something else, or a number is out of range.
    """

    trace: Trace
    slo: Slo
    """SLO on a latency."""
    service_rate_per_s: float
    """Records per second that a slot completes while it works; > 0."""
    slots_max: int = 64
    """Most slots; a simulation never uses more slots than key groups."""
    seed: int = 1
    mode: Mode = Mode.CONTINUOUS
    treatment: TreatmentCost = field(default_factory=TreatmentCost)
    """Cost of a change in continuous mode."""
    engine: MicroBatch = field(default_factory=MicroBatch)
    """Costs of batches in micro-batch mode."""
    records: RecordedArrivals | None = None
    """Records of the trace one by one; None where only their number per slice is known."""
    oracle: bool = False
    """Whether to compare with the oracle and the best constant."""

    def __post_init__(self) -> None:
        if not self.slo.is_latency:
            msg = f'simulate judges latency; write "mean < 1 s over 1 s", not "{self.slo}".'
            raise ConfigError(msg)
        if self.slo.operator is not None:
            msg = (
                f'there is one operator, without a name; leave "{shown(self.slo.scope)}" out of the '
                "SLO."
            )
            raise ConfigError(msg)
        if not _RATE_MIN <= self.service_rate_per_s <= RATE_MAX:
            msg = (
                f"service rate {self.service_rate_per_s:g} is out of range; use {_RATE_MIN:g} to "
                f"{RATE_MAX:g} records per second."
            )
            raise ConfigError(msg)
        if not 1 <= self.slots_max <= KEY_GROUPS_MAX:
            msg = f"slots_max={self.slots_max} is out of range; use 1 to {KEY_GROUPS_MAX}."
            raise ConfigError(msg)
        if self.slo.window_s > self.trace.duration_s * (1.0 + _ROUNDING):
            msg = (
                f'the trace plays for {self.trace.duration_s:g} s, less than the window of "{self.slo}"; '
                "take a longer trace, a lower speed, or a shorter window."
            )
            raise ConfigError(msg)

        if self.trace.duration_s * self.key_groups / _TICK_S > _CELLS_MAX:
            msg = (
                f"the trace plays for {self.trace.duration_s:,.0f} s, too long to simulate "
                f"{self.key_groups} key groups; take a part of it, raise the speed, or take fewer "
                "key groups."
            )
            raise ConfigError(msg)

    @property
    def key_groups(self) -> int:
        """G of the trace."""
        return int(self.trace.counts.shape[1])

    @property
    def rate_per_s(self) -> float:
        """Mean rate of the trace, records per second."""
        return self.trace.total / self.trace.duration_s

    @property
    def quantile(self) -> float | None:
        """Share of records that an SLO on a percentile names; None for an SLO on the mean."""
        return None if self.slo.statistic == "mean" else self.slo.quantile

    def remedy(self, row: Mapping[str, Any]) -> str:
        """Return advice for a policy that misses the SLO, by the limit of its slots."""
        hot = self._hottest_per_s()
        engine, rate = self.engine, self.service_rate_per_s
        if hot > rate:
            return (
                f"divide its keys: one key group gets up to {hot:,.0f} records/s, a slot completes "
                f"{rate:,.0f}, and no number of slots helps one key group"
            )
        batched = self.mode is Mode.MICRO_BATCH and engine.slot_rate_per_s is None
        if batched and row["slots_most"] >= engine.cores and engine.cores < self.slots_max:
            return (
                f"give it more cores than {engine.cores} (--cores): they are the limit, not slots"
            )
        most = min(self.slots_max, self.key_groups)
        if row["slots_most"] >= most:
            more = "--slots-max" if self.slots_max <= self.key_groups else "--key-groups"
            return f"give it more slots than {most} ({more})"
        took = row["slots_most"]
        return f"try another policy, or static({took + 1}) and more: it took {took} of {most} slots"

    def _hottest_per_s(self) -> float:
        """Return the most records per second that a key group gets over ten windows, or the trace."""
        span = max(1, round(_SPAN_WINDOWS * self.slo.window_s / self.trace.slice_s))
        span = min(span, len(self.trace.counts))
        sums = np.cumsum(self.trace.counts, axis=0, dtype=np.int64)
        over = np.vstack([sums[span - 1 : span], sums[span:] - sums[:-span]])
        return float(over.max()) / (span * self.trace.slice_s)

    def slots_at_start(self, policy_text: str) -> int:
        """Return n for ``static(n)``, else the slots for the mean rate with a fifth to spare."""
        fixed = _STATIC.fullmatch(policy_text)
        wanted = self.rate_per_s / (_MARGIN * self.service_rate_per_s)
        slots = float(fixed[1]) if fixed else np.ceil(wanted)
        return int(max(1, min(slots, self.slots_max, self.key_groups)))


def simulate(
    what_if: WhatIf, policies: Sequence[str], *, timelines: bool = False
) -> dict[str, Any]:
    """Return the result of each policy on a trace, in a form that a JSON file can hold.

    ``rows`` has one flat dict per policy: success (share of windows, mean over key groups), whether
    each key group meets the SLO, the share of records in time, time-average of slots, latencies,
    and how many changes of each kind there were.

    `policies`: as `headgate.control.registry.policy` takes them. `timelines`: whether to include
    what `draw` needs.
    """
    if len(policies) > _POLICIES_MAX:
        msg = f"{len(policies)} policies are too many to compare; name {_POLICIES_MAX} at most."
        raise ConfigError(msg)
    for text in policies:
        policy(text)  # what is wrong with it shows before hours of work, not after
    results = run_all(_run, [(what_if, text, timelines) for text in policies])
    trace = what_if.trace
    rows = [row for row, _ in results]
    batched = what_if.mode is Mode.MICRO_BATCH
    beside = advice.beside(load_of(what_if), rows, what_if.slo) if what_if.oracle else {}
    return {
        "slo": str(what_if.slo),
        "mode": str(what_if.mode),
        "seed": what_if.seed,
        "service_rate_per_s": what_if.service_rate_per_s,
        "slots_max": what_if.slots_max,
        "key_groups": what_if.key_groups,
        "duration_s": trace.duration_s,
        "slice_s": trace.slice_s,
        **(_engine(what_if.engine) if batched else {}),
        "records": trace.total,
        "rate_mean_per_s": round(what_if.rate_per_s, 3),
        "rate_most_per_s": round(float(trace.counts.sum(axis=1).max()) / trace.slice_s, 3),
        **beside,
        "rows": rows,
        "advice": advice.sentence(
            what_if.slo,
            rows,
            constant=beside.get("constant_slots"),
            batches=batched,
            limit=what_if.remedy,
        ),
        **({"timelines": [timeline for _, timeline in results]} if timelines else {}),
    }


def _engine(engine: MicroBatch) -> dict[str, Any]:
    """Return the parts of an engine of micro-batches that a user may have chosen."""
    return {
        "cores": engine.cores,
        "budget_s": finite(engine.budget_s),
        "slot_rate_per_s": engine.slot_rate_per_s,
    }


def load_of(what_if: WhatIf) -> Load:
    """Return the records of the trace as input of the oracle."""
    arrival_s, _, demand_s, groups = _simulation(what_if, "static").records(
        _OPERATOR, what_if.trace.duration_s
    )
    limited = what_if.engine.slot_rate_per_s if what_if.mode is Mode.MICRO_BATCH else None
    return Load(
        arrival_s,
        groups,
        np.full(len(demand_s), 1.0 / limited) if limited else demand_s,
        what_if.key_groups,
        what_if.trace.duration_s,
        bound_s=what_if.slo.bound,
        window_s=what_if.slo.window_s,
        slots_max=what_if.slots_max,
        quantile=what_if.quantile,
    )


def mode(text: str) -> Mode:
    """Return the mode of that name. Raises `ConfigError`: there is none."""
    if text not in set(Mode):
        hint = nearest(text, Mode) or f"; use {' or '.join(Mode)}."
        msg = f'unknown mode "{shown(text, 60)}"{hint}'
        raise ConfigError(msg)
    return Mode(text)


def engine(
    slo: Slo, cores: int | None = None, budget: str = "auto", slot_rate: float | None = None
) -> MicroBatch:
    """Return an engine of micro-batches as a query on Spark would have it.

    Raises `ConfigError`: a value is out of range, or a slot is limited twice.

    Parameters
    ----------
    cores : int or None    None for those of this machine.
    budget : str
        Budget as in a query: ``auto`` is a share of the bound, ``none`` serves everything.
    slot_rate : float or None    Records per second that a slot may serve, in place of a budget.
    """
    if slot_rate is not None and budget not in ("auto", "none"):
        msg = f"a budget of {budget} and a slot rate of {slot_rate:g} both limit a slot; give one."
        raise ConfigError(msg)
    if budget == "auto":
        budget_s = steering.budget_s([slo]) or math.inf
    else:
        budget_s = math.inf if budget == "none" else parse_duration_s(budget)
    return MicroBatch(
        budget_s=math.inf if slot_rate is not None else budget_s,
        cores=cores or os.cpu_count() or 1,
        slot_rate_per_s=slot_rate,
    )


def _run(item: tuple[WhatIf, str, bool]) -> tuple[dict[str, Any], dict[str, list[float | None]]]:
    what_if, text, timeline = item
    result = _simulation(what_if, text).run(what_if.trace.duration_s)
    return _row(result, what_if), _thinned(result) if timeline else {}


def _simulation(what_if: WhatIf, text: str) -> Simulation:
    mean_s = 1.0 / what_if.service_rate_per_s
    model = OperatorModel(
        ServiceTime(mean_s, Distribution.NORMAL, deviation_s=mean_s / 8),
        key_groups=what_if.key_groups,
        slots=what_if.slots_at_start(text),
        treatment=what_if.treatment,
        within_s=None if what_if.quantile is None else what_if.slo.bound,
    )
    batched = what_if.mode is Mode.MICRO_BATCH
    target = steering.LatencyTarget(what_if.slo)
    slots_max, limit = what_if.slots_max, ""
    if batched and what_if.engine.slot_rate_per_s is None and what_if.engine.cores < slots_max:
        # as on Spark: slots beyond the cores take turns, which looks as if each were slower
        slots_max, limit = what_if.engine.cores, _CORES

    def settings_at(_: str, floor_s: float) -> OperatorSettings:
        """Return the settings that the loop on Spark would get with that floor."""
        return OperatorSettings(
            target.mean_bound_s(floor_s),
            what_if.slo.window_s,
            slots_max,
            limit=limit,
            alert_s=target.alert_s(floor_s),
            success=what_if.slo.success,
            floor_s=floor_s if batched else None,
            initial_service_rate=what_if.service_rate_per_s,
        )

    stream = what_if.records or TraceArrivals(what_if.trace)
    return Simulation(
        SimulatedJob({_OPERATOR: model}, {_OPERATOR: stream}),
        policy(text),
        {_OPERATOR: settings_at(_OPERATOR, 0.0)},
        seed=what_if.seed,
        micro_batch=what_if.engine if batched else None,
        settings_at=settings_at if batched else None,
    )


def _row(result: RunResult, what_if: WhatIf) -> dict[str, Any]:
    measures = result.operators[_OPERATOR]
    success = _success(result, what_if)
    p50_s, p99_s = measures.total_quantiles_s[1:].tolist()
    kinds = result.kinds(_OPERATOR)
    hours = what_if.trace.duration_s / _HOUR_S
    return {
        "policy": result.policy,
        "success": _rounded(success.mean),
        "meets": bool(success.worst >= what_if.slo.success),
        "success_worst": _rounded(success.worst),
        "records_in_time": _rounded(result.records_in_time(_OPERATOR, what_if.slo.bound)),
        "slots_mean": _rounded(measures.slots_mean),
        "slots_most": int(measures.slots.max()),
        "latency_mean_s": _rounded(measures.latency_mean_s),
        "latency_p50_s": _rounded(p50_s),
        "latency_p99_s": _rounded(p99_s),
        **{kind: kinds.get(kind, 0) for kind in ("balance", "scale-out", "scale-in", "rescale")},
        "changes_per_h": _rounded(sum(kinds.values()) / hours),
        "lost_slot_s": _rounded(sum(applied.stopped_s for applied in measures.applied)),
        "bound_kept_s": _bound_kept_s(result, what_if),
    }


def _success(result: RunResult, what_if: WhatIf) -> Success:
    if what_if.quantile is None:
        return result.success(_OPERATOR, bound_s=what_if.slo.bound)
    return result.percentile_success(_OPERATOR, what_if.quantile, window_s=what_if.slo.window_s)


def _bound_kept_s(result: RunResult, what_if: WhatIf) -> float | None:
    """Return the least of some multiples of the bound that each key group keeps often enough."""
    if what_if.quantile is not None:
        return None
    for factor in _LOOSER:
        bound_s = what_if.slo.bound * factor
        if result.success(_OPERATOR, bound_s=bound_s).worst >= what_if.slo.success:
            return _rounded(bound_s)
    return None


def _rounded(value: float) -> float | None:
    return finite(round(value, 5))


def _thinned(result: RunResult) -> dict[str, list[float | None]]:
    """Return means over equal stretches of the run, few enough to draw."""
    series = result.timeline(_OPERATOR)
    starts = np.unique(np.linspace(0, len(series["time_s"]), _POINTS, endpoint=False).astype(int))
    counts = np.diff(np.append(starts, len(series["time_s"])))
    means = {
        name: np.add.reduceat(series[name], starts) / counts
        for name in ("time_s", "arrivals_per_s", "slots")
    }
    late = np.maximum.reduceat(np.nan_to_num(series["latency_p99_s"]), starts)
    return {
        name: [finite(round(float(value), 4)) for value in values]
        for name, values in {**means, "latency_p99_s": late}.items()
    }


def draw(data: dict[str, Any]) -> Figure:
    """Return success against slots, and slots and tail latency over time."""
    figure, (points, slots, latency) = panels(1, 3)
    for row, line in zip(data["rows"], data["timelines"], strict=True):
        points.plot(row["slots_mean"], row["success"], "o", label=row["policy"])
        slots.plot(line["time_s"], line["slots"], label=row["policy"])
        latency.plot(line["time_s"], line["latency_p99_s"], label=row["policy"])
    for name, marker in (("oracle", "k-"), ("constants", "k:")):
        known = data.get(name, ())
        points.plot([p["slots"] for p in known], [p["success"] for p in known], marker, label=name)
    points.set(xlabel="slots, time average", ylabel="success", title=data["slo"])
    points.legend()
    slots.set(xlabel="time, s", ylabel="slots")
    latency.set(xlabel="time, s", ylabel="P99 latency, s", yscale="symlog")
    return figure
