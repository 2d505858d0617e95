"""Runs a Kafka broker of one process, for a first try."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headgate.scenario.run import interrupts
from headgate.scenario.spark import engine_module


def run_broker(
    topics: Sequence[str], partitions: int, on_start: Callable[[str], None]
) -> dict[str, Any]:
    """Run a broker on loopback with some topics until SIGINT; its data go with it.

    Parameters
    ----------
    topics : sequence of str
    partitions : int
        Of each of them.
    on_start : callable
        Gets what ``kafka.bootstrap.servers`` is to be, once the broker answers.
    """
    broker = engine_module("headgate.spark.workloads.broker").Broker
    made = engine_module("headgate.spark.workloads.topics")
    with interrupts() as interrupted, broker() as running:
        for topic in topics:
            made.make_topic(running.servers, topic, partitions)
        on_start(running.servers)
        while running.runs and not interrupted.wait(0.2):
            pass
        return {"servers": running.servers, "topics": list(topics)}
