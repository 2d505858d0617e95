"""Small files of a checkpoint, and notes about calls: exact contents, both ends, a fake clock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import types
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from headgate.checkpoint import command_files, drivers, store_calls
from headgate.checkpoint.command_files import Command, CommandFiles, checked_until_s
from headgate.checkpoint.drivers import Driver
from headgate.checkpoint.epochs import write_log
from headgate.checkpoint.manifest import NEXT_WATERMARK_US, REAL_TIME, Manifest
from headgate.checkpoint.place import PosixFiles
from headgate.checkpoint.traffic import Traffic
from headgate.core.driver_lock import is_locked
from headgate.core.errors import CheckpointError, ConfigError
from headgate.core.input import shown

DAY_S, LATEST_S = 24 * 3600, 250_000_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The clock of control files, which stands still."""
    made = types.SimpleNamespace(now_s=1_700_000_000.25)
    fake = types.SimpleNamespace(
        time=lambda: made.now_s,
        monotonic=lambda: made.now_s,
        time_ns=lambda: round(made.now_s * 1e3) * 10**6,
    )
    monkeypatch.setattr(command_files, "time", fake)
    return made


@pytest.fixture
def control(tmp_path: Path) -> Path:
    (tmp_path / "headgate").mkdir()
    return tmp_path / "headgate" / "control"


def test_requests_and_answers_are_written_as_the_format_says(control: Path, clock: Any) -> None:
    files = CommandFiles(control.parent)
    request = files.ask(Command("freeze", "ann", "why", {"until_s": 5.0}))
    assert request[:14] == "1700000000250-"
    assert len(request) == len("1700000000250-0123abcd")
    asked = json.loads((control / f"{request}.json").read_text())
    assert asked == {"act": "freeze", "by": "ann", "reason": "why", "arguments": {"until_s": 5.0}}
    files.write_answer(request, None, "frozen")
    done = {"refused": None, "at_ms": 1_700_000_000_250, "detail": "frozen"}
    assert json.loads((control / f"{request}.done").read_text()) == done
    assert files.answer(request) == done
    files.write_answer(request, "no " * 300)
    answer = files.answer(request)
    assert answer is not None
    assert (answer["refused"], answer["detail"]) == (shown("no " * 300, 500), "")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("{}", {"refused": "the answer is damaged; ask again.", "at_ms": None, "detail": ""}),
        ('{"refused": null, "at_ms": 1.5}', {"refused": None, "at_ms": None, "detail": ""}),
        ('{"refused": 3, "detail": 4}', {"refused": "3", "at_ms": None, "detail": "4"}),
    ],
)
def test_an_answer_that_lacks_something_says_what_it_has(
    control: Path, text: str, answer: dict[str, Any]
) -> None:
    files = CommandFiles(control.parent)
    request = files.ask(Command("thaw", "ann"))
    (control / f"{request}.done").write_text(text)
    assert files.answer(request) == answer


def test_an_answer_is_kept_for_a_day(control: Path, clock: Any) -> None:
    files = CommandFiles(control.parent)
    request = files.ask(Command("thaw", "ann"))
    files.write_answer(request, None)
    for later_s, there in ((DAY_S - 1, True), (1, True), (1, False)):
        clock.now_s += later_s
        assert files.pending() == []
        assert (control / f"{request}.done").exists() is there


def test_requests_of_one_moment_and_old_ones_come_in_the_order_of_their_names(
    control: Path, clock: Any
) -> None:
    files = CommandFiles(control.parent)
    later = files.ask(Command("thaw", "ann"))
    clock.now_s -= 100.0
    earlier = files.ask(Command("stop", "ann"))
    assert [asked.id for asked in files.pending()] == [earlier, later]
    assert [asked.id for asked in files.stops()] == [earlier]
    files.withdraw(earlier)
    assert files.stops() == []


