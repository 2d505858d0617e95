"""Translates Spark's options for Kafka into settings of librdkafka, which the exactly-once sink uses.

Spark passes ``kafka.NAME`` to Java's client as NAME. librdkafka has most of these settings under the
same name, and some under another name. A setting that librdkafka lacks is refused, never ignored.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headgate.core.errors import ConfigError, instead_of
from headgate.core.input import whole
from headgate.core.listening import not_listening

PREFIX = "kafka."
SERVERS = "kafka.bootstrap.servers"
PLAIN_WAY = '.option("headgate.delivery", "at-least-once")'
"""The option that replaces the exactly-once sink by Spark's own Kafka writer."""

_RENAMED = {
    "max.request.size": "message.max.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
}
"""librdkafka's names for settings of Java's client that have another name there. All names that are
missing here are given to librdkafka unchanged, and `_check` refuses those that librdkafka lacks."""

_OWN: Mapping[str, tuple[str, ...]] = {
    "transactional.id": (),
    "enable.idempotence": ("true",),
    "acks": ("all", "-1"),
}
"""Settings that headgate sets for an exactly-once write, and their values that users may give."""

_JAAS = re.compile(
    r"\s*\S*security\.(?:plain\.PlainLoginModule|scram\.ScramLoginModule)\s+required\b(?P<rest>.*)",
    re.DOTALL,
)
_PAIR = re.compile(r'(\w+)\s*=\s*"([^"]*)"')

TRANSACTION_MS = 60_000
"""Longest time that a transaction may stay open; the default of Java's client and librdkafka."""

PATIENCE_MS = 60_000
"""Longest absence of a broker before a write fails; the default of Java's ``max.block.ms``."""


_ADDRESS = re.compile(r"(?:\w+://)?\[?(?P<host>[^\[\]]+)\]?:(?P<port>\d+)")
"""Matches a broker's address as Kafka's own client does."""

_LOOK_S = 10.0
"""Longest wait at the start for a broker that neither answers nor refuses. Chosen, not tuned."""


def no_broker(servers: str) -> Exception | None:
    """Return the error if no broker accepts a connection, else None.

    None also if `servers` has a malformed address, which Kafka's client reports itself.
    """
    matches = [_ADDRESS.fullmatch(server.strip()) for server in servers.split(",")]
    known = [(match["host"], int(match["port"])) for match in matches if match is not None]
    return not_listening(known, _LOOK_S) if len(known) == len(matches) else None


@dataclass(frozen=True)
class KafkaTarget:
    """Holds the destination and the settings of a Kafka writer."""

    servers: str
    """Value of ``bootstrap.servers``."""
    topic: str | None
    """Topic of all records; None if each record has its own."""
    client: Mapping[str, Any] = field(repr=False)
    """Settings of librdkafka, with ``bootstrap.servers``."""
    transaction_s: float
    """Longest time that a transaction may stay open."""
    patience_s: float
    """Longest absence of a broker."""


def confluent() -> Any:
    """Return the module ``confluent_kafka``. Raises `ConfigError`: it is not installed."""
    try:
        importlib.import_module("confluent_kafka.admin")
        return importlib.import_module("confluent_kafka")
    except ImportError as error:
        msg = (
            "confluent-kafka, which writes to Kafka exactly once and reads from it in real time, is not "
            f'installed; install "headgate[kafka]", or add {PLAIN_WAY} to use Spark\'s own writer.'
        )
        raise ConfigError(msg) from error


def kafka_target(options: Mapping[str, str]) -> KafkaTarget:
    """Return the target in Kafka from a writer's options.

    `options`: options of the writer; the case of names does not matter, as in Spark. Raises
    `ConfigError`: confluent-kafka is not installed, no broker is named, or librdkafka refuses an option.
    """
    module = confluent()
    by_name = {key.lower(): value for key, value in options.items()}
    servers = by_name.get(SERVERS)
    if not servers:
        hint = instead_of(SERVERS, options)
        msg = f'format "kafka" needs a broker; add .option("{SERVERS}", "host:9092"){hint}.'
        raise ConfigError(msg)
    java = {k.removeprefix(PREFIX): v for k, v in by_name.items() if k.startswith(PREFIX)}
    transaction_ms = _milliseconds(java, "transaction.timeout.ms", TRANSACTION_MS)
    patience_ms = _milliseconds(java, "max.block.ms", PATIENCE_MS)
    client = _translated(java)
    # as in Java's client, so that both clients write a key into the same partition
    client.setdefault("partitioner", "murmur2_random")
    client["transaction.timeout.ms"] = transaction_ms
    _check(module, client)
    return KafkaTarget(
        servers, by_name.get("topic"), client, transaction_ms / 1e3, patience_ms / 1e3
    )


