"""Implements DRS: the fewest slots whose expected latency in a queueing network meets the bound."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from headgate.control.decision import NOTHING, Change, Decision
from headgate.control.limits import check_range
from headgate.control.observation import Observation, OperatorView
from headgate.control.slots.projection import F64, pressure, projected_latency_s
from headgate.control.slots.strategies import (
    UnitStrategy,
    best_balance,
    best_scale_in,
    best_scale_out,
    change_of,
)
from headgate.control.slots.streamswitch import Health, healthiness, latency_seen_s
from headgate_lab.rivals.averages import Averages, is_whole

_SHORTAGE = 2
"""Largest demand, as a multiple of the available slots; beyond it DRS gives up, as its code does."""


class Station:
    """Models an M/M/k queue of a Jackson network.

    Parameters
    ----------
    rate : float
        lambda: arrivals per second, >= 0.
    service_rate : float
        mu: records per second that one server completes, > 0.
    ratio : float
        Visits per record that enters the network.
    servers : int or None
        k >= 1; None for the fewest that keep up, floor(lambda / mu) + 1.

    References
    ----------
    Fu et al., "DRS: dynamic resource scheduling for real-time analytics over fast streams",
    ICDCS 2015: Erlang's C formula. Differs: computed by the recurrence of Erlang's B, whose terms stay
    between 0 and 1, since r^k and k! overflow.
    """

    def __init__(
        self, rate: float, service_rate: float, ratio: float = 1.0, servers: int | None = None
    ) -> None:
        self._rate, self._service_rate, self._ratio = rate, service_rate, ratio
        self._offered = rate / service_rate
        self._blocking = 1.0
        self.servers = 0
        for _ in range(math.floor(self._offered) + 1 if servers is None else servers):
            self.add()

    def add(self) -> None:
        """Add a server."""
        self._blocking = self._next_blocking()
        self.servers += 1

    @property
    def waits(self) -> float:
        """C: the probability that a record waits; 1 if the servers do not keep up."""
        return _erlang_c(self._offered, self.servers, self._blocking)

    @property
    def latency_s(self) -> float:
        """Expected time per record that enters the network, in seconds; infinite in overload."""
        return self._ratio * self._sojourn_s(self.servers, self._blocking)

    @property
    def gain_s(self) -> float:
        """Reduction of `latency_s` by one more server."""
        more = self._ratio * self._sojourn_s(self.servers + 1, self._next_blocking())
        return math.inf if math.isinf(self.latency_s) else self.latency_s - more

    def _next_blocking(self) -> float:
        waiting = self._offered * self._blocking
        return waiting / (self.servers + 1 + waiting)

    def _sojourn_s(self, servers: int, blocking: float) -> float:
        spare = servers * self._service_rate - self._rate
        if not spare > 0.0:
            return math.inf
        return _erlang_c(self._offered, servers, blocking) / spare + 1.0 / self._service_rate


def fewest_servers(
    rates: Mapping[str, tuple[float, float, float]],
    target_s: float,
    correction: float,
    available: int,
) -> dict[str, int] | None:
    """Return the fewest servers per station that meet a target; None if the target is infeasible.

    Starts with the fewest servers that keep up, and adds one at a time where it helps most.

    Parameters
    ----------
    rates : mapping of str to (float, float, float)
        Per station lambda, mu (> 0) and ratio, as for `Station`.
    target_s : float
        Bound on the expected time in the network, in seconds.
    correction : float
        Factor by which the model has been too optimistic; >= 1.
    available : int
        Available servers. A result may exceed them, up to twofold; a larger demand is infeasible.
    """
    limit = _SHORTAGE * available
    if sum(rate / mu for rate, mu, _ in rates.values()) >= limit:
        return None
    if sum(1.0 / mu for _, mu, _ in rates.values()) * correction >= target_s:
        return None
    stations = {name: Station(*figures) for name, figures in rates.items()}
    while sum(station.latency_s for station in stations.values()) * correction > target_s:
        if sum(station.servers for station in stations.values()) >= limit:
            return None
        max(stations.values(), key=lambda station: station.gain_s).add()
    return {name: station.servers for name, station in stations.items()}


class Drs:
    """Gives each operator the fewest slots with which a queueing model meets the bound.

    With a bound on the end-to-end latency all operators form one network; otherwise each operator is a
    network. A decision that adds or removes several slots is carried out by StreamSwitch's best unit
    strategies, one per cycle.

    Parameters
    ----------
    epsilon : float
        Safety margin in [0, 1): the model's service rate is (1 - epsilon) mu.
    interval_s : float
        Time between decisions, in seconds; > 0; the first comes after two intervals. Rates and latencies
        are averaged over the time since the last decision or change.

    References
    ----------
    Fu et al., ICDCS 2015, and the authors' published code (mode MinQoSOpt, 30 s); StreamSwitch 6 for
    epsilon and for the choice of key groups. As there, an infeasible target changes nothing. Differs:
    latencies are those above the floor.
    """

    def __init__(self, epsilon: float = 0.2, interval_s: float = 30.0) -> None:
        check_range(self._kind(), "epsilon", epsilon, 0.0, 1.0 - 1e-9)
        check_range(self._kind(), "interval_s", interval_s, 0.0, above=True)
        self._epsilon, self._interval_s = epsilon, interval_s
        self._next_s: float | None = None
        self._averages: defaultdict[str, Averages] = defaultdict(Averages)
        self._wanted: dict[str, int] = {}
        """Slots per operator of the last decision; no entry once they are reached."""

    @property
    def name(self) -> str:
        """``drs(0.2)``, or ``drs-lb(0.2)``."""
        return f"{self._kind()}({self._epsilon:g})"

    def decide(self, observation: Observation) -> Decision:
        """Return the next unit strategy of each operator on its way to the wanted number."""
        if is_whole(observation):
            self._measure(observation)
        changes: dict[str, Change] = {}
        reasons: list[str] = []
        numbers: dict[str, float] = {}
        for name, view in observation.operators.items():
            strategy = self._towards(name, view)
            if strategy is None:
                strategy = self._otherwise(view)
            if strategy is None:
                continue
            changes[name] = change_of(view, strategy)
            wanted = self._wanted_of(name, view)
            numbers[f"{name}.wanted"] = float(wanted)
            reasons.append(
                f"{name} has {view.slots} slots, the queueing model wants {wanted}: "
                f"{strategy.kind} of {len(strategy.groups)} key groups"
            )
        if not changes:
            return NOTHING
        kinds = ", ".join(sorted({change.kind for change in changes.values()}))
        return Decision(changes, "; ".join(reasons) + ".", f"{self._kind()} -> {kinds}", numbers)

    def applied(self, operator: str, change: Change, took_s: float) -> None:
        """Restart the averages, which are of another assignment."""
        self._averages.pop(operator, None)

    def slot_failed(self, operator: str, slot_id: int) -> None:
        """Do nothing; no state depends on it."""

    def _kind(self) -> str:
        return "drs"

    def _otherwise(self, view: OperatorView) -> UnitStrategy | None:
        """Return a strategy for an operator that is not being scaled."""
        return None

    def _measure(self, observation: Observation) -> None:
        """Update the averages; at the end of an interval, decide on the wanted slots."""
        for name, view in observation.operators.items():
            self._averages[name].add(view)
        if self._next_s is None:
            self._next_s = observation.time_s + 2 * self._interval_s
        if observation.time_s < self._next_s:
            return
        self._next_s = observation.time_s + self._interval_s
        if observation.end_to_end_s is None:
            for name, view in observation.operators.items():
                self._want({name: view}, {name: 1.0}, view.bound_s - view.floor_s)
        else:
            floors_s = sum(view.floor_s for view in observation.operators.values())
            ratios = self._ratios(observation)
            self._want(observation.operators, ratios, observation.end_to_end_s - floors_s)
        self._averages.clear()

    def _ratios(self, observation: Observation) -> dict[str, float]:
        """Return arrivals at each operator per record that enters the job."""
        outside = sum(
            self._averages[name].rate
            for name in observation.operators
            if not observation.parents.get(name)
        )
        return {
            name: self._averages[name].rate / outside if outside else 1.0
            for name in observation.operators
        }

    def _want(
        self, views: Mapping[str, OperatorView], ratios: Mapping[str, float], target_s: float
    ) -> None:
        """Decide on the wanted slots of one network; nothing changes if the target is infeasible."""
        rates: dict[str, tuple[float, float, float]] = {}
        for name in views:
            means = self._averages[name]
            service_rate = (1.0 - self._epsilon) * means.service_rate
            if not service_rate > 0.0:
                return
            rates[name] = (means.rate, service_rate, ratios[name])
        expected_s = sum(
            Station(*rates[name], servers=view.slots).latency_s for name, view in views.items()
        )
        measured_s = sum(ratios[name] * self._averages[name].latency_s for name in views)
        correction = max(1.0, measured_s / expected_s) if expected_s else 1.0
        available = sum(_most(view) for view in views.values())
        wanted = fewest_servers(rates, target_s, correction, available)
        if wanted is not None:
            self._wanted.update(wanted)

    def _towards(self, name: str, view: OperatorView) -> UnitStrategy | None:
        """Return the next unit strategy towards the wanted number; None if it is reached."""
        wanted = self._wanted_of(name, view)
        strategy = None
        if wanted < view.slots:
            strategy = best_scale_in(view, self._epsilon)
        elif wanted > view.slots:
            # Take the most loaded slot that can be relieved: one with a single key group cannot.
            order = np.argsort(-self._pressure(view), kind="stable")
            options = (best_scale_out(view, self._epsilon, int(slot)) for slot in order)
            strategy = next((option for option in options if option is not None), None)
        if strategy is None:
            self._wanted.pop(name, None)
        return strategy

    def _wanted_of(self, name: str, view: OperatorView) -> int:
        """Return the wanted number of slots, within the operator's limits."""
        return min(max(self._wanted.get(name, view.slots), view.slots_min), _most(view))

    def _pressure(self, view: OperatorView) -> F64:
        return pressure(view.slot_rate, view.service_rate, self._epsilon)


