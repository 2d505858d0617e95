"""Describes a simulation: service times, slots, the cost of a change, operators and their graph."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from headgate.control.limits import check_range
from headgate.core.assignment import check_slots
from headgate.core.errors import ConfigError

F64 = npt.NDArray[np.float64]


class Distribution(StrEnum):
    """Names the distribution of service times."""

    FIXED = "fixed"
    EXPONENTIAL = "exponential"
    NORMAL = "normal"


@dataclass(frozen=True)
class ServiceTime:
    """Draws the time that a slot of normal speed works on one record.

    References
    ----------
    StreamSwitch's public code burns N(8, 1) ms per order, and 6 ms where a draw is negative; hence
    three quarters of the mean here.
    """

    mean_s: float
    """Seconds; > 0."""
    distribution: Distribution = Distribution.FIXED
    """Shape; an exponential one makes a slot with Poisson arrivals an M/M/1 queue."""
    deviation_s: float = 0.0
    """Standard deviation of the normal distribution, seconds; >= 0."""
    cap_per_s: float = math.inf
    """Records per second that a rate limit leaves a slot of normal speed; > 0."""

    def __post_init__(self) -> None:
        check_range("service time", "mean_s", self.mean_s, 0.0, above=True)
        check_range("service time", "deviation_s", self.deviation_s, 0.0)
        check_range("service time", "cap_per_s", self.cap_per_s, 0.0, above=True)

    @property
    def least_s(self) -> float:
        """The shortest service time that the rate limit allows."""
        return 1.0 / self.cap_per_s

    def draw(self, generator: np.random.Generator, count: int) -> F64:
        """Return the service times of `count` records, before the rate limit, in seconds."""
        if self.distribution is Distribution.EXPONENTIAL:
            return generator.standard_exponential(count) * self.mean_s
        if self.distribution is Distribution.NORMAL:
            drawn = generator.normal(self.mean_s, self.deviation_s, count)
            return np.where(drawn < 0.0, 0.75 * self.mean_s, drawn)
        return np.full(count, self.mean_s)


@dataclass(frozen=True)
class SlotPool:
    """Draws the speeds of new slots.

    References
    ----------
    StreamSwitch 6.4, alpha and beta.
    """

    alpha: float = 1.0
    """Speed of the other type of slot, relative to the normal one; > 0."""
    beta: float = 0.0
    """Probability that an allocated slot is of the other type, in [0, 1]; the first slots too."""

    def __post_init__(self) -> None:
        check_range("slot pool", "alpha", self.alpha, 0.0, above=True)
        check_range("slot pool", "beta", self.beta, 0.0, 1.0)

    def speeds(self, generator: np.random.Generator, count: int) -> F64:
        """Return the speeds of `count` newly allocated slots."""
        return np.where(generator.random(count) < self.beta, self.alpha, 1.0)


@dataclass(frozen=True)
class TreatmentCost:
    """Holds the cost of a change for the slots that lose or gain key groups; other slots do not stop.

    A slot finishes the record in service, and with an in-band barrier those in front of it; when all
    involved slots stand still, they stay so for `sync_s` + `delay_s` + `per_group_s` times the
    groups moved + the bytes that the busiest of them sends and receives over the bandwidth.

    References
    ----------
    StreamSwitch 5, three stages; 5.1 (Samza: the coordinator stops an executor at once); 5.2 (Flink:
    a barrier travels with the records); 6.5 (additional delay). The paper gives no times but
    "hundreds of milliseconds" (3.1); the defaults are chosen to give that.
    """

    sync_s: float = 0.1
    """Synchronising source and destination, seconds; >= 0."""
    per_group_s: float = 0.01
    """Each key group moved, seconds; >= 0."""
    group_bytes: float = 0.0
    """State of a key group at the start; >= 0."""
    record_bytes: float = 0.0
    """By how much a completed record makes its group's state grow; >= 0."""
    bandwidth_bytes_per_s: float = 125e6
    """Bandwidth of one slot's host; > 0. Default: the 1 Gbit/s of StreamSwitch 6."""
    barrier_records: int = 0
    """Most records in front of a barrier, for each involved slot: 0 for a barrier outside the data
    (Samza); for a barrier in the data (Flink), the records in the network buffers."""
    delay_s: float = 0.0
    """Time added to every change (StreamSwitch, figure 15), seconds; >= 0."""

    def __post_init__(self) -> None:
        fields = ("sync_s", "per_group_s", "group_bytes", "record_bytes", "delay_s")
        for name in (*fields, "barrier_records"):
            check_range("treatment cost", name, getattr(self, name), 0.0)
        bandwidth = self.bandwidth_bytes_per_s
        check_range("treatment cost", "bandwidth_bytes_per_s", bandwidth, 0.0, above=True)


