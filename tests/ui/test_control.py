"""Commands from the page: only this page's own reach a query, as the command line would write them."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from journals import START, batch, write
from typer.testing import CliRunner

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.command_files import Command, CommandFiles
from headgate.cli import app as command_line
from headgate.core.errors import CheckpointError, EngineError
from headgate.journal import AssignmentChange, ControlAct, JournalWriter, OperatorInfo, Stop
from headgate.journal.hosts import MigrationStep
from headgate.journal.schema import Event
from headgate.report.limits import DriverSeen
from headgate.ui import control
from headgate.ui.app import _Protocol, app
from headgate.ui.shelf import Shelf

TOKEN = "t" * 43
SCALE = {"act": "scale", "slots": 4, "reason": "INC-1"}


@contextlib.contextmanager
def serving(*places: Path, token: str | None = TOKEN) -> Iterator[tuple[str, Shelf]]:
    """Yield the address of a page as the command serves it, and its journals."""
    shelf = Shelf(places, lambda _: DriverSeen())
    with socket.create_server(("127.0.0.1", 0)) as own:
        served = app(shelf, "127.0.0.1", token)
        server = uvicorn.Server(uvicorn.Config(served, http=_Protocol, log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [own]})
        thread.start()
        try:
            yield f"127.0.0.1:{own.getsockname()[1]}", shelf
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A checkpoint of a query with two operators."""
    Checkpoint(tmp_path / "ck").open({"key_groups": 2})
    start = replace(START, operators=(OperatorInfo("a", "counts"), OperatorInfo("b", "sums")))
    write(tmp_path / "ck" / "headgate" / "journal.jsonl", [start, batch(0)])
    return tmp_path / "ck"


def ask(
    address: str, path: str, body: Any, method: str = "POST", **changed: str | None
) -> tuple[int, dict[str, Any]]:
    """Send what the page sends, but for some headers; return status and content."""
    headers: dict[str, str | None] = {
        "Host": address,
        "Origin": f"http://{address}",
        "Sec-Fetch-Site": "same-origin",
        "Content-Type": "application/json",
        "X-Headgate-Token": TOKEN,
    }
    headers |= {name.replace("_", "-"): value for name, value in changed.items()}
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    client = http.client.HTTPConnection(address, timeout=30)
    try:
        given = {name: value for name, value in headers.items() if value is not None}
        client.request(method, path, raw, given)
        answer = client.getresponse()
        text = answer.read()
    finally:
        client.close()
    try:
        told = json.loads(text)
    except ValueError:
        told = {"error": text.decode()}
    return answer.status, told


def path_of(shelf: Shelf, kind: str = "control") -> str:
    """The address of the only query's commands."""
    (entry,) = shelf.index()
    return f"/api/{kind}/{entry['id']}"


def written(place: Path) -> list[str]:
    """The names of all control files of a checkpoint."""
    return sorted(path.name for path in (place / "headgate" / "control").glob("*"))


@contextlib.contextmanager
def answering(place: Path, refused: str | None = None) -> Iterator[list[dict[str, Any]]]:
    """Answer requests as a query would; yield the content of their files."""
    contents: list[dict[str, Any]] = []
    files, over = CommandFiles(place / "headgate"), threading.Event()

    def answer() -> None:
        while not over.wait(0.01):
            for request in files.pending():
                path = place / "headgate" / "control" / f"{request.id}.json"
                contents.append(json.loads(path.read_bytes()))
                files.write_answer(request.id, refused, "so it is")

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield contents
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(
    ("sent", "typed"),
    [
        ({"act": "scale", "slots": 4}, ["scale", "CK", "4"]),
        (
            {"act": "scale", "slots": 4, "operator": "a", "hold": "10min"},
            ["scale", "CK", "4", "--operator", "a", "--hold", "10min"],
        ),
        ({"act": "freeze"}, ["freeze", "CK"]),
        ({"act": "freeze", "for": "2h"}, ["freeze", "CK", "--for", "2h"]),
        ({"act": "thaw"}, ["thaw", "CK"]),
        ({"act": "rollback", "epoch": 7}, ["rollback", "CK", "--to-epoch", "7"]),
        ({"act": "stop"}, ["stop", "CK"]),
    ],
)
def test_the_page_writes_what_the_command_line_writes(
    place: Path, sent: dict[str, Any], typed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CommandFiles, "is_free", lambda _: False)  # a query runs
    typed = [str(place) if word == "CK" else word for word in typed]
    with answering(place) as asked:
        done = CliRunner().invoke(command_line, [*typed, "--reason", "INC-1 é\n"])
        assert done.exit_code == 0, done.output
        with serving(place) as (address, shelf):
            status, told = ask(address, path_of(shelf), sent | {"reason": "INC-1 é\n"})
    assert (status, told) == (200, {"error": "", "state": "taken up", "text": "so it is"})
    by_command_line, by_page = asked
    for content in asked:
        if "until_s" in content["arguments"]:
            assert 7_000 < content["arguments"].pop("until_s") - time.time() < 7_300
    assert by_page == by_command_line


