"""Functions of the user's are told each event, and cannot harm a query."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import headgate as hg
from headgate.journal import Event, Retry, Stop
from headgate.journal.writer import JournalWriter


def test_a_function_is_told_each_event_until_it_ends_that(tmp_path: Path) -> None:
    told: list[tuple[str, Event]] = []
    end = hg.on_event(lambda journal, event: told.append((journal, event)))
    path = tmp_path / "journal.jsonl"
    with JournalWriter(path, now_ms=lambda: 7) as writer:
        writer.write(Retry(1, 1, "no"))
        end()
        end()
        writer.write(Stop("stopped"))
    assert told == [(str(path), Retry(1, 1, "no", at_ms=7))]


def test_a_function_that_fails_is_logged_once_and_the_next_is_called(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(journal: str, event: Event) -> None:
        raise ValueError(journal)

    told: list[Event] = []
    ends = [hg.on_event(fail), hg.on_event(lambda _, event: told.append(event))]
    with caplog.at_level(logging.ERROR), JournalWriter(tmp_path / "journal.jsonl") as writer:
        writer.write(Stop("stopped"))
        writer.write(Stop("stopped"))
    for end in ends:
        end()
    assert len(told) == 2
    assert [r.message for r in caplog.records if "hg.on_event" in r.message] == [
        "a function given to hg.on_event failed; the query goes on"
    ]


def test_an_object_that_has_no_hash_may_be_called_and_fail(tmp_path: Path) -> None:
    class Calls(list[Event]):
        def __call__(self, journal: str, event: Event) -> None:
            self.append(event)
            raise ValueError(journal)

    calls = Calls()
    end = hg.on_event(calls)
    with JournalWriter(tmp_path / "journal.jsonl") as writer:
        writer.write(Stop("stopped"))
        writer.write(Stop("stopped"))
    end()
    assert len(calls) == 2
