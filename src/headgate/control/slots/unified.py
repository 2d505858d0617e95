"""Implements the default policy: picks the slot count that would have met the SLO on recent load."""

from __future__ import annotations

import math
from dataclasses import replace

from headgate.control.decision import NOTHING, Change, Decision
from headgate.control.estimators.trend import Trend
from headgate.control.limits import check_range
from headgate.control.observation import Observation, OperatorView
from headgate.control.slots.following import FollowsRules
from headgate.control.slots.rescaling import arrival_rate, mean_service_rate, rescaled

_LOOK_BACK_S = 5.0
"""Seconds over which trends are taken; more smooth more. Chosen on figure 5's load, as the defaults."""

_EPSILON_MAX, _GOAL_MAX = 0.99, 0.9999

_MANY = 1e9
"""Cap on a number of slots before it is rounded: more than any operator may have."""

_LEAST_RATE = 1e-9
"""Records per second below which a service rate counts as unknown."""

_ROUNDING = 1e-9
"""Tolerance of `ceil`, in slots: thirty events of 100 ms in 1 s need 3, also in floating point."""


class Unified:
    """Chooses the number of slots that would have met the SLO on recent load, and no more.

    By default the policy replays the measured load on virtual slots under hundreds of rules for the
    number of slots: constants, and rules that follow the load with a margin and hold slots for a while.
    The policy follows the rule that would have kept the bound with the fewest slots and changes
    (`headgate.control.slots.hindsight`, `headgate.control.slots.following`). That rule is near a constant
    where a constant is best, and close to the load where the load changes slowly.

    ``even=1`` says that moves are free: slots share memory (STRETCH), or every slot takes any record
    (PSPS's replicas, Henge's operators). The policy then takes at once the fewest slots with which all
    arrivals and the backlog are projected to be within the bound, if the slots have equal load.

    In a fleet, the fleet decides the total number of slots.

    Parameters
    ----------
    epsilon : float
        Margin, as a share of the load. With `even`, a change makes the slots enough for arrivals over
        1 - `epsilon`, and slots are removed only if more than a share of `epsilon` of them goes.
    ahead_s : float
        With `even`, how far ahead arrivals and service rates are forecast, seconds; 0: no forecast.
    even : int
        1 where moves are free; 0, the default, where key groups stop while they move.
    look_back_s : float
        With `even`, the time over which the trends are taken, seconds; > 0.
    goal : float
        Without `even`, the share of windows that is to be within the bound, below 1; 0, the default: the
        share that the SLO wants.
    clear : float
        With `even`, the number of windows within which the backlog is to be served; >= 1.

    References
    ----------
    Ours. Without `even`: follow-the-leader among experts with full information (Cesa-Bianchi and Lugosi
    2006, 2 and 3.2). With `even`: StreamSwitch 4.2 (projection), PSPS IV (forecast, the backlog counts),
    STRETCH 8.4 and 8.5 (all slots in one change, predicted work).
    """

    def __init__(
        self,
        epsilon: float = 0.1,
        ahead_s: float = 1.0,
        even: int = 0,
        look_back_s: float = _LOOK_BACK_S,
        goal: float = 0.0,
        clear: float = 1.0,
    ) -> None:
        check_range("unified", "epsilon", epsilon, 0.0, _EPSILON_MAX)
        check_range("unified", "ahead_s", ahead_s, 0.0)
        check_range("unified", "even", even, 0, 1)
        check_range("unified", "look_back_s", look_back_s, 0.0, above=True)
        check_range("unified", "goal", goal, 0.0, _GOAL_MAX)
        self._epsilon, self._ahead_s, self._even = epsilon, ahead_s, bool(even)
        check_range("unified", "clear", clear, 1.0)
        self._look_back_s, self._goal, self._clear = look_back_s, goal, clear
        self._laws: dict[str, FollowsRules] = {}
        self._rates: dict[str, Trend] = {}
        self._costs: dict[str, Trend] = {}

    @property
    def name(self) -> str:
        """``unified(0.1)``, or ``unified(0.1, 1, even)``."""
        if self._even:
            return f"unified({self._epsilon:g}, {self._ahead_s:g}, even)"
        goal = "" if not self._goal else f", goal={self._goal:g}"
        return f"unified({self._epsilon:g}{goal})"

    def decide(self, observation: Observation) -> Decision:
        """Return at most one change per operator."""
        if not self._even:
            return self._followed(observation)
        expected = {
            name: self._expected(name, observation.time_s, view)
            for name, view in observation.operators.items()
        }
        return self._evenly(expected)

    def applied(self, operator: str, change: Change, took_s: float) -> None:
        """Learn the time that a change takes."""
        if operator in self._laws:
            self._laws[operator].applied(took_s)

    def slot_failed(self, operator: str, slot_id: int) -> None:
        """Do nothing: the next observation shows the failure."""

    def _followed(self, observation: Observation) -> Decision:
        """Return the changes that the rules of the operators want."""
        changes: dict[str, Change] = {}
        reasons: list[str] = []
        rules: dict[str, None] = {}
        numbers: dict[str, float] = {}
        for name, view in observation.operators.items():
            law = self._laws.get(name)
            if law is None or law.key_groups != view.assignment.key_groups:
                law = self._laws[name] = FollowsRules(view, self._epsilon)
            law.aim(self._goal or min(view.success, _GOAL_MAX))
            wanted = law.decide(observation.time_s, view)
            if wanted is not None:
                changes[name] = wanted.change
                reasons.append(f"{name}: {wanted.reason}.")
                rules[wanted.rule] = None
                numbers |= {f"{name}.{key}": value for key, value in wanted.numbers.items()}
        return (
            Decision(changes, " ".join(reasons), ", ".join(rules), numbers) if changes else NOTHING
        )

    def _expected(self, name: str, time_s: float, view: OperatorView) -> OperatorView:
        """Return the view with forecast arrivals and service rates."""
        trend = self._rates.setdefault(name, Trend(self._look_back_s))
        trend.observe(time_s, arrival_rate(view))
        foreseen = replace(view, group_rate=view.group_rate * trend.growth(self._ahead_s))
        mu = mean_service_rate(view)
        if mu < _LEAST_RATE:
            return foreseen
        cost = self._costs.setdefault(name, Trend(self._look_back_s))
        cost.observe(time_s, 1.0 / mu)
        return replace(foreseen, service_rate=view.service_rate / cost.growth(self._ahead_s))

    def _evenly(self, operators: dict[str, OperatorView]) -> Decision:
        """Return the change of each operator that has too few slots, or too many."""
        changes: dict[str, Change] = {}
        reasons: list[str] = []
        numbers: dict[str, float] = {}
        for name, view in operators.items():
            wanted = even_slots(view, self._epsilon, self._clear)
            change = None if wanted is None else rescaled(view, wanted)
            if change is None:
                continue
            rate, waiting = arrival_rate(view), float(view.backlog.sum())
            changes[name] = change
            numbers |= {f"{name}.rate": rate, f"{name}.waiting": waiting}
            reasons.append(
                f"{name}: {rate:.4g} records/s are expected and {waiting:.0f} wait: {view.slots} -> "
                f"{change.assignment.slots} slots keep within {view.bound_s:g} s."
            )
        return Decision(changes, " ".join(reasons), "projected", numbers) if changes else NOTHING


