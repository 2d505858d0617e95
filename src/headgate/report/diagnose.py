"""Diagnoses a query from its journal for the person on call: SLO, hot spot, limit, and remedies."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from headgate.core.input import shown
from headgate.core.slo import EACH_OPERATOR, Slo
from headgate.journal.histogram import merge, percentile_ms
from headgate.journal.schema import (
    AssignmentChange,
    Batch,
    ControlAct,
    Decided,
    Event,
    NotReadyToDecide,
    Start,
)
from headgate.report.format import ago_text, at_text, ms_text, span_text
from headgate.report.limits import (
    Case,
    DriverSeen,
    Limit,
    hottest_of,
    limit_of,
    limit_of_work,
    period_ms_of,
)
from headgate.report.now import health, now_of
from headgate.report.run import RECENT_BATCHES, Run
from headgate.report.standing import Standing, parsed_slo

_TRIED = 6
"""Attempts that a diagnosis shows: the newest."""

_CAUSE_EVERY_MS = 5_000
"""Shortest time between two searches for the cause of a miss, in ms; a search takes about 1 ms."""

_CAUSE_SHARE = 50
"""In a long miss, the time between two searches is the miss's length so far over this number: a day
costs about twice as much as an hour. Chosen."""

_UNASKED_MAX = 8
"""Late batches whose cause is not searched yet; each holds ten batches in memory. Chosen."""

_GROUPS = 3
"""Key groups that a sentence names at most; it gives only the number of more."""

_ENDED = ("driver", "failure", "stopped")
"""Causes of a query that has ended."""

_NOT_BY_SLOTS = ("sink", "floor", "trigger", "one key", "cores", "source", "batch")
"""Causes that more slots do not remove."""


class Attempt(NamedTuple):
    """Holds the event of an attempt, and the key groups that the attempt split or joined again."""

    event: Event
    split: tuple[int, ...] = ()
    joined: tuple[int, ...] = ()


@dataclass
class DiagnosisReader:
    """Reads a journal's events, and makes a diagnosis after any of them."""

    run: Run = field(default_factory=Run)
    standing: Standing = field(default_factory=lambda: Standing([]))
    tried: list[Attempt] = field(default_factory=list)
    decided: Decided | None = None
    not_ready: str = ""
    _causes_of: tuple[int, int] = (0, 0)
    causes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Counts of causes and reasons in the latest stretch of late batches, without those of the batches
    in `_unasked`."""
    _unasked: list[Case] = field(default_factory=list)
    """Late batches of this stretch whose cause is not searched yet. The search waits for a question:
    of a long journal, nobody asks about any stretch but the last."""

    def absorb(self, event: Event) -> None:
        """Take in the next event."""
        began_ms, split_before = self.run.began_ms, self.run.split
        self.run.absorb(event)
        if isinstance(event, Start):
            texts = [str(text) for text in event.parameters.get("slo") or ()]
            if self.run.began_ms != began_ms:
                self.tried = []
                self.standing = Standing(texts)
        elif isinstance(event, Batch):
            self.standing.add(event)
            self._ask_cause(event.at_ms)
        elif isinstance(event, Decided):
            self.decided, self.not_ready = event, ""
            if event.wishes:
                self.tried.append(Attempt(event))
        elif isinstance(event, NotReadyToDecide):
            self.not_ready = event.why
        elif isinstance(event, ControlAct):
            self.tried.append(Attempt(event))
        elif isinstance(event, AssignmentChange):
            split = tuple(group for _, group in sorted(self.run.split.keys() - split_before.keys()))
            joined = tuple(
                group for _, group in sorted(split_before.keys() - self.run.split.keys())
            )
            self.tried.append(Attempt(event, split, joined))
        del self.tried[:-_TRIED]

    def _ask_cause(self, at_ms: int) -> None:
        """Store a late batch whose cause is to be searched; a few batches of each stretch."""
        if not self.standing.stretches or self.standing.stretches[-1][1] != at_ms:
            return
        began_ms, asked_ms = self.standing.stretches[-1][0], self._causes_of[1]
        if began_ms != self._causes_of[0]:
            self.causes.clear()
            self._unasked.clear()
        elif at_ms - asked_ms < max(_CAUSE_EVERY_MS, (at_ms - began_ms) // _CAUSE_SHARE):
            return
        self._causes_of = (began_ms, at_ms)
        case = self._case("", DriverSeen(holds=True), at_ms)
        self._unasked.append(replace(case, run=case.run.latest(), standing=case.standing.latest()))
        if len(self._unasked) > _UNASKED_MAX:
            self._find_causes()

    def _find_causes(self) -> None:
        """Search and count the causes of the stored batches."""
        unasked, self._unasked = self._unasked, []
        for case in unasked:
            limit = limit_of_work(case)
            if _has_just_started(case.run):
                limit = Limit(
                    "starting", "workers start, and kernels are compiled once on a machine"
                )
            self.causes[limit.cause, limit.why] += 1

    @property
    def past_cause(self) -> str:
        """Return the newest reason of the most frequent cause in the latest stretch of late batches."""
        self._find_causes()
        by_cause: Counter[str] = Counter()
        for (cause, _), times in self.causes.items():
            by_cause[cause] += times
        if not by_cause:
            return ""
        ((most, _),) = by_cause.most_common(1)
        return next(why for (cause, why) in reversed(self.causes) if cause == most)

    def diagnosis(self, checkpoint: str, now_ms: int, driver: DriverSeen) -> dict[str, Any]:
        """Return the diagnosis after the latest event; its keys are those of `diagnose`."""
        run = self.run
        limit, late = self._limits(checkpoint, now_ms, driver)
        ended = limit.cause in _ENDED
        do = list(limit.remedies)
        if ended and late is not None and late.remedies:
            others = late.remedies[1:] if late.cause == "floor" else ()
            do += ["and against its lateness:", late.remedies[0], *others]
        return {
            "checkpoint": checkpoint,
            "query": _query(run, driver, now_ms),
            "slo": _slo(self, limit, late, now_ms),
            "time": _time(run, ended=ended),
            "hot": _hot(run, is_limit=limit.cause == "one key"),
            "limit": {"cause": limit.cause, "why": limit.why},
            "late_by": None if late is None else {"cause": late.cause, "why": late.why},
            "policy": "" if ended else _policy(self, limit, now_ms),
            "tried": _tried(self),
            "do": do,
        }

    def glance(self, checkpoint: str, now_ms: int, driver: DriverSeen) -> dict[str, Any]:
        """Return the part of the diagnosis that a list of queries shows: ``slo`` and ``limit``."""
        limit, late = self._limits(checkpoint, now_ms, driver)
        return {
            "slo": _slo(self, limit, late, now_ms),
            "limit": {"cause": limit.cause, "why": limit.why},
        }

    def _limits(
        self, checkpoint: str, now_ms: int, driver: DriverSeen
    ) -> tuple[Limit, Limit | None]:
        """Return the limit of the query; and of its work, None where the latest batches are in time."""
        case = self._case(checkpoint, driver, now_ms)
        return limit_of(case), self._late_at_end(case)

    def _late_at_end(self, case: Case) -> Limit | None:
        """Return the limit of the query's work; None where the latest batches are in time."""
        if not self.run.rows or not self.standing.is_late_at(self.run.rows[-1].at_ms):
            return None
        return limit_of_work(case)

    def _case(self, checkpoint: str, driver: DriverSeen, now_ms: int) -> Case:
        reason = "" if self.decided is None else self.decided.reason
        return Case(self.run, self.standing, reason, checkpoint, driver, now_ms)


