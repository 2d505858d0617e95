"""Runs the control loop: one cycle after the other, on the engine's clock."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from headgate.control.decision import NOTHING, Change, Decision
from headgate.control.decorators import AdviseOnly, Freezable
from headgate.control.estimators.examiner import Examiner
from headgate.control.estimators.split import BoundSplit, paths_of
from headgate.control.observation import F64, Observation, OperatorView
from headgate.control.policy import Policy
from headgate.core.errors import ConfigError, NotReady, ProtocolError, nearest
from headgate.loop.floor import Floor
from headgate.loop.ports import Actuator, DecisionJournal, MetricsSource
from headgate.loop.settings import OperatorSettings

_FLOORS = 2.0
"""Multiple of the floor below which no number of slots can keep a bound."""

_FULL = 0.9
"""Arrival rate over service rate above which an operator is short of slots. Chosen, not tuned."""

_NO_DIGITS = str.maketrans("", "", "0123456789")


class LoopState(StrEnum):
    """Names the state of the loop for one operator."""

    NOT_READY = "not ready"
    """The operator has no valid view, so the policy cannot decide."""

    STEADY = "steady"
    """The policy decides in every cycle."""

    CHANGING = "changing"
    """A change is under way; the policy does not decide until the change is in force."""

    UNREACHABLE = "unreachable"
    """The policy decides, but the bound is below two floors: no number of slots can keep it."""


@dataclass(frozen=True)
class _Pending:
    """Holds a change that is under way, and the time of its decision."""

    change: Change
    decided_s: float


@dataclass
class _Operator:
    """Holds the loop's data about one operator."""

    settings: OperatorSettings
    """Settings for the next cycle."""
    examiner: Examiner
    floor: Floor = field(default_factory=Floor)
    """Measured only while `settings.floor_s` is None."""
    pending: _Pending | None = None
    """The change between *decided* and *applied*."""
    why: str = "no cycle has run yet"
    """Why the last cycle was not ready; empty where it was."""
    limited: bool = False
    """Whether the operator was short of slots in the last cycle, and more would be of no use."""
    entry_rate: F64 | None = None
    """float64[G] or None: as `OperatorView.entry_rate`."""

    @property
    def floor_s(self) -> float:
        """The floor in seconds: from the settings, or else as measured so far."""
        setting_s = self.settings.floor_s
        return self.floor.value_s if setting_s is None else setting_s


