"""Implements Henge: meets the intents of many jobs by reconfiguration, reduction and reversion."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from headgate.control.fleet.arithmetic import difference, extra_slots, fitted, reduced
from headgate.control.fleet.view import (
    SATURATED,
    Action,
    FleetDecision,
    FleetJob,
    FleetOperator,
    FleetView,
    Slots,
)
from headgate.control.limits import check_range
from headgate.core.utility import Utility


class Goal(StrEnum):
    """Names the objective that Henge maximises."""

    TOTAL = "total"
    """The sum of all jobs' utilities (Henge's own choice)."""

    MAX_MIN = "max-min"
    """The smallest share of its maximum that any job attains. Differs from Henge 2, which names the
    minimum utility: a job of low priority would always be the minimum."""


class ClusterState(StrEnum):
    """Names Henge's two states of a cluster (figure 4), and the time before Henge may act."""

    OBSERVING = "observing"
    NOT_CONVERGED = "not converged"
    CONVERGED = "converged"


_FALLING = 1e-3
"""Share of its utility that a falling job loses within a round, at least."""

_ROUNDING_S = 1e-6
"""Tolerance of times, in seconds. Times are sums of batch lengths: a hundred times 0.1 s is 10 s."""


def capacity(operator: FleetOperator) -> float:
    """Return the congestion of an operator as Henge measures it: its capacity (equation 3)."""
    return operator.capacity


@dataclass(frozen=True)
class HengeParameters:
    """Holds the parameters of `Henge`, and checks their ranges."""

    goal: Goal = Goal.TOTAL
    """The objective that Henge maximises."""
    round_s: float = 10.0
    """Time between two rounds, in seconds; > 0. Henge 5.1."""
    observe_s: float = 900.0
    """Time for which a new fleet is only watched, in seconds; >= 0. Henge 8."""
    fresh_s: float = 300.0
    """Time for which statistics must come again after a gap, in seconds; >= 0. Henge 8.4.2."""
    settle_s: float = 60.0
    """Time between an action and its judgement, at least, in seconds; >= 0. Henge 5.1: about a
    minute, which is also the length of the windows of the measured values."""
    settle_max_s: float = 300.0
    """Time between an action and its judgement, at most, in seconds; chosen, not tuned."""
    settle_tolerance: float = 0.01
    """Relative change of the objective in a round up to which it has settled; a smaller loss is no
    drop; at most 0.99."""
    congestion_threshold: float = 0.3
    """Congestion above which an operator is congested; > 0. Henge 5.1."""
    slots_per_unit: float = 10.0
    """Slots added per threshold of excess congestion; > 0. Henge 5.1, equation 4."""
    gain: float = 0.05
    """Delta: relative gain from new slots below which a late job is blacklisted; >= 0. Henge 5.1."""
    blacklist_s: float = 3600.0
    """Time on the blacklist, in seconds; >= 0. Henge 5.1."""
    stable_rounds: int = 4
    """Rounds at the maximum before the cluster counts as converged; >= 0. Henge 5.1."""
    reduction: float = 0.8
    """Share of its slots that a reduced operator loses; above 0, at most 0.99. Henge 5.2."""
    drop: float = 0.05
    """Relative loss of a converged cluster above which the workload has changed; above 0, at most
    0.99. Henge 5.3."""
    input_change: float = 0.1
    """Relative change of a job's input above which another reduction is allowed; >= 0. Chosen."""
    input_steady: float = 0.02
    """Relative change of a job's input, while an action takes effect, above which the job does not
    count in the judgement; >= 0. Chosen, not tuned."""
    blame_falling: bool = True
    """Whether a job that was losing utility before an action, or bound to, counts in the judgement.
    Use False where changes lose no records: the backlog of a late job makes it later in every round,
    for a while even with enough slots."""
    patience_rounds: int = 2
    """Successive rounds for which a miss or a drop must last to count, so that a burst within one
    sub-window causes no action (Henge 6); >= 1."""
    measure: Callable[[FleetOperator], float] = capacity
    """Congestion of an operator; another measure (queue length, ...) needs its own threshold."""

    def __post_init__(self) -> None:
        for name in ("round_s", "congestion_threshold", "slots_per_unit"):
            check_range("henge", name, getattr(self, name), 0.0, above=True)
        for name in ("reduction", "drop"):
            check_range("henge", name, getattr(self, name), 0.0, 0.99, above=True)
        for name in ("observe_s", "fresh_s", "settle_s", "gain", "blacklist_s"):
            check_range("henge", name, getattr(self, name), 0.0)
        for name in ("input_change", "input_steady"):
            check_range("henge", name, getattr(self, name), 0.0)
        check_range("henge", "settle_tolerance", self.settle_tolerance, 0.0, 0.99)
        check_range("henge", "settle_max_s", self.settle_max_s, self.settle_s)
        check_range("henge", "stable_rounds", self.stable_rounds, 0)
        check_range("henge", "patience_rounds", self.patience_rounds, 1)


