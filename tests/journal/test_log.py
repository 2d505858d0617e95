"""The driver's log tells of a query what its journal says."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from headgate.journal.schema import (
    AssignmentChange,
    ControlAct,
    Event,
    NotReadyToDecide,
    Restart,
    Retry,
    Start,
    Stop,
)
from headgate.journal.writer import JournalWriter


@pytest.mark.parametrize(
    ("event", "level", "text"),
    [
        (Start("job", "clicks", 128, 2), logging.INFO, "query clicks started with 2 slots"),
        (Restart(7, 6), logging.INFO, "query goes on with step 7"),
        (
            AssignmentChange(9, 1, 2, 4, 64, 0, "unified", "records wait", "counts"),
            logging.INFO,
            "step 9: slots 2 to 4 of counts, by unified: records wait",
        ),
        (
            AssignmentChange(9, 1, 2, 2, 3, 0, "user"),
            logging.INFO,
            "step 9: 3 key groups moved, by user",
        ),
        (Retry(3, 1, "worker lost"), logging.WARNING, "step 3, attempt 1 failed: worker lost"),
        (ControlAct("scale", "user", detail="4 slots"), logging.INFO, "scale 4 slots by user"),
        (
            ControlAct("scale", "user", refused="frozen"),
            logging.WARNING,
            "scale by user: refused: frozen",
        ),
        (Stop("stop()"), logging.INFO, "query ended: stop()"),
        (Stop("failed", "disk full"), logging.ERROR, "query failed: disk full"),
    ],
)
def test_an_event_is_told_once_with_the_journals_path(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, event: Event, level: int, text: str
) -> None:
    path = tmp_path / "journal.jsonl"
    with caplog.at_level(logging.INFO, "headgate.query"), JournalWriter(path) as writer:
        writer.write(event)
    assert [(r.name, r.levelno, r.getMessage()) for r in caplog.records] == [
        ("headgate.query", level, f"{text} ({path})")
    ]


def test_what_happens_all_the_time_is_not_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), JournalWriter(tmp_path / "journal.jsonl") as writer:
        writer.write(NotReadyToDecide("counts", "no batch yet"))
    assert caplog.records == []


def test_a_program_without_logging_gets_no_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, []
    try:
        with JournalWriter(tmp_path / "journal.jsonl") as writer:
            writer.write(Retry(3, 1, "worker lost"))
    finally:
        root.handlers = handlers
    assert capsys.readouterr().err == ""
