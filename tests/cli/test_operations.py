"""The commands of somebody on call, against a checkpoint whose query is played by hand."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import runs
from typer.testing import CliRunner

from headgate.checkpoint.command_files import Command, CommandFiles
from headgate.cli import app
from headgate.journal import Decided, Wish
from headgate.journal.parts import SloState
from headgate.journal.schema import Event
from headgate.spark.step.stop_requests import StopRequests


@contextmanager
def answering(checkpoint: Path, refused: str | None = None) -> Iterator[list[Command]]:
    """Answer requests as a query would; yield what was asked."""
    asked: list[Command] = []
    files, over = CommandFiles(checkpoint / "headgate"), threading.Event()

    def answer() -> None:
        while not over.wait(0.01):
            for request in files.pending():
                assert request.command is not None
                asked.append(request.command)
                files.write_answer(request.id, refused)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield asked
    finally:
        over.set()
        thread.join()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / "headgate").mkdir()
    wish = Wish("aggregate-0", "scale-out", 3, 40)
    decided = Decided("streamswitch(0.2)", "severe", "slot 0 is slow", True, (wish,), at_ms=1)
    events = [runs.start(), runs.batch(0), decided]
    runs.journal(tmp_path / "headgate" / "journal.jsonl", events)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["thaw", "CK", "--reason", "ok"], Command("thaw", "", "ok")),
        (["scale", "CK", "4"], Command("scale", "", "", {"slots": 4})),
        (
            ["scale", "CK", "4", "--operator", "a"],
            Command("scale", "", "", {"slots": 4, "operator": "a"}),
        ),
        (["rollback", "CK", "--to-epoch", "7"], Command("rollback", "", "", {"epoch": 7})),
        (["freeze", "CK", "--reason", "INC-1"], Command("freeze", "", "INC-1")),
    ],
)
def test_a_command_asks_the_query_and_reports_its_answer(
    checkpoint: Path, arguments: list[str], command: Command
) -> None:
    arguments = [str(checkpoint) if a == "CK" else a for a in arguments]
    with answering(checkpoint) as asked:
        result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    (only,) = asked
    assert (only.act, only.reason, only.arguments) == (
        command.act, command.reason, command.arguments,
    )  # fmt: skip
    assert "@" in only.by
    assert json.loads(result.stdout)["act"] == command.act


def test_freezing_for_a_while_says_until_when(checkpoint: Path) -> None:
    with answering(checkpoint) as asked:
        CliRunner().invoke(app, ["freeze", str(checkpoint), "--for", "2h", "--reason", "x"])
    until_s = asked[0].arguments["until_s"]
    assert 7_000 < until_s - time.time() < 7_300


def test_a_reason_is_required_to_freeze(checkpoint: Path) -> None:
    assert CliRunner().invoke(app, ["freeze", str(checkpoint)]).exit_code == 2


def test_a_refusal_is_bad_input(checkpoint: Path) -> None:
    with answering(checkpoint, refused="the assignment is frozen; thaw it first."):
        result = CliRunner().invoke(app, ["scale", str(checkpoint), "4", "--json"])
    assert result.exit_code == 2
    assert "frozen" in json.loads(result.stdout)["error"]["message"]


def test_no_answer_is_a_failure_and_the_request_stays(checkpoint: Path) -> None:
    arguments = ["scale", str(checkpoint), "4", "--wait", "200 ms", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert "no query answered" in json.loads(result.stdout)["error"]["message"]
    assert len(CommandFiles(checkpoint / "headgate").pending()) == 1


_DRIVER = """
import fcntl, sys
lock = open(sys.argv[1], "w")
fcntl.lockf(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def held(checkpoint: Path) -> Iterator[Path]:
    """A checkpoint that another process holds, as the JVM of a running query's driver does."""
    lock = str(checkpoint / "headgate" / "driver.lock")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", _DRIVER, lock], **pipes) as driver:  # type: ignore[call-overload]
        assert driver.stdout.readline() == b"held\n"
        yield checkpoint
        driver.stdin.close()


def test_stop_asks_the_query_that_runs_and_says_when_it_has_ended(held: Path) -> None:
    with answering(held) as asked:
        result = CliRunner().invoke(app, ["stop", str(held), "--reason", "a new version"])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("the query has ended, as ")
    assert [(one.act, one.reason) for one in asked] == [("stop", "a new version")]


def test_a_stop_that_comes_to_nothing_stops_no_later_query(held: Path) -> None:
    result = CliRunner().invoke(app, ["stop", str(held), "--wait", "200 ms", "--json"])
    assert result.exit_code == 1
    assert "has ended within 0.2 s" in json.loads(result.stdout)["error"]["message"]
    files = CommandFiles(held / "headgate")
    assert files.pending() == []
    late = files.ask(Command("stop", "somebody"))  # who asked is gone, and could not take it back
    events: list[Event] = []
    requests = StopRequests(files, events.append)
    assert files.answer(late)["refused"] == "this run began after it was asked for; ask again."
    assert not requests.poll()
    asked = files.ask(Command("stop", "somebody", "at last"))
    assert requests.poll()
    assert files.answer(asked) is None
    assert [(event.act, event.by, event.reason) for event in events] == [
        ("stop", "somebody", "at last")
    ]
    requests.answer()
    assert files.answer(asked)["refused"] is None


def test_stop_says_that_no_query_runs(checkpoint: Path) -> None:
    (checkpoint / "headgate" / "driver.lock").touch()  # as an ended query leaves it
    result = CliRunner().invoke(app, ["stop", str(checkpoint), "--json"])
    assert result.exit_code == 1
    assert "no query runs on" in json.loads(result.stdout)["error"]["message"]
    assert CommandFiles(checkpoint / "headgate").pending() == []


def test_a_directory_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["thaw", str(tmp_path)])
    assert result.exit_code == 2