def test_through_a_store_requests_are_looked_for_every_two_seconds(
    control: Path, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = PosixFiles(control.parent)
    monkeypatch.setattr(place, "shared", True, raising=False)
    files = CommandFiles(place)
    assert (files.pending(), files.is_free()) == ([], False)
    files.ask(Command("thaw", "ann"))
    clock.now_s += 1.9
    assert files.pending() == []
    clock.now_s += 0.1
    assert len(files.pending()) == 1


def test_a_request_may_have_64_kb_and_texts_of_500_characters(control: Path) -> None:
    files = CommandFiles(control.parent)
    request = files.ask(Command("thaw", "x"))
    path = control / f"{request}.json"
    text = json.dumps({"act": "scale", "by": "b" * 501, "reason": "r" * 500, "arguments": {"a": 1}})
    for size in (65536, 65537):
        path.write_text(text + " " * (size - len(text)))
        (asked,) = files.pending()
        if size == 65536:
            assert asked.command == Command("scale", "b" * 500, "r" * 500, {"a": 1})
        else:
            assert asked.command is None
            says = f"the request cannot be read ({request}.json): it is larger than 65,536 bytes"
            assert asked.problem == says
    path.write_text('{"act": "rm"}')
    says = "unknown act 'rm'; use one of freeze, thaw, scale, rollback, stop"
    assert files.pending()[0].problem.endswith(says)
    path.write_text('{"act": "freeze", "arguments": {"until_s": -1}}')
    assert files.pending()[0].command is None


def test_a_freeze_ends_within_the_calendar(control: Path) -> None:
    for value in (0, 0.0, 0.5, LATEST_S, None):
        assert checked_until_s(value) == value
    for value in (-0.1, LATEST_S * 1.01, True, "5"):
        with pytest.raises(ConfigError, match="until_s"):
            checked_until_s(value)
    files = CommandFiles(control.parent)
    assert files.held_until_s() == {}
    files.hold({"a": 5.0, "b": 6})
    assert files.held_until_s() == {"a": 5.0, "b": 6.0}
    files.hold({})
    assert files.held_until_s() == {}
    for text in ("[]", '{"a": "x"}', "{", '{"a": -1}'):
        (control / "held").write_text(text)
        with pytest.raises(CheckpointError, match=r"held cannot be read: .*; hold the slots again"):
            files.held_until_s()
    (control / "held").write_text('{"a": null, "b": 7}')
    assert files.held_until_s() == {"b": 7.0}


def test_a_lock_that_somebody_has_is_not_free(control: Path) -> None:
    files = CommandFiles(control.parent)
    assert files.is_free()
    lock = control.parent / "driver.lock"
    assert is_locked(lock) is False, "it is not there yet"
    lock.touch()
    hold = "import fcntl, sys\nfile = open(sys.argv[1], 'r+')\nfcntl.lockf(file, fcntl.LOCK_EX)\n"
    hold += "print(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert not files.is_free()
        holder.communicate(b"\n")
    assert files.is_free()


# --- Drivers, and calls to a store --------------------------------------------------------------------


def test_a_driver_is_told_with_its_start() -> None:
    made = Driver("h" * 90, 7, 86_400)
    assert str(made).startswith("host hhh")
    assert str(made).endswith("hhh, process 7, started 1970-01-02 00:00:00 UTC")
    assert str(Driver("h", 7, 10**18)) == "host h, process 7, started a time unknown"
    assert Driver.of_json(made.to_json()) == made
    for absurd in (None, {}, {"host": 1}, {"host": "h", "pid": "x", "started_s": 1}):
        assert Driver.of_json(absurd) is None


def test_a_process_began_when_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        now_s = time.time()
        assert drivers._started_s(child.pid) == pytest.approx(now_s, abs=5.0)
        child.communicate(b"\n")
    assert Driver.here().started_s <= now_s
    assert drivers._started_s(-7) == pytest.approx(time.time(), abs=5.0)


def test_a_call_is_noted_in_one_line_and_takes_longer_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(store_calls.time, "sleep", slept.append)
    trace = tmp_path / "trace"
    asked = store_calls._Asked(0.05, str(trace))
    monkeypatch.setattr(store_calls, "_asked", lambda: asked)
    before_ms = time.time() * 1e3
    store_calls.note_call("read", Path("/a/manifests"))
    store_calls.note_call("write", Path("/a/intents"), "1", 7)
    first, second = (json.loads(line) for line in trace.read_text().splitlines())
    assert before_ms - 1 <= first.pop("at_ms") <= second.pop("at_ms") <= time.time() * 1e3 + 1
    pid = os.getpid()
    assert first == {"act": "read", "kind": "manifests", "name": "", "bytes": 0, "pid": pid}
    assert second == {"act": "write", "kind": "intents", "name": "1", "bytes": 7, "pid": pid}
    assert slept == [0.05] * 2
    asked = store_calls._Asked(0.0, None)
    store_calls.note_call("read", Path("/a"))
    assert (len(slept), len(trace.read_text().splitlines())) == (2, 2)


def test_a_library_with_threads_is_not_used_in_a_process_that_was_forked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store_calls, "_used_in", [])
    store_calls.refuse_after_fork()
    store_calls.refuse_after_fork()
    assert store_calls._used_in == [os.getpid()]
    monkeypatch.setattr(store_calls.os, "getpid", lambda: 5)
    with pytest.raises(
        CheckpointError, match="process 5 was forked from one that had used a store"
    ):
        store_calls.refuse_after_fork()


def test_traffic_is_what_came_since() -> None:
    assert Traffic() == Traffic(0, 0)
    assert Traffic(5, 700).since(Traffic(3, 100)) == Traffic(2, 600)
    assert asdict(Traffic(1, 2)) == {"requests": 1, "written_bytes": 2}


def test_the_first_epochs_are_logged_from_batch_0(tmp_path: Path) -> None:
    engine = {"sources": ["-"], REAL_TIME: {NEXT_WATERMARK_US: 2_000_999}}
    for batch in (0, 1):
        log = tmp_path / str(batch)
        log.mkdir()
        marks = {"evict_us": 1_000_999, "late_us": 0}
        write_log(log, Manifest("job", 3, batch, 0, {}, marks, {}, {}, engine=engine))
        found = {
            str(path.relative_to(log)): path.read_text().split("\n")[1:]
            for path in log.rglob("*")
            if path.is_file() and path.name != "metadata"
        }
        notes = '{"batchWatermarkMs": 1000, "batchTimestampMs": 0, "conf": {}}'
        for before in range(batch):
            assert found.pop(f"offsets/{before}") == [notes, "-", "0"]
            assert found.pop(f"commits/{before}") == ['{"nextBatchWatermarkMs": 1000}']
        assert found == {
            f"offsets/{batch}": [notes, "-", "0"],
            f"commits/{batch}": ['{"nextBatchWatermarkMs": 2000}'],
        }
    # the tick of batch 0 is taken over, too
    log = tmp_path / "0"
    (log / "offsets" / "0").write_text("v1\n{}\n-\n41")
    marks = {"evict_us": 1, "late_us": 0}
    write_log(log, Manifest("job", 3, 1, 0, {}, marks, {}, {}, engine=engine))
    assert (log / "offsets" / "1").read_text().endswith("\n41")