class ControlLoop:
    """Runs one operator graph's control loop: collects, examines, decides and applies.

    An engine calls `cycle` once per interval. It calls `applied`, `note_abandoned` and `slot_failed`
    when a change is in force, was given up, or a slot was lost. The observation leaves out operators
    whose counters are not valid, and operators between *decided* and *applied*; the policy still decides
    about the others. Single-threaded: an engine calls from one thread.

    Parameters
    ----------
    actuator : Actuator    May call `applied` from within `apply`.
    journal : DecisionJournal
        Gets every decision that acts, and the first of successive ones of a rule that do not.
    operators : mapping of str to OperatorSettings    Upstream first.
    delta_s : float    delta: length of a tick of the samples, in seconds.
    parents : mapping of str to tuple of str, optional    As `Observation.parents`.
    end_to_end_s : float, optional
        Bound on the sum of the latencies of the operators on each path, in seconds. With this bound
        the loop ignores the bounds in the settings; `BoundSplit` divides it among the operators.

    References
    ----------
    StreamSwitch 4.3 (when the diagnosis is left out), 5 (call-backs) and 6.6 (end-to-end bound).
    """

    def __init__(
        self,
        policy: Policy,
        source: MetricsSource,
        actuator: Actuator,
        journal: DecisionJournal,
        operators: Mapping[str, OperatorSettings],
        *,
        delta_s: float,
        parents: Mapping[str, tuple[str, ...]] | None = None,
        end_to_end_s: float | None = None,
    ) -> None:
        self._freezable = Freezable(policy)
        self._advice = AdviseOnly(self._freezable, on=False)
        self._source, self._actuator, self._journal = source, actuator, journal
        self._parents = dict(parents or {})
        self._end_to_end_s = end_to_end_s
        self._paths = paths_of(tuple(operators), self._parents)
        self._split = None if end_to_end_s is None else BoundSplit(self._paths, end_to_end_s)
        self._last_rule = ""
        self._cycle_s: float | None = None
        self._period_s = 0.0
        self._held_until_s: dict[str, float] = {}
        self._operators = {
            name: _Operator(
                settings,
                Examiner(
                    actuator.assignment(name).key_groups,
                    delta_s,
                    settings.window_s,
                    initial_service_rate=settings.initial_service_rate,
                ),
            )
            for name, settings in operators.items()
        }

    def cycle(self, time_s: float) -> Decision:
        """Run one cycle at `time_s`, seconds since the start of the job; return the decision."""
        self._period_s = 0.0 if self._cycle_s is None else time_s - self._cycle_s
        self._cycle_s = time_s
        for name, samples in self._source.collect().items():
            examiner = self._operators[name].examiner
            for sample in samples:
                examiner.add(sample)
        views: dict[str, OperatorView] = {}
        for name, operator in self._operators.items():
            if operator.pending is None and (view := self._examine(name, operator)):
                held = time_s < self._held_until_s.get(name, -math.inf)
                views[name] = held_at(view) if held else view
        if not views:
            return NOTHING
        if self._split is not None:
            self._split.observe(time_s, views)
        observation = Observation(time_s, views, self._parents, self._end_to_end_s)
        decision = self._advice.decide(observation)
        self._write(observation, decision)
        self._tell_limits(observation)
        if decision:
            for name, change in decision.changes.items():
                self._begin(name, change, observation)
        return decision

    def applied(self, operator: str, time_s: float) -> None:
        """Take note that the change of `operator` is in force since `time_s`.

        Raises `ProtocolError`: no change of that operator is under way.
        """
        pending = self._end(operator)
        took_s = time_s - pending.decided_s
        self._journal.applied(operator, pending.change, took_s)
        self._advice.applied(operator, pending.change, took_s)

    def note_abandoned(self, operator: str) -> None:
        """Take note that the change of `operator` was given up; the old assignment holds.

        Raises `ProtocolError`: no change of that operator is under way.
        """
        self._end(operator)

    def slot_failed(self, operator: str, slot_id: int) -> None:
        """Take note that a slot was lost; a change under way goes on.

        The engine gives the replacement the newest assignment, that of a change under way if any.

        References
        ----------
        StreamSwitch 5, `onExecutorFailed`.
        """
        self._get(operator)
        self._advice.slot_failed(operator, slot_id)

    def configure(self, operator: str, settings: OperatorSettings) -> None:
        """Change SLO and limits of an operator from the next cycle on."""
        state = self._get(operator)
        if settings.window_s != state.settings.window_s:
            state.examiner.window_s = settings.window_s
        state.settings = settings

    def note_entry_rate(self, operator: str, entry_rate: F64) -> None:
        """Set `OperatorView.entry_rate` of an operator: rows per second of shares, float64[G]."""
        self._get(operator).entry_rate = entry_rate

    def bound_end_to_end(self, bound_s: float | None) -> None:
        """Change the bound on the sum of the operators' latencies; None: the settings' bounds hold."""
        if bound_s != self._end_to_end_s:
            self._end_to_end_s = bound_s
            self._split = None if bound_s is None else BoundSplit(self._paths, bound_s)

    def settings(self, operator: str) -> OperatorSettings:
        """Return SLO and limits of an operator."""
        return self._get(operator).settings

    def state(self, operator: str) -> LoopState:
        """Return the state of the loop for an operator."""
        known = self._get(operator)
        if known.pending is not None:
            return LoopState.CHANGING
        if self.bound_s(operator) < _FLOORS * known.floor_s:
            return LoopState.UNREACHABLE
        return LoopState.NOT_READY if known.why else LoopState.STEADY

    def bound_s(self, operator: str) -> float:
        """Return the present bound of an operator, in seconds."""
        if self._split is not None:
            return self._split.bound_s(operator)
        return self._get(operator).settings.bound_s

    def floor_s(self, operator: str) -> float:
        """Return the latency floor of an operator in seconds; 0 before the first measurement."""
        return self._get(operator).floor_s

    def freeze(self, until_s: float = math.inf) -> None:
        """Decide nothing before `until_s`, seconds since the start of the job."""
        self._freezable.freeze(until_s)

    def hold(self, until_s: Mapping[str, float]) -> None:
        """Keep the number of slots of operators, each until a time in seconds since the start of the job.

        Other operators are no longer held. Key groups may still move among slots.
        """
        self._held_until_s = dict(until_s)

    def thaw(self) -> None:
        """Decide again."""
        self._freezable.thaw()

    def advise(self, on: bool = True) -> None:
        """Write decisions to the journal without carrying them out, or carry them out again."""
        self._advice.on = on

    def _examine(self, name: str, operator: _Operator) -> OperatorView | None:
        """Return the view of an operator for the policy; None where the operator is not ready."""
        settings = operator.settings
        slots_max = settings.slots_max
        if settings.limit:  # such a limit takes no present slots away
            slots_max = max(slots_max, self._actuator.assignment(name).slots)
        try:
            view = operator.examiner.view(
                bound_s=self.bound_s(name),
                alert_s=settings.alert_s,
                floor_s=operator.floor_s,
                slots_min=settings.slots_min,
                slots_max=slots_max,
            )
        except NotReady as not_ready:
            self._not_ready(name, operator, str(not_ready))
            return None
        view = replace(
            view,
            unsplittable=settings.unsplittable,
            entry_rate=operator.entry_rate,
            success=settings.success,
        )
        epoch = self._actuator.assignment(name).epoch
        if view.assignment.epoch != epoch:
            why = f"slots have measured assignment {view.assignment.epoch}, and {epoch} is in force"
            self._not_ready(name, operator, why)
            return None
        operator.why = ""
        view = replace(view, limit=settings.limit) if settings.limit else view
        if settings.floor_s is None:
            latency_s = view.latency_s[view.latency_s == view.latency_s]
            if len(latency_s):
                rate = float(view.group_rate.sum())
                waiting_s = float(view.backlog.sum()) / rate - view.window_s if rate else 0.0
                operator.floor.add(
                    float(latency_s.mean()),
                    float(view.utilisation.max()),
                    waiting_s,
                    # latencies are means over a window, so a period counts as one window at least
                    max(self._period_s, view.window_s),
                )
        return view

    def _not_ready(self, name: str, operator: _Operator, why: str) -> None:
        """Store why an operator is not ready; write it to the journal unless only numbers changed."""
        if why.translate(_NO_DIGITS) != operator.why.translate(_NO_DIGITS):
            self._journal.not_ready(name, why)
        operator.why = why

    def _write(self, observation: Observation, decision: Decision) -> None:
        """Write a decision to the journal, unless it does nothing and repeats the last rule."""
        if decision or (decision.rule and decision.rule != self._last_rule):
            self._journal.decided(observation, decision, acts=bool(decision))
        self._last_rule = decision.rule

    def _tell_limits(self, observation: Observation) -> None:
        """Write to the journal once that an operator is short of slots, but more would be of no use."""
        for name, view in observation.operators.items():
            short = view.group_rate.sum() > _FULL * view.service_rate.sum()
            limited = bool(view.limit and view.slots >= view.slots_max and short)
            if limited and not self._operators[name].limited:
                reason = f"{name}: {view.limit}; more than {view.slots} slots would serve no more."
                decision = Decision({}, reason, "limit", {f"{name}.slots": float(view.slots)})
                self._journal.decided(observation, decision, acts=False)
            self._operators[name].limited = limited

    def _begin(self, name: str, change: Change, observation: Observation) -> None:
        """Give a change to the engine; refuse a change that is not valid."""
        view = observation.operators.get(name)
        wrong = _fault(view, change)
        if wrong:
            self._journal.not_ready(name, f"the policy's decision is refused: {wrong}")
            return
        self._operators[name].pending = _Pending(change, observation.time_s)
        self._actuator.apply(name, change)

    def _end(self, name: str) -> _Pending:
        operator = self._get(name)
        pending = operator.pending
        if pending is None:
            msg = f'no change of operator "{name}" is under way; it cannot end.'
            raise ProtocolError(msg)
        operator.pending = None
        return pending

    def _get(self, name: str) -> _Operator:
        try:
            return self._operators[name]
        except KeyError:
            hint = nearest(name, self._operators) or f"; known: {', '.join(self._operators)}."
            msg = f'unknown operator "{name}"{hint}'
            raise ConfigError(msg) from None


