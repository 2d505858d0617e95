"""Implements STRETCH's second controller, for which pending and predicted work count, too."""

from __future__ import annotations

from headgate.control.decision import NOTHING, Change, Decision
from headgate.control.limits import check_range
from headgate.control.observation import Observation
from headgate.control.slots.band import Band
from headgate.control.slots.rescaling import arrival_rate, mean_service_rate, rescaled
from headgate_lab.rivals.window_fill import WindowFill


class Predictive:
    """Keeps the load of an operator in a narrow band; load is the sum of three kinds of work.

    ::

        demand = lambda / mu x max(1, growth)  +  backlog / (mu x catch_up_s)
                 current       predicted          pending

    in slots. The growth is that of the records in the window within `ahead_s`, since a record of a join
    is compared with all of them. After a step up the growth is above 1 until the window has been filled
    at the new rate. After a step down it is below 1 and does not count, so that slots are removed only
    when the work has decreased.

    Parameters
    ----------
    high, target, low : float
        See `Band`.
    window_s : float
        WS of the operator in seconds; 0: the cost of a record does not depend on a window.
    ahead_s : float
        Horizon of the prediction, in seconds.
    catch_up_s : float
        Time in which pending work should be done, in seconds; > 0.

    References
    ----------
    STRETCH 8.5, Q5: 80 % and 70 %. The paper does not give the target (here their mean), the horizon and
    the catch-up time; they are chosen so that pending work is done within the paper's 10 s. The cost of a
    record is assumed proportional to the records in the window, without a fixed part.
    """

    def __init__(
        self,
        high: float = 0.8,
        target: float = 0.75,
        low: float = 0.7,
        window_s: float = 0.0,
        ahead_s: float = 2.0,
        catch_up_s: float = 5.0,
    ) -> None:
        check_range("predictive", "window_s", window_s, 0.0)
        check_range("predictive", "ahead_s", ahead_s, 0.0)
        check_range("predictive", "catch_up_s", catch_up_s, 0.0, above=True)
        self._band = Band(high, target, low)
        self._band.check("predictive")
        self._window_s, self._ahead_s, self._catch_up_s = window_s, ahead_s, catch_up_s
        self._fills: dict[str, WindowFill] = {}

    @property
    def name(self) -> str:
        """``predictive(0.8, 0.75, 0.7, 60)``."""
        band = self._band
        return f"predictive({band.high:g}, {band.target:g}, {band.low:g}, {self._window_s:g})"

    def decide(self, observation: Observation) -> Decision:
        """Return a change for each operator whose load is outside the band."""
        changes: dict[str, Change] = {}
        reasons: list[str] = []
        numbers: dict[str, float] = {}
        for name, view in observation.operators.items():
            arriving, rate = arrival_rate(view), mean_service_rate(view)
            fill = self._fills.setdefault(name, WindowFill(self._window_s))
            fill.observe(observation.time_s, arriving)
            if not rate:
                continue
            current = arriving / rate
            foreseen = current * max(1.0, fill.growth(self._ahead_s, arriving))
            pending = sum(view.backlog.tolist()) / (rate * self._catch_up_s)
            change = rescaled(view, self._band.slots(view, foreseen + pending))
            if change is not None:
                changes[name] = change
                numbers |= {
                    f"{name}.current": current,
                    f"{name}.foreseen": foreseen,
                    f"{name}.pending": pending,
                }
                reasons.append(
                    f"{name} needs {current:.1f} slots for what arrives, {foreseen:.1f} with its "
                    f"window in {self._ahead_s:g} s, and {pending:.1f} for what waits: "
                    f"{view.slots} -> {change.assignment.slots} slots"
                )
        if not changes:
            return NOTHING
        return Decision(changes, "; ".join(reasons) + ".", "predictive", numbers)

    def applied(self, operator: str, change: Change, took_s: float) -> None:
        """Do nothing; the next observation shows the change."""

    def slot_failed(self, operator: str, slot_id: int) -> None:
        """Do nothing; the next observation shows the failure."""
