"""Checks at the start that a Kafka broker answers, since Spark waits for minutes."""

from __future__ import annotations

import contextlib
import re
import socket
import time

from headgate.core.errors import ConfigError
from headgate.spark.jvm.gateway import Jvm
from headgate.spark.jvm.streams import option_of, streams_of
from headgate.spark.read.arrival import is_kafka

_SERVERS = "kafka.bootstrap.servers"
_TOPICS = ("subscribe", "subscribePattern", "assign")
_ADDRESS = re.compile(r"(?:\w+://)?\[?(?P<host>[^\[\]]+)\]?:(?P<port>\d+)")
"""As Kafka's own client reads one."""

_LOOK_S, _CALL_S, _POLL_S = 10.0, 3.0, 0.2
"""As long as the Kafka sink looks for its broker, too."""


def check_brokers(plan: Jvm) -> None:
    """Refuse a query that reads Kafka where nobody listens.

    Parameters
    ----------
    plan : Jvm
        Analysed.

    Raises
    ------
    ConfigError
        None of a source's brokers takes a connection within ten seconds.
    """
    until_s = time.monotonic() + _LOOK_S
    for leaf in streams_of(plan):
        if is_kafka(leaf):
            servers = option_of(leaf, _SERVERS) or ""
            while not any(_listens(one.strip()) for one in servers.split(",")):
                if time.monotonic() > until_s:
                    msg = (
                        f"no broker of {_SERVERS}={servers} answers, where the query reads "
                        f"{_topics(leaf)}; start it, or correct the option."
                    )
                    raise ConfigError(msg)
                time.sleep(_POLL_S)


def kafka_sources(plan: Jvm) -> list[str]:
    """Return what a plan reads of Kafka, a source each: such as ``subscribe=clicks at host:9092``."""
    leaves = [leaf for leaf in streams_of(plan) if is_kafka(leaf)]
    return [f"{_topics(leaf)} at {option_of(leaf, _SERVERS)}" for leaf in leaves]


def _topics(leaf: Jvm) -> str:
    """Return the option that says what a source reads, with its name."""
    named = {name: option_of(leaf, name) for name in _TOPICS}
    return next((f"{name}={value}" for name, value in named.items() if value is not None), "")


def _listens(address: str) -> bool:
    """Return whether a broker takes a connection; True for what Kafka itself will refuse."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        return True
    with contextlib.suppress(OSError):
        socket.create_connection((found["host"], int(found["port"])), _CALL_S).close()
        return True
    return False
