"""Tests on Spark share the queries, oracles and fakes that lie beside them, and a Kafka broker."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

from headgate.core.errors import HeadgateError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headgate_demo.spark.broker import Broker

sys.path.insert(0, str(Path(__file__).parent))

T = TypeVar("T")


def or_skip(get: Callable[[], T]) -> T:
    """Return what needs jars; skips the test where they cannot be had."""
    try:
        return get()
    except HeadgateError as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def active_session(request: pytest.FixtureRequest) -> None:
    """Make the shared session that of this thread: a test before may have left its own there."""
    if "spark" in request.fixturenames:
        from headgate.spark.jvm.sessions import make_active

        make_active(request.getfixturevalue("spark"))


@pytest.fixture
def connected(spark: SparkSession) -> SparkSession:
    """The session, with Spark's Kafka connector."""
    from headgate_lab.testing.kafka import add_connector

    or_skip(lambda: add_connector(spark))
    return spark


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A Kafka broker."""
    from headgate_demo.spark.broker import Broker

    with or_skip(Broker) as made:
        yield made


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> Callable[..., str]:
    """Makes topics named after the test."""
    from headgate_demo.spark.topics import make_topic

    def made(what: str, partitions: int = 3) -> str:
        name = f"{what}-{abs(hash(request.node.name)) % 10**9}"
        make_topic(broker.servers, name, partitions)
        return name

    return made
