"""The Python of a session's workers is looked at before any is started; here without Spark."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.core.errors import ConfigError
from headgate.spark.cluster import interpreter
from headgate.spark.cluster.interpreter import check_interpreter

HERE = f"{sys.version_info.major} {sys.version_info.minor}"


def session(python: str, master: str = "local[2]", **environment: str) -> Any:
    context = SimpleNamespace(pythonExec=python, master=master, environment=environment)
    return SimpleNamespace(sparkContext=context)


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Another Python on the PATH: it answers with `words`, or fails."""
    made = SimpleNamespace(words=f"{HERE} False\n", fails=None, ships=False, asked=[])

    def run(command: list[str], **given: Any) -> Any:
        made.asked.append((command[0], given["env"].get("MARK")))
        if made.fails is not None:
            raise made.fails
        return SimpleNamespace(stdout=made.words)

    monkeypatch.setattr(interpreter.shutil, "which", {"python3": "/usr/bin/python3"}.get)
    monkeypatch.setattr(interpreter.subprocess, "run", run)
    monkeypatch.setattr(interpreter, "ships_modules", lambda spark: made.ships)
    interpreter._problem.cache_clear()
    yield made
    interpreter._problem.cache_clear()


def test_a_python_that_can_run_headgate_is_asked_once(other: Any) -> None:
    check_interpreter(session("python3", MARK="x"))
    check_interpreter(session("python3", MARK="x"))
    assert other.asked == [("/usr/bin/python3", "x")]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("2 7 False", r"which is Python 2\.7 where this is 3\."),
        (f"{HERE} True", "which has no headgate"),
        ("", "which cannot be run"),
    ],
)
def test_another_python_is_refused_with_what_to_set(other: Any, words: str, why: str) -> None:
    other.words = words
    with pytest.raises(ConfigError, match=f"would be /usr/bin/python3, {why}") as refused:
        check_interpreter(session("python3"))
    assert f"; set PYSPARK_PYTHON={sys.executable} before" in str(refused.value)


def test_a_python_that_is_not_there_or_cannot_be_started_is_refused(other: Any) -> None:
    with pytest.raises(ConfigError, match="would be python9, which cannot be run"):
        check_interpreter(session("python9"))
    other.fails = PermissionError()
    with pytest.raises(ConfigError, match="which cannot be run"):
        check_interpreter(session("python3"))


def test_headgate_may_come_with_the_modules_that_spark_brings(other: Any) -> None:
    other.words, other.ships = f"{HERE} True", True
    check_interpreter(session("python3"))


def test_a_busy_machine_says_nothing_about_its_python(other: Any) -> None:
    other.fails = subprocess.TimeoutExpired("python3", 60.0)
    check_interpreter(session("python3"))


def test_executors_elsewhere_and_pythons_of_archives_are_not_looked_at(other: Any) -> None:
    check_interpreter(session("python9", master="spark://host:7077"))
    check_interpreter(session("./environment/bin/python"))
    assert other.asked == []


def test_this_very_python_is_not_asked(other: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter.shutil, "which", lambda named: sys.executable)
    check_interpreter(session("python"))
    assert other.asked == []
