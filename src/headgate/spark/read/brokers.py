"""Checks at the start that a Kafka broker answers, because Spark itself waits for minutes."""

from __future__ import annotations

from headgate.core.errors import ConfigError
from headgate.spark.jvm.gateway import Jvm
from headgate.spark.jvm.streams import option_of, streams_of
from headgate.spark.read.arrival import is_kafka
from headgate.spark.settings.kafka import no_broker

_SERVERS = "kafka.bootstrap.servers"
_TOPICS = ("subscribe", "subscribePattern", "assign")


def check_brokers(plan: Jvm) -> None:
    """Refuse a query whose Kafka brokers do not answer.

    `plan`: analysed. Raises `ConfigError`: no broker of a source accepts a connection.
    """
    for leaf in streams_of(plan):
        if is_kafka(leaf):
            servers = option_of(leaf, _SERVERS) or ""
            if no_broker(servers) is not None:
                msg = (
                    f"no broker of {_SERVERS}={servers} answers, where the query reads "
                    f"{_topics(leaf)}; start it, or correct the option."
                )
                raise ConfigError(msg)


def kafka_sources(plan: Jvm) -> list[str]:
    """Return a text for each Kafka source of a plan, such as ``subscribe=clicks at host:9092``."""
    leaves = [leaf for leaf in streams_of(plan) if is_kafka(leaf)]
    return [f"{_topics(leaf)} at {option_of(leaf, _SERVERS)}" for leaf in leaves]


def _topics(leaf: Jvm) -> str:
    """Return the option that selects a source's topics, as ``name=value``."""
    named = {name: option_of(leaf, name) for name in _TOPICS}
    return next((f"{name}={value}" for name, value in named.items() if value is not None), "")