WRONG: list[tuple[dict[str, str | None], int]] = [
    ({"X-Headgate-Token": None}, 403),
    ({"X-Headgate-Token": ""}, 403),
    ({"X-Headgate-Token": TOKEN[:-1]}, 403),
    ({"X-Headgate-Token": TOKEN + "t"}, 403),
    ({"X-Headgate-Token": "é"}, 403),
    ({"Origin": None}, 403),
    ({"Origin": "null"}, 403),
    ({"Origin": "http://evil.example"}, 403),
    ({"Origin": "http://127.0.0.1:1"}, 403),
    ({"Origin": "http://localhost:9096"}, 403),
    ({"Origin": "https://ADDRESS"}, 403),
    ({"Sec-Fetch-Site": None}, 403),
    ({"Sec-Fetch-Site": "none"}, 403),
    ({"Sec-Fetch-Site": "same-site"}, 403),
    ({"Sec-Fetch-Site": "cross-site"}, 403),
    ({"Host": "evil.example", "Origin": "http://evil.example"}, 400),
    ({"Content-Type": None}, 415),
    ({"Content-Type": "text/plain"}, 415),
    ({"Content-Type": "text/plain; a=application/json"}, 415),
    ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
]


def test_a_missing_or_wrong_piece_is_refused_and_nothing_is_written(place: Path) -> None:
    with serving(place) as (address, shelf):
        for wrong, status in WRONG:
            changed = {k: v and v.replace("ADDRESS", address) for k, v in wrong.items()}
            found, told = ask(address, path_of(shelf), SCALE, **changed)
            assert found == status, wrong
            assert told["error"], wrong
            assert "token" in told["error"] or "X-Headgate-Token" not in wrong
        assert told_of(address, shelf)["sent"] == []
    assert written(place) == []


SENSELESS: list[tuple[Any, str]] = [
    (b"", "cannot be read"),
    (b"{", "cannot be read"),
    (b"[" * 4_000, "cannot be read"),
    (b"\xff", "cannot be read"),
    ([SCALE], "cannot be read"),
    (SCALE | {"act": "slo"}, "cannot be read"),
    (SCALE | {"act": "../stop"}, "cannot be read"),
    ({"slots": 4, "reason": "x"}, "cannot be read"),
    (SCALE | {"by": "root"}, "cannot be read"),
    (SCALE | {"partitioning": "uniform"}, "cannot be read"),
    (SCALE | {"slots": "4"}, "cannot be read"),
    (SCALE | {"slots": 2.5}, "cannot be read"),
    (SCALE | {"slots": True}, "cannot be read"),
    (SCALE | {"slots": None}, "cannot be read"),
    (SCALE | {"slots": 0}, "slots=0 is out of range"),
    (SCALE | {"slots": -1}, "slots=-1 is out of range"),
    (SCALE | {"slots": 10**6}, "slots=1000000 is out of range"),
    (SCALE | {"hold": "10"}, "has no unit"),
    (SCALE | {"hold": "9999999 d"}, "is not above zero and finite"),
    ({"act": "freeze", "reason": "x", "for": "soon"}, "is not a duration"),
    ({"act": "rollback", "reason": "x"}, "cannot be read"),
    ({"act": "rollback", "reason": "x", "epoch": -1}, "epoch=-1 is out of range"),
    ({"act": "thaw"}, "cannot be read"),
    ({"act": "stop", "reason": ""}, "a reason of 1 to 500 characters is needed"),
    ({"act": "stop", "reason": " \n\t"}, "a reason of 1 to 500 characters is needed"),
    ({"act": "stop", "reason": "x" * 501}, "a reason of 1 to 500 characters is needed"),
    ({"act": "stop", "reason": 7}, "cannot be read"),
]


