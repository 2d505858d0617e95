"""A query that reads Kafka where nobody listens is refused at the start; Spark is made up."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.core.errors import ConfigError
from headgate.spark.read import brokers
from headgate.spark.settings import kafka
from headgate_demo.spark import broker
from headgate_demo.spark.broker import Broker


@pytest.fixture
def port() -> Iterator[int]:
    """A port that somebody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "_LOOK_S", 0.0)
    monkeypatch.setattr(brokers, "streams_of", lambda plan: plan)
    monkeypatch.setattr(brokers, "is_kafka", lambda leaf: leaf["format"] == "kafka")
    monkeypatch.setattr(brokers, "option_of", lambda leaf, name: leaf.get(name))


def reads(servers: str, **more: str) -> dict[str, Any]:
    return {"format": "kafka", "kafka.bootstrap.servers": servers, "subscribe": "clicks", **more}


def test_one_broker_of_a_source_is_enough_and_other_sources_have_none(port: int) -> None:
    brokers.check_brokers([{"format": "rate"}, reads(f"127.0.0.1:1, PLAINTEXT://127.0.0.1:{port}")])


def test_what_kafka_itself_refuses_is_left_to_it() -> None:
    brokers.check_brokers([reads("nonsense"), reads("")])


@pytest.mark.parametrize("what", ["subscribe", "subscribePattern", "assign"])
def test_a_source_without_a_broker_is_named(port: int, what: str) -> None:
    there, away = reads(f"127.0.0.1:{port}"), reads("127.0.0.1:1") | {"subscribe": None}
    with pytest.raises(ConfigError) as error:
        brokers.check_brokers([there, away | {what: "t"}])
    assert str(error.value) == (
        "no broker of kafka.bootstrap.servers=127.0.0.1:1 answers, where the query reads "
        f"{what}=t; start it, or correct the option."
    )


def test_the_identity_of_a_brokers_cluster_is_no_option(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made, said = Broker.__new__(Broker), []
    made._memory, made._classes, made._settings = "1m", "", tmp_path / "server.properties"

    def ran(command: list[str], **_: Any) -> Any:
        said.append(command[command.index("-t") + 1])
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(broker.subprocess, "run", ran)
    monkeypatch.setattr(broker.secrets, "token_urlsafe", lambda _: "-" * 22)
    made._format()
    assert len(said[0]) == 22
    assert not said[0].startswith("-")
