"""Simulates a recorded run with fewer slots, another policy or another SLO."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from headgate.control.registry import is_own, policy, same_name
from headgate.core.errors import ConfigError
from headgate.core.input import KEY_GROUPS_MAX, shown
from headgate.core.slo import Slo, parse_slo
from headgate.loop import steering
from headgate.loop.settings import OperatorSettings
from headgate.whatif import advice
from headgate.whatif.calibration import Costs, calibrated, records_of
from headgate.whatif.decisions import finite
from headgate.whatif.model import OperatorModel, ServiceTime
from headgate.whatif.oracle import Load
from headgate.whatif.recording import SLICE_S, Recorded
from headgate.whatif.result import RunResult
from headgate.whatif.simulation import SimulatedJob, Simulation
from headgate.workloads.arrivals import (
    ArrivalFeed,
    ArrivalStream,
    RecordedArrivals,
    TraceArrivals,
)

_OPERATOR = "operator"
_HOUR_S = 3600.0
_SERIES = ("warm_up_s", "jitter_s")
"""Fields of the engine with a value per batch; left out of the result."""


@dataclass(frozen=True)
class Conditions:
    """Holds the conditions under which a run is simulated."""

    slo: Slo
    operator: str
    policy: str
    slots: int
    slots_min: int
    slots_max: int
    floor_s: float | None
    """Fixed floor, in place of the measured floor; None to measure."""
    unsplittable: str
    """As `OperatorSettings.unsplittable`."""


_NOT_SAID = "the journal does not say whether its records can be merged"


def replay(
    checkpoint: str | os.PathLike[str],
    *,
    since_s: float | None = None,
    slots_max: int | None = None,
    policy_text: str | None = None,
    slo_text: str | None = None,
    like: str | os.PathLike[str] | None = None,
    seed: int = 1,
    oracle: bool = False,
) -> dict[str, Any]:
    """Simulate a recorded run as it was and as it might have been.

    Returns ``real``, ``model`` (the same run simulated), ``error`` (of the model: ``success_points``,
    ``slots_percent``), ``what_if`` (None if no condition differs), ``engine``. A run has
    ``policy``, ``slo``, ``slots_max``, ``success``, ``success_worst``, ``slots_mean``,
    ``slot_hours``, ``backlog_peak``, ``latency_mean_ms`` and ``changes``; with `oracle` also what
    `headgate.whatif.advice.beside` adds, and ``oracle`` has what that returns. Raises
    `CheckpointError`: there is no journal, or it is damaged; `ConfigError`: the journal does not
    hold what a replay needs, or a policy or SLO is not one.

    Parameters
    ----------
    since_s : float, optional    Replay the last so many seconds.
    slots_max, policy_text, slo_text
        Changed conditions; None: as recorded.
    like : path, optional
        Checkpoint of another run, from which the costs of batches come; default: the run itself.
    oracle : bool
        Whether to compare with the oracle's slots.
    """
    recorded = Recorded.read(checkpoint, since_s)
    costs = calibrated(recorded)
    if like is not None:
        # the costs of this run's records are not known then
        costs = replace(calibrated(Recorded.read(like)), factors=None)
    return replayed(
        recorded,
        costs,
        whole=since_s is None,
        slots_max=slots_max,
        policy_text=policy_text,
        slo_text=slo_text,
        seed=seed,
        oracle=oracle,
    )


def replayed(
    recorded: Recorded,
    costs: Costs,
    *,
    whole: bool = True,
    slots_max: int | None = None,
    policy_text: str | None = None,
    slo_text: str | None = None,
    seed: int = 1,
    oracle: bool = False,
) -> dict[str, Any]:
    """Return the result of `replay` for a run that was read already.

    `whole`: whether `recorded` is the whole run; success is known only for a whole run. `slots_max`,
    `policy_text`, `slo_text`, `seed`, `oracle`: see `replay`.
    """
    was = _conditions(recorded)
    if slots_max is not None and not 1 <= slots_max <= KEY_GROUPS_MAX:
        msg = f"slots_max={slots_max} is out of range; use 1 to {KEY_GROUPS_MAX}."
        raise ConfigError(msg)
    if policy_text is not None:
        policy(policy_text)  # what is wrong with it shows before a simulation, not after
    if not is_own(was.policy) and not (policy_text and same_name(policy_text, was.policy)):
        msg = (
            f'the journal names policy "{shown(was.policy, 80)}", which is not one of headgate\'s, and '
            f"no journal chooses the code that runs; type it: --policy '{shown(was.policy, 80)}'."
        )
        raise ConfigError(msg)
    asked = replace(
        was,
        slots_max=was.slots_max if slots_max is None else slots_max,
        policy=was.policy if policy_text is None else policy_text,
        slo=was.slo if slo_text is None else _mean_slo(slo_text),
    )
    arrivals = _arrivals(recorded, costs)
    real = _real(recorded, was, whole=whole)
    duration_s = float(recorded.began_s[-1]) - recorded.first_s
    if asked.slo.window_s > duration_s:
        msg = (
            f'the run took {duration_s:.0f} s, less than the window of "{asked.slo}"; replay a longer '
            "one, or ask for a shorter window."
        )
        raise ConfigError(msg)
    model = _simulated(arrivals, duration_s, costs, was, seed)
    what_if = None if asked == was else _simulated(arrivals, duration_s, costs, asked, seed)
    beside = {}
    if oracle:
        rows = [row for row in (real, model, what_if) if row is not None]
        load = _load(arrivals, duration_s, costs, asked, seed)
        beside = {"oracle": advice.beside(load, rows, asked.slo)}
    return {
        "real": real,
        "model": model,
        "error": _error(real, model),
        "what_if": what_if,
        **beside,
        "engine": {
            k: finite(v) if isinstance(v, float) else v
            for k, v in asdict(costs.engine).items()
            if k not in _SERIES
        },
    }


def _conditions(recorded: Recorded) -> Conditions:
    parameters = recorded.parameters
    texts = parameters.get("slo", ())
    if len(texts) != 1:
        msg = f"the run has {len(texts)} SLOs; replay one with a single SLO."
        raise ConfigError(msg)
    return Conditions(
        slo=_mean_slo(texts[0]),
        operator=recorded.operator,
        # the engine did not apply advice
        policy="static" if parameters.get("advise") else parameters["policy"],
        slots=recorded.batches[0].slots,
        slots_min=int(parameters.get("slots_min", 1)),
        slots_max=int(parameters["slots_max"]),
        floor_s=parameters.get("floor_s"),
        unsplittable=parameters.get("unsplittable", {}).get(recorded.operator, _NOT_SAID),
    )


def _mean_slo(text: str) -> Slo:
    slo = parse_slo(text)
    if slo.statistic != "mean":
        msg = f'replay judges the mean latency; "{text}" is about {slo.statistic}.'
        raise ConfigError(msg)
    return slo


def _real(recorded: Recorded, was: Conditions, *, whole: bool) -> dict[str, Any]:
    """Return the recorded run; its success counts from its start, so it is None for a part of a run."""
    state = recorded.batches[-1].slo if whole else None
    duration_s = float(recorded.began_s[-1] - recorded.began_s[0])
    return _row(was) | {
        "success": None if state is None else state.success,
        "success_worst": None if state is None else state.success_worst,
        "slots_mean": round(recorded.slots_mean, 4),
        "slot_hours": round(recorded.slots_mean * duration_s / _HOUR_S, 4),
        "backlog_peak": max(b.backlog for b in recorded.batches),
        "latency_mean_ms": recorded.latency_mean_ms,
        "changes": recorded.changes,
    }


def _arrivals(recorded: Recorded, costs: Costs) -> ArrivalStream:
    """Return the arrivals; one by one where the records' costs are known, and they are not too many."""
    known = None if costs.factors is None else records_of(recorded, costs.factors)
    if known is None:
        return TraceArrivals(recorded.trace())
    return RecordedArrivals(*known, recorded.start.key_groups)