def test_why_and_top_read_the_journal(checkpoint: Path) -> None:
    result = CliRunner().invoke(app, ["why", str(checkpoint), "--last"])
    assert result.exit_code == 0
    assert "slot 0 is slow" in result.stdout
    found = json.loads(CliRunner().invoke(app, ["why", str(checkpoint), "--json"]).stdout)
    assert found["wishes"][0]["slots"] == 3
    assert "group   17" in CliRunner().invoke(app, ["top", str(checkpoint)]).stdout
    both = ["why", str(checkpoint), "--last", "--at", "3 s"]
    assert CliRunner().invoke(app, both).exit_code == 2


def test_a_missed_slo_is_a_failure_only_where_it_is_required() -> None:
    from headgate.cli.answer import exit_code

    assert exit_code({"slo": {"met": False}}) == 0
    assert exit_code({"slo": {"met": False}, "slo_met": False}) == 4


def test_a_diagnosis_fails_by_a_missed_slo_only_where_it_is_required(checkpoint: Path) -> None:
    words = ["diagnose", str(checkpoint), "--json"]
    plain, required = (CliRunner().invoke(app, [*words, *more]) for more in ([], ["--require-slo"]))
    assert not json.loads(plain.stdout)["slo"]["met"]
    assert (plain.exit_code, required.exit_code) == (0, 4)
    assert json.loads(required.stdout)["slo_met"] is False


def test_an_act_is_told_with_what_exactly_was_done_where_there_is_more_to_say() -> None:
    from headgate.cli import operations

    done = {"act": "thaw", "by": "ann", "detail": ""}
    assert operations._asked_lines(done) == ["thaw done, asked for by ann"]
    assert operations._asked_lines(done | {"act": "scale", "detail": "2 to 3"}) == [
        "scale done, asked for by ann: 2 to 3"
    ]


def test_a_status_fails_by_a_missed_slo_only_where_it_is_required(tmp_path: Path) -> None:
    for number, (met, code) in enumerate([(0.5, 4), (1.0, 0)]):
        share = {"success": met, "success_worst": met, "worst_group": 3, "worst_operator": "a"}
        windows = {"windows": 10, "windows_empty": 0, "wanted": 0.99, "bound_ms": 1000.0}
        rest = {"floor_ms": 100.0, "loop_ms": 0.0, "cycles": 0}
        state = SloState("steady", frozen=False, **share, **windows, **rest)
        checkpoint = tmp_path / str(number)
        (checkpoint / "headgate").mkdir(parents=True)
        start = runs.start(parameters={"slo": ["mean < 1 s over 1 s"]})
        events = [start, runs.batch(0, slo=state)]
        runs.journal(checkpoint / "headgate" / "journal.jsonl", events)
        words = ["status", str(checkpoint), "--json"]
        plain, required = (CliRunner().invoke(app, [*words, *m]) for m in ([], ["--require-slo"]))
        assert (plain.exit_code, required.exit_code) == (0, code), required.stdout
        assert json.loads(required.stdout)["slo_met"] is (code == 0)
