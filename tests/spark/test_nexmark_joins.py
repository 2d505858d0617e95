"""NEXMark from its own source, in Python, for a seed of each query without windows or with joins.

`test_nexmark` has all queries and twenty seeds, from files.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import answers
import nexmark_oracle as oracle
import nexmark_runs as runs
import pytest
from pyspark.sql import SparkSession

import headgate as hg
from headgate_demo.spark import queries, sources

SEED = 0


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    sources.register(spark)
    return spark


def options() -> dict[str, str]:
    return {
        "seed": str(SEED),
        "rate": str(runs.PER_S),
        "events": str(runs.EVENTS),
        "batch_rows": str(runs.BATCH),
        "base": str(runs.BASE_US),
    }


def run(frame: Any, place: Path, disturbance: str) -> None:
    """Run a query to its end; changed at random times, or stopped somewhere and started again."""
    rng = random.Random(SEED)
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


@pytest.mark.parametrize(
    ("name", "disturbance"),
    [
        ("q2", "unchanged"),
        ("q3", "changed"),
        pytest.param("q4", "changed", marks=pytest.mark.thorough),
        pytest.param("q6", "restarted", marks=pytest.mark.thorough),
        ("q8", "restarted"),
    ],
)
def test_a_query_answers_as_one_thread_does(
    session: SparkSession, tmp_path: Path, name: str, disturbance: str
) -> None:
    frame = getattr(queries, name)(session, **runs.more_options(name), **options())
    run(frame, tmp_path, disturbance)
    got = session.read.schema(frame.schema).parquet(str(tmp_path / "out")).collect()
    want = oracle.expected(name, oracle.events(SEED), tmp_path / "checkpoint")
    assert want, "the seed must show something"
    assert Counter(oracle.ROWS[name](row) for row in got) == want
