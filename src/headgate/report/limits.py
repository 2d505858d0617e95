"""Finds the limit of a query: its end or silence, the sink, the source, cores, slots or one key.

Rules run in a fixed order; the first limit that a rule returns is the answer. The query's life comes
first, since numbers of a dead job say nothing. The sink comes before the slots, since a slow sink makes
records wait for slots, too. One key comes before the cores, since more cores do not divide a key. The
source comes late, since it is the limit only where no part of the query is busy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from headgate.core.duration import parse_duration_s
from headgate.core.errors import HeadgateError
from headgate.journal.schema import AssignmentChange, ControlAct, Start, Stop
from headgate.report.format import ago_text, at_text, clock_text, ms_text
from headgate.report.now import STALE_MS, now_of
from headgate.report.run import Run
from headgate.report.standing import Standing

BUSY = 0.7
"""Share of time from which a slot, or the cores, count as busy. Chosen, not tuned."""

MOST = 0.5
"""Share from which a part is most of a whole: a phase of a batch, a key group of its slot's load."""

FLOOR_PERIODS = 3.0
"""Largest floor that counts, in batch periods. An idle job takes about 1.5; a larger floor was measured
while the job was behind, and says nothing. Chosen, not tuned."""

_ALONE = 0.8
"""Share of all waiting records from which one slot has the backlog. Chosen, not tuned."""

_TAKEN_MS = 60_000
"""Longest time between a scale-in and the miss that it explains, in ms. Chosen."""

_LATER = 0.2
"""Growth of the latency, per time, from which records get later and later: more comes than is read. A job
that keeps up has about 0. Chosen."""

_LATER_BATCHES = 6
"""Fewest batches with a latency from which its growth is taken. Chosen."""

_SELDOM_MS = 10_000
"""Trigger interval that a remedy proposes where the sink takes most of each batch, in ms: well above the
usual time of a sink. Proposed only if the bound is at least twice as long. Chosen."""

_AGAIN = "start the query again with its checkpoint: it goes on where it was"


def _more_cores(cores: int) -> str:
    return f"give it more cores: local[N] with N above {cores}, a larger machine, or more executors"


@dataclass(frozen=True)
class DriverSeen:
    """Holds the driver's state, as the files of a checkpoint show it."""

    holds: bool | None = None
    """Whether a driver holds the checkpoint's lock; None where this host cannot tell."""
    owner: str = ""
    """Host and process that took the lock last."""
    committed: int | None = None
    begun: int | None = None
    """`committed`: the newest committed step. `begun`: the step after it, where that has begun."""


