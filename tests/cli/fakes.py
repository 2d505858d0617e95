"""A query and an engine without Spark, on a clock that only `sleep` moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import runs

from headgate.journal import JournalWriter
from headgate.scenario import Scenario

AGREES = {"verified": True, "rows_compared": 900, "missing": 0, "extra": 0, "dropped": {"late": 0}}
DIFFERS = {**AGREES, "verified": False, "missing": 3}


class FakeClock:
    """Seconds that pass only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class FakeQuery:
    """Writes a batch whenever it is asked whether it lives."""

    def __init__(self, journal: Path, fails_after: int | None = None) -> None:
        self.journal = str(journal)
        self.scaled: list[tuple[int, str]] = []
        self.stops = 0
        self._fails_after = fails_after
        self._step = 0
        self._slots = 2
        self._writer = JournalWriter(journal)
        self._writer.write(runs.start())

    @property
    def isActive(self) -> bool:
        if self._step == self._fails_after:
            return False
        self._writer.write(runs.batch(self._step, slots=self._slots))
        self._step += 1
        return True

    def scale(self, n: int, *, by: str) -> None:
        self.scaled.append((n, by))
        self._writer.write(runs.change(self._step, self._slots, n))
        self._slots = n

    def exception(self) -> object:
        if self._step == self._fails_after:
            return RuntimeError("disk is full\nat org.apache.spark ...")
        return None

    def stop(self) -> None:
        self.stops += 1


class FakeEngine:
    """Starts a `FakeQuery` and verifies as it is told."""

    def __init__(self, verification: Mapping[str, Any] = AGREES, **query: Any) -> None:
        self.query: FakeQuery | None = None
        self.scenario: Scenario | None = None
        self.rehearsed: Scenario | None = None
        self.closed = 0
        self._verification = verification
        self._query = query

    def rehearse(self, scenario: Scenario, interrupted: Callable[[], bool]) -> None:
        self.rehearsed = scenario

    def start(self, scenario: Scenario) -> FakeQuery:
        self.scenario = scenario
        assert scenario.checkpoint is not None
        scenario.checkpoint.mkdir(parents=True, exist_ok=True)
        self.query = FakeQuery(scenario.checkpoint / "journal.jsonl", **self._query)
        return self.query

    def verify(self, scenario: Scenario) -> Mapping[str, Any]:
        self.scenario = scenario
        return self._verification

    def close(self) -> None:
        self.closed += 1