def _simulated(
    arrivals: ArrivalStream, duration_s: float, costs: Costs, conditions: Conditions, seed: int
) -> dict[str, Any]:
    slots_max = conditions.slots_max
    if costs.useful is not None:
        slots_max = max(min(slots_max, costs.useful), conditions.slots_min)
    (target,) = steering.targets_of([conditions.slo], [conditions.operator]).values()

    def settings_at(_: str, measured_s: float) -> OperatorSettings:
        floor_s = measured_s if conditions.floor_s is None else conditions.floor_s
        return OperatorSettings(
            bound_s=target.mean_bound_s(floor_s),
            window_s=conditions.slo.window_s,
            slots_max=slots_max,
            slots_min=min(conditions.slots_min, conditions.slots_max),
            alert_s=target.alert_s(floor_s),
            success=conditions.slo.success,
            floor_s=floor_s,
            unsplittable=conditions.unsplittable,
        )

    groups = arrivals.key_groups
    slots = max(1, min(conditions.slots, conditions.slots_max, groups))
    model = OperatorModel(ServiceTime(costs.record_s), key_groups=groups, slots=slots)
    result = Simulation(
        SimulatedJob({_OPERATOR: model}, {_OPERATOR: arrivals}),
        policy(conditions.policy),
        {_OPERATOR: settings_at(_OPERATOR, 0.0)},
        seed=seed,
        micro_batch=costs.engine,
        settings_at=settings_at,
    ).run(duration_s)
    return _row(conditions) | _measured(result)


