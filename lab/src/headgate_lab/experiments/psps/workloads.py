"""Defines synthetic stand-ins for PSPS's applications and their input.

The tweets, the DNS flows and the operators' times are not available. The stand-ins are fitted to the
paper's runs without its own policy, and to none of the runs with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headgate.whatif.model import Distribution, ServiceTime, SlotPool
from headgate_lab.sim.replicas.model import Edge, PoolJob, StatelessOperator
from headgate_lab.workloads.bursts import LENGTH_S, replicas_needed

F64 = npt.NDArray[np.float64]

UNTIL_S = LENGTH_S

_STEP_S = 1.0


@dataclass(frozen=True)
class Application:
    """Describes a job and the overprovisioned baseline that savings are measured against.

    Attributes
    ----------
    overprovisioned : int
        r_over [P].
    event_s : float
        Time of an event at an operator that sees the whole input.
    """

    name: str
    job: PoolJob
    overprovisioned: int
    event_s: float


def tweets(replicas: SlotPool | None = None, pool: int = 16) -> Application:
    """Return the application of tables IV to X: four operators in a row.

    38.4 ms each [D]: a quarter of the 153.51 ms that the paper measures where nothing ever waits
    (r = 8). Times are exponential [I]. The pool is larger than 8: figure 8 shows more than 32
    replicas.
    """
    names = ("analyse", "classify-content", "classify-author", "store")
    return Application("tweets", _chain(names, 0.0384, pool, replicas), 32, 0.0384)


def complex_tweets() -> Application:
    """Return the application of table XI: eight operators with a split of news and opinions.

    5.3 ms each [D]: a sixth of 31.99 ms, the six operators on each way through the graph. The graph
    and the half of the events that are news are chosen [I].
    """
    service = ServiceTime(0.00533, Distribution.EXPONENTIAL)

    def operator(*parents: Edge) -> StatelessOperator:
        return StatelessOperator(service, parents, pool=8)

    operators = {
        "collect": operator(),
        "classify": operator(Edge("collect")),
        "news": operator(Edge("classify", 0.0, 0.5)),
        "opinion": operator(Edge("classify", 0.5, 1.0)),
        "topic": operator(Edge("news")),
        "sentiment": operator(Edge("opinion")),
        "author": operator(Edge("topic"), Edge("sentiment")),
        "store": operator(Edge("author")),
    }
    return Application("complex", PoolJob(operators), 40, 0.00533)


def dns() -> Application:
    """Return the application of table XII: four operators in a row, 20 ms each [I]."""
    names = ("receive", "parse", "classify", "store")
    return Application("dns", _chain(names, 0.020, 8, None), 12, 0.020)


def _chain(names: tuple[str, ...], event_s: float, pool: int, replicas: SlotPool | None) -> PoolJob:
    service = ServiceTime(event_s, Distribution.EXPONENTIAL)
    operators = {}
    parents: tuple[Edge, ...] = ()
    for name in names:
        operators[name] = StatelessOperator(service, parents, pool, replicas or SlotPool())
        parents = (Edge(name),)
    return PoolJob(operators)


def bursts(until_s: float = UNTIL_S) -> F64:
    """Return the smoothed tweets: replicas that one operator needs, per second."""
    return replicas_needed(np.arange(0.0, until_s, _STEP_S))


def raw_bursts(seed: int, until_s: float = UNTIL_S) -> F64:
    """Return the tweets before smoothing: the same with a factor per second that wanders [I]."""
    smooth = bursts(until_s)
    draws = np.random.default_rng([seed, 1]).normal(0.0, 1.0, len(smooth))
    wander = np.zeros(len(smooth))
    for second in range(1, len(smooth)):
        wander[second] = 0.8 * wander[second - 1] + 0.6 * draws[second]
    factor = np.exp(0.5 * wander)
    raw: F64 = smooth * factor / factor.mean()
    return raw


def dns_bursts(seed: int, until_s: float = UNTIL_S) -> F64:
    """Return the DNS flows: 0.4 replicas, and bursts up to the peak of 3 that last seconds [I]."""
    at_s = np.arange(0.0, until_s, _STEP_S)
    random = np.random.default_rng([seed, 2])
    load = np.full(len(at_s), 0.4)
    for begin_s in np.cumsum(random.exponential(40.0, int(until_s / 20.0))):
        since_s = at_s - begin_s
        height = random.uniform(0.5, 2.6)
        load += np.where(since_s >= 0.0, height * np.exp(-np.maximum(since_s, 0.0) / 6.0), 0.0)
    capped: F64 = np.minimum(load, 3.0)
    return capped


def arrivals(load: F64, event_s: float, seed: int) -> F64:
    """Return the arrival times of events: a Poisson process whose rate needs `load` replicas.

    Parameters
    ----------
    load : float64[seconds]
    event_s : float
        Time of an event.
    """
    random = np.random.default_rng([seed, 3])
    counts = random.poisson(load * _STEP_S / event_s)
    second = np.repeat(np.arange(len(load)), counts)
    times_s: F64 = np.sort((second + random.random(len(second))) * _STEP_S)
    return times_s
