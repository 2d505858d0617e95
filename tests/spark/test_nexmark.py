"""All of NEXMark equals a single thread's answer: undisturbed, scaled at random times, killed.

No event is late here; Q5 and Q7 with late ones have a file of their own. With ``--thorough`` only: what
one seed shows of it is in the file of the joins.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import answers
import nexmark_runs as runs
import pytest
from pyspark.sql import Row, SparkSession

from headgate.state.checkpoint import Checkpoint
from headgate.testing import nexmark as plain

# three queries at once, and for a kill a start of the JVM before
pytestmark = [pytest.mark.timeout(600), pytest.mark.thorough]

SECOND_US = 1_000_000
SEEDS = 20

Events = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    return spark


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

Life = tuple[int, str, tuple[str, ...]]
"""A seed, what happens, and the queries that run at once."""

CASES = [
    pytest.param(
        (seed, life, group),
        name,
        id=f"{seed}-{life}-{name}",
    )
    for seed in range(SEEDS)
    for life in ("undisturbed", "scaled", "killed")
    for group in runs.GROUPS
    for name in group
]


@pytest.fixture(scope="module")
def lives() -> dict[Life, Path]:
    """What was run to its end, and where it lies."""
    return {}


@pytest.fixture
def ended(
    request: pytest.FixtureRequest,
    session: SparkSession,
    tmp_path_factory: Any,
    lives: dict[Life, Path],
) -> tuple[int, Path]:
    """The seed and folder of queries that were run to their end, once for each life."""
    life: Life = request.param
    seed, what, names = life
    if life not in lives:
        place = tmp_path_factory.mktemp(f"{what}-{seed}-")
        chance = random.Random(f"{seed} {what} {names}")
        if what == "killed":
            stateful = sum(name in runs.STATEFUL for name in names)
            committed = chance.randint(1, stateful * (runs.STEPS - 2))
            whom = chance.choice(("driver", "group"))
            runs.kill_at(names, seed, place, committed=committed, whom=whom)
        started = runs.start(session, names, seed, place, slots=3 if what == "killed" else 2)
        runs.finish(started, changes=chance if what == "scaled" else None)
        lives[life] = place
    return seed, lives[life]


@pytest.mark.parametrize(("ended", "name"), CASES, indirect=["ended"])
def test_a_query_answers_as_one_thread_does(
    session: SparkSession, ended: tuple[int, Path], name: str
) -> None:
    seed, place = ended
    schema = runs.frame(session, name, seed, place).schema
    got = session.read.schema(schema).parquet(str(place / name / "out")).collect()
    want = expected(name, events(seed), place / name / "checkpoint")
    assert want or seed, "the first seed must show something"
    assert Counter(ROWS[name](row) for row in got) == want
