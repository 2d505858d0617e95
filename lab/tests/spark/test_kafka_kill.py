"""Killed jobs from Kafka to Kafka: a few kills of many, see docs/benchmarks.md for a hundred."""

from __future__ import annotations

import pytest

from headgate.core.errors import HeadgateError
from headgate_demo.spark.broker import KAFKA
from headgate_demo.spark.clicks import connector
from headgate_demo.spark.jars import jars
from headgate_lab.bench import kafka_kill


@pytest.mark.thorough  # the writer alone is killed in test_kafka_trial
@pytest.mark.parametrize("count", [3, 10])
@pytest.mark.timeout(900)
def test_killed_jobs_lose_nothing_and_double_nothing_in_kafka(count: int) -> None:
    try:
        jars(KAFKA)
        connector()
    except HeadgateError as error:
        pytest.skip(str(error))
    found = kafka_kill.run(count=count, brokers=0.5, workers=0.0, moment_s_max=0.5, rate=1000)
    assert sum(found["kills"].values()) == count
    assert found["windows"] > 0
    nothing = {"lost": 0, "doubled": 0, "wrong": 0, "late": 0, "short": 0}
    assert found["exactly-once"] == nothing
    assert found["at-least-once"]["lost"] == 0
    assert found["ended"] == []