def diagnose(
    events: Iterable[Event], checkpoint: str, *, now_ms: int, driver: DriverSeen | None = None
) -> dict[str, Any]:
    """Return the diagnosis of a query, running or dead, for the person on call.

    query: name, health and since when it runs. slo: texts, met (now; None while unknown), since_ms,
    success since the start, wanted, latency_ms (of the SLO's statistic, over the last batches),
    ended_in_time (the query crashed or failed, and its last results met the SLO), and in words:
    verdict, now, before (an earlier miss, and its cause), and text, all three. time: period_ms,
    phases_ms, between_ms, and in words. hot: operator, group, share of records, slots over which the
    group is split, key (None where the query does not show keys), and in words; None without a
    record. limit: cause, why. late_by: cause and why of the work that is late, or was late at the
    query's end; else None. policy: why it changes nothing now. tried and do: sentences.

    Parameters
    ----------
    checkpoint : str    Path or URL, as commands shall name it.
    now_ms : int    Wall clock, ms since 1970.
    driver : DriverSeen, optional    State of the driver, from the checkpoint's files.
    """
    reading = DiagnosisReader()
    for event in events:
        reading.absorb(event)
    return reading.diagnosis(checkpoint, now_ms, driver or DriverSeen())


def labelled(diagnosis: dict[str, Any]) -> list[tuple[str, str]]:
    """Return a diagnosis as rows of a label and a sentence; a label may come several times."""
    slo, hot, time = diagnosis["slo"], diagnosis["hot"], diagnosis["time"]
    limit, late_by = diagnosis["limit"], diagnosis["late_by"]
    ended = limit["cause"] in _ENDED
    rows = [
        ("query", [diagnosis["query"]["text"]]),
        ("SLO", [slo["verdict"]]),
        ("now", [slo["now"]]),
        ("before", [slo["before"]]),
        ("late by", [f"{late_by['cause']}: {late_by['why']}" if ended and late_by else ""]),
        ("ended" if ended else "limit", [f"{limit['cause']}: {limit['why']}"]),
        ("do", diagnosis["do"] or ["nothing"]),
        ("hot", [hot["text"] if hot else "no record is counted by key group"]),
        ("time", [time["text"] if time else "no batch is committed"]),
        ("policy", [diagnosis["policy"]]),
        (
            "tried",
            diagnosis["tried"] or ["nothing: neither a policy nor a person has changed anything"],
        ),
    ]
    return [(label, text) for label, texts in rows for text in texts if text]