@dataclass(frozen=True)
class MicroBatch:
    """Holds the time costs of an engine of micro-batches: the parameters to calibrate.

    A batch takes what arrived before it began. Each slot serves its backlog first and then new
    records, up to ``rate x budget / waves``, one key group after the other. The batch ends when the last
    task has, and the next one begins then, or `trigger_s` after the last began.

    References
    ----------
    `headgate.spark.step.stateful` and `.job`, `headgate.operators.serve`. Differs: backlog is
    not capped by bytes; a record's service does not depend on its batch's size.
    """

    plan_s: float = 0.15
    """From the beginning of a batch to its first slot task, seconds; >= 0. Default, as that of
    `commit_s`: a tiny batch on two cores."""
    read_s: float = 0.0
    """Time that each record of a batch adds to `plan_s`, for work before the slots, seconds; >= 0."""
    commit_s: float = 0.07
    """From the end of its last slot task to the end of the batch, seconds; >= 0."""
    task_s: float = 0.02
    """Fixed cost of a slot task, seconds; >= 0."""
    moved_group_s: float = 0.0
    """Time that a key group that has just moved adds to its new slot's task, seconds; >= 0. Default:
    for slots that share memory."""
    budget_s: float = math.inf
    """Time a slot may serve per batch, all waves together, seconds; > 0. Infinite serves all."""
    cores: int = 2
    """Slot tasks that run at once; >= 1."""
    trigger_s: float = 0.0
    """Least time between the beginnings of two batches, seconds; >= 0."""
    backlog_age_max_s: float = 60.0
    """A slot whose oldest record waits longer serves everything, whatever its budget, seconds; > 0."""
    initial_rate_per_s: float = 100_000.0
    """Assumed rate of a slot that has served nothing yet, records per second; > 0."""
    slot_rate_per_s: float | None = None
    """Records per second that every slot serves, as in an experiment with more slots than cores: a
    quota by the time since the last batch, in place of a budget, and useful time of served / rate;
    > 0. None: slots serve as fast as they can."""
    warm_up_s: tuple[float, ...] = ()
    """Extra planning time of each of the first batches, seconds; >= 0."""
    jitter_s: tuple[float, ...] = ()
    """Extra planning time (also negative) of the batches after the warm-up, in order and repeated,
    seconds; empty: none."""
    poll_s: float = 0.01
    """Time between two looks of an idle engine for records, seconds; > 0."""

    def __post_init__(self) -> None:
        for name in ("plan_s", "read_s", "commit_s", "task_s", "moved_group_s", "trigger_s"):
            check_range("micro batch", name, getattr(self, name), 0.0)
        for name in ("budget_s", "poll_s", "backlog_age_max_s", "initial_rate_per_s"):
            check_range("micro batch", name, getattr(self, name), 0.0, above=True)
        if self.slot_rate_per_s is not None:
            check_range("micro batch", "slot_rate_per_s", self.slot_rate_per_s, 0.0, above=True)
        for extra_s in self.warm_up_s:
            check_range("micro batch", "warm_up_s", extra_s, 0.0)
        for extra_s in self.jitter_s:
            check_range("micro batch", "jitter_s", extra_s, -math.inf)
        check_range("micro batch", "cores", self.cores, 1)

    def planning_s(self, batch: int) -> float:
        """Return how long batch number `batch`, from 0, is planned."""
        warm = len(self.warm_up_s)
        extra_s = 0.0
        if batch < warm:
            extra_s = self.warm_up_s[batch]
        elif self.jitter_s:
            extra_s = self.jitter_s[(batch - warm) % len(self.jitter_s)]
        return max(0.0, self.plan_s + extra_s)


@dataclass(frozen=True)
class OperatorModel:
    """Describes one stateful operator."""

    service: ServiceTime
    """Work per record."""
    key_groups: int = 64
    """G; default: StreamSwitch's substreams."""
    slots: int = 1
    """Slots to start with."""
    pool: SlotPool = field(default_factory=SlotPool)
    """Speeds of new slots."""
    treatment: TreatmentCost = field(default_factory=TreatmentCost)
    """Cost of a change in continuous mode."""
    parents: tuple[str, ...] = ()
    """Operators whose completed records arrive here; empty for an operator with a source."""
    selectivity: float = 1.0
    """Records that arrive here per completed record of a parent; > 0. Fractions add up from record
    to record."""
    shares: tuple[float, ...] | None = None
    """How records from parents spread over the key groups, adding up to 1; None: evenly."""
    within_s: float | None = None
    """Count the records whose latency is at most this, seconds, for an SLO on a percentile."""

    def __post_init__(self) -> None:
        check_slots(self.slots, self.key_groups)
        check_range("operator", "selectivity", self.selectivity, 0.0, above=True)
        if self.shares is None:
            return
        total = math.fsum(self.shares)
        if len(self.shares) != self.key_groups or not math.isclose(total, 1.0, rel_tol=1e-6):
            msg = (
                f"operator: {len(self.shares)} shares add up to {total:g}; give one for each of "
                f"{self.key_groups} key groups, adding up to 1."
            )
            raise ConfigError(msg)
