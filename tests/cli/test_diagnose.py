"""What `headgate diagnose` reads of a checkpoint beside its journal."""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import runs
from typer.testing import CliRunner

from headgate.cli import app
from headgate.core.driver_lock import is_locked
from headgate.scenario.driver import driver_of

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    root = tmp_path / "headgate"
    runs.journal(root / "journal.jsonl", [runs.start(), *(runs.batch(n) for n in range(3))])
    (root / "driver.lock").touch()
    (root / "driver.owner").write_text(json.dumps({"host": socket.gethostname(), "pid": 7}))
    return tmp_path


def in_time(asked: Callable[[], Any]) -> Any:
    """Return an answer; raise where it does not come."""
    answers: queue.Queue[Any] = queue.Queue()
    threading.Thread(target=lambda: answers.put(asked()), daemon=True).start()
    return answers.get(timeout=20)


def test_a_lock_that_nobody_holds_is_a_driver_that_is_gone(checkpoint: Path) -> None:
    assert driver_of(checkpoint).holds is False
    done = CliRunner().invoke(app, ["diagnose", str(checkpoint), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["limit"]["cause"] == "driver"
    assert "process 7" in found["query"]["text"]
    assert f"headgate inspect {checkpoint} --verify" in found["do"]


def test_a_lock_that_is_held_is_a_driver_that_lives(checkpoint: Path) -> None:
    lock = checkpoint / "headgate" / "driver.lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert driver_of(checkpoint).holds is True
        holder.communicate()
    assert driver_of(checkpoint).holds is False


def test_of_another_host_and_of_a_journal_alone_nothing_is_known(checkpoint: Path) -> None:
    owner = checkpoint / "headgate" / "driver.owner"
    owner.write_text(json.dumps({"host": "elsewhere", "pid": 7}))
    assert driver_of(checkpoint).holds is None
    assert driver_of(checkpoint / "headgate" / "journal.jsonl").owner == ""
    for text in ("[]", "{", "{}", "[" * 1000, "9" * 5000):
        owner.write_text(text)
        assert driver_of(checkpoint).owner == ""
    owner.unlink()
    owner.symlink_to("/etc/hostname")
    assert driver_of(checkpoint).owner == ""


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(checkpoint: Path) -> None:
    lock, owner = (checkpoint / "headgate" / f"driver.{name}" for name in ("lock", "owner"))
    lock.unlink()
    os.mkfifo(lock)
    assert in_time(lambda: driver_of(checkpoint).holds) is None
    assert in_time(lambda: is_locked(lock)) is False
    owner.unlink()
    os.mkfifo(owner)
    assert in_time(lambda: driver_of(checkpoint).owner) == ""


def test_a_diagnosis_is_printed_line_by_line(checkpoint: Path) -> None:
    done = CliRunner().invoke(app, ["diagnose", str(checkpoint)])
    labels = [line.split(" ")[0] for line in done.stdout.splitlines()]
    assert labels == ["query", "SLO", "ended", "do", "", "hot", "time", "tried"]
