"""`headgate demo`: what a try needs beside headgate."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from headgate.cli import app
from headgate_demo import cli


def test_a_broker_runs_with_its_topics_until_it_is_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[tuple[str, str, int]] = []
    ended: list[bool] = []

    class Running:
        servers = "127.0.0.1:9"

        @property
        def runs(self) -> bool:
            os.kill(os.getpid(), signal.SIGINT)
            return True

    @contextmanager
    def broker() -> Iterator[Running]:
        yield Running()
        ended.append(True)

    def make_topic(servers: str, name: str, partitions: int) -> None:
        made.append((servers, name, partitions))

    modules: dict[str, Any] = {
        "headgate_demo.spark.broker": SimpleNamespace(Broker=broker),
        "headgate_demo.spark.topics": SimpleNamespace(make_topic=make_topic),
    }
    monkeypatch.setattr(cli, "engine_module", modules.__getitem__)
    done = CliRunner().invoke(app, ["demo", "kafka", "--topic", "a", "--partitions", "2"])
    assert done.exit_code == 0, done.output
    assert "kafka.bootstrap.servers  127.0.0.1:9" in done.stdout
    assert made == [("127.0.0.1:9", "a", 2)]
    assert ended == [True]
