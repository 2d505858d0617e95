"""Simulates sinusoidal load on one rate-limited operator, for figures 10 to 15."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headgate.control.registry import policy
from headgate.loop.settings import OperatorSettings
from headgate.whatif.model import OperatorModel, ServiceTime, SlotPool, TreatmentCost
from headgate.whatif.result import RunResult
from headgate.whatif.simulation import SimulatedJob, Simulation
from headgate.workloads.rates import SineRate
from headgate_lab.workloads.arrivals import RateArrivals

OPERATOR = "query"

RATE_FACTOR = 20.0
"""All rates, of arrivals and of slots, are the paper's divided by this; their ratios are its own."""

POLICY = "streamswitch(0.2)"

_KEY_GROUPS = 64
_SLOTS_MAX = 64

SYNC_S = 0.3
"""Calibrated [I]: with it, a switching event takes the paper's 0.5 s in the first setting of figure
14. The other settings are not calibrated; `headgate figure guesses` tries half and double."""

_UNBOUNDED = 10**9
"""Flink's barrier comes behind all that has accumulated at a slot (6.5 [P])."""


@dataclass(frozen=True)
class Wave:
    """Describes a run, with the paper's rates.

    Attributes
    ----------
    amplitude_per_s : float
        Deviation of the rate above and below its mean of 30K/s.
    service_rate_per_s : float
        The rate limit of a normal slot.
    warm_up_s : float
        Time at the beginning that the figures leave out.
    alert_s, delta_s : float
        l and delta.
    alpha, beta : float
        As `SlotPool`.
    delay_s, sync_s : float
        As `TreatmentCost`.
    """

    amplitude_per_s: float
    period_s: float
    service_rate_per_s: float
    until_s: float
    warm_up_s: float = 0.0
    alert_s: float = 0.1
    delta_s: float = 0.1
    alpha: float = 1.0
    beta: float = 0.0
    delay_s: float = 0.0
    seed: int = 1
    mean_per_s: float = 30_000.0
    sync_s: float = SYNC_S


def simulate(wave: Wave) -> RunResult:
    """Run Switch(0.2) under a wave.

    References
    ----------
    StreamSwitch 6.3 to 6.5, on Flink, so that changes wait for a barrier in the data; 64 substreams
    without skew, and a rate that is sent evenly [R]. Differs: one operator with a fixed service time
    for the queries Q2, Q5 and Q8; rates divided by `RATE_FACTOR`, which makes one record weigh more.
    """
    service_rate = wave.service_rate_per_s / RATE_FACTOR
    mean = wave.mean_per_s / RATE_FACTOR
    rate = SineRate(
        (wave.mean_per_s - wave.amplitude_per_s) / RATE_FACTOR,
        wave.amplitude_per_s / RATE_FACTOR,
        wave.period_s,
    )
    model = OperatorModel(
        ServiceTime(1.0 / service_rate),
        key_groups=_KEY_GROUPS,
        slots=int(np.ceil(mean / (0.8 * service_rate))),
        pool=SlotPool(wave.alpha, wave.beta),
        treatment=TreatmentCost(
            sync_s=wave.sync_s, barrier_records=_UNBOUNDED, delay_s=wave.delay_s
        ),
    )
    settings = OperatorSettings(
        1.0, 1.0, _SLOTS_MAX, alert_s=wave.alert_s, initial_service_rate=service_rate
    )
    arrivals = RateArrivals(rate, np.full(_KEY_GROUPS, 1.0 / _KEY_GROUPS))
    job = SimulatedJob({OPERATOR: model}, {OPERATOR: arrivals})
    simulation = Simulation(
        job, policy(POLICY), {OPERATOR: settings}, seed=wave.seed, delta_s=wave.delta_s
    )
    return simulation.run(wave.until_s)


def outcome(wave: Wave) -> dict[str, float]:
    """Run a wave; return the measures that the figures show, without its warm-up."""
    result = simulate(wave)
    measures = result.operators[OPERATOR]
    first = round(wave.warm_up_s / wave.delta_s)
    slots = measures.slots[first:]
    applied = [a for a in measures.applied if a.decided_s >= wave.warm_up_s]
    kinds = [str(a.change.kind) for a in applied]
    took_s = [a.took_s for a in applied]
    switching_s = sum(a.took_s * a.involved for a in applied)
    return {
        "success": result.success(OPERATOR, from_s=wave.warm_up_s).mean,
        "slots_mean": float(slots.mean()),
        "other_share": float(measures.other_slots[first:].sum() / slots.sum()),
        "events": float(len(applied)),
        "balances": float(kinds.count("balance")),
        "scale_outs": float(kinds.count("scale-out")),
        "scale_ins": float(kinds.count("scale-in")),
        "switching_s": float(np.mean(took_s)) if took_s else 0.0,
        "switching_share": switching_s / (float(slots.sum()) * wave.delta_s),
    }


def averaged(outcomes: Sequence[dict[str, float]], runs: int) -> list[dict[str, Any]]:
    """Return the mean of each `runs` successive outcomes, and the least and most success of them."""
    found: list[dict[str, Any]] = []
    for start in range(0, len(outcomes), runs):
        part = outcomes[start : start + runs]
        row = {name: round(float(np.mean([o[name] for o in part])), 5) for name in part[0]}
        success = [o["success"] for o in part]
        row |= {"success_least": round(min(success), 5), "success_most": round(max(success), 5)}
        found.append(row)
    return found
