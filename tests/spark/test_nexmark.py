"""All of NEXMark equals a single thread's answer: undisturbed, scaled at random times, killed.

No event is late here; Q5 and Q7 with late ones have a file of their own. With ``--thorough`` only: one
seed of it is in the file of the joins.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import nexmark_oracle as oracle
import nexmark_runs as runs
import pytest
from pyspark.sql import SparkSession

# three queries at once, and for a kill a start of the JVM before
pytestmark = [pytest.mark.timeout(600), pytest.mark.thorough]

SEEDS = 20


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    return spark


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
    want = oracle.expected(name, oracle.events(seed), place / name / "checkpoint")
    assert want or seed, "the first seed must show something"
    assert Counter(oracle.ROWS[name](row) for row in got) == want
