"""NEXMark's queries without windows or with joins equal a single thread's answer.

Q5 and Q7 have a file of their own, with late events; here none is late.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import answers
import pytest
from pyspark.sql import Row, SparkSession

import headgate as hg
from headgate.engines.spark import queries, sources
from headgate.state.checkpoint import Checkpoint
from headgate.testing import nexmark as plain
from headgate.workloads.nexmark import NexmarkConfig
from headgate.workloads.rates import ConstantRate

EVENTS, BATCH, PER_S = 3_000, 500, 50
BASE_US = 1_700_000_000_000_000
SECOND_US = 1_000_000
LONGEST_S = 12
SEEDS = 20

Events = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    sources.register(spark)
    return spark


def options(seed: int) -> dict[str, str]:
    return {
        "seed": str(seed),
        "rate": str(PER_S),
        "events": str(EVENTS),
        "batch_rows": str(BATCH),
        "base": str(BASE_US),
    }


def events(seed: int) -> Events:
    return plain.events(NexmarkConfig(seed=seed, rate=ConstantRate(PER_S)), EVENTS, BASE_US)


def emitted_us(checkpoint: Path, operator: str) -> int:
    """Return the time up to which an operator has put out all."""
    latest = Checkpoint(checkpoint).latest()
    assert latest is not None
    return int(min(latest.engine["operators"][operator]["emitted_us"]))


def micros(time: Any) -> int:
    delta = time.astimezone(answers.START.tzinfo) - answers.START
    return round(answers.START.timestamp()) * SECOND_US + round(delta.total_seconds() * SECOND_US)


def closed(found: Events, until_us: int) -> list[Any]:
    return plain.closed_auctions(found["auction"], found["bid"], LONGEST_S * SECOND_US, until_us)


def expected(name: str, found: Events, checkpoint: Path) -> Counter[tuple[Any, ...]]:
    people, auctions, bids = (found[kind] for kind in plain.KINDS)
    if name == "q4":
        until_us = emitted_us(checkpoint, "aggregate-2")
        return plain.q4(closed(found, until_us), until_us)
    if name == "q6":
        return plain.q6(closed(found, emitted_us(checkpoint, "aggregate-1")))
    of = {"q0": (bids,), "q1": (bids,), "q2": (bids,)}.get(name, (people, auctions))
    return getattr(plain, name)(*of)


ROWS: dict[str, Callable[[Row], tuple[Any, ...]]] = {
    "q0": lambda r: (r.auction, r.bidder, r.price, micros(r.dateTime)),
    "q1": lambda r: (r.auction, round(float(r.price) * 1000)),
    "q2": lambda r: (r.auction, r.price),
    "q3": tuple,
    "q4": lambda r: (micros(r.window.end), r.category, r.average),
    "q6": tuple,
    "q8": lambda r: (micros(r.window.end), r.id, r.name),
}


def run(frame: Any, place: Path, disturbance: str, seed: int) -> None:
    """Run a query to its end; changed at random times, or stopped somewhere and started again."""
    rng = random.Random(seed)
    for stage in range(2 if disturbance == "restarted" else 1):
        made = hg.writeStream(frame).format("parquet").option("path", str(place / "out"))
        made = made.option("checkpointLocation", str(place / "checkpoint"))
        query = made.slots(start=2 + stage).trigger(availableNow=True).start()
        if disturbance == "changed":
            answers.change_at_random(query, rng)
        if disturbance == "restarted" and stage == 0:
            query.awaitTermination(0.5 + rng.random())
            query.stop()
        query.awaitTermination()


SHOWN = {("q2", "unchanged"), ("q3", "changed"), ("q4", "changed"), ("q6", "restarted")}
SHOWN |= {("q8", "restarted")}
STATELESS = ("q0", "q1", "q2")
CASES = [
    pytest.param(
        seed,
        name,
        disturbance,
        marks=[] if seed == 0 and (name, disturbance) in SHOWN else [pytest.mark.thorough],
    )
    for seed in range(SEEDS)
    for name in ROWS
    for disturbance in ("unchanged", "changed", "restarted")
    if name not in STATELESS or disturbance == "unchanged"
]


@pytest.mark.parametrize(("seed", "name", "disturbance"), CASES)
def test_a_query_answers_as_one_thread_does(
    session: SparkSession, tmp_path: Path, seed: int, name: str, disturbance: str
) -> None:
    more = {"longest": f"{LONGEST_S} seconds"} if name in ("q4", "q6") else {}
    frame = getattr(queries, name)(session, **more, **options(seed))
    run(frame, tmp_path, disturbance, seed)
    got = session.read.schema(frame.schema).parquet(str(tmp_path / "out")).collect()
    want = expected(name, events(seed), tmp_path / "checkpoint")
    assert want or seed, "the first seed must show something"
    assert Counter(ROWS[name](row) for row in got) == want