def held_at(view: OperatorView) -> OperatorView:
    """Return the view of an operator whose number of slots no policy may change."""
    return replace(view, held=True, slots_min=view.slots, slots_max=view.slots)


def _fault(view: OperatorView | None, change: Change) -> str:
    """Return the fault of a change; empty where there is none."""
    if view is None:
        return "it is about an operator that was not observed"
    new, old = change.assignment, view.assignment
    if new.key_groups != old.key_groups:
        return f"it has {new.key_groups} key groups, the operator {old.key_groups}"
    if new.epoch != old.epoch + 1:
        return f"it has epoch {new.epoch}, the next is {old.epoch + 1}"
    if len(change.survivors) != new.slots:
        return f"it names {len(change.survivors)} survivors for {new.slots} slots"
    survivors = [slot for slot in change.survivors if slot is not None]
    if len(set(survivors)) < len(survivors) or not set(survivors) <= set(range(view.slots)):
        return f"the survivors {survivors} are not different slots of the operator"
    if view.held and new.slots != view.slots:
        return f"it has {new.slots} slots, and somebody holds its {view.slots} slots"
    most = max(view.slots_max, view.slots)
    if new.slots > most:
        return f"it has {new.slots} slots, the most is {most}" + (view.limit and f": {view.limit}")
    return ""
