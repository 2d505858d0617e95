"""The commands that give Prometheus, Grafana and a browser what they need."""

from __future__ import annotations

import json
import sys
import threading
import types
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import runs
from typer.testing import CliRunner

from headgate.cli import app, metrics
from headgate.ui import app as page

Recorded = Callable[[str, Iterable[str]], None]


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Two journals: one of a query, one that is damaged."""
    runs.journal(tmp_path / "good" / "journal.jsonl", runs.scaled_run())
    runs.journal(tmp_path / "bad" / "journal.jsonl", runs.scaled_run()[:3])
    with open(tmp_path / "bad" / "journal.jsonl", "a", encoding="utf-8") as file:
        file.write("{\n")
    return tmp_path


def test_metrics_are_printed_once_with_what_cannot_be_read(place: Path) -> None:
    found = json.loads(call("exporter", str(place), "--once", "--json").stdout)
    assert 'headgate_batches_total{query="q"' in found["metrics"]
    assert len(found["broken"]) == 1
    assert "bad/journal.jsonl" in found["broken"][0]
    lines = call("exporter", str(place), "--once").stdout.splitlines()
    assert lines[-1] == f"# {found['broken'][0]}"
    assert lines[:-1] == found["metrics"].splitlines()


def test_metrics_are_served_until_an_interrupt(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    class Waits:
        """In place of an event: somebody scrapes, and then presses Ctrl-C."""

        def wait(self) -> None:
            with urllib.request.urlopen(said[0].split()[3].rstrip(";"), timeout=10) as answer:
                read.append(answer.read().decode())
            raise KeyboardInterrupt

    said: list[str] = []
    monkeypatch.setattr(metrics.typer, "echo", lambda text, **_: said.append(text))
    monkeypatch.setattr(metrics, "threading", types.SimpleNamespace(Event=Waits))
    before = threading.active_count()
    found = call("exporter", str(place), "--listen", "127.0.0.1:0", "--json")
    assert found.exit_code == 0, found.output
    assert said[0].startswith("headgate: metrics at http://127.0.0.1:")
    assert "headgate_batches_total" in read[0]
    assert threading.active_count() == before, "the server has ended"


@pytest.mark.parametrize("command", ["rules", "board"])
def test_what_is_printed_for_others_is_as_recorded(command: str, recorded: Recorded) -> None:
    found = call(command)
    assert found.exit_code == 0
    recorded(command, found.stdout.splitlines())
    answer = json.loads(call(command, "--json").stdout)
    text = answer["rules"] if command == "rules" else json.dumps(answer, indent=2)
    assert text.splitlines() == found.stdout.splitlines()


def test_the_page_is_served_where_it_says(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(page, "serve", lambda *given: asked.append(given))
    found = call("ui", str(place), "--listen", "127.0.0.1:9097")
    assert found.exit_code == 0, found.output
    assert "headgate: the page is at http://127.0.0.1:9097/; Ctrl-C ends" in found.output
    ((shelf, host, port, token),) = asked
    assert (host, port, token) == ("127.0.0.1", 9097, None)
    assert {entry["place"] for entry in shelf.index()} == {
        str(place / name / "journal.jsonl") for name in ("good", "bad")
    }


def test_commands_have_a_token_that_is_printed_behind_the_address_and_new_each_time(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(page, "serve", lambda *given: asked.append(given))
    for host in ("127.0.0.1", "localhost"):
        found = call("ui", str(place), "--control", "--listen", f"{host}:9097")
        assert found.exit_code == 0, found.output
        token = asked[-1][3]
        assert len(token) >= 43
        assert found.output.count(token) == 1
        assert f"http://{host}:9097/#token={token}; Ctrl-C ends" in found.output
    assert asked[0][3] != asked[1][3]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org", "127.0.0.1.evil"])
def test_no_other_machine_gives_commands(
    place: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setattr(page, "serve", lambda *_: pytest.fail("it is served"))
    found = call("ui", str(place), "--control", "--listen", f"{host}:9097")
    assert found.exit_code == 2
    assert f'--control with --listen "{host}:9097" would let other machines give' in found.output


def test_the_page_shows_the_working_directory_where_none_is_named(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(page, "serve", lambda shelf, *_: asked.append(shelf))
    monkeypatch.chdir(place)
    assert call("ui").exit_code == 0
    assert len(asked[0].index()) == 2


def test_without_its_libraries_the_page_says_what_to_install(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "headgate.ui.app", None)
    found = call("ui", str(place))
    assert found.exit_code == 2
    assert 'pip install ".[ui]"' in found.output