def diagnose_lines(diagnosis: dict[str, Any]) -> list[str]:
    """Return a diagnosis as lines of text."""
    before = ""
    lines = []
    for label, text in labelled(diagnosis):
        lines.append(f"{'' if label == before else label:<8}{shown(text, 1000)}")
        before = label
    return lines


def _has_just_started(run: Run) -> bool:
    """Return whether the latest batches include the first after a start: their means then say little."""
    latest = run.rows[-RECENT_BATCHES - 1 :]
    return len(latest) <= RECENT_BATCHES or latest[0].start_index != run.starts


# -- the query, and its SLO ---------------------------------------------------------------------------


def _query(run: Run, driver: DriverSeen, now_ms: int) -> dict[str, Any]:
    if run.start is None:
        text = "the journal has no start event yet: the query is starting, or never did"
        return {
            "name": "",
            "health": health(run, now_ms, driver.holds),
            "since_ms": None,
            "text": text,
        }
    name = run.start.workload or run.start.name
    state = health(run, now_ms, driver.holds)
    failed = run.stop is not None and run.stop.error is not None
    count = run.query_restarts
    restarts = f", {count} restart{'s' if count > 1 else ''}" if count else ""
    text = f"{name}: {'failed' if failed else state}; began {ago_text(run.began_ms, now_ms)}, "
    text += f"{len(run.rows):,} batches{restarts}"
    if driver.owner:
        text += f"; driver: {driver.owner}"
    return {"name": name, "health": state, "since_ms": run.began_ms, "text": text}


def _slo(read: DiagnosisReader, limit: Limit, late: Limit | None, now_ms: int) -> dict[str, Any]:
    """Return whether the SLO is met, and since when."""
    run, state = read.run, read.run.slo
    texts = [str(text) for text in (run.start.parameters.get("slo") or () if run.start else ())]
    answer: dict[str, Any] = {"texts": texts, "met": None, "since_ms": None}
    success = None if state is None or not texts else state.success
    answer |= {"success": success, "wanted": state.wanted if state and texts else None}
    answer |= {"latency_ms": None, "now": "", "before": "", "ended_in_time": False}
    if run.start is None:
        text = "not known before the start"
        return answer | {"verdict": text, "text": text}
    if not texts:
        text = 'none is set; .slo("mean < 1 s over 1 s") has latency judged and slots steered'
        return answer | {"verdict": text, "text": text}
    name = "; ".join(texts)
    if not run.rows:
        text = f"{name}: not known before the first batch"
        return answer | {"verdict": text, "text": text}
    stretches, last_ms = read.standing.stretches, run.rows[-1].at_ms
    ended = limit.cause in _ENDED
    if late is not None:
        met, since_ms = False, stretches[-1][0]
    elif limit.cause in ("driver", "failure"):
        met, since_ms = False, last_ms
    else:
        met, since_ms = True, stretches[-1][1] if stretches else run.began_ms
    if late is None and stretches:
        began_ms, end_ms = stretches[-1]
        answer["before"] = (
            f"missed for {span_text(max(1, round((end_ms - began_ms) / 1000)))} from "
            f"{at_text(began_ms)} on: {read.past_cause}"
        )
    latency = _latency(run, texts)
    answer["latency_ms"] = None if latency is None else round(latency[1], 1)
    share = ""
    if state is not None and success is not None:
        by_group = latency is not None and latency[0].scope == EACH_OPERATOR
        windows = "the windows of its key groups" if by_group else "windows"
        share = (
            f"; in all, {success:.1%} of {windows} met since it began ({state.wanted:.1%} wanted)"
        )
    since = f"since {ago_text(since_ms, now_ms)}"
    verdict = f"{'met' if met else 'MISSED'} {since}"
    if late is None and not met:
        answer["ended_in_time"] = True
        verdict = f"MISSED: no results {since}; met until then"
    answer["verdict"] = f"{name}: {verdict}{share}"
    answer["now"] = _now_text(run, latency, ended=ended)
    text = "; ".join(filter(None, (answer["verdict"], answer["now"], answer["before"])))
    return answer | {"met": met, "since_ms": since_ms, "text": text}


