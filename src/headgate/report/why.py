"""Explains one decision of a policy in words, from a journal."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from headgate.core.duration import parse_duration_s
from headgate.core.errors import ConfigError
from headgate.journal.parts import SloState
from headgate.journal.schema import Applied, Batch, Decided, Event, Start, Stop
from headgate.report.format import ms_text, since_text

AROUND_S = 10.0
"""Span before a decision, and after its force, of a mean latency, in s. Chosen, not tuned."""

_CLOCK = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?")
_SINCE = re.compile(r"\+(?:([0-9]{1,6}):)?([0-9]{1,2}):([0-9]{2})")
_WHOLE_SECOND_MS = 999
"""Added to a typed time, in ms: views show whole seconds, and an event within a second belongs to it."""

_UNREACHABLE = "unreachable"
"""A state of the SLO in the journal, from `headgate.loop`."""


@dataclass
class _Found:
    """Holds a decision that wanted changes, and the changes that came into force."""

    decided: Decided
    applied: list[Applied] = field(default_factory=list)


def why(events: Iterable[Event], at: str | None) -> dict[str, Any]:
    """Return the newest decision until some time, and its effect.

    at_ms, policy, rule, reason, acts, wishes, observed, numbers as in the journal; since_s: since
    the run began; applied; latency_before_ms and latency_after_ms (mean over 10 s before the
    decision, and after it came into force; None without completed records); unreachable: why no
    number of slots meets the SLO, or None. Without a decision, but with an unreachable SLO, the
    answer has the same keys and the rule ``unreachable``.

    `events`: a journal. `at`: ``03:12`` or ``03:12:30`` (local time, the last such time in the
    journal), an ISO date and time, or a time since the run began as ``headgate status`` shows it,
    ``+00:01:30``, or as a duration, ``90 s``; None for the last decision. Raises `ConfigError`:
    there is no such decision, or `at` cannot be read.
    """
    decisions: list[_Found] = []
    batches: list[tuple[int, float, int]] = []
    states: list[tuple[int, SloState]] = []
    policy = ""
    began_ms = ended_ms = 0
    stopped = True  # a run begins with the first start, and with a start after a clean stop
    for event in events:
        ended_ms = max(ended_ms, event.at_ms)
        if isinstance(event, Start):
            began_ms = event.at_ms if stopped else began_ms
            policy = str(event.parameters.get("policy", policy))
        stopped = isinstance(event, Stop) and event.error is None
        if isinstance(event, Batch) and event.slo is not None:
            states.append((event.at_ms, event.slo))
        if isinstance(event, Decided) and event.wishes:
            decisions.append(_Found(event))
        elif isinstance(event, Applied) and decisions:
            decisions[-1].applied.append(event)
        elif isinstance(event, Batch) and event.latency_ms is not None:
            batches.append((event.at_ms, event.latency_ms.mean, event.served))
    until_ms = ended_ms if at is None else _time_ms(at, began_ms, ended_ms)
    earlier = [decision for decision in decisions if decision.decided.at_ms <= until_ms]
    known = [state for at_ms, state in states if at_ms <= until_ms]
    unreachable = _unreachable(known[-1]) if known else None
    if not earlier and unreachable is None:
        msg = "the journal has no decision until then; headgate diagnose says what the policy waits for."
        raise ConfigError(msg)
    if not earlier:
        at_ms = round(min(until_ms, ended_ms))
        decided = Decided(policy, "unreachable", "nothing was decided", acts=False, at_ms=at_ms)
        earlier = [_Found(decided)]
    return _told(earlier[-1], batches, began_ms) | {"unreachable": unreachable}


def _unreachable(state: SloState) -> str | None:
    """Return why no number of slots meets an SLO; None where some number may."""
    if state.state != _UNREACHABLE:
        return None
    bound, floor = ms_text(state.bound_ms), ms_text(state.floor_ms)
    return (
        f"the SLO is unreachable: its bound of {bound} ms is less than twice {floor} ms (the floor), "
        "what a record takes in an idle job, and slots cannot change that; raise the bound, or make "
        "batches shorter."
    )


def _told(decision: _Found, batches: list[tuple[int, float, int]], began_ms: int) -> dict[str, Any]:
    decided = decision.decided
    since_ms = decision.applied[0].at_ms if decision.applied else decided.at_ms
    return {
        "at_ms": decided.at_ms,
        "since_s": round((decided.at_ms - began_ms) / 1000, 3),
        "policy": decided.policy,
        "rule": decided.rule,
        "reason": decided.reason,
        "acts": decided.acts,
        "wishes": [dataclasses.asdict(wish) for wish in decided.wishes],
        "observed": [dataclasses.asdict(seen) for seen in decided.observed],
        "numbers": decided.numbers,
        "applied": [dataclasses.asdict(applied) for applied in decision.applied],
        "latency_before_ms": _mean(batches, decided.at_ms - AROUND_S * 1e3, decided.at_ms),
        "latency_after_ms": _mean(batches, since_ms, since_ms + AROUND_S * 1e3),
    }


def why_lines(answer: dict[str, Any]) -> list[str]:
    """Return the result of `why` as lines of text."""
    when = dt.datetime.fromtimestamp(answer["at_ms"] / 1000).isoformat(" ", "milliseconds")
    since = since_text(answer["since_s"] * 1000, 0)
    only = "" if answer["acts"] or answer["rule"] == _UNREACHABLE else "  (advice only)"
    lines = [
        f"{when} ({since})  {answer['policy']}: {answer['rule']}{only}",
        f"  reason    {answer['reason']}",
    ]
    if answer["unreachable"]:
        lines.append(f"  SLO       {answer['unreachable']}")
    for seen in answer["observed"]:
        lines.append(
            f"  saw       {seen['operator']}: {seen['slots']} slots, "
            f"latency {ms_text(seen['latency_ms'])} ms (bound {ms_text(seen['bound_ms'])}, "
            f"floor {ms_text(seen['floor_ms'])}), {seen['arrived_per_s']:,.0f} of "
            f"{seen['service_per_s']:,.0f} records/s, busiest slot {seen['utilisation']:.0%}, "
            f"backlog {seen['backlog']:,}"
        )
    for wish in answer["wishes"]:
        groups = wish["groups_moved"]
        lines.append(
            f"  wanted    {wish['operator']}: {wish['kind']} to {wish['slots']} slots"
            + (f", {groups} key groups move" if groups else "")
        )
    for applied in answer["applied"]:
        lines.append(
            f"  applied   {applied['operator']}: {applied['slots']} slots after "
            f"{applied['took_ms']:,.0f} ms"
        )
    if not answer["applied"]:
        lines.append("  applied   no")
    before, after = ms_text(answer["latency_before_ms"]), ms_text(answer["latency_after_ms"])
    lines.append(f"  effect    mean latency {before} ms in the 10 s before, {after} ms after")
    return lines


def _mean(batches: list[tuple[int, float, int]], from_ms: float, to_ms: float) -> float | None:
    inside = [(mean, n) for at_ms, mean, n in batches if from_ms < at_ms <= to_ms]
    records = sum(n for _, n in inside)
    return round(sum(mean * n for mean, n in inside) / records, 1) if records else None


def _time_ms(text: str, began_ms: int, ended_ms: int) -> float:
    """Return a time within a journal, ms since 1970."""
    since = _SINCE.fullmatch(text.strip())
    if since:
        hours, minutes, seconds = (int(part or 0) for part in since.groups())
        return began_ms + (hours * 3600 + minutes * 60 + seconds) * 1000 + _WHOLE_SECOND_MS
    clock = _CLOCK.fullmatch(text.strip())
    if clock:
        ended = dt.datetime.fromtimestamp(ended_ms / 1000)
        hour, minute, second = int(clock[1]), int(clock[2]), int(clock[3] or 59)
        if hour > 23 or minute > 59 or second > 59:  # noqa: PLR2004 - a clock's own numbers
            msg = f'"{text}" is no time of day; write 03:12, or a time since the start as +3:12.'
            raise ConfigError(msg)
        moment = ended.replace(hour=hour, minute=minute, second=second, microsecond=999_000)
        if moment - ended > dt.timedelta(minutes=1):
            moment -= dt.timedelta(days=1)
        return moment.timestamp() * 1000
    try:
        return dt.datetime.fromisoformat(text).timestamp() * 1000
    except (ValueError, OverflowError):
        return began_ms + parse_duration_s(text) * 1000