class DrsBalanced(Drs):
    """Adds to DRS StreamSwitch's load balancing of operators that DRS does not scale.

    The severe slot with the largest projected latency gives key groups to another one, if no slot
    is severe afterwards; see `StreamSwitch`.

    References
    ----------
    StreamSwitch 6, DRS-LB.
    """

    def _kind(self) -> str:
        return "drs-lb"

    def _otherwise(self, view: OperatorView) -> UnitStrategy | None:
        if not np.any(view.latency_s - view.floor_s > view.alert_s):
            return None  # no slot is severe, the usual case
        now_s = projected_latency_s(view.slot_rate, view.service_rate, self._epsilon)
        seen_s = latency_seen_s(view)
        severe = healthiness(view, seen_s, now_s) == Health.SEVERE
        if not severe.any():
            return None
        source = int(np.argmax(np.where(severe, self._pressure(view), -np.inf)))
        strategy = best_balance(view, self._epsilon, source)
        if strategy is None:
            return None
        # A balance keeps the slots' numbers, so that the measured latencies still apply.
        cured = healthiness(view, seen_s, strategy.latency_s).max() < Health.SEVERE
        return strategy if cured else None


def _erlang_c(offered: float, servers: int, blocking: float) -> float:
    """Return the probability of waiting, from the probability of blocking."""
    if offered >= servers:
        return 1.0
    return blocking / (1.0 - offered / servers * (1.0 - blocking))


def _most(view: OperatorView) -> int:
    """Return the most slots that an operator can have."""
    return min(view.slots_max, view.assignment.key_groups)
