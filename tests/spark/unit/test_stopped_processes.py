"""What somebody has stopped is found by what the kernel says of processes; here a folder says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.spark.realtime import stopped
from headgate.spark.realtime.stopped import executors, find_stopped

WORKER, OTHER = "python\0-m\0worker", "python\0-m\0other"


class Processes:
    """Writes down what the kernel would say."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, process: int, state: str, parent: int, program: str) -> None:
        """Say that a process is there; its name has what a careless reader trips over."""
        one = self.folder / str(process)
        one.mkdir()
        (one / "stat").write_text(f"{process} (a) T 1 (b) {state} {parent} 7 8\n")
        (one / "cmdline").write_bytes(program.encode() + b"\0")


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Processes:
    monkeypatch.setattr(stopped, "_PROC", tmp_path)
    (tmp_path / "self").mkdir()
    return Processes(tmp_path)


def test_one_that_is_named_is_found_by_its_name(processes: Processes) -> None:
    processes.add(10, "S", 1, OTHER)
    processes.add(11, "T", 1, OTHER)
    processes.add(12, "t", 1, OTHER)  # a debugger's, which lets it go on
    assert find_stopped({"slot 0": 10, "slot 2": 12, "slot 3": 999}) is None
    assert find_stopped({"slot 0": 10, "slot 1": 11}) == ("slot 1", 11)


def test_workers_behind_a_feeder_are_those_of_its_parent_and_program(processes: Processes) -> None:
    processes.add(20, "S", 2, WORKER)
    processes.add(21, "T", 3, WORKER)
    processes.add(22, "T", 2, OTHER)
    assert find_stopped({"feeder 0": 20, "slot 0": 20}) is None
    processes.add(23, "T", 2, WORKER)
    assert find_stopped({"slot 0": 20}) is None
    assert find_stopped({"feeder 0": 999, "feeder 1": 20}) == (
        "a Python worker behind feeder 1", 23,
    )  # fmt: skip


def test_executors_are_those_of_the_application_on_the_host(processes: Processes) -> None:
    for process, host, application in (
        (30, "h1", "app-1"),
        (31, "h2", "app-1"),
        (32, "h1", "app-2"),
    ):
        told = ["java", "--executor-id", str(process % 10), "--hostname", host]
        processes.add(process, "S", 1, "\0".join([*told, "--app-id", application]))
    assert executors("app-1", "h1") == {"executor 0": 30}
    assert executors("app-2", "h1") == {"executor 2": 32}


def test_nothing_is_stopped_where_nobody_says_which_processes_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopped, "_PROC", tmp_path / "none")
    assert find_stopped({"feeder 0": 1, "slot 0": 2}) is None
    assert executors("app-1", "h1") == {}
    other = Processes(tmp_path / "other")
    other.folder.mkdir()
    other.add(1, "S", 1, WORKER)
    monkeypatch.setattr(stopped, "_PROC", other.folder)
    monkeypatch.setattr(stopped, "_every", lambda: [1, 2])  # one that has ended meanwhile
    assert find_stopped({"feeder 0": 1}) is None
