"""The protocol of Kafka's sink under many kills of its writer and of the broker, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.core.errors import HeadgateError
from headgate_demo.spark.broker import Broker
from headgate_lab.testing.kafka_trial import ONCE, PLAIN, run_trial


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("writers", "brokers"), [(6, 1), pytest.param(70, 30, marks=pytest.mark.thorough)]
)
def test_each_record_of_each_step_is_seen_once_whoever_dies(
    tmp_path: Path, writers: int, brokers: int
) -> None:
    try:
        broker = Broker()
    except HeadgateError as error:
        pytest.skip(str(error))
    with broker:
        found = run_trial(broker, tmp_path, writers=writers, brokers=brokers, seed=1)
    assert found.kills == {"writer": writers, "broker": brokers}
    assert found.lost == {ONCE: 0, PLAIN: 0}
    assert found.doubled[ONCE] == 0
    assert found.steps > writers