@dataclass(frozen=True)
class Indicators:
    """Holds the figures about the cluster that Henge shows to people.

    References
    ----------
    Henge 5.5 (indicator of resource crunches), 8.1.1 (time taken by actions).
    """

    state: ClusterState
    touched: Mapping[str, int]
    """Reconfigurations per job, the largest number first."""
    blacklisted: Mapping[str, float]
    """Jobs on the blacklist, with the time in seconds at which they are candidates again."""
    oversubscribed: bool
    """Whether the cluster has converged although some job misses its SLO."""
    satisfaction: float
    """Mean share of the maximum total utility over the last hour of rounds, in [0, 1]."""
    action_s: Mapping[str, float]
    """Time from each action to its judgement, summed per job that it touched, in seconds."""


@dataclass(frozen=True)
class _Pending:
    """Holds an action that is not judged yet; `jobs_before` are the jobs as they were at the action."""

    action: Action
    jobs: tuple[str, ...]
    since_s: float
    jobs_before: Mapping[str, FleetJob]
    fits: bool = True
    falling: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Record:
    """Holds a configuration that was in force, and its objective once utilities settled."""

    slots: Slots
    objective: float

    @property
    def size(self) -> int:
        """Slots of all operators of all jobs."""
        return sum(sum(operators.values()) for operators in self.slots.values())


