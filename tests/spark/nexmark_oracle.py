"""What NEXMark's queries must put out: a single thread's answer, and rows in its terms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import answers
import nexmark_runs as runs
from pyspark.sql import Row

from headgate.checkpoint.checkpoint import Checkpoint
from headgate_lab.testing import nexmark as plain

SECOND_US = 1_000_000

Events = dict[str, list[dict[str, Any]]]


def events(seed: int) -> Events:
    return plain.events(runs.config(seed), runs.EVENTS, runs.BASE_US)


def emitted_us(checkpoint: Path, operator: str) -> int:
    """Return the time up to which an operator has put out all."""
    latest = Checkpoint(checkpoint).latest()
    assert latest is not None
    return int(min(latest.engine["operators"][operator]["emitted_us"]))


def micros(time: Any) -> int:
    delta = time.astimezone(answers.START.tzinfo) - answers.START
    return round(answers.START.timestamp()) * SECOND_US + round(delta.total_seconds() * SECOND_US)


def expected(name: str, found: Events, checkpoint: Path) -> Counter[tuple[Any, ...]]:
    people, auctions, bids = (found[kind] for kind in plain.KINDS)
    last_aggregate = {"q4": "aggregate-2", "q5": "aggregate-1", "q6": "aggregate-1"}
    if name in runs.STATELESS:
        return getattr(plain, name)(bids)
    if name in ("q3", "q8"):
        return getattr(plain, name)(people, auctions)
    until_us = emitted_us(checkpoint, last_aggregate.get(name, "aggregate-0"))
    if name in ("q5", "q7"):
        return getattr(plain, name)(bids, until_us)
    longest_us = runs.LONGEST_S * SECOND_US
    closed = plain.closed_auctions(auctions, bids, longest_us, until_us)
    return plain.q4(closed, until_us) if name == "q4" else plain.q6(closed)


ROWS: dict[str, Callable[[Row], tuple[Any, ...]]] = {
    "q0": lambda r: (r.auction, r.bidder, r.price, micros(r.dateTime)),
    "q1": lambda r: (r.auction, round(float(r.price) * 1000)),
    "q2": lambda r: (r.auction, r.price),
    "q3": tuple,
    "q4": lambda r: (micros(r.window.end), r.category, r.average),
    "q5": lambda r: (micros(r.window.end), r.auction, r.bids),
    "q6": tuple,
    "q7": lambda r: (micros(r.window.end), r.auction, r.bidder, r.price),
    "q8": lambda r: (micros(r.window.end), r.id, r.name),
}