def test_a_command_that_makes_no_sense_is_one_sentence_and_nothing_is_written(place: Path) -> None:
    with serving(place) as (address, shelf):
        for body, why in SENSELESS:
            status, told = ask(address, path_of(shelf), body)
            assert status == 200, body
            assert why in told["error"]
            assert len(told["error"]) < 300
    assert written(place) == []


def test_a_header_that_stands_there_twice_is_refused(place: Path) -> None:
    with serving(place) as (address, shelf):
        right = {"Origin": f"http://{address}", "Sec-Fetch-Site": "same-origin"}
        right |= {"X-Headgate-Token": TOKEN, "Content-Type": "application/json"}
        for name in ("Origin", "Sec-Fetch-Site", "X-Headgate-Token"):
            client = http.client.HTTPConnection(address, timeout=30)
            client.putrequest("POST", path_of(shelf))
            for key, value in right.items():
                client.putheader(key, value)
            client.putheader(name, "another")
            client.putheader("Content-Length", "0")
            client.endheaders()
            assert client.getresponse().status == 403, name
            client.close()
    assert written(place) == []


def test_what_is_too_long_or_has_a_query_is_refused(place: Path) -> None:
    with serving(place) as (address, shelf):
        path = path_of(shelf)
        assert ask(address, path, SCALE | {"operator": "x" * 5_000})[0] == 413
        assert ask(address, f"{path}?slots=4", SCALE)[0] == 400
        assert ask(address, f"{path}?token={TOKEN}", SCALE, X_Headgate_Token=None)[0] == 403
    assert written(place) == []


def test_a_query_that_is_not_there_gets_no_command(place: Path) -> None:
    names = [
        "none",
        "",
        "..",
        "../x",
        "%2e%2e",
        "..%2fck",
        "%00",
        "ID/headgate",
        "ID%2f..",
        "%C3%A9",
    ]
    with serving(place) as (address, shelf):
        query = path_of(shelf).rpartition("/")[2]
        for name in names:
            assert ask(address, f"/api/control/{name.replace('ID', query)}", SCALE)[0] == 404, name
    assert written(place) == []


def test_a_fleet_gets_no_command(tmp_path: Path) -> None:
    (tmp_path / "fleet.jsonl").write_text('{"event":"fleet-start","policy":"henge"}\n')
    with serving(tmp_path) as (address, shelf):
        assert ask(address, path_of(shelf), SCALE)[0] == 404


def test_without_the_option_there_is_no_way_to_send_a_command(place: Path) -> None:
    with serving(place, token=None) as (address, shelf):
        assert ask(address, path_of(shelf), SCALE)[0] == 404
        assert ask(address, path_of(shelf), b"", "GET")[0] == 404
        assert "control" not in ask(address, path_of(shelf, "query"), b"", "GET")[1]
    assert written(place) == []


def test_only_a_post_is_a_command(place: Path) -> None:
    with serving(place) as (address, shelf):
        for method in ("GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"):
            assert ask(address, path_of(shelf), SCALE, method)[0] == 405
        for kind in ("query", "checkpoint", "what-if"):
            assert ask(address, path_of(shelf, kind), b"", "GET")[0] == 200
            assert ask(address, path_of(shelf, kind), SCALE)[0] == 405
    assert written(place) == []


