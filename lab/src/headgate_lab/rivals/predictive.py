"""STRETCH's second controller: the work that waits and the work that is foreseen count as well."""

from __future__ import annotations

from headgate.control.decision import NOTHING, Change, Decision
from headgate.control.limits import check_range
from headgate.control.observation import Observation
from headgate.control.slots.band import Band
from headgate.control.slots.rescaling import arrival_rate, mean_service_rate, rescaled
from headgate_lab.rivals.window_fill import WindowFill


class Predictive:
    """Keep the load of an operator in a narrow band; load is made of three kinds of work.

    ::

        demand = lambda / mu x max(1, growth)  +  backlog / (mu x catch_up_s)
                 current       predicted          pending

    in slots' worth of work. The growth is that of the window's contents within `ahead_s`: a record
    of a join is compared with what its window holds. After a step up it is above 1 until the window
    has been filled at the new rate, after a step down below 1 and not counted: slots go when the work
    has gone.

    Parameters
    ----------
    high, target, low : float
        As `Band`.
    window_s : float
        WS of the operator in seconds; 0: the cost of a record does not depend on a window.
    ahead_s : float
        How far ahead work is predicted, seconds.
    catch_up_s : float
        Within how many seconds pending work should be done; > 0.

    References
    ----------
    STRETCH 8.5, Q5: 80 % and 70 %. The target is not given: their middle. Nor is how far it looks
    ahead and how fast it catches up: chosen, so that pending work is gone within the paper's 10 s. The
    cost of a record is taken to be proportional to the window's contents, with nothing fixed.
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
        """Keep nothing: the next observation shows it."""

    def slot_failed(self, operator: str, slot_id: int) -> None:
        """Keep nothing: the next observation shows it."""
