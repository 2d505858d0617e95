"""Checks values and defaults of options, and Kafka's options as librdkafka's settings; without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headgate.core.errors import ConfigError
from headgate.core.slo import parse_slo
from headgate.core.stores import Hidden
from headgate.spark.settings import kafka, query_settings
from headgate.spark.settings import options as own
from headgate.spark.settings.query_settings import QuerySettings

VALUES: list[tuple[str, Any, dict[str, Any]]] = [
    ("headgate.arrival", None, {"at": "at"}),
    ("headgate.ordered", None, {"ts": ("ts",), "ts, offset ": ("ts", "offset")}),
    ("headgate.windows", "slices", {"whole": "whole", " Slices ": "slices"}),
    ("headgate.snapshotEvery", None, {"1": 1, " 7 ": 7}),
    ("headgate.state.memoryMax", None, {"1": 1, "500 MB": 500_000_000}),
    ("headgate.preaggregate", "auto", {"on": "on", "OFF": "off", "auto": "auto"}),
    ("headgate.attempts", 4, {"1": 1}),
    ("headgate.keepLate", False, {"true": True, "False": False}),
    ("headgate.showKeys", False, {"TRUE": True, "false": False}),
    ("headgate.journal.errorText", False, {"true": True}),
    ("headgate.metrics", None, {"127.0.0.1:9095": ("127.0.0.1", 9095)}),
    ("headgate.workload", None, {"clicks": "clicks"}),
    ("headgate.processorTimeLimit", None, {"30 s": 30.0}),
    ("headgate.backlog.bytesMax", 268_435_456, {"1": 1, "2 KiB": 2048}),
    ("headgate.backlog.ageMax", 60.0, {"500 ms": 0.5}),
    ("headgate.replicas.interval", 10.0, {"2 s": 2.0}),
    ("headgate.replicas.restart", 5.0, {"1 s": 1.0}),
    ("headgate.replicas.timeout", None, {"1 min": 60.0}),
    ("headgate.replicas.queueMax", None, {"1": 1}),
    ("headgate.executors", "follow", {"keep": "keep", "Follow": "follow"}),
    ("headgate.slotRate", None, {"0.5": 0.5, "1e3": 1000.0}),
    ("headgate.delivery", "exactly-once", {"at-least-once": "at-least-once"}),
    ("headgate.floor", None, {"0 s": 0.0, "300 ms": 0.3}),
    ("headgate.experimental.realTime", False, {"true": True}),
    ("headgate.epoch", 0.05, {"20 ms": 0.02}),
    ("headgate.release", "committed", {"early": "early", "committed": "committed"}),
]


def test_every_option_is_looked_at() -> None:
    assert {key for key, _, _ in VALUES} | {"headgate.grouping"} == set(own.OPTIONS)


@pytest.mark.parametrize(("key", "default", "texts"), VALUES)
def test_an_option_has_the_value_of_its_text_or_its_default(
    key: str, default: Any, texts: dict[str, Any]
) -> None:
    option = own.OPTIONS[key]
    assert option.of({"headgate.other": "x"}) == default
    assert type(option.of({})) is type(default)
    for text, value in texts.items():
        assert option.of({key: text}) == value
        assert own.check_option(key.upper(), text) == (key, text)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("headgate.arrival", " "),
        ("headgate.ordered", "ts,,offset"),
        ("headgate.attempts", "0"),
        ("headgate.slotRate", "0"),
        ("headgate.slotRate", "inf"),
        ("headgate.floor", "-1 s"),
        ("headgate.epoch", "0 s"),
        ("headgate.release", "late"),
        ("headgate.grouping", "shuffle, shuffle"),
    ],
)
def test_a_text_that_is_not_allowed_is_refused_with_those_that_are(key: str, text: str) -> None:
    option = own.OPTIONS[key]
    for refusing in (lambda: option.of({key: text}), lambda: own.check_option(key, text)):
        with pytest.raises(ConfigError) as raised:
            refusing()
        assert str(raised.value) == f'{key}="{text}" is not allowed; use {option.allowed}.'


def test_a_word_that_is_misspelt_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r'map-1: shufle" is not .*; did you mean "shuffle"\?$'):
        own.GROUPING.value_of("shuffle, map-1: shufle")


def test_a_query_has_these_settings_unless_it_is_told_others() -> None:
    made = QuerySettings(options={"headgate.store.x": "secret"})
    assert "secret" not in repr(made)
    assert (made.mode, made.key_groups, made.budget, made.fallback) == (
        "append",
        128,
        "auto",
        "error",
    )
    assert made.slots == (1, "auto", "auto")
    assert (made.advise, made.migration, made.policy, made.replica_policy) == (
        False,
        "",
        None,
        None,
    )


def test_booleans_and_numbers_become_texts() -> None:
    assert own.check_option("headgate.KEEPLATE", True) == ("headgate.keepLate", "true")
    assert own.check_option("headgate.attempts", 3) == ("headgate.attempts", "3")


def test_an_option_that_is_not_known_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match=r'unknown option "headgate.atempts"; did you mean "headgate.a'
    ):
        own.check_option("headgate.atempts", 3)
    with pytest.raises(ConfigError, match=r'^unknown option "headgate.zzzzzzzzzzzz"\.$'):
        own.check_option("headgate.zzzzzzzzzzzz", 3)


def test_an_option_of_a_store_has_its_own_letter_case_and_hides_its_text() -> None:
    for value, text in (("eu-1", "eu-1"), (True, "true"), (5, "5")):
        key, hidden = own.check_option("HEADGATE.store.ACCESSkeyID", value)
        assert (key, hidden) == ("headgate.store.accessKeyId", text)
        assert isinstance(hidden, Hidden)
    with pytest.raises(ConfigError, match=r'"headgate\.store\.region"'):
        own.check_option("headgate.store.regoin", "eu-1")


@pytest.mark.parametrize(
    ("key", "ours"),
    [("headgate.epoch", True), ("HEADGATE.x", True), ("headgate", False), ("path", False)],
)
def test_headgates_options_have_its_name_first(key: str, ours: bool) -> None:
    assert own.is_own(key) is ours
    settings = QuerySettings(options={key: "1", "other": "2"})
    assert settings.sink_options == {"other": "2"} | ({} if ours else {key: "1"})


SLO = parse_slo("mean < 2 s over 1 s")


@pytest.mark.parametrize(
    ("facts", "limit"),
    [
        ({"budget": None}, None),
        ({"budget": "800 ms"}, 0.8),
        ({"budget": "800 ms", "trigger": {"processingTime": "1 s"}}, 0.8),
        ({"budget": "800 ms", "trigger": {"realTime": "1 s"}}, None),
        ({"budget": "800 ms", "trigger": {"availableNow": True}}, None),
        ({"budget": "800 ms", "trigger": {"once": True}}, None),
    ],
)
def test_slots_have_a_time_limit_where_batches_follow_each_other(
    facts: dict[str, Any], limit: float | None
) -> None:
    settings = QuerySettings(**facts)
    assert settings.budget_s == limit
    assert settings.is_real_time is ("realTime" in settings.trigger)


def test_the_time_limit_follows_from_the_slo_unless_it_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    steering = SimpleNamespace(budget_s=asked.append)
    monkeypatch.setattr(query_settings, "steering", steering)
    assert QuerySettings(slos=(SLO,)).budget_s is None
    assert QuerySettings(slos=(SLO,), budget="1 s").budget_s == 1.0
    assert asked == [(SLO,)]


# --- Kafka ----------------------------------------------------------------------------------------------


class KafkaException(Exception):
    """An error of librdkafka."""


class Client:
    """The module of librdkafka, which refuses some settings."""

    def __init__(self, **refused: Any) -> None:
        self.refused, self.KafkaException = refused, KafkaException
        self.seen: list[dict[str, Any]] = []
        self.closed = 0

    def Producer(self, settings: dict[str, Any]) -> Any:
        self.seen.append(settings)
        for name, error in self.refused.items():
            if name.replace("_", ".") in settings:
                raise error
        return SimpleNamespace(close=self._close)

    Consumer = Producer

    def _close(self) -> None:
        self.closed += 1


BROKER = {"kafka.bootstrap.servers": "a:1"}


def use(monkeypatch: pytest.MonkeyPatch, **refused: Any) -> Client:
    client = Client(**refused)
    monkeypatch.setattr(kafka, "confluent", lambda: client)
    return client


def test_a_writer_has_defaults_of_javas_client(monkeypatch: pytest.MonkeyPatch) -> None:
    client = use(monkeypatch)
    target = kafka.kafka_target({"Kafka.Bootstrap.Servers": "a:1", "headgate.epoch": "1 s"})
    assert (target.servers, target.topic) == ("a:1", None)
    assert (target.transaction_s, target.patience_s) == (60.0, 60.0)
    assert target.client == {
        "bootstrap.servers": "a:1", "partitioner": "murmur2_random", "transaction.timeout.ms": 60_000,
    }  # fmt: skip
    assert client.seen[0] == {**target.client, "bootstrap.servers": "", "log_level": 0}


def test_options_have_librdkafkas_names_and_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)
    target = kafka.kafka_target(
        BROKER | {
            "TOPIC": "t", "kafka.max.block.ms": " 1500 ", "kafka.transaction.timeout.ms": "1",
            "kafka.max.request.size": "7", "kafka.send.buffer.bytes": "8",
            "kafka.receive.buffer.bytes": "9", "kafka.buffer.memory": "4096", "kafka.acks": "-1",
            "kafka.enable.idempotence": "TRUE", "kafka.partitioner": "random",
            "kafka.ssl.endpoint.identification.algorithm": "", "kafka.linger.ms": "5",
        }
    )  # fmt: skip
    assert (target.topic, target.transaction_s, target.patience_s) == ("t", 0.001, 1.5)
    assert target.client == {
        "bootstrap.servers": "a:1", "message.max.bytes": "7", "socket.send.buffer.bytes": "8",
        "socket.receive.buffer.bytes": "9", "queue.buffering.max.kbytes": 4,
        "partitioner": "random", "ssl.endpoint.identification.algorithm": "none",
        "linger.ms": "5", "transaction.timeout.ms": 1,
    }  # fmt: skip


def test_a_small_buffer_is_one_kilobyte(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)
    target = kafka.kafka_target(BROKER | {"kafka.buffer.memory": "1023"})
    assert target.client["queue.buffering.max.kbytes"] == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kafka.bootstrap.servers": ""}, 'needs a broker; add .option."kafka.bootstrap.servers"'),
        ({"kafka.acks": "1"}, "option kafka.acks=1 cannot be set"),
        ({"kafka.enable.idempotence": "false"}, "idempotence=false cannot be set"),
        ({"kafka.transactional.id": "x"}, "transactional.id=x cannot be set"),
        (
            {"kafka.buffer.memory": "1 MB"},
            'kafka.buffer.memory "1 MB" is out of range; use a whole',
        ),
        ({"kafka.max.block.ms": "0"}, "kafka.max.block.ms=0 is no number of milli.* such as 60000"),
        ({"kafka.transaction.timeout.ms": "1 s"}, "timeout.ms=1 s is no number of milliseconds"),
    ],
)
def test_an_option_that_a_transaction_does_not_allow_is_named(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str], says: str
) -> None:
    use(monkeypatch)
    with pytest.raises(ConfigError, match=says):
        kafka.kafka_target(BROKER | options)


LOGIN = "org.apache.kafka.common.security.{} required {};"


@pytest.mark.parametrize("module", ["plain.PlainLoginModule", "scram.ScramLoginModule"])
def test_a_login_with_a_password_is_carried_over(module: str) -> None:
    line = LOGIN.format(module, 'username="u"\n password = "p w"')
    assert kafka._translated({"sasl.jaas.config": line}) == {
        "sasl.username": "u", "sasl.password": "p w",
    }  # fmt: skip
    with pytest.raises(
        ConfigError, match=r"jaas\.config has a login that librdkafka does not support"
    ):
        kafka._translated({"sasl.jaas.config": LOGIN.format(module, 'username="u"')})


def test_another_login_is_refused() -> None:
    line = LOGIN.format("oauthbearer.OAuthBearerLoginModule", 'username="u" password="p"')
    with pytest.raises(
        ConfigError, match=r"jaas\.config has a login that librdkafka does not support"
    ):
        kafka._translated({"sasl.jaas.config": line})


class ClientError:
    """An error of librdkafka's own, whose text is a method's."""

    def str(self) -> str:
        return "no such property. See https://x"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KafkaException(ClientError()), "no such property"),
        (ValueError("a text. "), "a text"),
        (TypeError(), ""),
    ],
)
def test_a_setting_that_librdkafka_refuses_is_named_in_sparks_words(
    monkeypatch: pytest.MonkeyPatch, error: Exception, text: str
) -> None:
    use(monkeypatch, message_max_bytes=error)
    with pytest.raises(ConfigError) as raised:
        kafka.kafka_target(BROKER | {"kafka.max.request.size": "x", "kafka.linger.ms": "5"})
    assert str(raised.value).startswith(
        "option kafka.max.request.size is refused by librdkafka, which writes exactly once "
        f"({text}); change it or leave it out"
    )


def test_settings_that_are_refused_together_only_are_not_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = use(monkeypatch)

    def producer(settings: dict[str, Any]) -> None:
        if {"a", "b"} <= settings.keys():
            raise KafkaException("not both")

    monkeypatch.setattr(client, "Producer", producer)
    with pytest.raises(ConfigError, match=r"^an option is refused by librdkafka, .*\(not both\);"):
        kafka.kafka_target(BROKER | {"kafka.a": "1", "kafka.b": "1"})


def test_a_reader_has_the_clients_settings_without_those_of_spark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = use(monkeypatch)
    given = BROKER | {"kafka.fetch.min.bytes": "5", "subscribe": "t"}
    assert kafka.consumer_settings(given) == {"bootstrap.servers": "a:1", "fetch.min.bytes": "5"}
    assert client.seen == [
        {"bootstrap.servers": "", "fetch.min.bytes": "5", "group.id": "look", "log_level": 0}
    ]
    assert client.closed == 1
    use(monkeypatch, zzz=KafkaException("no zzz"))
    with pytest.raises(
        ConfigError, match=r"refused by librdkafka, which reads in real time .no zzz.; leave it out"
    ):
        kafka.consumer_settings(BROKER | {"kafka.zzz": "1"})


def test_a_client_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def import_module(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(kafka, "importlib", SimpleNamespace(import_module=import_module))
    with pytest.raises(
        ConfigError, match=r'not installed; install "headgate\[kafka\]", or add \.opt'
    ):
        kafka.confluent()


def test_brokers_are_looked_for_only_at_addresses_that_can_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    gone = OSError("refused")

    def not_listening(addresses: Any, most_s: float) -> Exception:
        asked.append((addresses, most_s))
        return gone

    monkeypatch.setattr(kafka, "not_listening", not_listening)
    assert kafka.no_broker("a:1, SSL://[::1]:2") is gone
    assert asked == [([("a", 1), ("::1", 2)], 10.0)]
    assert kafka.no_broker("a:1,b") is None
    assert len(asked) == 1