def _now_text(run: Run, latency: tuple[Slo, float] | None, *, ended: bool) -> str:
    """Return how late records are, and how many wait."""
    texts = []
    if latency is not None:
        slo, value_ms = latency
        bound_ms = 1e3 * slo.bound
        bound = f"the bound of {ms_text(bound_ms)} ms"
        over = value_ms / bound_ms
        times = f"below {bound}" if over <= 1.0 else f"just above {bound}"
        if over >= 1.1:  # noqa: PLR2004 - which is 1.1 times
            times = f"{over:,.{1 if over < 10 else 0}f} times {bound}"  # noqa: PLR2004
        was = "was" if ended else "is"
        over_batches = f" over {len(run.recent)} batches" if len(run.recent) > 1 else ""
        texts.append(f"{slo.statistic}{over_batches} {was} {ms_text(value_ms)} ms, {times}")
    first, last = (b.backlog + sum(b.lag.values()) for b in (run.recent[0], run.recent[-1]))
    if last:
        moves = ", more and more" if last > first else ", fewer and fewer" if last < first else ""
        texts.append(f"{last:,} records {'waited' if ended else 'wait'}{moves}")
    when = "at the end " if ended else ""
    return when + "; ".join(texts) if texts else ""


def _latency(run: Run, texts: list[str]) -> tuple[Slo, float] | None:
    """Return the first SLO on latency, and its statistic over the last batches, in ms."""
    slo = next((slo for slo in map(parsed_slo, texts) if slo is not None and slo.is_latency), None)
    if slo is None:
        return None
    mean_ms = now_of(run).mean_ms
    if slo.statistic != "mean":
        mean_ms = percentile_ms(merge(batch.histogram for batch in run.recent), slo.quantile)
    return None if mean_ms is None else (slo, mean_ms)


# -- where the time goes ------------------------------------------------------------------------------


def _time(run: Run, *, ended: bool) -> dict[str, Any] | None:
    if not run.recent:
        return None
    phases = now_of(run).phases_ms
    epochs = sum(batch.epochs for batch in run.recent)
    beside_ms = phases.get("sink", 0.0) if epochs else 0.0  # the sink writes beside the next epochs
    took_ms = sum(phases.values()) - beside_ms
    period_ms = period_ms_of(run) or took_ms
    if epochs:
        period_ms *= len(run.recent) / epochs
    between_ms = max(0.0, period_ms - took_ms)
    parts = sorted(phases.items(), key=lambda part: -part[1])
    listed = ", ".join(
        f"{name} {ms_text(ms)} ms ({ms / took_ms:.0%})" if took_ms else f"{name} 0 ms"
        for name, ms in parts
        if not (epochs and name == "sink")
    )
    verb = "took" if ended else "takes"
    rest = "(reading, the trigger, Spark's own logs)"
    if epochs:
        rest = f"(nothing was due); the sink {verb} {ms_text(beside_ms)} ms beside the next ones"
    text = f"{'an epoch' if epochs else 'a batch'} {verb} {ms_text(took_ms)} ms: {listed}; "
    text += f"{ms_text(between_ms)} ms between two {rest}"
    return {
        "period_ms": round(period_ms, 1),
        "between_ms": round(between_ms, 1),
        "phases_ms": {name: round(ms, 1) for name, ms in parts},
        "text": text,
    }


_HOT = 0.5
"""A key group is hot from this share of a slot's average load on. Chosen: it alone fills half a slot."""


