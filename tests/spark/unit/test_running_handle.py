"""The handle of a running query, in PySpark's words; here over a query that is made up."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.core.errors import ConfigError, HeadgateError
from headgate.spark.api import running
from headgate.spark.api.running import RunningQuery

ID = "12345678-1234-5678-1234-567812345678"
PROGRESS = {
    "id": ID, "runId": ID, "name": "clicks", "timestamp": "2026-01-01T00:00:00.000Z",
    "batchId": 4, "batchDuration": 5, "numInputRows": 10, "inputRowsPerSecond": 1.0,
    "processedRowsPerSecond": 1.0, "durationMs": {}, "stateOperators": [],
    "sources": [], "sink": {"description": "s", "numOutputRows": 0}, "observedMetrics": {},
}  # fmt: skip


class Made:
    """A handle, and what it holds."""

    def __init__(self, place: Path, *, finite: bool = False) -> None:
        progress = SimpleNamespace(json=json.dumps(PROGRESS), batchId=4)
        self.inner = SimpleNamespace(
            id="7f", runId="8e", name=None, status={"message": "x"}, isActive=True,
            lastProgress=progress, recentProgress=[progress] * 2,
            processAllAvailable=lambda: self.did.append("all available"),
            explain=lambda extended: self.did.append(f"explain {extended}"),
        )  # fmt: skip
        self.did: list[Any] = []
        self.over: list[bool] = []
        self.end = SimpleNamespace(
            is_over=False, failure=None, wait=lambda timeout: self.over.pop(0),
            stop=lambda: self.did.append("stop"),
        )  # fmt: skip
        self.machine = SimpleNamespace(
            work=SimpleNamespace(has_steps=True, waiting_rows=lambda: 9),
            latest=None, batches_begun=5, settled_batch=0, awaited=0,
            idle=SimpleNamespace(is_set=lambda: True), stopping=SimpleNamespace(is_set=lambda: False),
            checkpoint=SimpleNamespace(path=place),
        )  # fmt: skip
        figures = SimpleNamespace(
            filled=lambda known: {**known, "numInputRows": 99}, own=lambda batch: {"of": batch}
        )
        self.recorder = SimpleNamespace(
            path=place / "journal.jsonl", progress=figures,
            stop=lambda *why: self.did.append(("written", *why)),
        )  # fmt: skip
        self.query: Any = object.__new__(RunningQuery)
        vars(self.query).update(
            _inner=self.inner, _machine=self.machine, _end=self.end, _recorder=self.recorder,
            _life=SimpleNamespace(asked=nullcontext), _finite=finite,
            _release=lambda: self.did.append("released"),
            _stops=SimpleNamespace(answer=lambda: self.did.append("answered")),
        )  # fmt: skip


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    found = Made(tmp_path)

    class Clock:
        """A clock that only sleep moves."""

        now_s = 100.0

        def monotonic(self) -> float:
            self.now_s += 0.01
            return self.now_s

        def sleep(self, seconds: float) -> None:
            self.now_s += seconds

    monkeypatch.setattr(running, "time", Clock())
    return found


def test_a_handle_tells_what_sparks_handle_tells(made: Made) -> None:
    query = made.query
    assert (query.id, query.runId, query.name) == ("7f", "8e", None)
    made.inner.name = "clicks"
    assert query.name == "clicks"
    assert query.status == {"message": "x"}
    assert (query.isActive, query.exception()) == (True, None)
    query.explain()
    query.explain(extended=True)
    query.stop()
    assert made.did == ["explain False", "explain True", "stop"]
    assert query._progress() == (5, True)


def test_progress_has_the_figures_of_its_batch_and_headgates_own(made: Made) -> None:
    last = made.query.lastProgress
    assert (last["numInputRows"], last["headgate"], last["batchId"]) == (99, {"of": 4}, 4)
    assert [each["headgate"] for each in made.query.recentProgress] == [{"of": 4}] * 2
    made.inner.lastProgress = None
    assert made.query.lastProgress is None


def test_the_text_of_a_handle_says_how_it_stands(made: Made, tmp_path: Path) -> None:
    assert repr(made.query) == (
        f"<RunningQuery: running, no batch yet, journal {tmp_path / 'journal.jsonl'}>"
    )
    made.end.is_over, made.machine.latest = True, SimpleNamespace(step=7)
    assert repr(made.query).startswith("<RunningQuery: ended, step 7, ")
    made.end.failure = ValueError()
    assert repr(made.query).startswith("<RunningQuery: failed, step 7, ")


def test_a_wait_for_the_end_says_whether_it_came_where_it_had_a_limit(made: Made) -> None:
    made.over = [True, False, True]
    assert made.query.awaitTermination() is None
    assert made.query.awaitTermination(0) is False
    assert made.query.awaitTermination(2.5) is True
    for timeout in (-1, "1", 1e300):
        with pytest.raises(ConfigError, match="awaitTermination: timeout"):
            made.query.awaitTermination(timeout)


def test_a_drain_waits_for_a_quiet_batch_that_was_planned_after_it_was_asked_for(
    made: Made,
) -> None:
    looks: list[tuple[int, int]] = []

    def wait(timeout: float) -> bool:
        del timeout
        looks.append((made.machine.settled_batch, made.machine.awaited))
        made.machine.settled_batch += 3
        return False

    made.end.wait = wait
    made.query.drain()
    assert looks == [(0, 1), (3, 1), (6, 1)], "5 were begun, so that of the 7th counts"
    assert made.machine.awaited == 0
    made.machine.settled_batch = 0
    made.query.processAllAvailable()
    assert looks[3:] == [(0, 1), (3, 1), (6, 1)]


def test_a_drain_that_takes_too_long_says_what_waits_and_one_of_a_query_that_ended_returns(
    made: Made,
) -> None:
    made.end.wait = lambda timeout: False
    with pytest.raises(HeadgateError, match=r"after 0\.5 s: 9 rows wait; raise timeout_s"):
        made.query.drain(0.5)
    assert made.machine.awaited == 0
    made.over = [False, True]
    made.end.wait = lambda timeout: made.over.pop(0)
    made.query.drain()
    assert made.over == []


def test_a_query_without_steps_of_ours_is_waited_for_as_spark_does(made: Made) -> None:
    made.machine.work.has_steps = False
    made.query.processAllAvailable()
    made.query.drain()
    assert made.did == ["all available"]


def test_before_its_end_spark_commits_the_batch_that_is_done(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(running, "drained", lambda manifest: manifest.is_drained)
    monkeypatch.setattr(running.time, "sleep", slept.append)
    made.query._await_commit()
    made.machine.latest = SimpleNamespace(spark_batch=3, is_drained=True)
    made.query._await_commit()
    assert slept == []
    made.machine.latest.is_drained = False

    def commit(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            (tmp_path / "commits").mkdir()
            (tmp_path / "commits" / "3").touch()

    monkeypatch.setattr(running.time, "sleep", commit)
    made.query._await_commit()
    assert len(slept) == 2
    (tmp_path / "commits" / "3").unlink()
    made.inner.isActive = False
    made.query._await_commit()
    assert len(slept) == 2
    made.inner.isActive = True
    made.query._await_commit()
    assert len(slept) > 10, "for some seconds at the most"


@pytest.mark.parametrize(
    ("finite", "stopping", "failure", "reason"),
    [
        (False, False, None, "stopped"), (True, False, None, "source ended"),
        (True, True, None, "stopped"), (True, False, ValueError(), "failed"),
    ],
)  # fmt: skip
def test_the_end_is_written_down_with_its_reason_and_all_is_given_back(
    tmp_path: Path, *, finite: bool, stopping: bool, failure: Any, reason: str
) -> None:
    made = Made(tmp_path, finite=finite)
    made.machine.stopping = SimpleNamespace(is_set=lambda: stopping)
    made.query._close(failure)
    assert made.did == [("written", reason, failure), "released", "answered"]


def test_what_was_held_is_given_back_though_the_end_cannot_be_written(made: Made) -> None:
    def fail(*_: Any) -> None:
        raise OSError("no room")

    made.recorder.stop = fail
    with pytest.raises(OSError, match="no room"):
        made.query._close(None)
    assert made.did == ["released", "answered"]