def even_slots(view: OperatorView, epsilon: float, clear: float) -> int | None:
    """Return the number of slots, equally loaded, that an operator should have; None for no change.

    The backlog is to be served within `clear` windows. Slots are too few if their projected latency is
    above the bound. They are too many if arrivals over 1 - `epsilon` leave more than a share of `epsilon`
    of the slots unused. Both changes make the slots enough for arrivals over 1 - `epsilon`.

    References
    ----------
    StreamSwitch 4.2, for slots with the same load. Differs: the margin is on arrivals; a margin on the
    service rate would also make the service time of a record longer.
    """
    mu = mean_service_rate(view)
    if mu < _LEAST_RATE:
        return None
    rate = arrival_rate(view) + float(view.backlog.sum()) / (clear * view.window_s)
    within_s = view.bound_s - view.floor_s
    safe = _fewest(rate / (1.0 - epsilon), mu, within_s)
    too_few = _fewest(rate, mu, within_s) > view.slots
    spare = safe < view.slots * (1.0 - epsilon)
    return safe if too_few or spare else None


def _fewest(rate: float, mu: float, within_s: float) -> int:
    """Return the fewest slots whose projected latency is in a bound; if none, the fewest that keep up."""
    most = mu - 1.0 / within_s if within_s * mu > 1.0 else mu
    return math.ceil(min(rate / most, _MANY) - _ROUNDING)