def told_of(address: str, shelf: Shelf) -> dict[str, Any]:
    """What the page is told of commands."""
    found = ask(address, path_of(shelf, "query") + "?points=5", b"", "GET")[1]["control"]
    assert isinstance(found, dict)
    return found


def append(place: Path, *events: Event) -> None:
    with JournalWriter(place / "headgate" / "journal.jsonl") as journal:
        for event in events:
            journal.write(event)


@pytest.mark.parametrize(
    ("sent", "events", "states"),
    [
        (
            SCALE,
            [
                ControlAct("scale", "u@h", "another's", "4 slots", at_ms=3_000),
                ControlAct("scale", "u@h", "INC-1", "4 slots", at_ms=3_000),
                AssignmentChange(2, 1, 2, 4, 9, 0, "unified", "busy", "a", at_ms=3_500),
                AssignmentChange(2, 1, 2, 4, 9, 0, "u@h", "INC-1", "a", at_ms=4_000),
                AssignmentChange(2, 1, 2, 4, 9, 0, "u@h", "INC-1", "b", at_ms=4_001),
            ],
            ["requested", "requested", "taken up", "taken up", "taken up", "in force"],
        ),
        (
            SCALE | {"operator": "b"},
            [
                ControlAct("scale", "u@h", "INC-1", "4 slots of b", at_ms=3_000),
                AssignmentChange(2, 1, 2, 4, 9, 0, "u@h", "INC-1", "a", at_ms=4_000),
                MigrationStep(2, "a", "failed", why="its host is lost", at_ms=4_000),
                AssignmentChange(2, 1, 2, 4, 9, 0, "u@h", "INC-1", "b", at_ms=4_001),
            ],
            ["requested", "taken up", "taken up", "taken up", "in force"],
        ),
        (
            {"act": "rollback", "reason": "INC-1", "epoch": 0},
            [
                ControlAct("rollback", "u@h", "INC-1", "to epoch 0", at_ms=3_000),
                AssignmentChange(2, 1, 4, 2, 9, 0, "u@h", "INC-1", "b", at_ms=4_000),
                MigrationStep(2, "a", "failed", why="its host is lost", at_ms=4_001),
                AssignmentChange(2, 1, 4, 4, 0, 0, "u@h", "INC-1", "a", at_ms=4_001),
            ],
            ["requested", "taken up", "taken up", "refused", "refused"],
        ),
        (
            SCALE,  # of a journal of an earlier release
            [
                ControlAct("scale", "u@h", "INC-1", "4 slots", at_ms=3_000),
                AssignmentChange(2, 1, 2, 4, 9, 0, "u@h", "INC-1", at_ms=4_000),
            ],
            ["requested", "taken up", "in force"],
        ),
        (
            {"act": "freeze", "reason": "INC-1"},
            [ControlAct("freeze", "u@h", "INC-1", "until thawed", at_ms=3_000)],
            ["requested", "in force"],
        ),
        (
            {"act": "rollback", "reason": "INC-1", "epoch": 9},
            [ControlAct("rollback", "u@h", "INC-1", "", "epoch 9 is not known.", at_ms=3_000)],
            ["requested", "refused"],
        ),
        (
            {"act": "stop", "reason": "INC-1"},
            [ControlAct("stop", "u@h", "INC-1", at_ms=3_000), Stop("stopped", at_ms=4_000)],
            ["requested", "taken up", "in force"],
        ),
    ],
)
def test_a_command_is_requested_until_the_journal_shows_it_in_force(
    place: Path,
    sent: dict[str, Any],
    events: list[Event],
    states: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headgate.ui.shelf.READ_AGAIN_S", 0.0)
    monkeypatch.setattr(CommandFiles, "is_free", lambda _: False)
    append(place, ControlAct("scale", "u@h", "INC-1", "of yesterday", at_ms=2_500))
    append(place, AssignmentChange(1, 1, 2, 4, 9, 0, "u@h", "INC-1", "a", at_ms=2_600))
    over = threading.Event()
    monkeypatch.setattr(CommandFiles, "answer", lambda *_: over.wait(30) and None)
    found = []
    with serving(place) as (address, shelf):
        sender = threading.Thread(target=ask, args=(address, path_of(shelf), sent))
        sender.start()
        while not CommandFiles(place / "headgate").pending():
            pass
        found.append(told_of(address, shelf)["sent"][0]["state"])
        for event in events:
            append(place, event)
            found.append(told_of(address, shelf)["sent"][0]["state"])
        assert told_of(address, shelf)["operators"] == ["a", "b"]
        monkeypatch.undo()
        for request in CommandFiles(place / "headgate").pending():
            CommandFiles(place / "headgate").write_answer(request.id, None)
        over.set()
        sender.join()
    assert found == states


def test_two_clicks_send_one_command(place: Path) -> None:
    answers: list[tuple[int, dict[str, Any]]] = []
    with serving(place) as (address, shelf):
        path = path_of(shelf)
        clicks = [
            threading.Thread(target=lambda: answers.append(ask(address, path, SCALE)))
            for _ in range(5)
        ]
        for click in clicks:
            click.start()
        while len(answers) < 4:
            assert sum(name.endswith(".json") for name in written(place)) <= 1
        files = CommandFiles(place / "headgate")
        while not files.pending():
            pass
        (request,) = files.pending()
        files.write_answer(request.id, None, "4 slots")
        for click in clicks:
            click.join()
        assert len(told_of(address, shelf)["sent"]) == 1
    assert [told["state"] for _, told in answers if not told["error"]] == ["taken up"]
    (why,) = {told["error"] for _, told in answers if told["error"]}
    assert why == '"scale to 4 slots" is requested already; wait until the query has answered.'


def unanswered(*_: object, **__: object) -> dict[str, Any]:
    msg = "no query answered within 10 s; it will scale."
    raise EngineError(msg)


def test_a_request_without_an_answer_stays_and_is_not_sent_twice(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control.scenarios, "ask", unanswered)
    with serving(place) as (address, shelf):
        status, told = ask(address, path_of(shelf), SCALE)
        assert (status, told["error"]) == (200, "no query answered within 10 s; it will scale.")
        assert "is requested already" in ask(address, path_of(shelf), SCALE)[1]["error"]
        ask(address, path_of(shelf), SCALE | {"slots": 5})
        first, second = reversed(told_of(address, shelf)["sent"])
        assert (first["what"], first["state"]) == ("scale to 4 slots", "requested")
        assert (second["what"], second["state"]) == ("scale to 5 slots", "requested")


def test_a_query_that_refuses_says_why(place: Path) -> None:
    with answering(place, "slots=4 exceeds slots max=3."), serving(place) as (address, shelf):
        status, told = ask(address, path_of(shelf), SCALE)
        assert (status, told["error"]) == (200, "slots=4 exceeds slots max=3.")
        (sent,) = told_of(address, shelf)["sent"]
        assert (sent["state"], sent["text"]) == ("refused", "slots=4 exceeds slots max=3.")


def test_no_query_to_stop_is_one_sentence(place: Path) -> None:
    with serving(place) as (address, shelf):
        status, told = ask(address, path_of(shelf), {"act": "stop", "reason": "x"})
        assert status == 200
        assert told["error"] == f"no query runs on {place}; there is nothing to stop."
    assert written(place) == []


def test_a_journal_alone_and_a_checkpoint_that_cannot_be_written_say_so(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = tmp_path / "alone" / "journal.jsonl"
    write(alone, [START, batch(0)])
    with serving(alone.parent) as (address, shelf):
        status, told = ask(address, path_of(shelf), SCALE)
        assert (status, told["error"]) == (200, told_of(address, shelf)["error"])
        assert "lies without its checkpoint, so nobody can be asked" in told["error"]
    monkeypatch.setattr(control.os, "access", lambda path, mode: mode != os.W_OK)
    with serving(place) as (address, shelf):
        status, told = ask(address, path_of(shelf), SCALE)
        assert (status, told["error"]) == (200, told_of(address, shelf)["error"])
        assert f"{place / 'headgate'} cannot be written, so commands are not poss" in told["error"]
    assert written(place) == []
    monkeypatch.undo()
    with serving(place) as (address, shelf):
        path = path_of(shelf)
        shutil.move(place, tmp_path / "gone")
        status, told = ask(address, path, SCALE)
        assert status == 200
        assert "cannot be written" in told["error"]


def test_a_store_that_refuses_is_one_sentence(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Copied:
        place = "s3://bucket/ck"
        path = write(tmp_path / "copy.jsonl", [START, batch(0)])

        def refresh(self) -> str:
            return ""

    asked: list[Any] = []

    def refused(where: Any, act: str, **_: Any) -> dict[str, Any]:
        asked.append((where, act))
        msg = "the store refused to write s3://bucket/ck; ask for the right to write."
        raise CheckpointError(msg)

    monkeypatch.setattr(control.scenarios, "ask", refused)
    shelf = Shelf([Copied()], lambda _: DriverSeen())
    taking = control.PageCommands(shelf, TOKEN)
    (entry,) = shelf.index()
    assert taking.describe(entry["id"])["error"] == ""  # type: ignore[index]
    with pytest.raises(CheckpointError, match="the store refused to write"):
        taking._send(entry["id"], json.dumps(SCALE).encode())
    assert asked == [("s3://bucket/ck", "scale")]
    (sent,) = taking.describe(entry["id"])["sent"]  # type: ignore[index]
    assert sent["state"] == "refused"


def test_commands_leave_threads_to_those_who_read(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "UNDER_WAY_MAX", 0)
    with serving(place) as (address, shelf):
        status, told = ask(address, path_of(shelf), SCALE)
    assert (status, told["error"]) == (200, "0 commands wait for an answer; send this one later.")


def test_half_a_command_keeps_no_connection(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "BODY_S", 0.1)
    with serving(place) as (address, shelf):
        host, port = address.split(":")
        head = [f"POST {path_of(shelf)} HTTP/1.1", f"Host: {address}", f"Origin: http://{address}"]
        head += ["Sec-Fetch-Site: same-origin", "Content-Type: application/json"]
        head += [f"X-Headgate-Token: {TOKEN}", "Content-Length: 50", "Connection: close", "", '{"a']
        with socket.create_connection((host, int(port)), timeout=30) as client:
            client.sendall("\r\n".join(head).encode())
            assert b"408" in client.recv(1_000)
    assert written(place) == []


@pytest.mark.slow
def test_a_browser_has_the_form_and_the_token_leaves_the_address(
    place: Path, browser: str, tmp_path: Path
) -> None:
    append(place, AssignmentChange(1, 5, 2, 4, 9, 0, "unified", "busy", "a", at_ms=2_600))
    flags = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking"
    words = [browser, *flags.split(), "--no-proxy-server", f"--user-data-dir={tmp_path}/profile"]
    words += ["--virtual-time-budget=5000", "--enable-logging=stderr", "--dump-dom"]
    with serving(place) as (address, _):
        seen = {
            end: subprocess.run(
                [*words, f"http://{address}/{end}"],
                capture_output=True, text=True, timeout=120, check=True,
            )
            for end in (f"#token={TOKEN};", "")
        }  # fmt: skip
    with_token, without = seen.values()
    for done in seen.values():
        assert TOKEN not in done.stdout
        assert "CONSOLE" not in done.stderr, done.stderr
        assert "--to-epoch 4" in done.stdout
    assert 'id="reason"' in with_token.stdout
    assert "Undo the last change</button>" in with_token.stdout
    assert 'id="reason"' not in without.stdout
    assert "Commands need the address that headgate ui --control printed" in without.stdout


def test_the_driver_reads_what_the_page_wrote(place: Path) -> None:
    with serving(place) as (address, shelf):
        sender = threading.Thread(target=ask, args=(address, path_of(shelf), SCALE))
        sender.start()
        files = CommandFiles(place / "headgate")
        while not files.pending():
            pass
        (pending,) = files.pending()
        files.write_answer(pending.id, None)
        sender.join()
    assert pending.command == Command("scale", pending.command.by, "INC-1", {"slots": 4})  # type: ignore[union-attr]