def _load(
    arrivals: ArrivalStream, duration_s: float, costs: Costs, conditions: Conditions, seed: int
) -> Load:
    """Return the records as input of the oracle, which has no batches."""
    feed = ArrivalFeed(arrivals, np.random.default_rng(seed))
    arrival_s, groups = feed.until(duration_s)
    limited = costs.engine.slot_rate_per_s
    each_s = np.full(len(groups), 1.0 / limited if limited else costs.record_s)
    if feed.costs is not None:
        each_s *= feed.costs[: len(groups)]
    return Load(
        arrival_s,
        groups,
        each_s,
        arrivals.key_groups,
        duration_s,
        bound_s=conditions.slo.bound,
        window_s=conditions.slo.window_s,
        slots_max=conditions.slots_max,
    )


def _measured(result: RunResult) -> dict[str, Any]:
    measures = result.operators[_OPERATOR]
    success = result.success(_OPERATOR)
    return {
        "success": finite(round(success.mean, 6)),
        "success_worst": finite(round(success.worst, 6)),
        "slots_mean": round(measures.slots_mean, 4),
        "slot_hours": round(measures.slots_mean * measures.ticks * SLICE_S / _HOUR_S, 4),
        "backlog_peak": int(result.timeline(_OPERATOR)["backlog"].max()),
        "latency_mean_ms": finite(round(measures.latency_mean_s * 1e3, 1)),
        "changes": result.kinds(_OPERATOR),
    }


def _row(conditions: Conditions) -> dict[str, Any]:
    return {
        "policy": conditions.policy,
        "slo": str(conditions.slo),
        "slots_max": conditions.slots_max,
    }


def _error(real: dict[str, Any], model: dict[str, Any]) -> dict[str, float | None]:
    """Return the deviation of the model's run from the recorded run."""
    known = real["success"] is not None and model["success"] is not None
    return {
        "success_points": round((model["success"] - real["success"]) * 100, 3) if known else None,
        "slots_percent": round((model["slots_mean"] / real["slots_mean"] - 1) * 100, 2),
    }
