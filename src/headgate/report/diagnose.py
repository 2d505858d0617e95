"""Diagnoses a query from its journal for the person on call: SLO, hot spot, limit, and remedies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from headgate.core.input import shown
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
from headgate.report.format import ago_text, at_text, clock_text, ms_text
from headgate.report.limits import Case, DriverSeen, Limit, hottest_of, limit_of, period_ms_of
from headgate.report.now import health, now_of
from headgate.report.run import Run
from headgate.report.standing import Standing, parsed_slo

_TRIED = 6
"""Things that were tried, as many as are shown: the newest."""

_CAUSE_EVERY_MS = 5_000
"""The cause of a miss is asked for so often while it lasts: an answer costs a millisecond."""


@dataclass
class DiagnosisReader:
    """Takes in a journal's events, and makes a diagnosis of them at any time."""

    run: Run = field(default_factory=Run)
    standing: Standing = field(default_factory=lambda: Standing([]))
    tried: list[Event] = field(default_factory=list)
    decided: Decided | None = None
    not_ready: str = ""
    _causes_of: tuple[int, int] = (0, 0)
    causes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Causes and reasons in the latest stretch of late batches, each with how often it was found."""

    def absorb(self, event: Event) -> None:
        """Take in the next event."""
        began_ms = self.run.began_ms
        self.run.absorb(event)
        if isinstance(event, Start):
            texts = [str(text) for text in event.parameters.get("slo") or ()]
            if self.run.began_ms != began_ms:
                self.tried = []
                self.standing = Standing(texts)
                self._causes_of = (0, 0)
        elif isinstance(event, Batch):
            self.standing.add(event)
            self._ask_cause(event.at_ms)
        elif isinstance(event, Decided):
            self.decided, self.not_ready = event, ""
            if event.wishes:
                self.tried.append(event)
        elif isinstance(event, NotReadyToDecide):
            self.not_ready = event.why
        elif isinstance(event, ControlAct | AssignmentChange):
            self.tried.append(event)
        del self.tried[:-_TRIED]

    def _ask_cause(self, at_ms: int) -> None:
        """Count what limits the query in a late batch, a few times in a stretch of them."""
        if not self.standing.stretches or self.standing.stretches[-1][1] != at_ms:
            return
        began_ms, asked_ms = self.standing.stretches[-1][0], self._causes_of[1]
        if began_ms != self._causes_of[0]:
            self.causes.clear()
        elif at_ms - asked_ms < _CAUSE_EVERY_MS:
            return
        self._causes_of = (began_ms, at_ms)
        reason = "" if self.decided is None else self.decided.reason
        limit = limit_of(Case(self.run, self.standing, reason, "", DriverSeen(holds=True), at_ms))
        self.causes[limit.cause, limit.why] += 1

    @property
    def past_cause(self) -> str:
        """Return the reason of the latest stretch of late batches that was found most often."""
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
        reason = "" if self.decided is None else self.decided.reason
        limit = limit_of(Case(run, self.standing, reason, checkpoint, driver, now_ms))
        return {
            "checkpoint": checkpoint,
            "query": _query(run, driver, now_ms),
            "slo": _slo(self, limit, now_ms),
            "time": _time(run),
            "hot": _hot(run, is_limit=limit.cause == "one key"),
            "limit": {"cause": limit.cause, "why": limit.why},
            "tried": _tried(self),
            "do": list(limit.remedies),
        }


def diagnose(
    events: Iterable[Event], checkpoint: str, *, now_ms: int, driver: DriverSeen | None = None
) -> dict[str, Any]:
    """Return the diagnosis of a query, running or dead, for the person on call.

    Parameters
    ----------
    events : iterable of Event
        A journal.
    checkpoint : str
        As commands are to name it.
    now_ms : int
        Wall clock, ms since 1970.
    driver : DriverSeen, optional
        What the checkpoint's files say besides.

    Returns
    -------
    dict
        query: name, health and since when it runs. slo: texts, met (now; None while unknown), since_ms,
        success since the start, wanted, latency_ms (of the SLO's statistic, over the last batches), and
        in words. time: period_ms, phases_ms, between_ms, and in
        words. hot: operator, group, share of records, slots that it is split over, key (None where
        nobody allowed it), and in words; None without a record. limit: cause, why. tried and do:
        sentences.
    """
    reading = DiagnosisReader()
    for event in events:
        reading.absorb(event)
    return reading.diagnosis(checkpoint, now_ms, driver or DriverSeen())


def labelled(diagnosis: dict[str, Any]) -> list[tuple[str, str]]:
    """Return a diagnosis as rows of a label and a sentence; a label may come several times."""
    return [
        ("query", diagnosis["query"]["text"]),
        ("SLO", diagnosis["slo"]["text"]),
        ("time", diagnosis["time"]["text"] if diagnosis["time"] else "no batch is committed"),
        (
            "hot",
            diagnosis["hot"]["text"] if diagnosis["hot"] else "no record is counted by key group",
        ),
        ("limit", f"{diagnosis['limit']['cause']}: {diagnosis['limit']['why']}"),
        *[("tried", text) for text in diagnosis["tried"] or ["nothing: no decision, nobody asked"]],
        *[("do", text) for text in diagnosis["do"] or ["nothing"]],
    ]


def diagnose_lines(diagnosis: dict[str, Any]) -> list[str]:
    """Return a diagnosis for people."""
    before = ""
    lines = []
    for label, text in labelled(diagnosis):
        lines.append(f"{'' if label == before else label:<7}{shown(text, 1000)}")
        before = label
    return lines


# -- the query, and its SLO ---------------------------------------------------------------------------


def _query(run: Run, driver: DriverSeen, now_ms: int) -> dict[str, Any]:
    name = (run.start.workload or run.start.name) if run.start else "a query without a start event"
    state = health(run, now_ms, driver.holds)
    failed = run.stop is not None and run.stop.error is not None
    restarts = f", {run.query_restarts} restarts" if run.query_restarts else ""
    text = f"{name}: {'failed' if failed else state}; began {ago_text(run.began_ms, now_ms)}, "
    text += f"{len(run.rows):,} batches{restarts}"
    if driver.owner:
        text += f"; driver: {driver.owner}"
    return {"name": name, "health": state, "since_ms": run.began_ms, "text": text}


def _slo(read: DiagnosisReader, limit: Limit, now_ms: int) -> dict[str, Any]:
    """Return whether the SLO is met, and since when."""
    run, state = read.run, read.run.slo
    texts = [str(text) for text in (run.start.parameters.get("slo") or () if run.start else ())]
    answer: dict[str, Any] = {"texts": texts, "met": None, "since_ms": None}
    if not texts:
        text = 'none is set; .slo("mean < 1 s over 1 s") has latency judged and slots steered'
        return answer | {"success": None, "wanted": None, "latency_ms": None, "text": text}
    success = None if state is None else state.success
    answer |= {
        "success": success,
        "wanted": None if state is None else state.wanted,
        "latency_ms": None,
    }
    name = "; ".join(texts)
    if not run.rows:
        return answer | {"text": f"{name}: not known before the first batch"}
    stretches, last_ms = read.standing.stretches, run.rows[-1].at_ms
    if limit.cause in ("driver", "failure"):
        met, since_ms = False, last_ms
    elif read.standing.is_late_at(last_ms):
        met, since_ms = False, stretches[-1][0]
    else:
        met, since_ms = True, stretches[-1][1] if stretches else run.began_ms
    before = ""
    if met and stretches:
        before = f"; missed before, {_stretch_text(*stretches[-1])}"
        before += f": {read.past_cause}" if read.past_cause else ""
    late = _latency(run, texts)
    now = "" if late is None else f"; {late[0]} is {ms_text(late[1])} ms now"
    answer["latency_ms"] = None if late is None else round(late[1], 1)
    share = ""
    if state is not None and success is not None:
        share = f"; met in {success:.1%} of windows since it began (want {state.wanted:.1%})"
    verdict = "met" if met else "MISSED"
    text = f"{name}: {verdict} since {ago_text(since_ms, now_ms)}{now}{before}{share}"
    return answer | {"met": met, "since_ms": since_ms, "text": text}


def _stretch_text(since_ms: int, until_ms: int) -> str:
    took_s = max(1, round((until_ms - since_ms) / 1000))
    return f"for {clock_text(took_s)} from {at_text(since_ms)} on"


def _latency(run: Run, texts: list[str]) -> tuple[str, float] | None:
    """Return the statistic of the first SLO on latency, and its value over the last batches, in ms."""
    slo = next((slo for slo in map(parsed_slo, texts) if slo is not None and slo.is_latency), None)
    if slo is None:
        return None
    mean_ms = now_of(run).mean_ms
    if slo.statistic != "mean":
        mean_ms = percentile_ms(merge(batch.histogram for batch in run.recent), slo.quantile)
    return None if mean_ms is None else (slo.statistic, mean_ms)


# -- where the time goes ------------------------------------------------------------------------------


def _time(run: Run) -> dict[str, Any] | None:
    if not run.recent:
        return None
    phases = now_of(run).phases_ms
    took_ms = sum(phases.values())
    period_ms = period_ms_of(run) or took_ms
    between_ms = max(0.0, period_ms - took_ms)
    parts = sorted(phases.items(), key=lambda part: -part[1])
    listed = ", ".join(
        f"{name} {ms_text(ms)} ms ({ms / took_ms:.0%})" if took_ms else f"{name} 0 ms"
        for name, ms in parts
    )
    return {
        "period_ms": round(period_ms, 1),
        "between_ms": round(between_ms, 1),
        "phases_ms": {name: round(ms, 1) for name, ms in parts},
        "text": f"a batch takes {ms_text(took_ms)} ms: {listed}; {ms_text(between_ms)} ms between two "
        "(reading, the trigger, Spark's own logs)",
    }


def _hot(run: Run, *, is_limit: bool) -> dict[str, Any] | None:
    hottest = hottest_of(run)
    if hottest is None or run.start is None:
        return None
    group, share = hottest
    operators = [operator.id for operator in run.start.operators]
    operator = operators[0] if operators else ""
    over = run.slots_of(group)
    key = next((b.hottest_key for b in reversed(run.recent) if b.hottest_key), None)
    text = f"key group {group} of {operator} has {share:.1%} of the records"
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


def _tried(read: DiagnosisReader) -> list[str]:
    """Return the wishes of policies and people, oldest first, and their outcome."""
    texts = []
    in_force = {e.reason for e in read.tried if isinstance(e, AssignmentChange)}
    for event in read.tried:
        text = _attempt(event, in_force)
        if text is not None:
            texts.append(f"{at_text(event.at_ms)} {text}")
    decided = read.decided
    if read.not_ready:
        texts.append(f"now the policy waits: {read.not_ready}")
    elif decided is not None and not decided.wishes:
        texts.append(f"now {decided.policy} wants nothing: {decided.reason}")
    return texts


def _attempt(event: Event, in_force: set[str]) -> str | None:
    if isinstance(event, Decided):
        wishes = ", ".join(f"{w.kind} of {w.operator} to {w.slots} slots" for w in event.wishes)
        if event.acts and event.reason in in_force:
            return None  # the change itself says so
        done = "" if event.acts else " (advice only)"
        return f"{event.policy} wanted {wishes}{done}: {event.reason}"
    if isinstance(event, AssignmentChange):
        what = (
            f"slots {event.slots_before} to {event.slots_after}"
            if event.slots_before != event.slots_after
            else f"{event.groups_moved} key groups moved"
        )
        split = "".join(f", group {g} split over {len(slots)} slots" for g, *slots in event.split)
        return f"{what}{split} by {event.by}" + (f": {event.reason}" if event.reason else "")
    if isinstance(event, ControlAct):
        refused = f"; refused: {event.refused}" if event.refused else ""
        why = f": {event.reason}" if event.reason else ""
        return f"{event.act} {event.detail} by {event.by}{why}{refused}"
    return None