def _hot(run: Run, *, is_limit: bool) -> dict[str, Any] | None:
    hottest = hottest_of(run)
    if hottest is None or run.start is None:
        return None
    group, share = hottest
    operators = [operator.id for operator in run.start.operators]
    operator = operators[0] if operators else None
    over = run.slots_of(group)
    key = next((b.hottest_key for b in reversed(run.recent) if b.hottest_key), None)
    # journals of the first versions name no operator
    whose = f" of {operator}" if operator else ""
    text = f"key group {group}{whose} has {share:.1%} of the records"
    if not is_limit and over == 1 and share * run.recent[-1].slots < _HOT:
        text = f"nothing: key group {group}{whose} has the most records, {share:.1%}"
    text += f", split over {over} slots" if over > 1 else ""
    if key is not None:
        text += f"; the most frequent key of the last batch: {key}"
    elif is_limit:
        text += '; keys are not written down: .option("headgate.showKeys", "true") allows it'
    return {
        "operator": operator,
        "group": group,
        "share": round(share, 4),
        "slots": over,
        "key": key,
        "text": text,
    }


# -- what was tried -----------------------------------------------------------------------------------


def _policy(read: DiagnosisReader, limit: Limit, now_ms: int) -> str:
    """Return why the policy changes nothing now; empty where it changes slots, or has not decided yet."""
    decided, state = read.decided, read.run.slo
    if state is not None and state.held_until_ms and state.held_until_ms > now_ms:
        return f"waits: the number of slots is held until {at_text(state.held_until_ms)}"
    if read.not_ready and (state is None or state.state == "not ready"):
        return f"waits: {_NO_MEASUREMENT if _EPOCHS.search(read.not_ready) else read.not_ready}"
    if decided is None or decided.wishes:
        return ""
    text = f"{decided.policy} leaves the slots as they are"
    if limit.cause in _NOT_BY_SLOTS:
        return f"{text}: more slots do not help here"
    return f"{text}: {decided.reason}" if limit.cause == "slots" else text


_NO_MEASUREMENT = "slots have just changed, and no batch has measured the new ones yet"
_EPOCHS = re.compile(r"counters are of epoch \d+, epoch|slots have measured assignment \d+, and")
"""The loop's sentences in journals that mean `_NO_MEASUREMENT`."""


def _tried(read: DiagnosisReader) -> list[str]:
    """Return the wishes of policies and people, oldest first, and their outcome."""
    in_force = {a.event.reason for a in read.tried if isinstance(a.event, AssignmentChange)}
    texts = [(attempt.event.at_ms, _attempt(attempt, in_force)) for attempt in read.tried]
    lines = [f"{at_text(at_ms)} {text}" for at_ms, text in texts if text is not None]
    return list(dict.fromkeys(lines))  # each of several operators writes a line of the change


def _attempt(attempt: Attempt, in_force: set[str]) -> str | None:
    event = attempt.event
    if isinstance(event, Decided):
        wishes = ", ".join(f"{w.kind} of {w.operator} to {w.slots} slots" for w in event.wishes)
        if event.acts and event.reason in in_force:
            return None  # the line of the change has this reason
        done = "" if event.acts else " (advice only)"
        return f"{event.policy} wanted {wishes}{done}: {_first_part(event.reason)}"
    if isinstance(event, AssignmentChange):
        why = f": {_first_part(event.reason)}" if event.reason else ""
        return f"{_change_text(event, attempt)} by {event.by}{why}"
    if isinstance(event, ControlAct):
        refused = f"; refused: {event.refused}" if event.refused else ""
        why = f": {event.reason}" if event.reason else ""
        return f"{event.act} {event.detail} by {event.by}{why}{refused}"
    return None


def _change_text(event: AssignmentChange, attempt: Attempt) -> str:
    parts = []
    if event.slots_before != event.slots_after:
        parts.append(f"slots {event.slots_before} to {event.slots_after}")
    if attempt.split:
        most = max(len(slots) for _, *slots in event.split)
        parts.append(f"{_groups_text(attempt.split)} split over {most} slots")
    if attempt.joined:
        parts.append(f"{_groups_text(attempt.joined)} whole again")
    return ", ".join(parts) or f"{event.groups_moved} key groups moved"


def _groups_text(groups: tuple[int, ...]) -> str:
    if len(groups) > _GROUPS:
        return f"{len(groups)} key groups"
    return f"key group{'s' if len(groups) > 1 else ''} {', '.join(map(str, groups))}"


def _first_part(reason: str) -> str:
    """Return what a policy saw and did; the rest of its reason is for `headgate why`."""
    return reason.partition("; ")[0].removesuffix(".")
