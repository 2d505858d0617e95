"""Rehearses a run: loads and compiles all code that the run needs, before the load begins.

A first batch loads and compiles code, and its backlog delays later batches, so it is not enough to leave
first batches out of the figures. Only a built-in workload is rehearsed: a user's function, table or topic
must not see reads and writes twice. A short run is not rehearsed: a rehearsal would take longer.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headgate.report.run import Run
from headgate.scenario.description import Scenario
from headgate.scenario.engine import ScenarioQuery

REHEARSED_S = 30.0
"""Shortest planned run that is rehearsed, in s. Chosen, not tuned."""

_BATCHES = 2
"""Batches before each change of slots, and after the last change. Chosen, not tuned."""

_WAIT_S = 60.0
_POLL_S = 0.1


@contextmanager
def elsewhere(scenario: Scenario) -> Iterator[Scenario]:
    """Yield a scenario with a new checkpoint and output, which are removed at the end."""
    with tempfile.TemporaryDirectory(prefix="headgate-rehearsal-") as place:
        yield dataclasses.replace(
            scenario, checkpoint=Path(place) / "checkpoint", output=Path(place) / "output"
        )


def rehearse_changes(
    query: ScenarioQuery, scenario: Scenario, interrupted: Callable[[], bool]
) -> None:
    """Run some batches of a query with each number of slots of its scenario."""
    done = 0
    for slots in (*(slots for _, slots in sorted(scenario.scale_at)), None):
        done = _await_batches(query, done + _BATCHES, interrupted)
        if slots is not None and query.isActive:
            query.scale(slots, by="rehearsal")


def _await_batches(query: ScenarioQuery, count: int, interrupted: Callable[[], bool]) -> int:
    """Wait until a query has done `count` batches; return their number, or `count` without waiting on."""
    until_s = time.monotonic() + _WAIT_S
    while query.isActive and not interrupted() and time.monotonic() < until_s:
        done = len(Run.read(query.journal).rows)
        if done >= count:
            return done
        time.sleep(_POLL_S)
    return count
