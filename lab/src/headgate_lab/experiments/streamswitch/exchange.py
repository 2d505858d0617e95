"""Simulates the four hours of stock trading that most of the paper's evaluation uses."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from headgate.control.registry import policy
from headgate.loop.settings import OperatorSettings
from headgate.whatif.model import Distribution, OperatorModel, ServiceTime, TreatmentCost
from headgate.whatif.result import RunResult
from headgate.whatif.simulation import SimulatedJob, Simulation
from headgate.workloads.arrivals import TraceArrivals
from headgate.workloads.traces import Trace
from headgate_lab.workloads.stock_exchange_rates import StockExchange

OPERATOR = "auction"

MEAN_RATE_PER_S = 14_854_215 / 14_400
"""Orders per second over the day [P]."""

SERVICE_RATE_PER_S = MEAN_RATE_PER_S / (0.8 * 8)
"""mu of a slot, 161 orders per second [I]: with it Static(8), evenly loaded, carries the mean load
with a fifth of its capacity to spare. The paper doesn't give mu. It is fitted to Static alone, so that
no result of another policy influences it."""

_INITIAL_RATE_PER_S = 200.0
"""Service rate assumed for a slot that has served nothing [R]."""

_SLOTS_START = 12
"""[R], as the most slots."""

_SLOTS_MAX = 30

_ORDER_BYTES = 100.0
"""Size of a pending order, "around a dozen fields" [I]."""

_STATE = TreatmentCost(
    group_bytes=370e3 * _ORDER_BYTES / 64,
    record_bytes=(2e6 - 370e3) * _ORDER_BYTES / 14_854_215,
)
"""370K pending orders at the start and 2M at the end [P]."""

NETWORK_BUFFER_RECORDS = 3276
"""Most records in front of Flink's barrier per slot [I]: ten network buffers of 32 KiB, Flink 1.8's
default for one input channel, with orders of 100 bytes."""


@dataclass(frozen=True)
class Trading:
    """Describes a run over the trading day.

    Attributes
    ----------
    policy : str
        As `headgate.control.registry.policy` takes it. ``static(n)`` starts with n slots, every
        other policy with the 12 of the published configuration.
    service_rate_per_s : float
        mu of a slot.
    bound_s, window_s : float
        L and T.
    shorter : float
        Factor by which the sessions, and the decay of their openings, are shorter than the paper's.
    barrier : bool
        Whether changes wait for a barrier in the data, as in Flink, or not, as in Samza.
    seed : int
        Of the day and of the service times.
    until_s : float or None
        End of the run; None for the whole day.
    """

    policy: str
    service_rate_per_s: float = SERVICE_RATE_PER_S
    bound_s: float = 1.0
    window_s: float = 1.0
    shorter: float = 1.0
    barrier: bool = False
    seed: int = 1
    until_s: float | None = None


def simulate(trading: Trading) -> RunResult:
    """Run a policy over the trading day.

    References
    ----------
    StreamSwitch 6, with 64 substreams, l = delta = 0.1 s [P]; service times N(8, 1) ms, scaled to
    the rate wanted; at most 30 slots, 12 at the start, 200 per second assumed at first [R]. Differs:
    no cool-down, which the paper does not have, and no warm-up, so that the opening counts.
    """
    trace = _day(trading.shorter, trading.seed)
    fixed = re.fullmatch(r"static\((\d+)\)", trading.policy)
    mean_s = 1.0 / trading.service_rate_per_s
    model = OperatorModel(
        ServiceTime(mean_s, Distribution.NORMAL, deviation_s=mean_s / 8),
        key_groups=trace.counts.shape[1],
        slots=int(fixed[1]) if fixed else _SLOTS_START,
        treatment=TreatmentCost(
            group_bytes=_STATE.group_bytes,
            record_bytes=_STATE.record_bytes * trading.shorter,
            barrier_records=NETWORK_BUFFER_RECORDS if trading.barrier else 0,
        ),
    )
    settings = OperatorSettings(
        trading.bound_s,
        trading.window_s,
        _SLOTS_MAX,
        initial_service_rate=_INITIAL_RATE_PER_S,
    )
    job = SimulatedJob({OPERATOR: model}, {OPERATOR: TraceArrivals(trace)})
    simulation = Simulation(job, policy(trading.policy), {OPERATOR: settings}, seed=trading.seed)
    return simulation.run(trading.until_s or trace.duration_s)


def day_s(shorter: float) -> float:
    """Return the length of the day, both sessions, in seconds: 14,400 in the paper [P]."""
    day = _exchange(shorter)
    return day.sessions * day.session_s


@lru_cache(maxsize=1)
def _day(shorter: float, seed: int) -> Trace:
    """Return the day, which is computed once per process."""
    return _exchange(shorter).trace(seed)


def _exchange(shorter: float) -> StockExchange:
    full = StockExchange()
    return StockExchange(
        session_s=full.session_s / shorter, opening_decay_s=full.opening_decay_s / shorter
    )
