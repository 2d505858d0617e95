"""Runs a scenario to its end, and compares its output with Spark's batch answer."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headgate.core.errors import ConfigError, EngineError
from headgate.core.stores import store_url
from headgate.journal.reader import Tail
from headgate.journal.schema import Batch, Start
from headgate.report.summary import summary
from headgate.scenario.description import Scenario, check_place
from headgate.scenario.engine import Engine, ScenarioQuery
from headgate.scenario.places import written
from headgate.scenario.spark import SparkEngine

PROGRESS_S = 0.25
"""Time between two reports of progress and checks of the schedule, in s. Chosen, not tuned."""

FIRST_BATCH_S = 60.0
"""Time counts from the first committed batch, or from this many seconds after the start.

Chosen, not tuned: a quiet source commits nothing, and the run must end."""

OnProgress = Callable[[Path], None]
"""Called with the journal's path every `PROGRESS_S` while the query runs."""


def run_scenario(
    scenario: Scenario,
    on_progress: OnProgress,
    *,
    engine: Engine | None = None,
    clock_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Run a scenario to its end and return its numbers.

    SIGINT and SIGTERM end the run early and cleanly, also while it starts: the query stops after
    its batch, and the summary follows. SIGINT keeps the verification; SIGTERM leaves it out, since
    its sender will not wait. A second signal interrupts at once. Returns the keys of
    `headgate.report.summary.summary`, with those of a requested verification, and startup_s: time
    until the first batch was committed, rehearsal included; None where the run ended before.

    `on_progress`: called with the journal's path, every 0.25 s while the query runs and once after
    its end. `engine`, `clock_s`, `sleep`: the Spark engine, a monotonic clock and a sleep, in s;
    replaced in tests. Raises `EngineError`: the query failed before its time.
    """
    # the places as the user wrote them: an absolute path hides a scheme
    check_place(scenario.checkpoint, or_store=True)
    check_place(scenario.output)
    if scenario.table is not None and scenario.output is not None:
        msg = "the output goes to a table or into a directory; leave --table or --out out."
        raise ConfigError(msg)
    placed = scenario.placed()
    check_place(placed.output)
    if placed.output is not None and not placed.output.name:
        msg = f'"{placed.output}" cannot be the output; name a directory of its own.'
        raise ConfigError(msg)
    used = engine or SparkEngine(scenario.conf)
    asked_s = clock_s()
    with interrupts() as interrupted:
        try:
            used.rehearse(placed, interrupted.is_set)
            query = used.start(placed)
            journal = Path(query.journal)
            try:
                placed.record()
                began_s = _drive(
                    placed, query, on_progress, interrupted, clock_s=clock_s, sleep=sleep
                )
            finally:
                query.stop()
            _raise_failure(placed, query, journal)
            on_progress(journal)
            verification = None
            if placed.verify and not interrupted.terminated:
                any_batch = summary(journal)["batches"] > 0
                verification = used.verify(placed) if any_batch else NOTHING_COMPARED
        finally:
            used.close()
    startup_s = None if began_s is None else round(began_s - asked_s, 1)
    return {**_result(placed, journal, verification), "startup_s": startup_s}


def _drive(
    scenario: Scenario,
    query: ScenarioQuery,
    on_progress: OnProgress,
    interrupted: Interrupted,
    *,
    clock_s: Callable[[], float],
    sleep: Callable[[float], None],
) -> float | None:
    """Request the scenario's changes of slots at their times, until its end, an interrupt or a failure.

    Times count from the first committed batch, or from `FIRST_BATCH_S` after the start. Returns this
    moment by `clock_s`; None if the run ended before.
    """
    started_s = clock_s()
    began_s: float | None = None
    batches = _Batches(Path(query.journal))
    pending = sorted(scenario.scale_at)
    while query.isActive and not interrupted.is_set():
        now_s = clock_s()
        if began_s is None and (batches.any() or now_s - started_s >= FIRST_BATCH_S):
            began_s = now_s
        elapsed_s = 0.0 if began_s is None else now_s - began_s
        while began_s is not None and pending and pending[0][0] <= elapsed_s:
            query.scale(pending.pop(0)[1], by="--scale-at")
        on_progress(Path(query.journal))
        if elapsed_s >= scenario.duration_s:
            break
        sleep(min(PROGRESS_S, scenario.duration_s - elapsed_s))
    return began_s


class _Batches:
    """Tells whether the query has committed a batch since its latest start."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._tail: Tail | None = None
        self._found = False

    def any(self) -> bool:
        """Return whether a batch was committed, after reading the journal's new lines."""
        if self._tail is None and self._journal.is_file():
            self._tail = Tail(self._journal)
        for event in self._tail.events() if self._tail is not None else ():
            # Batches before a start event are of an earlier run in the same checkpoint.
            self._found = isinstance(event, Batch) or (self._found and not isinstance(event, Start))
        return self._found


def _raise_failure(scenario: Scenario, query: ScenarioQuery, journal: Path) -> None:
    """Raise EngineError if the query ended by an exception."""
    failure = query.exception()
    if failure is not None:
        said = _journal_said(scenario, journal)
        msg = f'query "{scenario.workload}" failed: {_reason(failure)}; journal: {said}'
        cause = failure if isinstance(failure, BaseException) else None
        raise EngineError(msg) from cause


_RAISED = re.compile(r"(?:\w+\.)*(\w*(?:Error|Exception|Invalid|Query)): (.+)")
"""Last line of a Python traceback, which Spark has inside its own message."""


def _reason(failure: object) -> str:
    """Return one line that names the failure: the end of a traceback, else the first line."""
    text = str(failure).strip()
    if "Traceback (most recent call last)" in text:
        raised = [match for line in text.splitlines() if (match := _RAISED.match(line.strip()))]
        if raised:
            return f"{raised[-1][1]}: {raised[-1][2]}"
    return text.partition("\n")[0] or type(failure).__name__


_COMPARED = ("verified", "rows_compared", "missing", "extra", "differing", "within_tolerance")

NOTHING_COMPARED: Mapping[str, Any] = {
    "verified": None, "rows_compared": 0, "missing": 0, "extra": 0, "differing": [],
    "within_tolerance": [],
}  # fmt: skip
"""Result of the comparison for a run that ended before its first batch."""


def _journal_said(scenario: Scenario, journal: Path) -> str:
    """Return the journal's place for people: the checkpoint if on a store, as the local file goes."""
    place = scenario.checkpoint
    return str(journal) if place is None or store_url(place) is None else written(place)


def _result(
    scenario: Scenario, journal: Path, verification: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the numbers of the journal, with those of the scenario and the verification."""
    result = summary(journal)
    result["journal"] = _journal_said(scenario, journal)
    result["workload"] = scenario.workload
    result["checkpoint"] = None if scenario.checkpoint is None else written(scenario.checkpoint)
    if scenario.require_slo:
        result["slo_met"] = bool(result["slo"] and result["slo"]["met"])
    if verification is not None:
        result |= {key: verification[key] for key in _COMPARED if key in verification}
        if isinstance(verification.get("dropped"), Mapping):
            result["dropped"] |= verification["dropped"]
    return result


class Interrupted(threading.Event):
    """Is set by the first signal; `terminated` says whether this was SIGTERM."""

    terminated = False


@contextmanager
def interrupts() -> Iterator[Interrupted]:
    """Yield an event that the first SIGINT or SIGTERM sets; the second raises KeyboardInterrupt.

    PySpark's own handler would cancel the running batch, and the query would fail; the engine
    removes that handler.
    """
    asked = Interrupted()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def note(number: int, frame: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.terminated = number == signal.SIGTERM
        asked.set()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def verify_scenario(scenario: Scenario, engine: Engine | None = None) -> dict[str, Any]:
    """Return whether a finished scenario's output equals Spark's batch answer."""
    used = engine or SparkEngine(scenario.conf)
    try:
        return dict(used.verify(scenario.placed()))
    finally:
        used.close()


def explain_workload(
    workload: str,
    options: Mapping[str, Any],
    conf: Mapping[str, str] | None = None,
    output_mode: str | None = None,
    memory_max: str | None = None,
    checkpoint: Path | None = None,
    *,
    real_time: bool = False,
) -> str:
    """Return the elastic parts of a workload, in words; a refusal begins with ``not elastic``."""
    check_place(checkpoint, or_store=True)
    scenario = Scenario(
        workload,
        options=options,
        output_mode=output_mode,
        memory_max=memory_max,
        checkpoint=checkpoint,
        real_time=real_time,
    )
    engine = SparkEngine(conf)
    try:
        return engine.explain(scenario)
    finally:
        engine.close()