def consumer_settings(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of a consumer of librdkafka.

    `options`: options of Spark's Kafka source, with names in lower case. Raises `ConfigError`:
    confluent-kafka is not installed, or librdkafka refuses an option.
    """
    module = confluent()
    client = _translated(
        {k.removeprefix(PREFIX): v for k, v in options.items() if k.startswith(PREFIX)}
    )
    try:
        module.Consumer(
            {**client, "group.id": "look", "bootstrap.servers": "", "log_level": 0}
        ).close()
    except (module.KafkaException, ValueError, TypeError) as error:
        msg = (
            'an option of format "kafka" is refused by librdkafka, which reads in real time '
            f"({error}); leave it out."
        )
        raise ConfigError(msg) from error
    return client


def _milliseconds(java: dict[str, str], name: str, default: int) -> int:
    text = java.pop(name, str(default))
    if not text.strip().isdecimal() or int(text) < 1:
        msg = (
            f"option {PREFIX}{name}={text} is no number of milliseconds; use one such as {default}."
        )
        raise ConfigError(msg)
    return int(text)


def _translated(java: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of librdkafka for those of Java's client."""
    client: dict[str, Any] = {}
    for name, value in java.items():
        if name in _OWN:
            if value.lower() not in _OWN[name]:
                msg = (
                    f"option {PREFIX}{name}={value} cannot be set for an exactly-once write, since "
                    f"headgate sets it; leave it out, or add {PLAIN_WAY}."
                )
                raise ConfigError(msg)
        elif name == "sasl.jaas.config":
            client |= _login(value)
        elif name == "buffer.memory":
            byte_count = whole(value, f"option {PREFIX}{name}", 1)
            client["queue.buffering.max.kbytes"] = max(1, byte_count // 1024)
        elif name == "ssl.endpoint.identification.algorithm":
            client[name] = value or "none"
        else:
            client[_RENAMED.get(name, name)] = value
    return client


def _login(jaas: str) -> dict[str, str]:
    """Return user name and password from a JAAS configuration for PLAIN or SCRAM."""
    match = _JAAS.match(jaas)
    pairs = dict(_PAIR.findall(match["rest"])) if match else {}
    if {"username", "password"} <= pairs.keys():
        return {"sasl.username": pairs["username"], "sasl.password": pairs["password"]}
    msg = (
        f"option {PREFIX}sasl.jaas.config has a login that librdkafka does not support; use "
        f"{PREFIX}sasl.username and {PREFIX}sasl.password, or add {PLAIN_WAY}."
    )
    raise ConfigError(msg)


def _check(module: Any, client: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if librdkafka refuses the settings; connects to no broker."""
    refusal = _refusal(module, client)
    if refusal is None:
        return
    # name the setting, if one setting alone causes the error
    causes = [name for name in client if _refusal(module, {name: client[name]}) == refusal]
    java_names = {new: old for old, new in _RENAMED.items()}
    what = f"option {PREFIX}{java_names.get(causes[0], causes[0])}" if causes else "an option"
    msg = (
        f"{what} is refused by librdkafka, which writes exactly once ({refusal}); change it or leave it "
        f"out, or add {PLAIN_WAY}."
    )
    raise ConfigError(msg)


def _refusal(module: Any, client: Mapping[str, Any]) -> str | None:
    """Return librdkafka's error about settings; None if they are valid."""
    try:
        module.Producer({**client, "bootstrap.servers": "", "log_level": 0})
    except (module.KafkaException, ValueError, TypeError) as error:
        first = error.args[0] if error.args else error
        text = str(first.str() if hasattr(first, "str") else first)
        return text.partition(". See http")[0].strip().rstrip(".")
    return None