@dataclass(frozen=True)
class Limit:
    """Holds the cause that limits a query, and the remedies.

    Attributes
    ----------
    cause : str
        ``driver``, ``failure``, ``stopped``, ``starting``, ``idle``, ``sink``, ``floor``, ``trigger``,
        ``one key``, ``cores``, ``slots``, ``source``, ``batch`` or ``nothing``.
    why : str
        A sentence.
    remedies : tuple of str
        What to do, the best first: sentences and commands.
    """

    cause: str
    why: str
    remedies: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """Holds the input of the rules; shares of time refer to the time from one batch to the next."""

    run: Run
    standing: Standing
    reason: str
    """Reason of the policy's newest decision."""
    checkpoint: str
    driver: DriverSeen
    now_ms: int

    @property
    def start(self) -> Start:
        """The latest start event."""
        assert self.run.start is not None
        return self.run.start

    @property
    def silent_ms(self) -> int:
        """Return the time since the journal's last line, in ms."""
        return self.now_ms - self.run.ended_ms

    @property
    def piles_up(self) -> bool:
        """Return whether waiting records have grown, and are more than the latest batch brought."""
        recent = self.run.recent
        first, last = (b.backlog + sum(b.lag.values()) for b in (recent[0], recent[-1]))
        return last > first and last > recent[-1].arrived

    @cached_property
    def growth(self) -> float:
        """Growth of the latency per time, from the last batches; 0 with too few of them."""
        seen = [(b.at_ms, b.latency_ms.mean) for b in self.run.recent if b.latency_ms is not None]
        if len(seen) < _LATER_BATCHES:
            return 0.0
        halves = seen[: len(seen) // 2], seen[-(len(seen) // 2) :]
        (from_ms, early_ms), (to_ms, late_ms) = (
            map(fmean, zip(*half, strict=True)) for half in halves
        )
        return (late_ms - early_ms) / max(to_ms - from_ms, 1.0)

    @property
    def gets_later(self) -> bool:
        """Return whether records get later and later."""
        return self.growth > _LATER

    @property
    def is_behind(self) -> bool:
        """Return whether the SLO is missed, or more and more records wait."""
        return self.piles_up or self.standing.is_late_at(self.run.recent[-1].at_ms)

    @property
    def taken(self) -> AssignmentChange | None:
        """The latest scale-in, if shortly before the miss and not undone; None else."""
        taken = [one for one in self.run.changes if one.slots_after < one.slots_before]
        if not taken or not self.standing.stretches:
            return None
        newest, (late_ms, _) = taken[-1], self.standing.stretches[-1]
        given_back = self.run.recent[-1].slots >= newest.slots_before
        is_before = newest.at_ms - 1e3 <= late_ms <= newest.at_ms + _TAKEN_MS
        return newest if is_before and not given_back else None

    @cached_property
    def cores(self) -> int:
        """Cores that slots run on."""
        named = (self.start.parameters.get(key) for key in ("cores", "machine_cores"))
        return max(1, min((int(n) for n in named if n), default=1))

    @cached_property
    def period_ms(self) -> float:
        """Mean time from one batch to the next."""
        return period_ms_of(self.run) or max(1.0, self.run.recent[-1].duration_ms)

    @cached_property
    def busy(self) -> dict[int, float]:
        """Share of time that each slot works on records, by slot."""
        useful_ms: dict[int, float] = {}
        for batch in self.run.recent:
            for stats in batch.slot_stats:
                useful_ms[stats.slot] = useful_ms.get(stats.slot, 0.0) + stats.useful_ms
        whole_ms = self.period_ms * len(self.run.recent)
        return {slot: ms / whole_ms for slot, ms in useful_ms.items()}

    @property
    def busiest(self) -> float:
        """Largest share in `busy`; 0 without a slot."""
        return max(self.busy.values(), default=0.0)

    @cached_property
    def computing(self) -> float:
        """Return the share of the cores' time for which slots compute, or wait for a core."""
        wanted_ms = sum(
            (stats.computing_ms or 0.0) + (stats.waited_ms or 0.0)
            for batch in self.run.recent
            for stats in batch.slot_stats
        )
        return wanted_ms / (self.period_ms * len(self.run.recent) * self.cores)

    def phase(self, name: str) -> float:
        """Return the share of time that a phase takes."""
        recent = self.run.recent
        mean_ms = sum(batch.phases_ms.get(name, 0.0) for batch in recent) / len(recent)
        return mean_ms / self.period_ms

    @property
    def source_limits(self) -> dict[str, str]:
        """Options by which the sources hold records back."""
        return dict(self.start.parameters.get("source_limits") or {})


def period_ms_of(run: Run) -> float | None:
    """Return the mean time from one batch's end to the next one's; None with a single batch."""
    recent = list(run.recent)
    if len(recent) < 2:  # noqa: PLR2004 - a period needs two
        return None
    return max(1.0, (recent[-1].at_ms - recent[0].at_ms) / (len(recent) - 1))


def hottest_of(run: Run) -> tuple[int, float] | None:
    """Return the hottest key group of the last batches and its share of their records."""
    groups, all_records = run.group_records()
    if not groups or not all_records:
        return None
    group, records = groups.most_common(1)[0]
    return group, records / all_records


def limit_of(case: Case) -> Limit:
    """Return the limit of a query, from the first rule that returns a limit."""
    rules = (*_OF_LIFE, *_OF_WORK)
    return next(limit for rule in rules if (limit := rule(case)) is not None)


def limit_of_work(case: Case) -> Limit:
    """Return the limit of a query's work in its latest batches, whether the query runs or not."""
    return next(limit for rule in _OF_WORK if (limit := rule(case)) is not None)


Rule = Callable[[Case], Limit | None]


# -- the query's life ---------------------------------------------------------------------------------


def _never_started(case: Case) -> Limit | None:
    if case.run.start is not None:
        return None
    return Limit("starting", "the journal has no start event yet")


def _ended(case: Case) -> Limit | None:
    stop = case.run.stop
    if stop is None:
        return None
    when = ago_text(stop.at_ms, case.now_ms)
    if stop.error is None:
        return Limit("stopped", f"the query ended at {when}: {_who_stopped(case, stop)}", (_AGAIN,))
    remedies = ("put right what failed, then start the query again", _inspect(case))
    return Limit("failure", f"the query failed at {when}: {stop.error}", remedies)


def _who_stopped(case: Case, stop: Stop) -> str:
    if stop.reason != "stopped":
        return stop.reason
    asked = [e for e in case.run.events if isinstance(e, ControlAct) and e.act == "stop"]
    if not asked or asked[-1].at_ms < case.start.at_ms:
        return "its own program stopped it"
    why = f" ({asked[-1].reason})" if asked[-1].reason else ""
    return f"{asked[-1].by} stopped it{why}"


def _driver_gone(case: Case) -> Limit | None:
    if case.driver.holds is not False:
        return None
    why = (
        "no driver holds the checkpoint, and the journal ends without a word at "
        f"{ago_text(case.run.ended_ms, case.now_ms)}: the driver was killed, or crashed"
    )
    return Limit("driver", why, (_AGAIN, _inspect(case)))


def _no_batch_yet(case: Case) -> Limit | None:
    if case.run.has_batches:
        return None
    why = (
        f"no batch is committed since the start at {ago_text(case.start.at_ms, case.now_ms)}: workers "
        "start, kernels are compiled once on a machine, or the source has brought nothing"
    )
    return Limit("starting", why)


def _hangs(case: Case) -> Limit | None:
    """Return the part in which a batch has stayed for long, from the checkpoint's files."""
    if case.silent_ms <= STALE_MS:
        return None
    driver, for_s = case.driver, f"for {clock_text(case.silent_ms / 1000)}"
    if driver.committed is not None and driver.committed > case.run.rows[-1].step:
        why = f"step {driver.committed} is committed, and its sink has not returned {for_s}"
        return Limit("sink", why, ("look at what the sink, or foreachBatch, waits for",))
    if driver.begun is not None:
        why = (
            f"step {driver.begun} has been under way {for_s}: its slots, or what comes before them"
        )
        return Limit("slots", why, ("look at its tasks in Spark's UI",))
    return None


def _silent(case: Case) -> Limit | None:
    if case.silent_ms <= STALE_MS:
        return None
    since = ago_text(case.run.ended_ms, case.now_ms)
    if case.driver.holds is None:
        why = f"the journal is silent since {since}, and whether the driver lives is not seen from here"
        look = f"headgate diagnose {case.checkpoint}"
        return Limit(
            "driver",
            why,
            ("run this on the driver's host, to see whether it lives:", look, f"if not, {_AGAIN}"),
        )
    why = f"the source has brought nothing since {since}, and nothing is due"
    return Limit("idle", why, ("look at what feeds the source",))


def _inspect(case: Case) -> str:
    return f"headgate inspect {case.checkpoint} --verify"


_OF_LIFE: tuple[Rule, ...] = (
    _never_started,
    _ended,
    _driver_gone,
    _no_batch_yet,
    _hangs,
    _silent,
)


# -- the query's work ---------------------------------------------------------------------------------


def _keeps_up(case: Case) -> Limit | None:
    if case.is_behind:
        return None
    held = f"; the source is held to {_named(case)}" if case.source_limits else ""
    # without an SLO and a source that reports its lag, a query may be behind unseen
    judged = case.run.slo is not None or any(batch.lag for batch in case.run.recent)
    state = "the query keeps up" if judged else "nothing says that the query is behind"
    why = f"{state}: its busiest slot works {case.busiest:.0%} of the time{held}"
    return Limit("nothing", why)


def _slow_sink(case: Case) -> Limit | None:
    share = case.phase("sink")
    real_time = case.run.recent[-1].epochs > 0
    # in real time the sink writes beside the slots' work, all waiting outputs together
    if share < MOST or (real_time and case.busiest >= BUSY):
        return None
    why = f"the sink takes {share:.0%} of the time, the busiest slot {case.busiest:.0%}"
    quicker = "make the sink, or the function of foreachBatch, quicker: more slots cannot help"
    if real_time:
        return Limit("sink", why, (quicker,))
    if case.run.slo is not None and case.run.slo.bound_ms < 2 * _SELDOM_MS:
        # records would wait for the trigger longer than the bound allows
        return Limit("sink", why, (quicker,))
    seldom = f'write less often: .trigger(processingTime="{_SELDOM_MS // 1000} seconds")'
    return Limit("sink", why, (quicker, seldom))


def _below_floor(case: Case) -> Limit | None:
    state = case.run.slo
    if state is None or state.state not in ("unreachable", "changing"):
        return None
    # while a change is under way the state says so, whatever the bound
    if state.state == "changing" and state.bound_ms >= 2 * state.floor_ms:
        return None
    if state.floor_ms > FLOOR_PERIODS * case.period_ms:
        return None
    why = (
        f"the bound of {ms_text(state.bound_ms)} ms is less than twice the floor of "
        f"{ms_text(state.floor_ms)} ms, which a record takes in an idle job: slots cannot change that"
    )
    least_ms, mean_ms = 2 * state.floor_ms, now_of(case.run).mean_ms or 0.0
    raised = f"raise the bound to {ms_text(least_ms)} ms or more"
    if not (case.piles_up or case.gets_later):
        if mean_ms > least_ms and case.growth >= -_LATER:
            why += f". Records now take {ms_text(mean_ms)} ms in the mean"
            raised = f"raise the bound above {ms_text(mean_ms)} ms"
        return Limit("floor", why, (raised,))
    rules = (_one_key, _few_cores, _few_slots, _slow_source)
    other = next((limit for rule in rules if (limit := rule(case)) is not None), None)
    if other is None:
        waits = f"{case.run.recent[-1].backlog:,} records wait, more and more"
        assert case.piles_up  # records that only get later have `_slow_source`
        return Limit("floor", f"{why}. A wider bound would be missed too: {waits}", (raised,))
    if other.cause == "source":
        why = f"{other.why}. Besides, {why}"
        return Limit("source", why, (*other.remedies, f"and {raised}"))
    why += f". A wider bound would be missed too, since {other.why}"
    return Limit("floor", why, (*other.remedies[:1], f"and {raised}"))


def _rare_trigger(case: Case) -> Limit | None:
    text = (case.start.parameters.get("trigger") or {}).get("processingTime")
    bound_ms = None if case.run.slo is None else case.run.slo.bound_ms
    try:
        every_ms = parse_duration_s(str(text), zero=True) * 1e3
    except HeadgateError:
        return None
    if bound_ms is None or every_ms < bound_ms:
        return None
    why = f"a batch begins only every {text}, and a record may take {ms_text(bound_ms)} ms in all"
    return Limit(
        "trigger", why, (f'.trigger(processingTime="{round(bound_ms / 4)} milliseconds")',)
    )


def _one_key(case: Case) -> Limit | None:
    """Return a limit if one key group is more than its slot can serve, and other slots have time."""
    run, hottest = case.run, hottest_of(case.run)
    if hottest is None or run.slots_of(hottest[0]) > 1:
        return None
    (group, share), last = hottest, run.recent[-1]
    if share < MOST / last.slots:
        return None
    waits = {stats.slot: stats.backlog for stats in last.slot_stats}
    slot, most = max(waits.items(), key=lambda item: item[1], default=(0, 0))
    if most > last.arrived and most >= _ALONE * sum(waits.values()):
        share_text = (
            f"{most:,} of the {sum(waits.values()):,} records that wait are at its slot, {slot}"
        )
    else:
        slot = max(case.busy, key=lambda number: case.busy[number], default=0)
        others = max((used for number, used in case.busy.items() if number != slot), default=0.0)
        if case.busiest < MOST or others > BUSY * case.busiest:
            return None
        share_text = (
            f"slot {slot} works {case.busiest:.0%} of the time, the others {others:.0%} at the most"
        )
    why = (
        f"key group {group} has {share:.0%} of the records, and {share_text}: moving key groups cannot "
        "divide it"
    )
    reasons = [text for text in (case.start.parameters.get("unsplittable") or {}).values() if text]
    split = (
        f"divide the key in the query (salt it): headgate cannot split it, {reasons[0]}"
        if reasons
        else 'have a policy split it, .slo(...).policy("streamswitch"), or salt the key in the query'
    )
    return Limit("one key", why, (split, f"headgate top {case.checkpoint}"))


def _few_cores(case: Case) -> Limit | None:
    if case.computing >= BUSY:
        cores = "one core" if case.cores == 1 else f"{case.cores} cores"
        does = f"slots compute, or wait for a core, {case.computing:.0%} of the time of {cores}"
    elif "the cores are the limit" in case.reason:
        cores = "one core is" if case.cores == 1 else f"{case.cores} cores are"
        does = f"the policy finds that {cores} the limit"
    else:
        return None
    why = f"{does}; more slots only take turns"
    return Limit("cores", why, (_more_cores(case.cores),))


def _few_slots(case: Case) -> Limit | None:
    last, state = case.run.recent[-1], case.run.slo
    if case.busiest < BUSY and not last.backlog and case.phase("slots") < MOST:
        return None
    if case.busiest >= BUSY:
        waits = f", {last.backlog:,} records wait" if last.backlog else ""
        works = f"the busiest works {case.busiest:.0%} of the time{waits}"
    elif last.backlog:
        works = f"{last.backlog:,} records wait for {'it' if last.slots == 1 else 'them'}"
    else:
        works = f"their part of a batch takes {case.phase('slots'):.0%} of the time"
    few = "one slot is" if last.slots == 1 else f"{last.slots} slots are"
    why = f"{few} too few: {works}"
    most = int(case.start.parameters.get("slots_max") or 0)
    if state is not None and state.frozen:
        thaw = f"headgate thaw {case.checkpoint}"
        return Limit("slots", f"{why}; changes are frozen", (thaw,))
    if most and last.slots >= most:
        return Limit("slots", f"{why}; it may use {most}", (f"allow more: .slots(max={2 * most})",))
    if (taken := case.taken) is not None:
        change = f"{taken.by} has changed {taken.slots_before} to {taken.slots_after}"
        reason = f" ({taken.reason.partition('; ')[0]})" if taken.reason else ""
        why += f"; {change} at {at_text(taken.at_ms)}{reason}"
        undo = f'headgate scale {case.checkpoint} {taken.slots_before} --reason "undo"'
        return Limit("slots", why, (undo, f"headgate why {case.checkpoint}"))
    ask = f'headgate scale {case.checkpoint} {last.slots + 1} --reason "behind"'
    if last.slots >= case.cores:
        return Limit("slots", why, (_more_cores(case.cores), ask))
    return Limit("slots", why, (ask, f"headgate why {case.checkpoint}"))


def _slow_source(case: Case) -> Limit | None:
    waits = sum(case.run.recent[-1].lag.values())
    if not case.source_limits and not waits and not case.gets_later:
        return None
    what = f"{waits:,} records wait there" if waits else "records are late before they are read"
    if case.gets_later:
        what += ", later and later"
    why = f"{what}, while the busiest slot works {case.busiest:.0%} of the time"
    if not case.source_limits:
        return Limit("source", why, ("look at what feeds the source",))
    raised = f"raise or leave out {', '.join(case.source_limits)}: more slots cannot help"
    return Limit("source", f"{why}; the source is held to {_named(case)}", (raised,))


def _fixed_part(case: Case) -> Limit | None:
    why = (
        f"neither slots ({case.busiest:.0%} at the most), cores ({case.computing:.0%}) nor sink "
        f"({case.phase('sink'):.0%}) are busy: records are late before they are read, or the fixed part "
        "of a batch is most of it"
    )
    return Limit(
        "batch", why, ("look at what feeds the source, and at where the time of a batch goes",)
    )


def _named(case: Case) -> str:
    return ", ".join(f"{name}={value}" for name, value in case.source_limits.items())


_OF_WORK: tuple[Rule, ...] = (
    _keeps_up,
    _slow_sink,
    _below_floor,
    _rare_trigger,
    _one_key,
    _few_cores,
    _few_slots,
    _slow_source,
    _fixed_part,
)