class Henge:
    """Shares a budget of slots among jobs so that their total utility is as high as possible.

    Once per round Henge takes one action, but never before the last action is judged. Of the jobs that
    miss their SLO, the job of highest priority (then of lowest utility) gets slots for its congested
    operators. Henge judges the action once utilities have settled. After a drop, it reduces the jobs that
    meet their SLO, if the cluster is congested and no reduction was made for this input; otherwise it
    restores the best configuration on record. A job that hardly gained goes on a blacklist.

    References
    ----------
    Henge 5. Differs, where the paper is silent or Spark differs from Storm:

    - A request that does not fit into the budget counts as congestion. If no slot is left, a reduction
      or reversion follows at once.
    - A job that misses its SLO, but has no congested operator below its maximum, gets no slots. Without
      a candidate no action can help: the cluster converges on its best record.
    - Only jobs with a steady input count for a drop after a reconfiguration (and, without
      `blame_falling`, only jobs that were not falling before, or bound to). If the other jobs lost
      utility, the action is not the cause, and the records no longer apply.
    - Forgetting history includes the blacklist. If jobs, their operators, intents or priorities, or the
      budget change, the workload has changed, and Henge forgets its history.
    - A job with a policy of its own gets at least the slots that this policy requests, since the policy
      knows the need. The fleet may take back slots that such a job does not use. A converged cluster goes
      on if more slots become free.
    - A job that has never reported is left out until it reports. A job that stops reporting stops all
      actions, since the total is unknown.
    - The bound of theorem 1 holds with each job's logarithm rounded up: N ceil(log(F)) + 2 steps.
    """

    def __init__(self, parameters: HengeParameters | None = None) -> None:
        self._p = parameters or HengeParameters()
        self._started_s: float | None = None
        self._next_round_s = 0.0
        self._wait_until_s = 0.0
        self._known: dict[str, tuple[Utility, frozenset[str]]] = {}
        self._budget = 0
        self._acted = False
        self._slots_expected: Slots = {}
        self._free = 0
        self._missed_rounds: Counter[str] = Counter()
        self._touched: Counter[str] = Counter()
        self._action_s: defaultdict[str, float] = defaultdict(float)
        self._attained: dict[str, float] = {}
        self._falling: frozenset[str] = frozenset()
        self._slots_most: dict[str, int] = {}
        self._satisfaction: deque[float] = deque(maxlen=max(1, round(3600.0 / self._p.round_s)))
        self._state = ClusterState.OBSERVING
        self._forget()

    @property
    def name(self) -> str:
        """``henge(total)``."""
        return f"henge({self._p.goal})"

    @property
    def state(self) -> ClusterState:
        """The state of the cluster."""
        return self._state

    @property
    def judging(self) -> tuple[str, ...]:
        """Jobs whose change is not judged yet; their own policies must not scale them meanwhile."""
        return self._pending.jobs if self._pending is not None else ()

    @property
    def indicators(self) -> Indicators:
        """Return the figures about the cluster; the call changes nothing."""
        kept = self._satisfaction
        return Indicators(
            state=self._state,
            touched=dict(self._touched.most_common()),
            blacklisted=dict(self._blacklist),
            oversubscribed=self._state is ClusterState.CONVERGED and bool(self._accepted),
            satisfaction=sum(kept) / len(kept) if kept else 1.0,
            action_s=dict(self._action_s),
        )

    def decide(self, view: FleetView) -> FleetDecision:
        """Return the action of this round, or no action and the reason."""
        if self._started_s is None:
            self._started_s = self._next_round_s = view.time_s
        if view.time_s < self._next_round_s - _ROUNDING_S:
            return _nothing("between rounds")
        self._next_round_s = view.time_s + self._p.round_s
        silent = [n for n, job in view.jobs.items() if not job.reported and n in self._known]
        if silent:
            self._wait_until_s = view.time_s + self._p.round_s + self._p.fresh_s
            self._recent.clear()
            return _nothing("no statistics", f"No fresh statistics of {', '.join(silent)}.")
        budget = view.slots_max
        view = view.only([name for name, job in view.jobs.items() if job.reported])
        if not view.jobs:
            return _nothing("no jobs", "No job has reported yet.")
        self._note(view, budget)
        if view.time_s < self._started_s + self._p.observe_s - _ROUNDING_S:
            return _nothing("observing", f"Watching the first {self._p.observe_s:g} s.")
        if view.time_s < self._wait_until_s - _ROUNDING_S:
            return _nothing("fresh data", f"Collecting {self._p.fresh_s:g} s of fresh statistics.")
        if self._state is ClusterState.OBSERVING:
            self._state = ClusterState.NOT_CONVERGED
        if self._pending is not None:
            return self._judge(view, self._pending)
        if self._state is ClusterState.CONVERGED:
            if not self._disturbed(view):
                return _nothing("converged", "Converged.")
            self._state = ClusterState.NOT_CONVERGED
        return self._act(view)

    # The state from round to round.

    def _forget(self) -> None:
        """Forget all past actions: they no longer apply to the present cluster."""
        self._history: list[_Record] = []
        self._blacklist: dict[str, float] = {}
        self._accepted: set[str] = set()
        self._rates_reduced: dict[str, float] | None = None
        self._pending: _Pending | None = None
        self._recent: deque[float] = deque(maxlen=2)
        self._reference = 0.0
        self._low_rounds = 0
        self._stable_rounds = 0

    def _note(self, view: FleetView, budget: int) -> None:
        """Compare the view with the last round, and reset or update the state accordingly."""
        known = {name: (job.utility, frozenset(job.operators)) for name, job in view.jobs.items()}
        if (known, budget) != (self._known, self._budget):
            self._forget()
            if self._state is ClusterState.CONVERGED:
                self._state = ClusterState.NOT_CONVERGED
            self._known, self._budget = known, budget
        if self._pending is not None and self._acted:
            # The fleet skips rounds while a change is under way, so the change lasted until about now.
            since_s = max(self._pending.since_s, view.time_s - self._p.round_s)
            self._pending = replace(self._pending, since_s=since_s)
        self._acted = False
        if view.slots != self._slots_expected:
            # A person changed slots, or the fleet granted others: the measurements are older than that.
            self._slots_expected = view.slots
            self._recent.clear()
            if self._pending is not None:
                self._pending = replace(self._pending, since_s=view.time_s)
        self._recent.append(self._objective(view))
        attained, maximum = _total(view)
        self._satisfaction.append(attained / maximum)
        worth = {name: job.attained for name, job in view.jobs.items()}
        least = {name: was * (1.0 - _FALLING) for name, was in self._attained.items()}
        losing = {name for name in worth if worth[name] < least.get(name, 0.0)}
        self._falling = frozenset(losing | self._bound_to_fall(view))
        self._attained = worth
        missed = self._missed_rounds
        self._missed_rounds = Counter(
            {name: missed[name] + 1 for name, job in view.jobs.items() if not job.met}
        )
        for name in [n for n, until_s in self._blacklist.items() if until_s <= view.time_s]:
            del self._blacklist[name]
            self._accepted.discard(name)

    def _bound_to_fall(self, view: FleetView) -> set[str]:
        """Return the jobs that cannot keep up with the most slots that they ever had.

        They become later whatever happens to other jobs. A reduced job is not among them, since the
        reduction may be the cause.
        """
        slots = {name: sum(operators.values()) for name, operators in view.slots.items()}
        known = self._slots_most
        self._slots_most = {name: max(held, known.get(name, held)) for name, held in slots.items()}
        return {
            name
            for name, job in view.jobs.items()
            if slots[name] == self._slots_most[name]
            and any(op.capacity > SATURATED for op in job.operators.values())
        }

    def _objective(self, view: FleetView) -> float:
        """Return the objective of the whole view."""
        return self._worth(view.jobs.values())

    def _worth(self, jobs: Iterable[FleetJob]) -> float:
        """Return the objective of some jobs."""
        if self._p.goal is Goal.TOTAL:
            return sum(job.attained for job in jobs)
        return min((job.attained / job.utility.maximum for job in jobs), default=0.0)

    def _missing(self, view: FleetView) -> list[str]:
        """Return the jobs that have missed their SLO for long enough, the next to get slots first."""
        late = [n for n in view.jobs if self._missed_rounds[n] >= self._p.patience_rounds]

        def rank(name: str) -> tuple[float, float, str]:
            job = view.jobs[name]
            if self._p.goal is Goal.TOTAL:
                return -job.utility.maximum, job.attained, name
            return job.attained / job.utility.maximum, -job.utility.maximum, name

        return sorted(late, key=rank)

    # Not converged: reconfiguration.

    def _act(self, view: FleetView) -> FleetDecision:
        """Return the next reconfiguration, or converge if no job can get slots."""
        if all(job.met for job in view.jobs.values()):
            self._stable_rounds += 1
            if self._stable_rounds > self._p.stable_rounds:
                self._converge(view)
                return _nothing("converged", f"All {len(view.jobs)} jobs meet their SLO.")
            return _nothing("stable", "All jobs meet their SLO; watching whether it lasts.")
        self._stable_rounds = 0
        missing = self._missing(view)
        if not missing:
            return _nothing("patience", "A miss of one round is left alone.")
        for name in missing:
            if name in self._blacklist:
                continue
            wanted = self._wanted(view.jobs[name])
            if wanted:
                return self._reconfigure(view, name, wanted)
        return self._revert(view, "no candidate", "No job that misses its SLO can be helped")

    def _wanted(self, job: FleetJob) -> dict[str, int]:
        """Return the extra slots of each congested operator, within its limit."""
        wanted = {}
        for name, operator in job.operators.items():
            congestion = self._p.measure(operator)
            extra = extra_slots(congestion, self._p.congestion_threshold, self._p.slots_per_unit)
            more = min(max(extra, operator.requested), operator.room)
            if more > 0:
                wanted[name] = more
        return wanted

    def _reconfigure(self, view: FleetView, name: str, wanted: dict[str, int]) -> FleetDecision:
        """Give the job `name` the slots in `wanted`, up to the free slots."""
        if not self._history:
            self._record(view)
        job = view.jobs[name]
        added = fitted(wanted, view.slots_free)
        if not added:
            why = f"{name} wants {sum(wanted.values())} slots and none is left"
            return self._relieve(view, "does not fit", why, congested=True)
        self._touched[name] += 1
        fits = sum(added.values()) == sum(wanted.values())
        changes = {name: {op: job.operators[op].slots + n for op, n in added.items()}}
        listed = ", ".join(f"{op} +{n}" for op, n in added.items())
        reason = (
            f"{name} has {job.attained:g} of {job.utility.maximum:g} utility and congested "
            f"operators: {listed}."
        )
        falling = frozenset() if self._p.blame_falling else self._falling
        pending = _Pending(Action.RECONFIGURATION, (name,), view.time_s, view.jobs, fits, falling)
        rule = "miss -> reconfiguration"
        return self._start(view, pending, FleetDecision(pending.action, changes, reason, rule))

    # After an action.

    def _start(self, view: FleetView, pending: _Pending, decision: FleetDecision) -> FleetDecision:
        """Return `decision`, to be judged later."""
        self._pending = pending
        self._acted = True
        self._recent.clear()
        now = view.slots
        self._slots_expected = {job: {**now[job], **decision.slots.get(job, {})} for job in now}
        attained, maximum = _total(view)
        numbers = {"utility": attained, "utility_max": maximum, "slots_free": view.slots_free}
        return replace(decision, numbers=numbers)

    def _judge(self, view: FleetView, pending: _Pending) -> FleetDecision:
        """Judge the last action once utilities have settled, and go on."""
        if not self._settled(view, pending):
            return _nothing("settling", f"Waiting for the {pending.action} to take effect.")
        self._pending = None
        self._record(view)
        for name in pending.jobs:
            self._action_s[name] += view.time_s - pending.since_s
        if pending.action is Action.REVERSION:
            self._converge(view)
            return _nothing("converged", "Converged on the best configuration on record.")
        if pending.action is Action.REDUCTION:
            return self._act(view)
        before, now = self._steady(view, pending)
        if now < before * (1.0 - self._p.settle_tolerance):
            why = f"Utility fell from {before:g} to {now:g} after {pending.jobs[0]}'s slots"
            congested = view.congested or not pending.fits
            return self._relieve(view, "drop", why, congested=congested)
        whole = self._worth(pending.jobs_before.values())
        if self._objective(view) < whole * (1.0 - self._p.settle_tolerance):
            # Other jobs lost utility by their input: the records are of another workload (5.3).
            self._history.clear()
            self._record(view)
        job = view.jobs[pending.jobs[0]]
        had = pending.jobs_before[pending.jobs[0]].attained
        gained = job.attained > 0.0 and job.attained >= had * (1.0 + self._p.gain)
        if not job.met and not gained:
            self._blacklist[pending.jobs[0]] = view.time_s + self._p.blacklist_s
        return self._act(view)

    def _steady(self, view: FleetView, pending: _Pending) -> tuple[float, float]:
        """Return the objective of the jobs with a steady input, before an action and now."""
        before = pending.jobs_before
        names = [
            name
            for name, job in view.jobs.items()
            if name not in pending.falling
            and abs(job.input_rate - before[name].input_rate)
            <= self._p.input_steady * before[name].input_rate
        ]
        return (
            self._worth(before[name] for name in names),
            self._worth(view.jobs[name] for name in names),
        )

    def _settled(self, view: FleetView, pending: _Pending) -> bool:
        """Return whether utilities no longer move because of the last action."""
        waited_s = view.time_s - pending.since_s
        if waited_s < self._p.settle_s or len(self._recent) < 2:  # noqa: PLR2004 (two rounds)
            return False
        before, now = self._recent
        moved = abs(now - before) > self._p.settle_tolerance * max(before, now)
        return not moved or waited_s >= self._p.settle_max_s

    def _relieve(self, view: FleetView, rule: str, why: str, *, congested: bool) -> FleetDecision:
        """Reduce jobs if possible; otherwise restore the best configuration on record."""
        changes = self._reducible(view) if congested and self._may_reduce(view) else {}
        if not changes:
            return self._revert(view, rule, why)
        self._rates_reduced = {name: job.input_rate for name, job in view.jobs.items()}
        pending = _Pending(Action.REDUCTION, tuple(changes), view.time_s, view.jobs)
        reason = f"{why}, and the cluster is congested: {', '.join(changes)} give slots back."
        decision = FleetDecision(Action.REDUCTION, changes, reason, f"{rule} -> reduction")
        return self._start(view, pending, decision)

    def _may_reduce(self, view: FleetView) -> bool:
        """Return whether there was no reduction for the present input."""
        then = self._rates_reduced
        return then is None or any(
            abs(job.input_rate - then[name]) > self._p.input_change * then[name]
            for name, job in view.jobs.items()
        )

    def _reducible(self, view: FleetView) -> dict[str, dict[str, int]]:
        """Return the slots that un-congested operators of jobs that meet their SLO would keep."""
        limit = self._p.congestion_threshold
        kept = {}
        for name, job in view.jobs.items():
            congested = {op: self._p.measure(o) > limit for op, o in job.operators.items()}
            kept[name] = reduced(job, congested, self._p.reduction) if job.met else {}
        return {name: operators for name, operators in kept.items() if operators}

    def _revert(self, view: FleetView, rule: str, why: str) -> FleetDecision:
        """Restore the best configuration on record, and converge."""
        now = self._objective(view)
        granted = view.slots_max - view.slots_free
        # Jobs may have entered with more slots than the budget; slots that they gave back are gone.
        room = max(view.slots_max, granted)
        held = [record for record in reversed(self._history) if record.size <= room]
        best = max(held, key=lambda r: r.objective, default=None)
        better = best is not None and best.objective > now * (1.0 + self._p.settle_tolerance)
        changes = difference(view.slots, best.slots) if best is not None and better else {}
        self._converge(view)
        if best is None or not changes:
            return _nothing(f"{rule} -> converged", f"{why}; the configuration is the best known.")
        pending = _Pending(Action.REVERSION, tuple(changes), view.time_s, view.jobs)
        reason = f"{why}; back to the configuration that was worth {best.objective:g}."
        decision = FleetDecision(Action.REVERSION, changes, reason, f"{rule} -> reversion")
        return self._start(view, pending, decision)

    def _record(self, view: FleetView) -> None:
        self._history.append(_Record(view.slots, self._objective(view)))

    # Converged.

    def _converge(self, view: FleetView) -> None:
        """Enter the converged state; jobs that miss their SLO now are accepted as they are."""
        self._state = ClusterState.CONVERGED
        self._stable_rounds = self._low_rounds = 0
        self._reference = self._objective(view)
        self._accepted = set(self._missing(view))
        self._free = view.slots_free

    def _disturbed(self, view: FleetView) -> bool:
        """Return whether a converged cluster needs actions again."""
        now = self._objective(view)
        self._reference = max(self._reference, now)
        low = now < self._reference * (1.0 - self._p.drop)
        self._low_rounds = self._low_rounds + 1 if low else 0
        if self._low_rounds >= self._p.patience_rounds:
            # There was no action, so the workload must have changed.
            self._forget()
            return True
        if view.slots_free > self._free:
            # jobs gave back unused slots: jobs that were accepted as late may get them now
            self._accepted.clear()
            self._blacklist.clear()
        self._free = view.slots_free
        self._accepted -= {name for name, job in view.jobs.items() if job.met}
        return any(name not in self._accepted for name in self._missing(view))


def _total(view: FleetView) -> tuple[float, float]:
    """Return the attained and the maximum total utility."""
    jobs = view.jobs.values()
    return sum(job.attained for job in jobs), sum(job.utility.maximum for job in jobs)


def _nothing(rule: str, reason: str = "") -> FleetDecision:
    return FleetDecision(rule=rule, reason=reason)
